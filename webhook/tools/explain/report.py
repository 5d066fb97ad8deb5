"""Diagnosis of one object by `explain`: state, problems and notes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from webhook.core.enforcement.termination_message import stops_in_words
from webhook.core.formatting import format_amount, format_count, format_exact, join_names
from webhook.core.kinds.histories import History, Run, advise, count_measured_runs, peak_bytes
from webhook.core.kinds.nodes import (
    HELD_BY_DRIVER,
    HELD_BY_SENTRY,
    HELD_LATE,
    NodeFigures,
    held_by,
    largest_gpu,
)
from webhook.core.placement.fit import Denial, place
from webhook.tools.problems.bound_pod import BoundPod, suggest_request
from webhook.tools.problems.capacity import NodeFit, placeable
from webhook.tools.problems.eligibility import requires_sentry
from webhook.tools.problems.gpus import find_stale_figures
from webhook.tools.problems.problem import Problem, ProblemSubject, Severity
from webhook.tools.snapshot.pod import ClusterPod

_FAILS: Final = "an allocation beyond {} fails inside the program with an out-of-memory error"
_HOLDERS: Final = {
    HELD_BY_DRIVER: f"the driver: {_FAILS}; nothing is stopped",
    HELD_LATE: f"the driver, but late: {_FAILS}; what it held before is outside of that, and what "
    "exceeds the cap with it is stopped",
    "sidecar": "its sidecar: what exceeds {} is stopped, about a second later",
    HELD_BY_SENTRY: "the sentry of its node, from outside: what exceeds {} is stopped, within 15 s",
}
_BY_SENTRY_ALONE: Final = "the sentry of its node: what exceeds {} is stopped, a few seconds later"


class State(StrEnum):
    """State of a pod, or of a workload by its pod."""

    PENDING = "pending"
    """The pod has no node."""
    REFUSED = "refused"
    """The workload's pods cannot be created."""
    WAITING = "waiting"
    """The pod has a node but no GPU yet."""
    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    """A process or container of the pod was stopped; others may still run."""
    BLIND = "blind"
    """The pod's memory cannot be measured."""
    ENDED = "ended"
    GONE = "gone"
    """The pod was deleted; its last run is known."""
    NO_DEMAND = "no-demand"
    """The pod requests no VRAM."""
    UNKNOWN = "unknown"
    """No object has that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Diagnosis of one object."""

    subject: ProblemSubject
    state: State
    sentence: str
    """Sentence that follows the object's kind and name."""
    problems: Sequence[Problem] = ()
    nodes: Sequence[NodeFit] = ()
    notes: Sequence[tuple[str, str]] = ()
    """Additional facts, as pairs of label and text."""
    left_out: Sequence[str] = ()
    """Facts that could not be read, with reasons, including facts about `pod`."""
    pod: Diagnosis | None = None
    """Diagnosis of the newest pod that has a problem, or else the newest pod. None for a pod."""

    @property
    def headline(self) -> str:
        """First line, such as `Pod team-a/eval-4 has waited for 3m.`."""
        return f"{self.subject.kind} {self.subject} {self.sentence}"

    @property
    def has_problem(self) -> bool:
        """True if the object or its pod has an error or a warning."""
        mine = any(problem.severity is not Severity.INFO for problem in self.problems)
        return mine or bool(self.pod and self.pod.has_problem)


def describe_peak(peak: int | None, cap_bytes: int, stops: int) -> str:
    """Describe peak and stops of a pod: `peak 6.1Gi of 16Gi, nothing was stopped`."""
    of = "no peak was measured, the cap was" if peak is None else f"peak {format_amount(peak)} of"
    return f"{of} {format_exact(cap_bytes)}, {stops_in_words(stops)}"


def find_run(
    histories: Iterable[History], pod: str, since_s: float = 0.0
) -> tuple[Run, History] | None:
    """Return the newest run of a pod, and the history that contains the run.

    Runs that ended before `since_s` (Unix time) are ignored.
    """
    found = ((run, history) for history in histories for run in history.runs if run.pod == pod)
    later = (pair for pair in found if pair[0].ended_s >= since_s)
    return max(later, key=lambda pair: pair[0].ended_s, default=None)


