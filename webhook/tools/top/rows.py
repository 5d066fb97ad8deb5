"""Rows and sums of `vramwarden top`, and the report that contains them.

Node figures identify pods by UID only. Pods that the user may not list have no name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from webhook.core.kinds.nodes import (
    STALE_S,
    GpuFigures,
    NodeFigures,
    PodFigures,
    get_idle_since_s,
    held_by,
)
from webhook.tools.problems.problem import Problem
from webhook.tools.snapshot.pod import ClusterPod

T = TypeVar("T", int, float)
NEAR_CAP_PERCENT: Final = 95
"""Percentage of the cap from which a pod is near it; equal to the alert VramwardenPodNearCap."""


class PodPhase(StrEnum):
    """Phase of a pod."""

    PENDING = "pending"
    """The pod has no node yet."""
    WAITING = "waiting"
    """The pod has a node but no GPU yet."""
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSums:
    """Sums of the known figures of GPUs; None if no GPU has the figure."""

    nodes: int
    gpus: int
    usable_bytes: int
    promised_bytes: int | None
    promised_gpus: int
    """Number of GPUs whose promised memory is known."""
    used_bytes: int | None
    used_gpus: int
    free_bytes: int | None
    """Memory of healthy GPUs that can still be promised, in bytes."""
    largest_free_bytes: int | None
    """Largest free memory of one GPU, in bytes."""
    unmanaged_bytes: int | None
    pods: int


class NodeRow(NamedTuple):
    """Row for one GPU of a node, or for all its GPUs."""

    node: NodeFigures
    gpus: Sequence[GpuFigures]
    sums: GpuSums


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRow:
    """Row for a pod that the user may list."""

    pod: ClusterPod
    gpu_count: int
    """Number of the pod's GPUs, or of requested GPUs if it has none yet."""
    cap_bytes: int | None
    """Cap per GPU, in bytes."""
    gpu_figures: tuple[tuple[str, PodFigures | None], ...]
    """UUID of each GPU, and the pod's figures on it; None if there are none yet."""
    phase: PodPhase
    reason: str = ""
    """Reason why the pod waits, possibly the scheduler's message; empty if unknown."""

    @property
    def figures(self) -> Sequence[PodFigures]:
        """Known figures of the pod on its GPUs."""
        return [figures for _, figures in self.gpu_figures if figures]

    @property
    def stops(self) -> int | None:
        """Number of stopped processes of the pod; None if unknown."""
        return largest(figure.stops for figure in self.figures)

    @property
    def used_bytes(self) -> int | None:
        """Largest current use of one GPU, in bytes; None if unknown."""
        return largest(figure.used_bytes for figure in self.figures)

    @property
    def peak_bytes(self) -> int | None:
        """Largest use of one GPU so far, in bytes; None if unknown."""
        return largest(figure.peak_bytes for figure in self.figures)

    @property
    def held_by(self) -> str:
        """Component that enforces the cap, the weakest of all GPUs; empty if unknown."""
        return held_by(self.figures)

    @property
    def idle_since_s(self) -> float | None:
        """Unix time since which the pod is idle on all its GPUs; None if busy or unknown."""
        return get_idle_since_s(self.figures)

    @property
    def percent_of_cap(self) -> float | None:
        """Largest used percentage of the cap on one GPU; None if unknown."""
        return largest(
            100 * figure.used_bytes / figure.cap_bytes
            for figure in self.figures
            if figure.cap_bytes and figure.used_bytes is not None
        )

    @property
    def over_cap(self) -> bool:
        """True if the pod exceeds its cap on a GPU."""
        return (self.percent_of_cap or 0) > 100  # noqa: PLR2004 - percent

    @property
    def near_cap(self) -> bool:
        """True if the pod uses nearly all of its cap on a GPU and exceeds it on none."""
        return (self.percent_of_cap or 0) >= NEAR_CAP_PERCENT and not self.over_cap

    @property
    def is_waiting(self) -> bool:
        """True if the pod has no node or no GPU yet."""
        return self.phase in (PodPhase.PENDING, PodPhase.WAITING)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRow:
    """Row for the pods of one Deployment, Job or other owner."""

    namespace: str
    kind: str
    name: str
    pods: int
    running: int
    waiting: int
    """Number of pods without a node or GPU."""
    cap_bytes: int | None
    """Largest cap per GPU of the pods, in bytes."""
    promised_bytes: int | None
    """Sum of the caps of all pods on all their GPUs, in bytes."""
    used_bytes: int | None
    """Sum of the known use of all pods, in bytes."""
    peak_bytes: int | None
    """Largest use of one GPU by one pod, in bytes."""
    stops: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopReport:
    """Content for all outputs of `top`."""

    now_s: float
    """Unix time."""
    namespace: str
    """Namespace of the pods; empty for all."""
    amounts: GpuSums
    """Sums over the shared nodes."""
    nodes: tuple[NodeFigures, ...] | None
    """Nodes with sorted GPUs and applicable figures; None if unreadable."""
    pods: tuple[PodRow, ...] | None
    workloads: tuple[WorkloadRow, ...] | None
    problems: tuple[Problem, ...]
    missing: tuple[str, ...]
    """Messages about unreadable facts, with fixes."""
    pods_by_uid: Mapping[str, ClusterPod] = field(repr=False)
    """Pods that the user may list, keyed by UID."""
    indexes: Mapping[str, int] = field(repr=False)
    """Indexes of GPUs, keyed by UUID."""

    def node_rows(self, *, by_gpu: bool) -> list[NodeRow]:
        """Return a row per GPU, or per node."""
        return [
            NodeRow(node, gpus, sum_gpus(gpus))
            for node in self.nodes or ()
            for gpus in ([[gpu] for gpu in node.gpus] if by_gpu else [node.gpus])
        ]

    def age_s(self, node: NodeFigures) -> float:
        """Return the age of a node's figures, in seconds."""
        return max(0.0, self.now_s - node.observed_s)

    def is_stale(self, node: NodeFigures) -> bool:
        """Return True if a node's figures are older than `STALE_S`."""
        return self.age_s(node) > STALE_S

    def find_name(self, uid: str) -> tuple[str, str]:
        """Return namespace and name of a pod, or empty strings if the user may not list it."""
        pod = self.pods_by_uid.get(uid)
        return (pod.namespace, pod.name) if pod else ("", "")


