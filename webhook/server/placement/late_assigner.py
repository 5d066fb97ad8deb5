"""Assigns GPUs to pods that were bound without vramwarden because no replica answered in time.

Containers with VRAM of such a pod do not start, as the gate waits for an annotation. Every replica
assigns late, through the same lists as bindings, so no leader is needed. The list is written first,
then the pod. Annotations never change once they are written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import islice
from threading import Condition, Thread
from typing import Final

from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.follow import JITTER
from webhook.adapters.kube.placement import PlacementApi, StoredPod
from webhook.core.bounds import MAX_SENTENCE_LENGTH
from webhook.core.placement.binding_review import BindingOutcome, BindingVerdict
from webhook.core.placement.fit import RETRIES
from webhook.core.placement.pod_state import PendingAssignment, PodState
from webhook.names import GPU_WAITS_ANNOTATION
from webhook.server.bounds import MAX_WAITING_UPDATES
from webhook.server.log import JsonLog
from webhook.server.metrics import PlacementMetrics
from webhook.server.placement.assignment_lists import AssignmentLists
from webhook.server.placement.node_queue import BindRequest
from webhook.server.placement.tracker import Tracker

EVERY_S: Final = 30.0
"""Interval in seconds between two attempts for all pending pods, in case an event was missed."""

DELAY_S: Final = 0.5
"""Maximum random delay in seconds, so that replicas do not all try at once."""

PATIENCE_S: Final = 300.0
"""Seconds from the first denial until a pod with a controller is deleted and thus moved."""

ANNOTATE_EVERY_S: Final = 30.0
"""Minimum interval in seconds between two changes of a pod's annotation `gpu-waits`."""

CHECK_RIGHTS_EVERY_S: Final = 300.0
"""Seconds for which the result of the permission check is cached."""

NODES_AT_ONCE: Final = 16
"""Maximum number of nodes that are tried at a time. After an outage thousands of nodes may have
pending pods, and each may use a thread that bindings share (`assignment_lists.AT_ONCE`)."""

TRIES: Final = 3
"""Maximum number of attempts to change a pod. The kubelet also changes the status of a new pod."""

_RIGHTS: Final = "late rights"
_TRYING: Final = "late"
_WAITS_ON: Final = (
    "; it was bound while vramwarden was away, and is tried again whenever a pod ends there or the "
    "node changes"
)


