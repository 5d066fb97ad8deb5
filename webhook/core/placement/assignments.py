"""Assignment list of a node, which maps pods to GPUs, and plans for new assignments.

All replicas share the list in one ConfigMap per node. A pod is entered *before* its binding is
allowed. The write requires the ConfigMap's current `resourceVersion`, so if two replicas write at
the same time, only one succeeds. An entry is removed only after its pod finished, was deleted or
was bound to another node, since none of these can be undone. So no decision depends on how fresh a
watch is. A superfluous entry only makes the scheduler retry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from webhook.core.placement.cap_terms import CapTerms, with_limit
from webhook.core.placement.fit import Denial, deny_closed_node, place
from webhook.core.placement.pod_state import PodState, may_use_gpus
from webhook.core.pod.gpus import EVERY_GPU, MAX_GPUS, DriverLimit, Gpu, allocate, free_bytes
from webhook.core.pod.quantity import MIB

RENEW_S: Final = 30.0
"""Age in seconds after which an entry is renewed when the binding of its pod is retried. The
renewal keeps the binding within `UNBOUND_S` of the entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """GPUs of a node that are assigned to a pod."""

    pod: str
    """`namespace/name`, for users who read the list."""
    uuids: tuple[str, ...]
    """UUIDs of the GPUs; only `EVERY_GPU` for a pod that sees all GPUs of the node."""
    memory_bytes: int
    """Bytes on each GPU."""
    since_s: int
    """Unix time at which the entry was written."""
    terms: CapTerms | None = None
    """Terms of the pod's cap; None if unreadable. The sentry then only measures the pod."""
    count: int = 1
    """Number of GPUs requested; more than 1 only if `uuids` is `EVERY_GPU`. The amount is reserved
    this many times."""


Assignments = dict[str, Assignment]
"""Assignments, keyed by pod UID since names are reused."""

FindTerms = Callable[[PodState], CapTerms | None]
"""Function that returns the terms of a new entry, or None if they are not known yet."""

AS_READ: Final[FindTerms] = attrgetter("terms")
"""Function that returns the terms as read from the pod, whatever its rule."""


@dataclass(frozen=True, slots=True)
class AssignmentPlan:
    """New assignment list, and the result for each planned pod: UUIDs or a denial."""

    assignments: Assignments
    results: tuple[tuple[str, ...] | Denial, ...]
    changed: bool


def plan_assignments(
    node: str,
    gpus: Sequence[Gpu],
    assignments: Assignments,
    pods: Mapping[str, PodState],
    wanted: Iterable[PodState],
    now_s: float,
    closed_reason: str = "",
    *,
    driver_limits: bool = False,
    terms: FindTerms = AS_READ,
) -> AssignmentPlan:
    """Choose GPUs for pods, one after the other, and add the pods to the list.

    `assignments` is the list in the ConfigMap. `pods` are all known pods, on any node.
    `closed_reason` is the reason why the node accepts no further pods, or empty. `driver_limits` is
    True if the node's driver enforces caps; otherwise no new entry has a limit. `terms` returns the
    terms of new entries.

    | the pod | then |
    | --- | --- |
    | sees all GPUs | entered with `EVERY_GPU`, whatever is free |
    | has an entry, and its GPUs still exist | the same GPUs and limit: its binding is retried |
    | has no entry, GPUs are free and the node is not closed | entered with them |
    | otherwise | denied |

    Terms of other entries are completed (`complete_terms`). The list and the pods are read once,
    however many pods are planned. If all pods are denied, the list does not change.
    """
    kept: Assignments = {}
    is_new = False
    for uid, assignment in assignments.items():
        pod = pods.get(uid)
        if not may_use_gpus(pod, node):
            continue
        kept[uid] = _with_terms(assignment, pod, terms)
        is_new |= kept[uid] is not assignment
    free = free_bytes_by_gpu(node, gpus, kept, pods)
    results: list[tuple[str, ...] | Denial] = []
    for pod in wanted:
        entered = kept.get(pod.uid)
        if entered and _keeps_gpus(pod, entered, free):
            if now_s - entered.since_s > RENEW_S:
                kept[pod.uid] = replace(entered, since_s=int(now_s))
                is_new = True
            results.append(entered.uuids)
            continue
        left_bytes = dict(free)
        unlisted = pods.get(pod.uid)
        if entered:
            allocate(left_bytes, entered.uuids, -entered.memory_bytes)
        elif unlisted:
            uuids, taken_bytes = _usage_without_entry(unlisted, node)
            allocate(left_bytes, uuids, -taken_bytes)
        result = _choose_gpus(node, gpus, left_bytes, pod, closed_reason)
        results.append(result)
        if isinstance(result, Denial):
            continue
        is_new |= kept.pop(pod.uid, None) is not None or bool(pod.need)
        if pod.need:
            limit = pod.limit_on(driver_limits=driver_limits)
            kept[pod.uid] = _new_assignment(pod, result, pod.need.memory_bytes, now_s, limit, terms)
            allocate(left_bytes, result, pod.need.memory_bytes)
        free = left_bytes
    if all(isinstance(result, Denial) for result in results):
        return AssignmentPlan(assignments, tuple(results), changed=False)
    return AssignmentPlan(kept, tuple(results), is_new or len(kept) < len(assignments))


