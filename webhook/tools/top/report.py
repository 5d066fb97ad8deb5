"""Report of `vramwarden top`: node figures joined with pods, and messages about the report."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, Final

from webhook.core.formatting import format_amount, format_count, join_names
from webhook.core.kinds.nodes import (
    HELD_BY_SENTRY,
    SENTRY_FRESH_S,
    STALE_S,
    NodeFigures,
    PodFigures,
)
from webhook.core.placement.fit import Need
from webhook.tools.problems.capacity import add_newer_pods, find_fits, find_no_room
from webhook.tools.problems.gpus import (
    SEVERITY_ORDER,
    find_gpu_problems,
    find_nodes_without_figures,
)
from webhook.tools.problems.pending_pod import other_scheduler_reasons
from webhook.tools.problems.problem import Problem
from webhook.tools.snapshot.pod import ClusterPod
from webhook.tools.top.rows import (
    GpuSums,
    PodPhase,
    PodRow,
    TopReport,
    WorkloadRow,
    largest,
    sum_gpus,
    total,
)

_MOST_REQUESTS: Final = 100
"""Maximum number of different requests for which free capacity is computed."""
_ANY_POD: Final = ClusterPod({})
"""A pod without selectors."""


def build_report(
    nodes: Sequence[NodeFigures] | None,
    pods: Sequence[ClusterPod] | None,
    now_s: float,
    *,
    namespace: str = "",
    missing: Iterable[str] = (),
) -> TopReport:
    """Build the report. `nodes` and `pods` are None if they are unreadable.

    Unmanaged pods have no row. Their names are used for unmanaged memory.
    """
    nodes = nodes and add_newer_pods(nodes, pods or ())
    found = sorted(map(_sort_gpus, nodes or ()), key=lambda node: _natural_key(node.name))
    shared = [node for node in found if not node.not_shared]
    names = {pod.uid: pod for pod in pods or ()}
    rows = _pod_rows([pod for pod in pods or () if pod.managed], found, now_s)
    problems = [
        *find_gpu_problems(found, now_s, partial(_describe_owner, names)),
        *find_nodes_without_figures((row.pod.node for row in rows), found),
    ]
    return TopReport(
        now_s=now_s,
        namespace=namespace,
        amounts=sum_gpus([gpu for node in shared for gpu in node.gpus], len(shared)),
        nodes=None if nodes is None else tuple(found),
        pods=None if pods is None else rows,
        workloads=None if pods is None else _workload_rows(rows),
        problems=tuple(sorted(problems, key=_severity_key)),
        missing=tuple(missing),
        pods_by_uid=names,
        indexes={gpu.uuid: gpu.index for node in found for gpu in node.gpus},
    )


def _sort_gpus(node: NodeFigures) -> NodeFigures:
    gpus = sorted(node.gpus, key=lambda gpu: gpu.index)
    if node.not_shared:  # no pod gets GPU memory on this node
        none: dict[str, Any] = {"promised_bytes": None, "free_bytes": None, "unmanaged": {}}
        gpus = [replace(gpu, **none) for gpu in gpus]
    elif node.held:
        gpus = [replace(gpu, free_bytes=gpu.free_bytes and min(0, gpu.free_bytes)) for gpu in gpus]
    return replace(node, gpus=tuple(gpus))


def _pod_rows(
    pods: Sequence[ClusterPod], nodes: Sequence[NodeFigures], now_s: float
) -> tuple[PodRow, ...]:
    allocations: dict[str, list[tuple[str, PodFigures]]] = {pod.uid: [] for pod in pods}
    for node in nodes:
        age_s = now_s - node.observed_s
        for uuid, figures in ((gpu.uuid, pod) for gpu in node.gpus for pod in gpu.pods):
            if figures.uid in allocations:
                # A pod that was idle according to old figures may be busy again.
                current = replace(figures, idle_since_s=None) if age_s > STALE_S else figures
                if age_s > SENTRY_FRESH_S and figures.held_by == HELD_BY_SENTRY:
                    current = replace(current, held_by="")
                allocations[figures.uid].append((uuid, current))
    room = _PendingReasons(nodes, now_s)
    rows = [_pod_row(pod, allocations[pod.uid], room) for pod in pods]
    return tuple(sorted(rows, key=lambda row: (row.pod.namespace, _natural_key(row.pod.name))))


def _pod_row(
    pod: ClusterPod, allocations: Sequence[tuple[str, PodFigures]], room: _PendingReasons
) -> PodRow:
    """Return a pod's row. GPUs without figures come from the pod's annotation."""
    known = {uuid for uuid, _ in allocations}
    gpu_figures = [*allocations, *((uuid, None) for uuid in pod.gpus if uuid not in known)]
    phase = _phase(pod, has_gpu=bool(gpu_figures))
    why = pod.waiting_reason if phase is PodPhase.WAITING else ""
    if phase is PodPhase.PENDING:
        why = room.why_pending(pod)
    return PodRow(
        pod=pod,
        gpu_count=len(gpu_figures) or pod.gpu_count,
        cap_bytes=max(
            (figures.cap_bytes for _, figures in allocations), default=pod.requested_bytes
        ),
        gpu_figures=tuple(gpu_figures),
        phase=phase,
        reason=why,
    )


def _phase(pod: ClusterPod, *, has_gpu: bool) -> PodPhase:
    """Return the phase of a pod.

    | status | node | GPU | phase |
    | --- | --- | --- | --- |
    | Terminating | any | any | ending |
    | any | none | any | pending |
    | any | one | none, and `ClusterPod.waiting_reason` is set | waiting |
    | Running | one | any, since a pod that sees all GPUs has none in its annotation | running |
    | another | one | any | starting |
    """
    if pod.status == "Terminating":
        return PodPhase.ENDING
    if not pod.node:
        return PodPhase.PENDING
    if pod.waiting_reason and not has_gpu:
        return PodPhase.WAITING
    return PodPhase.RUNNING if pod.status == "Running" else PodPhase.STARTING


class _PendingReasons:
    """Reasons why pods have no node, cached by request."""

    def __init__(self, nodes: Sequence[NodeFigures], now_s: float) -> None:
        self._nodes = [node for node in nodes if not (node.not_shared or node.held)]
        self._now_s = now_s
        self._cache: dict[Need, str] = {}

    def why_pending(self, pod: ClusterPod) -> str:
        """Return the scheduler's reasons unrelated to VRAM, or else why the pod fits on no node."""
        if others := other_scheduler_reasons(pod.scheduler_message):
            return ", ".join(others)
        if pod.requested_bytes is None or not self._nodes:
            return pod.scheduler_message
        need = Need(pod.requested_bytes, pod.gpu_count)
        if need not in self._cache and len(self._cache) < _MOST_REQUESTS:
            found = find_no_room(need, find_fits(_ANY_POD, need, self._nodes, None, self._now_s))
            self._cache[need] = found.message if found else ""
        return self._cache.get(need) or pod.scheduler_message


