"""Rows, sums and problems of `vramwarden top`: figures of nodes joined with pods.

The figures name pods by UID only. A pod that the user may not list has no name here.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from webhook.core.kinds.nodes import (
    HELD_BY_SENTRY,
    SENTRY_FRESH_S,
    STALE_S,
    GpuFigures,
    NodeFigures,
    PodFigures,
    get_idle_since_s,
    held_by,
)
from webhook.core.placement.fit import Need
from webhook.tools.problems.capacity import find_fits, find_no_room, with_newer_pods
from webhook.tools.problems.gpus import ORDER, find_gpu_problems, find_nodes_without_figures
from webhook.tools.problems.pending_pod import other_reasons
from webhook.tools.problems.problem import Problem
from webhook.tools.snapshot.pod import ClusterPod

T = TypeVar("T", int, float)

NEAR_CAP_PERCENT: Final = 95
"""The alert VramwardenPodNearCap has the same bound."""
_MOST_REQUESTS: Final = 100
"""Maximum number of different requests for which room is judged."""
_ANY_POD: Final = ClusterPod({})
"""A pod that selects nothing."""


class PodPhase(StrEnum):
    """Phase of a pod."""

    PENDING = "pending"
    """It has no node yet."""
    WAITING = "waiting"
    """It has a node, and no GPU yet."""
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSums:
    """Sums of known figures of GPUs; None if a figure is known of no GPU."""

    nodes: int
    gpus: int
    usable_bytes: int
    promised_bytes: int | None
    promised_gpus: int
    """Number of GPUs of which it is known."""
    used_bytes: int | None
    used_gpus: int
    free_bytes: int | None
    """Memory that can still be promised, on healthy GPUs."""
    largest_free_bytes: int | None
    """The same, on one GPU."""
    unmanaged_bytes: int | None
    pods: int


class PlaceRow(NamedTuple):
    """One GPU of a node, or all of them."""

    node: NodeFigures
    gpus: Sequence[GpuFigures]
    sums: GpuSums


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRow:
    """A pod that the user may list, with its figures."""

    pod: ClusterPod
    gpu_count: int
    """Number of GPUs that it requests, or was given."""
    cap_bytes: int | None
    """Cap per GPU."""
    held: tuple[tuple[str, PodFigures | None], ...]
    """UUIDs of its GPUs with its figures there, None if there are none yet."""
    phase: PodPhase
    why: str = ""
    """Reason why it waits, as far as it is known: may be the scheduler's message."""

    @property
    def figures(self) -> Sequence[PodFigures]:
        """Its figures on those GPUs that report them."""
        return [one for _, one in self.held if one]

    @property
    def stops(self) -> int | None:
        """Number of its processes that were stopped."""
        return _largest(one.stops for one in self.figures)

    @property
    def used_bytes(self) -> int | None:
        """Used memory, on the GPU on which it uses most."""
        return _largest(one.used_bytes for one in self.figures)

    @property
    def peak_bytes(self) -> int | None:
        """Largest use of one GPU."""
        return _largest(one.peak_bytes for one in self.figures)

    @property
    def held_by(self) -> str:
        """Component that enforces its cap, on the GPU with the weakest; empty if unknown."""
        return held_by(self.figures)

    @property
    def idle_since_s(self) -> float | None:
        """Unix time since when it is idle on all of its GPUs; None if it is busy or unknown."""
        return get_idle_since_s(self.figures)

    @property
    def percent_of_cap(self) -> float | None:
        """Used part of its cap, on the GPU on which that is largest."""
        return _largest(
            100 * one.used_bytes / one.cap_bytes
            for one in self.figures
            if one.cap_bytes and one.used_bytes is not None
        )

    @property
    def over_cap(self) -> bool:
        """True if it uses more than its cap on one of its GPUs."""
        return (self.percent_of_cap or 0) > 100  # noqa: PLR2004 - percent

    @property
    def near_cap(self) -> bool:
        """True if it uses nearly all of its cap on one of its GPUs, and not more on any."""
        return (self.percent_of_cap or 0) >= NEAR_CAP_PERCENT and not self.over_cap

    @property
    def is_waiting(self) -> bool:
        """True if it has no node yet, or no GPU."""
        return self.phase in (PodPhase.PENDING, PodPhase.WAITING)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRow:
    """Pods of one Deployment, Job or other owner."""

    namespace: str
    kind: str
    name: str
    pods: int
    running: int
    waiting: int
    """Pods without a node, or without a GPU."""
    cap_bytes: int | None
    """Largest cap of a pod per GPU."""
    promised_bytes: int | None
    """Sum over all pods and their GPUs."""
    used_bytes: int | None
    """Sum over all pods, as far as it is known."""
    peak_bytes: int | None
    """Largest use of one GPU by one pod."""
    stops: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopReport:
    """All that `top` shows."""

    now_s: float
    """Unix time."""
    namespace: str
    """Namespace of the pods; empty for all."""
    amounts: GpuSums
    """Sums over the nodes that are shared."""
    nodes: tuple[NodeFigures, ...] | None
    """Nodes with their GPUs in order, without figures that have no meaning there; None if they
    could not be read."""
    pods: tuple[PodRow, ...] | None
    workloads: tuple[WorkloadRow, ...] | None
    problems: tuple[Problem, ...]
    missing: tuple[str, ...]
    """Sentences about facts that could not be read, and their remedies."""
    names: Mapping[str, ClusterPod] = field(repr=False)
    """Pods that the user may list, by UID."""
    indexes: Mapping[str, int] = field(repr=False)
    """Indexes of GPUs by UUID."""

    def places(self, *, by_gpu: bool) -> list[PlaceRow]:
        """Return the rows of the nodes: one for each GPU, or for each node."""
        return [
            PlaceRow(node, gpus, sums_of(gpus))
            for node in self.nodes or ()
            for gpus in ([[gpu] for gpu in node.gpus] if by_gpu else [node.gpus])
        ]

    def age_s(self, node: NodeFigures) -> float:
        """Return the age of a node's figures in seconds."""
        return max(0.0, self.now_s - node.observed_s)

    def stale(self, node: NodeFigures) -> bool:
        """Return True if a node's figures are old."""
        return self.age_s(node) > STALE_S

    def name_of(self, uid: str) -> tuple[str, str]:
        """Return the namespace and name of a pod; empty if the user may not list it."""
        pod = self.names.get(uid)
        return (pod.namespace, pod.name) if pod else ("", "")


