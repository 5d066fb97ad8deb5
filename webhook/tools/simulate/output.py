"""What `vramwarden simulate` writes: a table for people, or JSON; `page` writes HTML."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from webhook.core.pod.quantity import format_bytes
from webhook.tools.simulate.replay.cluster import Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from webhook.tools.simulate.replay.cluster import Scheduling
    from webhook.tools.simulate.replay.replay import Replay

_GIB: Final = 2**30
WORDS: Final[Mapping[Cause, str]] = {
    Cause.NODE_SELECTOR: "no node has the labels they select",
    Cause.TOO_LARGE: "larger than any GPU",
    Cause.TOO_FEW_GPUS: "more GPUs than a node has",
    Cause.GPUS_SPLIT: "fits the sum of a node, not its GPUs",
    Cause.NODES_SPLIT: "fits the sum of all nodes, and none",
    Cause.NO_ROOM: "no room at all",
}


@dataclass(frozen=True, slots=True)
class Report:
    """A workload, and what becomes of it by each order."""

    nodes: int
    gpus: int
    memory_bytes: int
    """Of all GPUs."""
    pods: int
    scheduling: Scheduling
    lower_bound: int
    """GPUs that are needed at the same time, whatever the order, if no pod waits."""
    outcomes: Mapping[str, Replay]
    """By the name of the order; the first is ours."""


def as_json(report: Report) -> str:
    """Write everything for programs; amounts are in bytes, times in seconds."""
    value = {
        "nodes": report.nodes,
        "gpus": report.gpus,
        "memoryBytes": report.memory_bytes,
        "pods": report.pods,
        "scheduler": report.scheduling.value,
        "lowerBoundGPUs": report.lower_bound,
        "orders": {name: _outcome(outcome) for name, outcome in report.outcomes.items()},
    }
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def as_text(report: Report) -> str:
    """Write a table with a column for each order."""
    return "".join(f"{line}\n" for line in _lines(report))


def _outcome(outcome: Replay) -> dict[str, Any]:
    blocked = {}
    for cause, pods in outcome.blocked.items():
        pod, sentence = outcome.examples[cause]
        blocked[cause.value] = {"pods": pods, "first": {"pod": pod, "sentence": sentence}}
    return {
        "startedAtOnce": outcome.at_once,
        "startedLater": outcome.waited,
        "neverStarted": outcome.never,
        "longestWaitSeconds": outcome.longest_wait_s,
        "gpusUsed": outcome.gpus_used,
        "usedGPUsBytes": outcome.used_bytes,
        "takenBytes": outcome.taken_bytes,
        "freeBytes": outcome.free_bytes,
        "strandedBytes": outcome.stranded_bytes,
        "refused": blocked,
    }


def _lines(report: Report) -> Iterator[str]:
    ours, *others = report.outcomes
    yield (
        f"{counted(report.nodes, 'node')} with {counted(report.gpus, 'GPU')} "
        f"({amount(report.memory_bytes)}), {counted(report.pods, 'pod')}; "
        f"the scheduler {report.scheduling.value}s"
    )
    yield ""
    yield _row("", [f"{ours} (ours)", *others])
    for label, show in ROWS.items():
        yield _row(label, [show(outcome) for outcome in report.outcomes.values()])
    yield _row("GPUs needed at least", [f"{report.lower_bound:,}"])
    causes = {cause for outcome in report.outcomes.values() for cause in outcome.blocked}
    if causes:
        yield ""
        yield "Pods that did not start when they arrived, by cause:"
    for cause in filter(causes.__contains__, Cause):
        counts = [f"{outcome.blocked.get(cause, 0):,}" for outcome in report.outcomes.values()]
        yield _row(f"  {WORDS[cause]}", counts)
    mine = report.outcomes[ours]
    if mine.blocked:
        yield ""
        yield f"The first of them, by {ours}:"
    for cause in filter(mine.blocked.__contains__, Cause):
        pod, sentence = mine.examples[cause]
        yield f"  {pod}: {sentence or WORDS[cause]}"


def _row(label: str, cells: list[str]) -> str:
    return f"{label:<40}" + "".join(f"{cell:>17}" for cell in cells)


def counted(number: int, what: str) -> str:
    """Write a number of things."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def amount(amount_bytes: int) -> str:
    """Write bytes in whole GiB; small ones exactly."""
    if amount_bytes < 100 * _GIB:
        return format_bytes(amount_bytes)
    return f"{(amount_bytes + _GIB // 2) // _GIB:,}Gi"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m" if hours else f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _stranded(outcome: Replay) -> str:
    return f"{outcome.stranded_bytes * 100 // max(1, outcome.free_bytes)}%"


ROWS: Final[Mapping[str, Callable[[Replay], str]]] = {
    "pods that started at once": lambda outcome: f"{outcome.at_once:,}",
    "pods that waited": lambda outcome: f"{outcome.waited:,}",
    "pods that never started": lambda outcome: f"{outcome.never:,}",
    "longest wait": lambda outcome: _duration(outcome.longest_wait_s),
    "memory taken at most": lambda outcome: amount(outcome.taken_bytes),
    "  free then": lambda outcome: amount(outcome.free_bytes),
    "  of this in pieces too small to use": _stranded,
    "memory of the GPUs in use at most": lambda outcome: amount(outcome.used_bytes),
    "GPUs in use at most": lambda outcome: f"{outcome.gpus_used:,}",
}
