"""Who was promised and who uses how much, on every GPU: figures of nodes joined with pods.

The figures name pods by UID alone. Only a pod that the user could list gets its name here.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from enum import StrEnum
from textwrap import shorten
from typing import TYPE_CHECKING, Final, TypeVar

from webhook.core.kinds.nodes import HELD_BY_SENTRY, SENTRY_FRESH_S, STALE_S, held_by, idle_since
from webhook.core.placement.fit import Need
from webhook.core.words import counted, span
from webhook.tools.problems.capacity import find_fits, find_no_room, with_newer_pods
from webhook.tools.problems.gpus import ORDER, find_gpu_problems, find_nodes_without_figures
from webhook.tools.problems.pending_pod import other_reasons
from webhook.tools.snapshot.pod import ClusterPod, scheduler_says

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from webhook.core.kinds.nodes import GpuFigures, NodeFigures, PodFigures
    from webhook.tools.problems.problem import Problem

    Names = Mapping[str, tuple[str, str]]
    """Namespace and name of a pod, by its UID."""

T = TypeVar("T")

NEAR_CAP_PERCENT: Final = 95
_MOST_REQUESTS: Final = 100
"""Number of different requests for which room is judged; others show the scheduler's message."""
_ANY_POD: Final = ClusterPod({})
"""A pod that selects nothing."""
_LONGEST_WHY: Final = 80
"""Characters of the scheduler's message in a table."""


class PodPhase(StrEnum):
    """What a pod does."""

    PENDING = "pending"
    """No node yet."""
    WAITING = "waiting"
    """A node, and no GPU yet."""
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSums:
    """Sums over GPUs. Of each figure what is known: None where it is known of no GPU."""

    nodes: int = 0
    gpus: int = 0
    usable_bytes: int = 0
    promised_bytes: int | None = None
    promised_gpus: int = 0
    """Of so many GPUs that is known."""
    used_bytes: int | None = None
    used_gpus: int = 0
    free_bytes: int | None = None
    """What may still be promised, on healthy GPUs."""
    largest_free_bytes: int | None = None
    """On one GPU."""
    unmanaged_bytes: int | None = None
    pods: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRow:
    """One pod of the user's."""

    namespace: str
    name: str
    uid: str
    node: str
    """Empty while it is bound to none."""
    gpu_count: int
    """So many it asks for, or was given."""
    cap_bytes: int | None
    """On each of its GPUs."""
    held: tuple[tuple[str, PodFigures | None], ...]
    """Its GPUs by UUID, with its figures there, None where none tell it; empty while it has none.
    """
    phase: PodPhase
    status: str
    """As `kubectl get pods` says it."""
    state: str
    """The same for people, with what is to know besides."""
    why: str = ""
    """Why it waits, as far as is known; of the scheduler its own sentence."""
    created_s: float | None = None
    """Unix time."""
    kind: str = ""
    workload: str = ""

    @property
    def figures(self) -> Sequence[PodFigures]:
        """Its figures on those of its GPUs that tell them."""
        return [one for _, one in self.held if one]

    @property
    def stops(self) -> int | None:
        """How often something of it was stopped, as far as is known."""
        return _largest(one.stops for one in self.figures)

    @property
    def used_bytes(self) -> int | None:
        """What it holds on the GPU on which it holds most."""
        return _largest(one.used_bytes for one in self.figures)

    @property
    def peak_bytes(self) -> int | None:
        """The most it held on one GPU."""
        return _largest(one.peak_bytes for one in self.figures)

    @property
    def held_by(self) -> str:
        """Who holds it to its cap, where it is held the least; empty where that is unknown."""
        return held_by(self.figures)

    @property
    def idle_since_s(self) -> float | None:
        """Unix time since when it did nothing on any of its GPUs; None where that is unknown."""
        return idle_since(self.figures)

    @property
    def near_cap(self) -> bool:
        """Whether it holds nearly all that it may, on one of its GPUs."""
        return any(
            one.cap_bytes
            and one.used_bytes is not None
            and one.used_bytes * 100 >= one.cap_bytes * NEAR_CAP_PERCENT
            for one in self.figures
        )

    @property
    def is_waiting(self) -> bool:
        """Whether it has no node yet, or no GPU."""
        return self.phase in (PodPhase.PENDING, PodPhase.WAITING)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRow:
    """The pods of one Deployment, Job, or whatever made them."""

    namespace: str
    kind: str
    name: str
    pods: int
    running: int
    waiting: int
    """Pending, or bound without a GPU."""
    cap_bytes: int | None
    """Of a pod, per GPU; the largest of them."""
    promised_bytes: int | None
    """Over all of its pods that have GPUs."""
    used_bytes: int | None
    """Over all of its pods of which it is known."""
    peak_bytes: int | None
    """The most that one of its pods held on one GPU."""
    stops: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopReport:
    """All that `top` shows."""

    at_s: float
    """Unix time."""
    namespace: str
    """Whose pods; empty for all."""
    amounts: GpuSums
    """Of the nodes that are shared."""
    nodes: tuple[NodeFigures, ...] | None
    """Each with its GPUs in order, without the figures that mean nothing there; None where they
    could not be read."""
    pods: tuple[PodRow, ...] | None
    workloads: tuple[WorkloadRow, ...] | None
    problems: tuple[Problem, ...] = ()
    missing: tuple[str, ...] = ()
    """A sentence for each thing that could not be read, and what to do."""
    names: Names = field(default_factory=dict, repr=False)
    """Of all pods that the user could list."""
    indexes: Mapping[str, int] = field(default_factory=dict, repr=False)
    """Of GPUs, by UUID."""

    def age_s(self, node: NodeFigures) -> float:
        """Return how old the figures of a node are."""
        return max(0.0, self.at_s - node.observed_s)

    def stale(self, node: NodeFigures) -> bool:
        """Say whether the figures of a node are said to be old."""
        return self.age_s(node) > STALE_S

    def name_of(self, uid: str) -> tuple[str, str]:
        """Return namespace and name of a pod; empty for one that is not among the user's."""
        return self.names.get(uid, ("", ""))