def build_report(
    nodes: Sequence[NodeFigures] | None,
    pods: Sequence[ClusterPod] | None,
    now_s: float,
    *,
    namespace: str = "",
    missing: Iterable[str] = (),
) -> TopReport:
    """Return the report; None stands for facts that could not be read.

    Pods that are not managed give names to unmanaged memory, and have no row.
    """
    nodes = nodes and with_newer_pods(nodes, pods or ())
    found = sorted(map(_node, nodes or ()), key=lambda node: _natural(node.name))
    shared = [node for node in found if not node.not_shared]
    names = {pod.uid: pod for pod in pods or ()}
    rows = _pod_rows([pod for pod in pods or () if pod.managed], found, now_s)
    problems = [
        *find_gpu_problems(found, now_s, partial(_owner, names)),
        *find_nodes_without_figures((row.pod.node for row in rows), found),
    ]
    return TopReport(
        now_s=now_s,
        namespace=namespace,
        amounts=sums_of([gpu for node in shared for gpu in node.gpus], len(shared)),
        nodes=None if nodes is None else tuple(found),
        pods=None if pods is None else rows,
        workloads=None if pods is None else _workloads(rows),
        problems=tuple(sorted(problems, key=_gravity)),
        missing=tuple(missing),
        names=names,
        indexes={gpu.uuid: gpu.index for node in found for gpu in node.gpus},
    )


class Order(StrEnum):
    """Figure by which rows are sorted, the largest first and unknown ones last."""

    NAME = "name"
    USED = "used"
    CAP = "cap"
    """Cap of a pod, promised memory of a GPU."""
    PEAK = "peak"
    """Largest use of a pod, used memory of a GPU."""
    FREE = "free"
    """Unused part of a pod's cap, free memory of a GPU."""
    IDLE = "idle"
    """Memory that is promised and not used."""


