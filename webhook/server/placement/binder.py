"""Decides a binding: which GPUs, recorded in the node's list before the API server may go on.

The write makes this safe: the list's `resourceVersion` must be the one that was decided on, so of
two replicas, or of a replica and an old watch, only one can succeed. The rest saves requests.
"""

from __future__ import annotations

import time
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Final

from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.placement import GpuNode, Stored
from webhook.core.placement.assignments import adopt, plan, settle, to_ask, to_ask_at_once
from webhook.core.placement.binding_review import BindingOutcome, BindingReason, Verdict
from webhook.core.placement.fit import Denial, unknown_gpus

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.adapters.kube.placement import PlacementApi
    from webhook.core.placement.assignments import Assignment, Assignments, Plan, PodState
    from webhook.core.placement.binding_review import Binding
    from webhook.server.metrics import PlacementMetrics
    from webhook.server.placement.tracker import Tracker

TRIES: Final = 20
"""To write a list that others write, too; each conflict is another's success."""

_UNTOUCHED: Final = BindingOutcome.UNTOUCHED
_NO_SUCH_POD: Final = Verdict(_UNTOUCHED, BindingReason.NO_SUCH_POD)


class Binder:
    """Answers bindings, and removes from the lists what no pod uses; safe from any thread."""

    def __init__(
        self,
        api: PlacementApi,
        tracker: Tracker,
        metrics: PlacementMetrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Decide by what `tracker` knows and `api` stores; `clock` gives Unix time in seconds."""
        self._api = api
        self._tracker = tracker
        self._clock = clock
        self._copies: dict[str, Stored] = {}
        self._locks: dict[str, Lock] = {}
        self._metrics = metrics
        metrics.entries.set_function(self._entries)

    def from_memory(self, binding: Binding) -> Verdict | None:
        """Decide a binding at once; None where a request is needed (`bind`).

        | the pod | the node | answer |
        | --- | --- | --- |
        | unknown | without GPUs, as far as known | untouched |
        | without a demand, or it sees all GPUs | any | untouched |
        | finished | any | untouched; the API server rejects it itself |
        | with a demand that cannot be read | any | denied |
        """
        pod = self._tracker.pod(binding.uid)
        if pod is not None:
            return _without_placing(binding, pod)
        known = self._tracker.node(binding.node) or self._tracker.has(binding.pod)
        if known or self._tracker.obstacle():
            return None
        return Verdict(_UNTOUCHED, BindingReason.NO_DEMAND)

    def bind(self, binding: Binding, *, dry_run: bool = False) -> Verdict:
        """Decide a binding; never raises KubeError: without the API server it is denied.

        | the pod | the node | answer |
        | --- | --- | --- |
        | as in `from_memory` | | the same, after one request at most |
        | gone | any | untouched; the API server rejects it itself |
        | with a demand | without GPUs, as read now | denied |
        | with a demand | with GPUs | placed or denied (`plan`) |
        """
        verdict = self.from_memory(binding)
        if verdict is not None:
            return verdict
        cannot = f"whether this pod needs a GPU of node {binding.node} is not known now"
        try:
            pod = self._tracker.pod(binding.uid)
            if pod is None or pod.gone:
                pod = self._api.pod(binding.namespace, binding.name)
            verdict = _without_placing(binding, pod)
            if pod is None or verdict is not None:
                return verdict or _NO_SUCH_POD
            cannot = f"no GPU of node {binding.node} can be chosen for this pod now"
            return self._choose(binding, pod, dry_run=dry_run)
        except KubeError as error:
            sentence = f"{cannot}: {error}; the scheduler retries"
            return Verdict(
                BindingOutcome.UNAVAILABLE, BindingReason.API_SERVER_AWAY, message=sentence
            )

    def _choose(self, binding: Binding, pod: PodState, *, dry_run: bool) -> Verdict:
        node = self._tracker.node(binding.node)
        if node is None or not node.gpus:
            node = self._api.node(binding.node)
        if node is None or not node.gpus:
            sentence = unknown_gpus(binding.node).sentence
            return Verdict(BindingOutcome.DENIED, BindingReason.GPUS_UNKNOWN, sentence)
        with self._lock(node.name):
            return self._place(node, pod, dry_run=dry_run)

    def _place(self, node: GpuNode, pod: PodState, *, dry_run: bool) -> Verdict:
        """Plan on the list that was last read, and write it; where it is old, on the stored one.

        Raises KubeError, also where others always write first.
        """
        stored = self._copies.get(node.name)
        for _ in range(TRIES):
            fresh = stored is None
            stored = stored or self._read(node)
            made = self._plan(node, pod, stored)
            if not fresh and (isinstance(made, Denial) or not made.changed):
                stored = None  # it may be old, or deleted, and only a write would find out
                continue
            if isinstance(made, Denial):
                stored = self._without_the_gone(node, stored)
                made = self._plan(node, pod, stored)
                if isinstance(made, Denial):
                    return Verdict(BindingOutcome.DENIED, BindingReason.NO_GPU_FITS, made.sentence)
            if dry_run or not made.changed:
                return Verdict(BindingOutcome.PLACED, uuids=made.uuids)
            if self._store(node, made.assignments, stored.version):
                return Verdict(BindingOutcome.PLACED, uuids=made.uuids)
            stored = None
        raise KubeError(f"others keep writing the list of node {node.name}")

    def _plan(self, node: GpuNode, pod: PodState, stored: Stored) -> Plan | Denial:
        pods = self._tracker.relevant(node.name, stored.assignments)
        return plan(node.name, node.gpus, stored.assignments, pods, pod, self._clock())

    def _without_the_gone(self, node: GpuNode, stored: Stored) -> Stored:
        """Leave out the entries of pods that are gone; asks the API server, too. See `tidy`."""
        pods = self._tracker.relevant(node.name, stored.assignments)
        answers = self._ask(to_ask_at_once(stored.assignments, pods))
        left = settle(node.name, stored.assignments, pods, answers, self._clock())
        return replace(stored, assignments=left)

    def _ask(self, entries: dict[str, Assignment]) -> dict[str, PodState | None]:
        return {uid: self._api.pod(*one.pod.split("/")) for uid, one in entries.items()}

    def _read(self, node: GpuNode) -> Stored:
        """Read a node's list; where it is missing or damaged, enter what its pods have already."""
        stored = self._api.assignments(node.name)
        if stored.whole:
            self._copies[node.name] = stored
            return stored
        pods = self._api.pods_on(node.name)
        adopted = adopt(node.name, stored.assignments, pods, self._clock())
        return Stored(node.name, adopted, whole=True, version=stored.version)

    def _store(self, node: GpuNode, assignments: Assignments, version: str) -> bool:
        """Write a list; return whether nobody else wrote it first."""
        try:
            self._copies[node.name] = self._api.store(node, assignments, version)
        except KubeError as error:
            self._copies.pop(node.name, None)
            if not error.conflict and not error.not_found:
                raise
            self._metrics.conflicts.inc()
            return False
        return True

    def tidy(self, name: str, *, fresh: bool = False) -> None:
        """Remove from a node's list what no pod uses any more; raises KubeError.

        With `fresh` the stored list is read; without, the last one read is used.
        """
        with self._lock(name):
            stored = None if fresh else self._copies.get(name)
            stored = stored or self._api.assignments(name)
            if not stored.whole:
                return  # the next binding restores what is missing from the node's pods
            pods = self._tracker.relevant(name, stored.assignments)
            now_s = self._clock()
            answers = self._ask(to_ask(stored.assignments, pods, now_s))
            left = settle(name, stored.assignments, pods, answers, now_s)
            if len(left) < len(stored.assignments):
                node = self._tracker.node(name) or self._api.node(name)
                if node is not None:
                    self._store(node, left, stored.version)
                else:
                    self._copies.pop(name, None)

    def nodes_of(self, uid: str) -> list[str]:
        """Return the nodes in whose lists, as last read here, a pod is entered."""
        return [name for name, stored in list(self._copies.items()) if uid in stored.assignments]

    def _entries(self) -> int:
        return sum(len(stored.assignments) for stored in list(self._copies.values()))

    def _lock(self, node: str) -> Lock:
        """Return the lock that keeps this replica from competing with itself for a node."""
        return self._locks.setdefault(node, Lock())


def _without_placing(binding: Binding, pod: PodState | None) -> Verdict | None:
    """Return the answer for a pod that gets no GPU from us; None for all others."""
    if pod is None or pod.finished or binding.uid not in {"", pod.uid}:
        return _NO_SUCH_POD
    if pod.need is None or not pod.at_binding:
        return Verdict(_UNTOUCHED, BindingReason.NO_DEMAND)
    if pod.unreadable:
        sentence = f"the pod's demand cannot be read: {pod.unreadable}; create the pod again"
        return Verdict(BindingOutcome.DENIED, BindingReason.UNREADABLE_DEMAND, sentence)
    return None