def join(
    nodes: Sequence[NodeFigures] | None,
    pods: Sequence[ClusterPod] | None,
    at_s: float,
    *,
    namespace: str = "",
    missing: Iterable[str] = (),
) -> TopReport:
    """Return the report; None stands for what could not be read.

    Pods that are not managed give names to memory that nobody was promised, and have no row.
    """
    nodes = nodes and with_newer_pods(nodes, pods or ())
    rows = tuple(map(_node, nodes or ()))
    shared = [row for row in rows if not row.not_shared]
    report = TopReport(
        at_s=at_s,
        namespace=namespace,
        amounts=sums_of([gpu for row in shared for gpu in row.gpus], len(shared)),
        nodes=None if nodes is None else tuple(sorted(rows, key=lambda row: _natural(row.name))),
        pods=None,
        workloads=None,
        missing=tuple(missing),
        names={pod.uid: (pod.namespace, pod.name) for pod in pods or ()},
        indexes={gpu.uuid: gpu.index for row in rows for gpu in row.gpus},
    )
    pod_rows = _pod_rows([pod for pod in pods or () if pod.managed], report, rows)
    return replace(
        report,
        pods=None if pods is None else pod_rows,
        workloads=None if pods is None else _workloads(pod_rows),
        problems=tuple(sorted(_problems(report, rows, pod_rows), key=_gravity)),
    )


class Order(StrEnum):
    """What comes first; what is not known comes last."""

    NAME = "name"
    USED = "used"
    CAP = "cap"
    """Of a GPU: what is promised."""
    PEAK = "peak"
    """Of a GPU: what is used."""
    FREE = "free"
    """Of a pod: what it may still take."""
    IDLE = "idle"
    """Promised, and not used."""