def ordered(report: TopReport, order: Order) -> TopReport:
    """Return the report with its rows in an order."""
    if order is Order.NAME:
        return report

    def rank(row: GpuSums | PodRow | WorkloadRow) -> tuple[bool, int]:
        value = _value(row, order)
        return value is None, -(value or 0)

    nodes = [
        replace(node, gpus=tuple(sorted(node.gpus, key=lambda gpu: rank(sums_of([gpu])))))
        for node in sorted(report.nodes or (), key=lambda node: rank(sums_of(node.gpus)))
    ]
    return replace(
        report,
        nodes=report.nodes and tuple(nodes),
        pods=report.pods and tuple(sorted(report.pods, key=rank)),
        workloads=report.workloads and tuple(sorted(report.workloads, key=rank)),
    )


def _value(row: GpuSums | PodRow | WorkloadRow, order: Order) -> int | None:
    used = row.used_bytes
    promised = row.cap_bytes if isinstance(row, PodRow) else row.promised_bytes
    unused = None if promised is None or used is None else promised - used
    if isinstance(row, PodRow | WorkloadRow):
        values = {Order.CAP: row.cap_bytes, Order.PEAK: row.peak_bytes, Order.FREE: unused}
    else:
        values = {Order.CAP: promised, Order.FREE: row.free_bytes}
    return unused if order is Order.IDLE else values.get(order, used)


def _node(node: NodeFigures) -> NodeFigures:
    gpus = sorted(node.gpus, key=lambda gpu: gpu.index)
    if node.not_shared:  # no pod can be promised memory there
        none: dict[str, Any] = {"promised_bytes": None, "free_bytes": None, "unmanaged": {}}
        gpus = [replace(gpu, **none) for gpu in gpus]
    elif node.held:
        gpus = [replace(gpu, free_bytes=gpu.free_bytes and min(0, gpu.free_bytes)) for gpu in gpus]
    return replace(node, gpus=tuple(gpus))


def sums_of(gpus: Sequence[GpuFigures], nodes: int = 1) -> GpuSums:
    """Return the sums over the GPUs of `nodes` nodes."""
    free = [max(0, gpu.free_bytes) for gpu in gpus if gpu.free_bytes is not None and gpu.healthy]
    return GpuSums(
        nodes=nodes,
        gpus=len(gpus),
        usable_bytes=sum(gpu.usable_bytes for gpu in gpus),
        promised_bytes=_total(gpu.promised_bytes for gpu in gpus),
        promised_gpus=sum(gpu.promised_bytes is not None for gpu in gpus),
        used_bytes=_total(gpu.used_bytes for gpu in gpus),
        used_gpus=sum(gpu.used_bytes is not None for gpu in gpus),
        free_bytes=_total(free),
        largest_free_bytes=_largest(free),
        unmanaged_bytes=_total(gpu.unmanaged_bytes for gpu in gpus),
        pods=len({one.uid for gpu in gpus for one in gpu.pods}),
    )


def _pod_rows(
    pods: Sequence[ClusterPod], nodes: Sequence[NodeFigures], now_s: float
) -> tuple[PodRow, ...]:
    held: dict[str, list[tuple[str, PodFigures]]] = {pod.uid: [] for pod in pods}
    for node in nodes:
        age_s = now_s - node.observed_s
        for uuid, one in ((gpu.uuid, one) for gpu in node.gpus for one in gpu.pods):
            if one.uid in held:
                # A pod of which old figures say that it is idle may be busy again.
                known = replace(one, idle_since_s=None) if age_s > STALE_S else one
                if age_s > SENTRY_FRESH_S and one.held_by == HELD_BY_SENTRY:
                    known = replace(known, held_by="")
                held[one.uid].append((uuid, known))
    room = _Room(nodes, now_s)
    rows = [_pod(pod, held[pod.uid], room) for pod in pods]
    return tuple(sorted(rows, key=lambda row: (row.pod.namespace, _natural(row.pod.name))))


def _pod(pod: ClusterPod, held: Sequence[tuple[str, PodFigures]], room: _Room) -> PodRow:
    """Return a pod's row; GPUs without figures of it yet are those of its annotation."""
    known = {uuid for uuid, _ in held}
    holds = [*held, *((uuid, None) for uuid in pod.gpus if uuid not in known)]
    phase = _phase(pod, has_gpu=bool(holds))
    why = pod.waits if phase is PodPhase.WAITING else ""
    if phase is PodPhase.PENDING:
        why = room.why_pending(pod)
    return PodRow(
        pod=pod,
        gpu_count=len(holds) or pod.gpu_count,
        cap_bytes=max((one.cap_bytes for _, one in held), default=pod.requested_bytes),
        held=tuple(holds),
        phase=phase,
        why=why,
    )


