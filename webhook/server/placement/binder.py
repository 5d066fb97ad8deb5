"""Answers bindings, from memory if possible, otherwise through the node's assignment list."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Final

from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.placement import PlacementApi
from webhook.core.placement.binding_review import (
    Binding,
    BindingOutcome,
    BindingReason,
    BindingVerdict,
)
from webhook.core.placement.fit import Denial
from webhook.core.placement.pod_state import PodState
from webhook.server.placement.assignment_lists import NO_DEMAND, AssignmentLists
from webhook.server.placement.node_queue import BindRequest, fail, resolve
from webhook.server.placement.tracker import Tracker
from webhook.server.placement.verdicts import denied, list_unavailable_verdict, unavailable

_NO_SUCH_POD: Final = BindingVerdict(
    outcome=BindingOutcome.UNTOUCHED, reason=BindingReason.NO_SUCH_POD
)


@dataclass(frozen=True, slots=True)
class UndecidedBinding:
    """A binding that cannot be decided from memory."""

    binding: Binding
    pod: PodState | None
    """The pod to be bound; None if unknown."""


class Binder:
    """Answers bindings. Safe from any thread."""

    def __init__(self, api: PlacementApi, tracker: Tracker, lists: AssignmentLists) -> None:
        self._api = api
        self._tracker = tracker
        self._lists = lists

    def decide_from_memory(self, binding: Binding) -> BindingVerdict | UndecidedBinding:
        """Decide a binding without sending a request if possible; otherwise use `bind`.

        | the pod | the node | answer |
        | --- | --- | --- |
        | unknown | without known GPUs | untouched |
        | without a demand | any | untouched |
        | finished | any | untouched; the API server rejects the binding |
        | with an unreadable demand, to be placed at binding | any | denied |
        """
        pod = self._tracker.pod(binding.uid)
        if pod is not None:
            return _verdict_without_gpus(binding, pod) or UndecidedBinding(binding, pod)
        known = self._tracker.node(binding.node) or self._tracker.knows_pod(binding.pod)
        if known or self._tracker.obstacle():
            return UndecidedBinding(binding, None)
        return NO_DEMAND

    def bind(self, undecided: UndecidedBinding, *, dry_run: bool = False) -> Future[BindingVerdict]:
        """Decide a binding that `decide_from_memory` does not; returns at once.

        The caller cancels the future when it times out.

        | the pod | the node | answer |
        | --- | --- | --- |
        | as in `decide_from_memory` | | the same, after one request at most |
        | gone | any | untouched; the API server rejects the binding |
        | sees all GPUs | any | untouched, once the pod is entered |
        | sees all GPUs | any, and the API server is unreachable | untouched |
        | with a demand | without GPUs or their names, as just read | denied |
        | requires the driver's limit | without the limit's label, as just read | denied |
        | with a demand | with GPUs | placed or denied (`plan_assignments`) |
        | any | any, and the API server is unreachable | `fallback_verdict` |
        """
        binding, pod = undecided.binding, undecided.pod
        answer: Future[BindingVerdict] = Future()
        if pod is not None and not pod.gone:
            self._lists.submit(binding.node, BindRequest(answer=answer, pod=pod, dry_run=dry_run))
        else:
            self._lists.run(partial(self._bind_unknown, binding, answer, dry_run=dry_run))
        return answer

    def _bind_unknown(
        self, binding: Binding, answer: Future[BindingVerdict], *, dry_run: bool
    ) -> None:
        """Read a pod that is unknown, or reported as deleted, and queue its binding."""
        if answer.cancelled():
            return
        try:
            pod = self._api.pod(binding.namespace, binding.name)
            verdict = _verdict_without_gpus(binding, pod)
        except KubeError as error:
            resolve(answer, self.fallback_verdict(binding, str(error)))
        except Exception as error:  # noqa: BLE001 - whatever the bug, callers get an answer
            fail(answer, error)
        else:
            if pod is None or verdict is not None:
                resolve(answer, verdict or _NO_SUCH_POD)
            else:
                request = BindRequest(answer=answer, pod=pod, dry_run=dry_run)
                self._lists.submit(binding.node, request)

    def fallback_verdict(self, binding: Binding, why: str) -> BindingVerdict:
        """Return the verdict if the API server does not respond in time.

        Only a pod known to need GPUs is denied. Any other pod may be unrelated to vramwarden and
        must not wait. A vramwarden pod bound this way is pending on its node, and is assigned late.
        """
        if self.needs_placement(binding):
            return unavailable(binding.node, why)
        pod = self._tracker.pod(binding.uid)
        if pod is not None and pod.need:
            return list_unavailable_verdict(binding.node, why)
        sentence = f"whether this pod needs a GPU of node {binding.node} is not known now"
        return BindingVerdict(
            outcome=BindingOutcome.UNTOUCHED,
            reason=BindingReason.API_SERVER_AWAY,
            message=f"{sentence}: {why}",
        )

    def needs_placement(self, binding: Binding) -> bool:
        """Return True if the pod is known to need GPUs; sends no request."""
        pod = self._tracker.pod(binding.uid)
        return pod is not None and pod.needs_placement


def _verdict_without_gpus(binding: Binding, pod: PodState | None) -> BindingVerdict | None:
    """Return the verdict on a pod that needs no entry in a list, or None."""
    if pod is None or pod.finished or binding.uid not in {"", pod.uid}:
        return _NO_SUCH_POD
    if pod.need is None:
        return NO_DEMAND
    if pod.at_binding and pod.unreadable:
        sentence = f"the pod's demand cannot be read: {pod.unreadable}; create the pod again"
        return denied(BindingReason.UNREADABLE_DEMAND, Denial(sentence))
    return None
