"""Nodes' assignment lists, planned and written for all queued requests at once.

A write needs the `resourceVersion` that its plan is based on. If two replicas plan on the same
version, or one plans on a stale watch, only one write succeeds. This prevents overcommitment. All
queued requests for a node are planned together and written once, to save requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.placement import GpuNode, PlacementApi, StoredList
from webhook.core.nvidia.variables import DeviceNames
from webhook.core.placement.assignment_codec import WholeGpuPods
from webhook.core.placement.assignments import (
    AS_READ,
    AssignmentPlan,
    Assignments,
    FindTerms,
    complete_terms,
    plan_assignments,
    rebuild_from_pods,
)
from webhook.core.placement.binding_review import BindingOutcome, BindingReason, BindingVerdict
from webhook.core.placement.fit import Denial
from webhook.core.placement.garbage import entries_of_missing_pods, prune
from webhook.core.placement.gpu_annotations import gpu_annotations
from webhook.core.placement.pod_state import PodState
from webhook.server.metrics import PlacementMetrics
from webhook.server.placement.node_queue import (
    AnswerRequest,
    BindRequest,
    CollectRequest,
    ListRequest,
    NodeQueue,
    fail,
    resolve,
)
from webhook.server.placement.tracker import Tracker
from webhook.server.placement.verdicts import (
    denied,
    list_unavailable_verdict,
    node_denial,
    pod_denial,
    unavailable,
)

T = TypeVar("T")

TRIES: Final = 20
"""Maximum number of attempts to write a list. At each conflict another replica succeeded."""

AT_ONCE: Final = 32
"""Maximum number of threads for requests to the API server: one per node with queued requests,
and one per unknown pod."""

NO_DEMAND: Final = BindingVerdict(outcome=BindingOutcome.UNTOUCHED, reason=BindingReason.NO_DEMAND)


@dataclass(frozen=True, slots=True)
class PlannedWrite:
    """A node's list to be written, and the result for each request."""

    assignments: Assignments
    answer: WholeGpuPods | None
    changed: bool
    results: Mapping[str, tuple[str, ...] | Denial]
    """UUIDs or denial, keyed by pod UID."""
    reserved: tuple[PodState, ...]
    """Pending pods that got GPUs in this write without being in the queue."""

    def denies(self, request: ListRequest) -> bool:
        """Return True if the pod of a request is denied."""
        return isinstance(request, BindRequest) and isinstance(
            self.results[request.pod.uid], Denial
        )