def ordered(report: TopReport, order: Order) -> TopReport:
    """Return the report with the rows of its parts in an order."""
    if order is Order.NAME:
        return report
    nodes = [
        replace(node, gpus=_by(node.gpus, lambda gpu: _of_place(gpu, order)))
        for node in report.nodes or ()
    ]
    return replace(
        report,
        nodes=report.nodes and _by(nodes, lambda node: _of_place(sums_of(node.gpus), order)),
        pods=report.pods and _by(report.pods, lambda pod: _of_pods(pod, order)),
        workloads=report.workloads and _by(report.workloads, lambda one: _of_pods(one, order)),
    )


def _by(rows: Sequence[T], value: Callable[[T], int | None]) -> tuple[T, ...]:
    def key(row: T) -> tuple[bool, int]:
        found = value(row)
        return found is None, -(found or 0)

    return tuple(sorted(rows, key=key))


def _of_place(row: GpuFigures | GpuSums, order: Order) -> int | None:
    values = {
        Order.CAP: row.promised_bytes,
        Order.FREE: row.free_bytes,
        Order.IDLE: _less(row.promised_bytes, row.used_bytes),
    }
    return values.get(order, row.used_bytes)


def _of_pods(row: PodRow | WorkloadRow, order: Order) -> int | None:
    values = {Order.CAP: row.cap_bytes, Order.PEAK: row.peak_bytes, Order.USED: row.used_bytes}
    promised = row.cap_bytes if isinstance(row, PodRow) else row.promised_bytes
    return values.get(order, _less(promised, row.used_bytes))


def _less(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one - other


def _node(node: NodeFigures) -> NodeFigures:
    gpus = tuple(sorted(node.gpus, key=lambda gpu: gpu.index))
    if node.not_shared:  # nobody is promised anything there, and nobody needs to be
        gpus = tuple(
            replace(gpu, promised_bytes=None, free_bytes=None, unmanaged={}) for gpu in gpus
        )
    elif node.held:
        gpus = tuple(
            replace(gpu, free_bytes=gpu.free_bytes and min(0, gpu.free_bytes)) for gpu in gpus
        )
    return replace(node, gpus=gpus)


def sums_of(gpus: Sequence[GpuFigures], nodes: int = 1) -> GpuSums:
    """Return the sums over the GPUs of so many nodes."""
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
    pods: Sequence[ClusterPod], report: TopReport, nodes: Sequence[NodeFigures]
) -> tuple[PodRow, ...]:
    held: dict[str, list[tuple[str, PodFigures]]] = {pod.uid: [] for pod in pods}
    for node in nodes:
        stale = report.stale(node)  # then pods may do something again
        proves_no_sentry = report.age_s(node) > SENTRY_FRESH_S
        for uuid, one in ((gpu.uuid, one) for gpu in node.gpus for one in gpu.pods):
            if one.uid in held:
                known = replace(one, idle_since_s=None) if stale else one
                if proves_no_sentry and one.held_by == HELD_BY_SENTRY:
                    known = replace(known, held_by="")
                held[one.uid].append((uuid, known))
    room = _Room(nodes, report.at_s)
    rows = [_pod(pod, held[pod.uid], room, report.at_s) for pod in pods]
    return tuple(sorted(rows, key=lambda row: (row.namespace, _natural(row.name))))