def _workload_rows(rows: Iterable[PodRow]) -> tuple[WorkloadRow, ...]:
    groups: dict[tuple[str, str, str], list[PodRow]] = defaultdict(list)
    for row in rows:
        pod = row.pod
        kind, name = pod.workload.kind or "Pod", pod.workload.name or pod.name
        groups[pod.namespace, kind, name].append(row)
    found = [_workload_row(*key, group) for key, group in groups.items()]
    return tuple(sorted(found, key=lambda row: (row.namespace, row.kind, _natural_key(row.name))))


def _workload_row(namespace: str, kind: str, name: str, pods: Sequence[PodRow]) -> WorkloadRow:
    figures = [figure for pod in pods for figure in pod.figures]
    caps = [
        figure.cap_bytes if figure else pod.cap_bytes
        for pod in pods
        for _, figure in pod.gpu_figures
    ]
    phases = Counter(pod.phase for pod in pods)
    return WorkloadRow(
        namespace=namespace,
        kind=kind,
        name=name,
        pods=len(pods),
        running=phases[PodPhase.RUNNING],
        waiting=phases[PodPhase.PENDING] + phases[PodPhase.WAITING],
        cap_bytes=largest(pod.cap_bytes for pod in pods),
        promised_bytes=total(caps),
        used_bytes=total(figure.used_bytes for figure in figures),
        peak_bytes=largest(pod.peak_bytes for pod in pods),
        stops=total(pod.stops for pod in pods),
    )