class LateAssigner:
    """Thread that assigns GPUs to pending pods."""

    def __init__(
        self,
        api: PlacementApi,
        metrics: PlacementMetrics,
        log: JsonLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write through `api`; `clock` returns monotonic seconds."""
        self._api = api
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._changed = Condition()
        self._due: list[tuple[float, str]] = []
        self._due_nodes: set[str] = set()
        self._denied_since_s: dict[str, float] = {}
        self._annotated_at_s: dict[str, float] = {}
        self._check_rights_at_s = 0.0
        self._may = False

    def on_pending(self, pod: PodState) -> None:
        """Schedule the node of a bound pod that has no GPU yet; returns at once."""
        self._schedule([pod.node])

    def on_ended(self, pod: PodState, tracker: Tracker) -> None:
        """Schedule the node of an ended pod, if pods are pending on the node; returns at once."""
        self._schedule(tracker.nodes_with_pending([pod.node]))

    def on_nodes_changed(self, nodes: set[str], tracker: Tracker) -> None:
        """Schedule the changed nodes on which pods are pending; returns at once."""
        self._schedule(tracker.nodes_with_pending(nodes))

    def _schedule(self, nodes: Iterable[str]) -> None:
        """Schedule nodes, each once, for an attempt within `DELAY_S`."""
        with self._changed:
            for node in nodes:
                if node not in self._due_nodes:
                    delay_s = JITTER(0, DELAY_S)
                    self._due_nodes.add(node)
                    heappush(self._due, (self._clock() + delay_s, node))
                    self._changed.notify()

    def start(self, lists: AssignmentLists, tracker: Tracker) -> None:
        """Start the daemon thread."""
        arguments = (lists, tracker)
        Thread(target=self._run, args=arguments, name="placement-late", daemon=True).start()

    def _run(self, lists: AssignmentLists, tracker: Tracker) -> None:
        next_round_s = self._clock() + EVERY_S
        while True:
            try:
                due = self._wait_for_nodes(next_round_s)
                if self._clock() >= next_round_s:
                    next_round_s = self._clock() + EVERY_S * JITTER(0.75, 1.25)
                    due = tracker.nodes_with_pending()
                    self._forget_others({pod.uid for pod in tracker.pending_pods()})
                self.assign(lists, {node: tracker.pending_pods(node) for node in due})
            except Exception:  # noqa: BLE001 - a bug must not end the thread silently
                self._log.exception("late assignment failed")
                time.sleep(EVERY_S)

    def _wait_for_nodes(self, until_s: float) -> list[str]:
        """Return the nodes that are due, waiting until `until_s` at most."""
        with self._changed:
            while not self._due or self._due[0][0] > self._clock():
                wait_s = min([until_s, *(due_s for due_s, _ in self._due[:1])]) - self._clock()
                if wait_s <= 0:
                    break
                self._changed.wait(wait_s)
            due = []
            while self._due and self._due[0][0] <= self._clock():
                due.append(heappop(self._due)[1])
            self._due_nodes.difference_update(due)
            return due

    def _forget_others(self, uids: set[str]) -> None:
        """Forget the times of all pods except these, which are still pending."""
        for remembered in (self._denied_since_s, self._annotated_at_s):
            for uid in remembered.keys() - uids:
                del remembered[uid]

    def assign(self, lists: AssignmentLists, waiting: Mapping[str, Sequence[PodState]]) -> None:
        """Try to give pending pods their GPUs. `waiting` is keyed by node; each list is used once.

        | GPUs of its node | the pod |
        | --- | --- |
        | free, or entered for it already | gets them |
        | none is free, or none has a name | gets `gpu-waits`; with a controller it is deleted \
after `PATIENCE_S`, even if some of its containers run |
        | any, but the pod has got GPUs, ended or gone meanwhile | is not changed |

        An unexpected exception is raised after all pods were tried.
        """
        if not any(waiting.values()) or not self._may_assign(lists):
            return
        failed: dict[str, Exception] = {}
        nodes = iter(waiting)
        while some := list(islice(nodes, NODES_AT_ONCE)):
            queued: list[BindRequest] = []
            for node in some:
                requests = [BindRequest(pod=pod) for pod in waiting[node]]
                lists.submit(node, *requests)
                queued += requests
            for request in queued:
                verdict = partial(lists.wait, request.answer)
                self._count_outcome(
                    request.pod, partial(self._apply_verdict, request.pod, verdict), failed
                )
        for error in failed.values():
            if not isinstance(error, KubeError):
                raise error
        if failed:
            message = "pods that were bound without us cannot be given their GPUs; retrying"
            name, first = next(iter(failed.items()))
            why = f"{name}: {first}"[:MAX_SENTENCE_LENGTH]
            self._log.once(_TRYING, "error", message, why, pods=len(failed))
        else:
            self._log.over(_TRYING, "pods that were bound without us get their GPUs again")

    def _may_assign(self, lists: AssignmentLists) -> bool:
        """Return True if the webhook may patch `pods/status`; without the fence it may not."""
        if self._clock() >= self._check_rights_at_s:
            try:
                self._may = self._api.is_allowed("patch", "pods", "status")
            except KubeError as error:
                self._log.once(_RIGHTS, "error", "our rights cannot be read; retrying", str(error))
                return False
            self._check_rights_at_s = self._clock() + CHECK_RIGHTS_EVERY_S
            lists.assigns_late = self._may
            if self._may:
                self._log.over(_RIGHTS, "pods that were bound without us are assigned late")
            else:
                message = "pods that were bound without us are not assigned late"
                why = "our account may not patch pods/status; delete those pods"
                self._log.once(_RIGHTS, "warning", message, why)
        return self._may

    def _count_outcome(
        self, pod: PodState, act: Callable[[], str], failed: dict[str, Exception]
    ) -> None:
        try:
            outcome = act()
        except Exception as error:  # noqa: BLE001 - a bug with one pod must not affect others
            forbidden = isinstance(error, KubeError) and error.forbidden
            outcome = "forbidden" if forbidden else "failed"
            failed[pod.name] = error
        self._metrics.late.labels(outcome).inc()

    def _apply_verdict(self, pod: PodState, decided: Callable[[], BindingVerdict]) -> str:
        verdict = decided()
        if verdict.outcome is BindingOutcome.PLACED:
            return self._assign(pod, verdict)
        if verdict.outcome is not BindingOutcome.DENIED:
            raise KubeError(verdict.message)
        now_s = self._clock()
        waited_s = now_s - self._denied_since_s.setdefault(pod.uid, now_s)
        sentence = verdict.message.removesuffix(RETRIES)
        if pod.pending and pod.pending.has_controller and waited_s >= PATIENCE_S:
            return self._delete(pod, sentence)
        self._annotate(pod, sentence + _WAITS_ON)
        return "no_room"

    def _assign(self, pod: PodState, verdict: BindingVerdict) -> str:
        written = {**verdict.annotations, GPU_WAITS_ANNOTATION: None}
        if not self._change(pod, lambda found: self._api.annotate(found, written)):
            return "unneeded"
        self._denied_since_s.pop(pod.uid, None)
        self._log.info("assigned late", pod=pod.name, node=pod.node, gpus=list(verdict.uuids))
        return "assigned"

    def _delete(self, pod: PodState, why: str) -> str:
        if not self._change(pod, self._api.delete_pod, lambda waits: waits.has_controller):
            return "unneeded"
        message = "deleted a pod that was bound without us, for its controller to make another"
        self._log.warning(message, pod=pod.name, node=pod.node, why=why)
        return "deleted"

    def _annotate(self, pod: PodState, sentence: str) -> bool:
        """Write on a pod why it is pending, if the reason is new; return True if written."""
        sentence = sentence[:MAX_SENTENCE_LENGTH]
        now_s = self._clock()
        annotated_at_s = self._annotated_at_s.get(pod.uid)
        pause_s = ANNOTATE_EVERY_S * max(1, len(self._annotated_at_s) / MAX_WAITING_UPDATES)
        if (pod.pending and pod.pending.last_message == sentence) or (
            annotated_at_s is not None and now_s - annotated_at_s < pause_s
        ):
            return False
        self._annotated_at_s[pod.uid] = now_s
        told = {GPU_WAITS_ANNOTATION: sentence}
        return self._change(
            pod,
            lambda found: self._api.annotate(found, told),
            lambda waits: waits.last_message != sentence,
        )

    def _change(
        self,
        pod: PodState,
        change: Callable[[StoredPod], None],
        holds: Callable[[PendingAssignment], bool] = lambda _waits: True,
    ) -> bool:
        """Change a stored pod that is still pending, if `holds` is true; return True if changed."""
        for left in reversed(range(TRIES)):
            found = self._api.read_stored_pod(pod.name)
            if found is None or found.state.uid != pod.uid:
                return False
            if not found.state.pending or not holds(found.state.pending):
                return False
            try:
                change(found)
            except KubeError as error:
                if error.not_found:
                    return False
                if not error.conflict or not left:
                    raise
            else:
                return True
        return False