class Order(StrEnum):
    """Figure by which rows are sorted, the largest first and unknown figures last."""

    NAME = "name"
    USED = "used"
    CAP = "cap"
    """Cap of a pod, or promised memory of a GPU."""
    PEAK = "peak"
    """Largest use of a pod, or used memory of a GPU."""
    FREE = "free"
    """Unused part of a pod's cap, or free memory of a GPU."""
    IDLE = "idle"
    """Promised memory that is not used."""


def sort_report(report: TopReport, order: Order) -> TopReport:
    """Return the report with rows sorted by `order`."""
    if order is Order.NAME:
        return report

    def rank(row: GpuSums | PodRow | WorkloadRow) -> tuple[bool, int]:
        value = _sort_value(row, order)
        return value is None, -(value or 0)

    nodes = [
        replace(node, gpus=tuple(sorted(node.gpus, key=lambda gpu: rank(sum_gpus([gpu])))))
        for node in sorted(report.nodes or (), key=lambda node: rank(sum_gpus(node.gpus)))
    ]
    return replace(
        report,
        nodes=report.nodes and tuple(nodes),
        pods=report.pods and tuple(sorted(report.pods, key=rank)),
        workloads=report.workloads and tuple(sorted(report.workloads, key=rank)),
    )


def _sort_value(row: GpuSums | PodRow | WorkloadRow, order: Order) -> int | None:
    used = row.used_bytes
    promised = row.cap_bytes if isinstance(row, PodRow) else row.promised_bytes
    unused = None if promised is None or used is None else promised - used
    if isinstance(row, PodRow | WorkloadRow):
        values = {Order.CAP: row.cap_bytes, Order.PEAK: row.peak_bytes, Order.FREE: unused}
    else:
        values = {Order.CAP: promised, Order.FREE: row.free_bytes}
    return unused if order is Order.IDLE else values.get(order, used)


def sum_gpus(gpus: Sequence[GpuFigures], nodes: int = 1) -> GpuSums:
    """Return the sums over the GPUs of `nodes` nodes."""
    free = [max(0, gpu.free_bytes) for gpu in gpus if gpu.free_bytes is not None and gpu.healthy]
    return GpuSums(
        nodes=nodes,
        gpus=len(gpus),
        usable_bytes=sum(gpu.usable_bytes for gpu in gpus),
        promised_bytes=total(gpu.promised_bytes for gpu in gpus),
        promised_gpus=sum(gpu.promised_bytes is not None for gpu in gpus),
        used_bytes=total(gpu.used_bytes for gpu in gpus),
        used_gpus=sum(gpu.used_bytes is not None for gpu in gpus),
        free_bytes=total(free),
        largest_free_bytes=largest(free),
        unmanaged_bytes=total(gpu.unmanaged_bytes for gpu in gpus),
        pods=len({pod.uid for gpu in gpus for pod in gpu.pods}),
    )


def total(values: Iterable[int | None]) -> int | None:
    """Return the sum of the known values, or None if none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def largest(values: Iterable[T | None]) -> T | None:
    """Return the largest known value, or None if none is known."""
    return max((value for value in values if value is not None), default=None)