def _choose_gpus(
    node: str,
    gpus: Sequence[Gpu],
    left_bytes: Mapping[str, int],
    pod: PodState,
    closed_reason: str,
) -> tuple[str, ...] | Denial:
    if pod.need is None:
        return ()
    if not pod.at_binding:
        return (EVERY_GPU,)
    return (
        deny_closed_node(node, closed_reason)
        if closed_reason
        else place(node, gpus, left_bytes, pod.need)
    )


def _keeps_gpus(pod: PodState, entered: Assignment, free: Mapping[str, int]) -> bool:
    if not pod.at_binding:
        return entered.uuids == (EVERY_GPU,)
    return all(uuid in free for uuid in entered.uuids)


def _new_assignment(
    pod: PodState,
    uuids: tuple[str, ...],
    memory_bytes: int,
    now_s: float,
    limit: DriverLimit,
    find_terms: FindTerms,
) -> Assignment:
    count, terms = _reserved_count(pod, uuids), find_terms(pod)
    return Assignment(
        pod=pod.name,
        uuids=uuids,
        memory_bytes=memory_bytes,
        since_s=int(now_s),
        terms=terms and with_limit(terms, limit),
        count=count,
    )


def _reserved_count(pod: PodState, uuids: tuple[str, ...]) -> int:
    """Return the `count` of an entry. It is bounded, since a tenant may request any number."""
    return min(pod.need.gpu_count, MAX_GPUS) if pod.need and uuids == (EVERY_GPU,) else 1


def _with_terms(assignment: Assignment, pod: PodState | None, find_terms: FindTerms) -> Assignment:
    if pod is None:
        return assignment
    terms = assignment.terms or find_terms(pod)
    if terms and (pod.uuids or assignment.terms is None):
        terms = with_limit(terms, pod.limit_on(driver_limits=False))
    return assignment if terms is assignment.terms else replace(assignment, terms=terms)


def complete_terms(
    assignments: Assignments, pods: Mapping[str, PodState], terms: FindTerms = AS_READ
) -> Assignments:
    """Return the list with missing terms filled in from the pods.

    Once the pod has its GPUs, the driver limit in the entry becomes the limit in the pod's
    annotation. The same list is returned if nothing changes.
    """
    completed = (
        (uid, assignment, _with_terms(assignment, pods.get(uid), terms))
        for uid, assignment in assignments.items()
    )
    changed = {uid: new for uid, old, new in completed if new is not old}
    return assignments | changed if changed else assignments


def promised_bytes(assignments: Assignments) -> int:
    """Return the bytes reserved by a list, on all GPUs together."""
    return sum(
        assignment.memory_bytes * max(assignment.count, len(assignment.uuids))
        for assignment in assignments.values()
    )


def free_bytes_by_gpu(
    node: str,
    gpus: Sequence[Gpu],
    assignments: Assignments,
    pods: Mapping[str, PodState],
) -> dict[str, int]:
    """Return the free bytes of each GPU, given the entries and the pods without an entry.

    | the pod on this node | counts on |
    | --- | --- |
    | has an entry | the GPUs of its entry, with the amount of its entry; `EVERY_GPU` is each |
    | is placed at binding, and its annotation `gpu` names GPUs | these, with equal parts of it |
    | is placed at binding, and nothing names its GPUs | none: it is pending |
    | sees all GPUs: its rule does not place at binding | each: it may use any |
    | requests nothing in `resources`, finished, or is gone | none |
    """
    taken = [(assignment.uuids, assignment.memory_bytes) for assignment in assignments.values()]
    for uid, pod in pods.items():
        if uid not in assignments:
            taken.append(_usage_without_entry(pod, node))
    return free_bytes(gpus, taken)


def _usage_without_entry(pod: PodState, node: str) -> tuple[tuple[str, ...], int]:
    """Return the GPUs of a node, and the bytes on each, that a pod without an entry takes.

    A pod that sees all GPUs takes its amount on each GPU. A pod whose annotation names more GPUs
    than requested takes an equal part on each GPU, since the kubelet admitted the amount only once.
    """
    need = pod.need
    if need is None or pod.node != node or pod.finished or pod.gone:
        return (), 0
    uuids = pod.uuids if pod.at_binding else (EVERY_GPU,)
    part = -(-need.memory_bytes * need.gpu_count // ((len(uuids) or 1) * MIB)) * MIB
    return uuids, min(part, need.memory_bytes)


def rebuild_from_pods(
    node: str,
    assignments: Assignments,
    pods: Iterable[PodState],
    now_s: float,
    terms: FindTerms = AS_READ,
) -> Assignments:
    """Return the list with entries for pods that already have GPUs of the node.

    Used if the list was lost or never written. Missing terms of existing entries are filled in
    (`complete_terms`).
    """
    pods_by_uid = {pod.uid: pod for pod in pods}
    found = {
        pod.uid: _new_assignment(pod, *_usage_without_entry(pod, node), now_s, pod.limit, terms)
        for pod in unlisted_pods(node, {}, pods_by_uid)
    }
    return found | complete_terms(assignments, pods_by_uid, terms)


def unlisted_pods(
    node: str, assignments: Assignments, pods: Mapping[str, PodState]
) -> list[PodState]:
    """Return the pods with GPUs of the node but no entry: they were bound without vramwarden."""
    return [
        pod
        for uid, pod in pods.items()
        if uid not in assignments and _usage_without_entry(pod, node)[0]
    ]