def _describe_owner(names: Mapping[str, ClusterPod], uid: str) -> str:
    if not uid:
        return "processes of no pod"
    if uid in names:
        return f"pod {names[uid].namespace}/{names[uid].name}, which has no cap"
    return f"a pod without a cap (uid {uid}, none that you can list here)"


_NUMBERED: Final = re.compile(r"([^0-9]*)([0-9]{0,30})")


def _severity_key(problem: Problem) -> tuple[int, tuple[tuple[str, int], ...]]:
    return SEVERITY_ORDER.index(problem.code), _natural_key(problem.subject.name)


def _natural_key(name: str) -> tuple[tuple[str, int], ...]:
    """Return a sort key that places `n2` before `n10`."""
    return tuple((text, int(digits or -1)) for text, digits in _NUMBERED.findall(name))


_NODES_NAMED: Final = 5


def describe_totals(sums: GpuSums) -> str:
    """Describe usable, promised and used memory, and the most free memory on one GPU."""

    def describe_share(what: str, known: int | None, gpus: int) -> str:
        if known is None:
            return f"{what} unknown"
        if gpus < sums.gpus:
            return f"{format_amount(known)} {what} on {gpus:,} of them"
        percent = f" ({known * 100 // sums.usable_bytes}%)" if sums.usable_bytes else ""
        return f"{format_amount(known)} {what}{percent}"

    nodes, gpus = format_count(sums.nodes, "node"), format_count(sums.gpus, "GPU")
    promised = describe_share("promised", sums.promised_bytes, sums.promised_gpus)
    used = describe_share("used", sums.used_bytes, sums.used_gpus)
    usable = format_amount(sums.usable_bytes, down=True)
    text = f"{nodes}, {gpus}, {usable} usable: {promised}, {used}"
    if sums.largest_free_bytes is not None:
        text += f"; largest free {format_amount(sums.largest_free_bytes, down=True)}"
    return text


def describe_unavailable_nodes(report: TopReport) -> Iterator[str]:
    """Yield messages about nodes that are not shared or are draining."""
    nodes = report.nodes or ()
    kinds = {
        "not shared, and in no sum": [(node.name, node.not_shared) for node in nodes],
        "held, and what is free there is given to no pod": [
            (node.name, node.held) for node in nodes
        ],
    }
    for what, reasons in kinds.items():
        named = [f"{name} ({reason})" for name, reason in reasons if reason]
        if named:
            yield f"{what}: {join_names(named, _NODES_NAMED)}"


def group_problems(report: TopReport, parts: Sequence[str]) -> Iterator[list[Problem]]:
    """Yield problems grouped by code; without the part `nodes`, only those of the pods' nodes."""
    nodes = {row.pod.node for row in report.pods or ()}
    concern = (
        problem
        for problem in report.problems
        if "nodes" in parts or problem.subject.name.partition("/")[0] in nodes
    )
    for _, alike in groupby(concern, key=lambda problem: problem.code):
        yield list(alike)


def describe_problem(found: Problem) -> str:
    """Return the message of a problem, prefixed by its node and GPU."""
    node, _, gpu = found.subject.name.partition("/")
    return f"{node} GPU {gpu}: {found.message}" if gpu else f"{node}: {found.message}"