def history_note(
    history: History | None,
    requested_bytes: int,
    nodes: Iterable[NodeFigures] | None,
    pod: ClusterPod | None,
) -> Iterator[tuple[str, str]]:
    """Yield the peak of a workload's last pods, and the request that would suffice for `pod`."""
    peak = peak_bytes(history) if history else None
    if history is None or peak is None:
        return
    advice = advise(history, requested_bytes, largest_gpu(nodes))
    whose = f"{history.kind} {history.workload}"
    runs, measured = len(history.runs), count_measured_runs(history)
    last = "the last pod" if runs == 1 else f"the last {format_count(runs, 'pod')}"
    of = f"{last} of {whose}"
    if measured != runs:
        of = f"of {of} {measured} were measured, and"
    text = f"{of} peaked at {format_amount(peak)}"
    if advice.amount_bytes is not None:
        text += f"; this would do: {suggest_request(pod, advice.amount_bytes, nodes)}"
    yield "history", text


def stale_note(nodes: Iterable[NodeFigures], now_s: float) -> Iterator[tuple[str, str]]:
    """Yield a note on nodes whose figures are old."""
    newest_first = sorted(nodes, key=lambda node: -node.observed_s)
    old = [problem for node in newest_first for problem in find_stale_figures(node, now_s)]
    if old:
        names = join_names(sorted(problem.subject.name for problem in old))
        yield "old figures", f"{names}: {old[0].message} (vramwarden check)"


def bound_notes(bound: BoundPod) -> Iterator[tuple[str, str]]:
    """Yield notes on a larger request, cap enforcement and the choice of GPUs."""
    allocations = bound.allocations
    free = allocations[0][0].free_bytes if len(allocations) == 1 else None
    if bound.was_over and free is not None:
        wanted, left = bound.sufficient_bytes, free + allocations[0][1].cap_bytes
        fits = "fits now" if free >= wanted else "fits once this one ends"
        fits = fits if left >= wanted else "does not fit, even once this one ends"
        yield (
            "on that GPU",
            f"such a pod {fits} ({format_amount(max(0, free), down=True)} are free there)",
        )
    if bound.pod.state.finished:
        return
    by = held_by(bound.figures)
    means = _HOLDERS.get(by)
    if by == HELD_BY_SENTRY and requires_sentry(bound.pod):
        means = None if bound.lacks_sentry else _BY_SENTRY_ALONE
    if means and bound.cap_bytes:
        several = " on each" if len(allocations) > 1 else ""
        yield "held by", means.format(f"{format_exact(bound.cap_bytes)}{several}")
    yield from _placement_note(bound)
    yield from stale_note([bound.node] if bound.node else [], bound.now_s)


def _placement_note(bound: BoundPod) -> Iterator[tuple[str, str]]:
    """Yield the rule that chose the GPUs, and current figures if they give the same choice."""
    node, own = bound.node, {gpu.uuid: pod.cap_bytes for gpu, pod in bound.allocations}
    if node is None or not own or not bound.pod.state.uuids or bound.pod.state.need is None:
        return
    gpus, free = placeable(node)
    without = {uuid: free[uuid] + own.get(uuid, 0) for uuid in free}
    placed = place(node.name, gpus, without, bound.pod.state.need)
    descriptions = []
    for gpu in sorted(gpus, key=lambda gpu: gpu.index):
        left = format_amount(max(0, without[gpu.uuid]), down=True)
        has = f"would have {left} without this pod" if gpu.uuid in own else f"has {left}"
        descriptions.append(f"GPU {gpu.index} {has}")
    indices = sorted(gpu.index for gpu, _ in bound.allocations)
    which = f"GPU{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices))}"
    rule = "the GPUs with the least free memory that fit are taken"
    rule = rule if len(indices) > 1 else "the GPU with the least free memory that fits is taken"
    same = not isinstance(placed, Denial) and {*placed} == own.keys()
    today = (
        f"; today {join_names(descriptions, 8)}" if same else ", by what was free when it was bound"
    )
    yield f"why {which}", f"{rule}{today}"