def _phase(pod: ClusterPod, *, has_gpu: bool) -> PodPhase:
    """Return the phase of a pod.

    | status | node | GPU | then |
    | --- | --- | --- | --- |
    | Terminating | any | any | ending |
    | any | none | any | pending |
    | any | one | none, and `ClusterPod.waits` has the reason | waiting |
    | Running | one | any | running: a pod may see all GPUs, which no annotation says |
    | another | one | any | starting |
    """
    if pod.status == "Terminating":
        return PodPhase.ENDING
    if not pod.node:
        return PodPhase.PENDING
    if pod.waits and not has_gpu:
        return PodPhase.WAITING
    return PodPhase.RUNNING if pod.status == "Running" else PodPhase.STARTING


class _Room:
    """Reasons why pods without a node have none, by their requests."""

    def __init__(self, nodes: Sequence[NodeFigures], now_s: float) -> None:
        self._nodes = [node for node in nodes if not (node.not_shared or node.held)]
        self._now_s = now_s
        self._known: dict[Need, str] = {}

    def why_pending(self, pod: ClusterPod) -> str:
        """Return the scheduler's reasons besides VRAM; else that no node has room, if none has."""
        if others := other_reasons(pod.unscheduled):
            return ", ".join(others)
        if pod.requested_bytes is None or not self._nodes:
            return pod.unscheduled
        need = Need(pod.requested_bytes, pod.gpu_count)
        if need not in self._known and len(self._known) < _MOST_REQUESTS:
            found = find_no_room(need, find_fits(_ANY_POD, need, self._nodes, None, self._now_s))
            self._known[need] = found.message if found else ""
        return self._known.get(need) or pod.unscheduled


def _workloads(rows: Iterable[PodRow]) -> tuple[WorkloadRow, ...]:
    groups: dict[tuple[str, str, str], list[PodRow]] = defaultdict(list)
    for row in rows:
        pod = row.pod
        kind, name = pod.workload.kind or "Pod", pod.workload.name or pod.name
        groups[pod.namespace, kind, name].append(row)
    found = [_workload(*key, group) for key, group in groups.items()]
    return tuple(sorted(found, key=lambda row: (row.namespace, row.kind, _natural(row.name))))


def _workload(namespace: str, kind: str, name: str, pods: Sequence[PodRow]) -> WorkloadRow:
    figures = [one for pod in pods for one in pod.figures]
    caps = [one.cap_bytes if one else pod.cap_bytes for pod in pods for _, one in pod.held]
    phases = Counter(pod.phase for pod in pods)
    return WorkloadRow(
        namespace=namespace,
        kind=kind,
        name=name,
        pods=len(pods),
        running=phases[PodPhase.RUNNING],
        waiting=phases[PodPhase.PENDING] + phases[PodPhase.WAITING],
        cap_bytes=_largest(pod.cap_bytes for pod in pods),
        promised_bytes=_total(caps),
        used_bytes=_total(one.used_bytes for one in figures),
        peak_bytes=_largest(pod.peak_bytes for pod in pods),
        stops=_total(pod.stops for pod in pods),
    )


def _owner(names: Mapping[str, ClusterPod], uid: str) -> str:
    if not uid:
        return "processes of no pod"
    if uid in names:
        return f"pod {names[uid].namespace}/{names[uid].name}, which has no cap"
    return f"a pod without a cap (uid {uid}, none that you can list here)"


_NUMBERED: Final = re.compile(r"([^0-9]*)([0-9]{0,30})")


def _gravity(problem: Problem) -> tuple[int, tuple[tuple[str, int], ...]]:
    return ORDER.index(problem.code), _natural(problem.subject.name)


def _natural(name: str) -> tuple[tuple[str, int], ...]:
    """Return a key by which `n2` comes before `n10`."""
    return tuple((text, int(digits or -1)) for text, digits in _NUMBERED.findall(name))


def _total(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _largest(values: Iterable[T | None]) -> T | None:
    return max((value for value in values if value is not None), default=None)