class AssignmentLists:
    """Reads, plans and writes the nodes' assignment lists. Safe from any thread."""

    def __init__(
        self,
        api: PlacementApi,
        tracker: Tracker,
        metrics: PlacementMetrics,
        reserved: Callable[[PodState], None] = lambda _pod: None,
        run: Callable[[Callable[[], None]], object] | None = None,
        find_terms: FindTerms = AS_READ,
    ) -> None:
        """Plan with the pods and nodes of `tracker` and the lists in `api`.

        `find_terms` finds the terms of new entries. `reserved` is called with a pending pod after
        GPUs are entered for it but before they are written on the pod. `run` starts a function on
        another thread.
        """
        self._api = api
        self._tracker = tracker
        self._metrics = metrics
        self._reserved = reserved
        self._find_terms = find_terms
        self.run = run or ThreadPoolExecutor(AT_ONCE, "placement").submit
        self._queue = NodeQueue(self._serve, self.run)
        self.submit = self._queue.submit
        """Queues requests against a node's list; returns at once."""
        self._copies: dict[str, StoredList] = {}
        self.assigns_late = False
        """True if GPUs are reserved for pending pods, which requires permission to assign late."""
        metrics.entries.set_function(self._count_entries)

    def wait(self, answer: Future[T]) -> T:
        """Return the result of a request; blocks the thread until the result is known."""
        return answer.result()

    def cached(self, node: str) -> StoredList | None:
        """Return a node's list as last read or written by this replica, or None."""
        return self._copies.get(node)

    def nodes_with_entries(self, pods: Iterable[PodState]) -> set[str]:
        """Return the nodes whose cached lists have an entry of one of these pods.

        A bound pod uses only its own node's GPUs, so only that list is searched. For the other pods
        all lists are searched once.
        """
        found, unbound = set(), set()
        for pod in pods:
            stored = self._copies.get(pod.node)
            if not pod.node:
                unbound.add(pod.uid)
            elif stored and pod.uid in stored.assignments:
                found.add(pod.node)
        if unbound:
            for name, stored in list(self._copies.items()):
                if not unbound.isdisjoint(stored.assignments):
                    found.add(name)
        return found

    def forget(self, node: str) -> None:
        """Drop the cached list of a node that is gone or no longer lists GPUs."""
        self._copies.pop(node, None)

    def _count_entries(self) -> int:
        return sum(len(stored.assignments) for stored in list(self._copies.values()))

    def _serve(self, name: str, requests: list[ListRequest]) -> None:
        """Serve all queued requests of a node; never raises."""
        try:
            self._place(name, requests)
        except KubeError as error:
            for request in requests:
                if not isinstance(request, BindRequest):
                    fail(request.answer, error)
                elif request.pod.at_binding:
                    resolve(request.answer, unavailable(name, str(error)))
                else:
                    resolve(request.answer, list_unavailable_verdict(name, str(error)))
        except Exception as error:  # noqa: BLE001 - whatever the bug, callers get an answer
            for request in requests:
                fail(request.answer, error)

    def _place(self, name: str, requests: list[ListRequest]) -> None:
        """Plan all requests on the cached list, or the stored one if stale, and write the plan.

        | the list | callers are answered |
        | --- | --- |
        | cached | after the write, which proves that the cached list was the stored one |
        | just read | at once if nothing changes, otherwise after the write |

        Raises KubeError, also if other replicas always write first.
        """
        node = self._read_node(name, requests)
        stored = self._copies.get(name)
        for _ in range(TRIES):
            requests = [request for request in requests if not request.answer.done()]
            if not requests:
                return
            fresh = stored is None
            stored = stored or self._read(name)
            planned = self._plan(node, requests, stored)
            is_denied = any(map(planned.denies, requests))
            if not fresh and (is_denied or not planned.changed):
                stored = None  # the list may be stale, which only a write would reveal
                continue
            if is_denied:
                stored = self._without_missing_pods(name, stored)
                planned = self._plan(node, requests, stored)
            if not planned.changed or self._store(name, planned, stored.version):
                self._answer(requests, planned, node)
                return
            stored = None
        raise KubeError(f"others keep writing the list of node {name}")

    def _read_node(self, name: str, requests: list[ListRequest]) -> GpuNode:
        """Return a node with its GPUs, and deny the pods that cannot get any GPU of the node.

        The node is read again before a denial, since the reason may no longer apply.
        """
        node = self._tracker.node(name)
        choosing = [
            request
            for request in requests
            if isinstance(request, BindRequest) and request.pod.at_binding
        ]
        if any(self._pod_denial(name, node, request.pod) for request in choosing) or (
            choosing and node and node.closed_reason
        ):
            node = self._api.node(name)
        for request in choosing:
            if denial := self._pod_denial(name, node, request.pod):
                resolve(request.answer, denial)
        return node if node and not node_denial(name, node) else GpuNode(name=name, gpus=())

    def _plan(self, node: GpuNode, requests: list[ListRequest], stored: StoredList) -> PlannedWrite:
        """Plan all requests together, after the pods that are pending on the node.

        Pending pods come first, and are planned even without a request.
        """
        name, gpus = node.name, node.gpus
        binds = [request for request in requests if isinstance(request, BindRequest)]
        dry_runs = [request for request in binds if request.dry_run]
        is_dry_run = len(dry_runs) == len(requests)
        entered = self._apply_collect_requests(name, requests, stored.assignments)
        keeps = gpus and not is_dry_run and self.assigns_late
        waiting = [
            pod
            for pod in self._tracker.pending_pods(name)
            if keeps and not self._pod_denial(name, node, pod)
        ]
        requested = {request.pod.uid: request.pod for request in binds if not request.dry_run}
        wanted = {pod.uid: pod for pod in waiting} | requested

        def draft(entered: Assignments, pods: Iterable[PodState]) -> AssignmentPlan:
            known_pods = self._tracker.pods_for(name, entered)
            return plan_assignments(
                name,
                gpus,
                entered,
                known_pods,
                pods,
                self._api.now_s(),
                node.closed_reason,
                driver_limits=node.driver_limit,
                terms=self._find_terms,
            )

        made = draft(entered, wanted.values())
        results = dict(zip(wanted, made.results, strict=True))
        for request in dry_runs:
            (results[request.pod.uid],) = draft(made.assignments, [request.pod]).results
        is_collected = entered is not stored.assignments and entered != stored.assignments
        is_lost = not stored.whole and bool(stored.version or entered) and not is_dry_run
        answer = stored.answer
        for question in (request for request in requests if isinstance(request, AnswerRequest)):
            if answer is None or answer.asked != question.whole.asked:
                answer = question.whole
        return PlannedWrite(
            made.assignments,
            answer,
            made.changed or is_lost or is_collected or answer is not stored.answer,
            results,
            tuple(
                pod
                for pod in waiting
                if pod.uid not in requested
                and pod.uid not in stored.assignments
                and pod.uid in made.assignments
            ),
        )

    def _apply_collect_requests(
        self, name: str, requests: list[ListRequest], entered: Assignments
    ) -> Assignments:
        """Return the list without leaving entries, with joining ones, and with completed terms."""
        collects = [request for request in requests if isinstance(request, CollectRequest)]
        leaving = {item for request in collects for item in request.leaving.items()}
        if leaving:
            entered = dict(item for item in entered.items() if item not in leaving)
        joining = [pod for request in collects for pod in request.joining]
        if joining:
            entered = rebuild_from_pods(name, entered, joining, self._api.now_s(), self._find_terms)
        if any(not isinstance(request, BindRequest) for request in requests):
            known_pods = self._tracker.pods_for(name, entered)
            entered = complete_terms(entered, known_pods, self._find_terms)
        return entered

    def _answer(self, requests: list[ListRequest], planned: PlannedWrite, node: GpuNode) -> None:
        """Answer all requests, after the planned list was stored."""
        for request in requests:
            if isinstance(request, BindRequest):
                resolve(request.answer, _verdict(request.pod, planned, node))
            else:
                resolve(request.answer, None)
        for pod in planned.reserved:
            self._reserved(pod)

    def _pod_denial(self, name: str, node: GpuNode | None, pod: PodState) -> BindingVerdict | None:
        return pod_denial(name, node, pod, self._find_terms)

    def _without_missing_pods(self, name: str, stored: StoredList) -> StoredList:
        """Return the list without entries of deleted pods, verified with the API server."""
        pods = self._tracker.pods_for(name, stored.assignments)
        answers = self._api.read_pods(entries_of_missing_pods(stored.assignments, pods))
        left = prune(name, stored.assignments, pods, answers, self._api.now_s())
        return replace(stored, assignments=left)

    def _read(self, name: str) -> StoredList:
        """Return a node's list; if it is missing or damaged, rebuild it from the node's pods."""
        stored = self._api.read_list(name)
        if stored.whole:
            self._copies[name] = stored
            return stored
        pods = self._api.list_pods_on(name)
        now_s = self._api.now_s()
        adopted = rebuild_from_pods(name, stored.assignments, pods, now_s, self._find_terms)
        return replace(stored, assignments=adopted)

    def _store(self, name: str, planned: PlannedWrite, version: str) -> bool:
        """Write a list; return False if another replica wrote it first."""
        try:
            self._copies[name] = self._api.write_list(
                name, planned.assignments, version, planned.answer
            )
        except KubeError as error:
            self._copies.pop(name, None)
            if not error.conflict and not error.not_found:
                raise
            self._metrics.conflicts.inc()
            return False
        return True


def _verdict(pod: PodState, planned: PlannedWrite, node: GpuNode) -> BindingVerdict:
    """Return the verdict on a pod from its planned result."""
    result = planned.results[pod.uid]
    if isinstance(result, Denial):
        return denied(BindingReason.NO_GPU_FITS, result)
    if not pod.at_binding:
        return NO_DEMAND
    cap_bytes = pod.need.memory_bytes if pod.need else 0
    # In a dry run no entry was written.
    entered = planned.assignments.get(pod.uid)
    limit = (
        entered.terms.limit
        if entered and entered.terms
        else pod.limit_on(driver_limits=node.driver_limit)
    )
    names = node.device_names or DeviceNames.NONE
    annotations = gpu_annotations(result, node.gpus, names, cap_bytes, limit)
    return BindingVerdict(outcome=BindingOutcome.PLACED, uuids=result, annotations=annotations)