def _pod(
    pod: ClusterPod, held: Sequence[tuple[str, PodFigures]], room: _Room, at_s: float
) -> PodRow:
    """Return a pod's row; where no figures name it yet, its GPUs are those of its annotation."""
    known = {uuid for uuid, _ in held}
    holds = [*held, *((uuid, None) for uuid in pod.gpus if uuid not in known)]
    cap_bytes = max((one.cap_bytes for _, one in held), default=pod.asked_bytes)
    phase = _phase(pod, has_gpu=bool(holds))
    why = ""
    if phase is PodPhase.WAITING:
        why = pod.waits
    elif phase is PodPhase.PENDING:
        why = room.why_pending(pod)
    row = PodRow(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        node=pod.node,
        gpu_count=len(holds) or pod.gpu_count,
        cap_bytes=cap_bytes,
        held=tuple(holds),
        phase=phase,
        status=pod.status,
        state="",
        why=why,
        created_s=pod.created_s,
        kind=pod.workload.kind,
        workload=pod.workload.name,
    )
    return replace(row, state=_state(row, at_s))


def _phase(pod: ClusterPod, *, has_gpu: bool) -> PodPhase:
    """Return what a pod does.

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


def _state(row: PodRow, at_s: float) -> str:
    """Say in words what a pod does, its trouble behind it."""
    if row.is_waiting:
        age = "" if row.created_s is None else span(at_s - row.created_s)
        begun = f"pending {age}".rstrip()
        if row.phase is PodPhase.WAITING:  # since its binding, whose time a table does not show
            begun = "waits for a GPU" + (f" (created {age} ago)" if age else "")
        why = row.why
        if row.phase is PodPhase.PENDING:  # explain has all that the scheduler says
            why = shorten(", ".join(scheduler_says(why)), _LONGEST_WHY, placeholder="...")
        return f"{begun}: {why}" if why else begun
    says_more = row.phase is PodPhase.STARTING and row.status != "Pending"
    words = [row.status if says_more and row.status else row.phase.value]
    if row.near_cap:
        words.append("near its cap")
    if row.stops:
        words.append(f"{counted(row.stops, 'process')} stopped")
    return ", ".join(words)


class _Room:
    """Whether pods without a node have room, by what they request."""

    def __init__(self, nodes: Sequence[NodeFigures], at_s: float) -> None:
        self._nodes = [node for node in nodes if not (node.not_shared or node.held)]
        self._at_s = at_s
        self._known: dict[Need, str] = {}

    def why_pending(self, pod: ClusterPod) -> str:
        """Return why a pod has no node: what the scheduler says besides VRAM, else lack of room."""
        if others := other_reasons(pod.unscheduled):
            return ", ".join(others)
        return self._lack(pod) or pod.unscheduled

    def _lack(self, pod: ClusterPod) -> str:
        """Return that its request fits nowhere; empty if it may fit, or nothing is known."""
        if pod.asked_bytes is None or not self._nodes:
            return ""
        need = Need(pod.asked_bytes, pod.gpu_count)
        if need not in self._known and len(self._known) < _MOST_REQUESTS:
            fits = find_fits(_ANY_POD, need, self._nodes, None, self._at_s)
            found = find_no_room(need, fits)
            self._known[need] = found.message if found else ""
        return self._known.get(need, "")


def _workloads(pods: Iterable[PodRow]) -> tuple[WorkloadRow, ...]:
    groups: dict[tuple[str, str, str], list[PodRow]] = defaultdict(list)
    for pod in pods:
        groups[pod.namespace, pod.kind or "Pod", pod.workload or pod.name].append(pod)
    rows = [_workload(*key, group) for key, group in groups.items()]
    return tuple(sorted(rows, key=lambda row: (row.namespace, row.kind, _natural(row.name))))


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


def _problems(
    report: TopReport, nodes: Sequence[NodeFigures], pods: Iterable[PodRow]
) -> Iterator[Problem]:
    yield from find_gpu_problems(nodes, report.at_s, lambda uid: _owner(report, uid))
    yield from find_nodes_without_figures((pod.node for pod in pods), nodes)


def _owner(report: TopReport, uid: str) -> str:
    if not uid:
        return "processes of no pod"
    namespace, name = report.name_of(uid)
    if name:
        return f"pod {namespace}/{name}, which has no cap"
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


def _largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
