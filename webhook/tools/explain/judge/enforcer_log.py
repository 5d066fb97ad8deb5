"""What a pod's enforcer did, what the pod held, and the pods before it, in words and amounts.

The enforcer's log lines and its termination message are written by `webhook.sidecar.events`. A
tenant may run the sidecar's image in a pod of its own, so nothing in a line is believed to have a
type.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from webhook.core.enforcement.log_messages import LogMessage
from webhook.core.enforcement.termination_message import read_verdict
from webhook.core.kinds.histories import advise, measured_runs, peak_bytes
from webhook.core.kinds.nodes import read_time
from webhook.core.pod.fields import text_of
from webhook.core.words import MOST_GPU_BYTES, amount, counted, exactly
from webhook.names import GPU_MEMORY_ANNOTATION, VRAM_RESOURCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from webhook.core.kinds.histories import History, Run
    from webhook.core.kinds.nodes import NodeFigures
    from webhook.core.kinds.workloads import Workload
    from webhook.tools.snapshot.pod import ClusterPod

HISTORY: Final = "history"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A line of an enforcer's log, or the verdict in its termination message."""

    message: LogMessage
    why: str
    """The enforcer's own sentence."""
    at_s: float | None = None
    """Unix time; None in a termination message."""
    peak_bytes: int | None = None
    """Peak of the pod on one GPU, of an excess."""
    blind: bool = False
    """Whether a self-test failed."""


@dataclass(frozen=True, slots=True)
class EnforcerLog:
    """Events of one pod; each tuple has the newest last."""

    stops: tuple[LogEntry, ...] = ()
    reports: tuple[LogEntry, ...] = ()
    """Excesses for which nothing was stopped, since the policy only reports."""
    blind: str = ""
    """The reason why it cannot measure; empty if it can."""
    not_held: str = ""
    """The reason why the driver does not hold the pod to its cap; empty if it does."""


def read_log(
    lines: Iterable[str], terminated: str = "", *, self_test_failed: bool = False
) -> EnforcerLog:
    """Read log lines, the oldest first, and the last termination message.

    | line | then |
    | --- | --- |
    | no JSON object, another message | passed over |
    | begins a stop | a stop more |
    | reports what would be stopped | a report more |
    | says that nothing, or that everything can be measured | the last one counts |
    | says whether the driver holds the pod | the last one counts |

    The message counts, before all lines, if no line has the same sentence: a log may be gone while
    the pod still exists. That of a self-test is a failure only if the exit code says so.
    """
    entries = [entry for line in lines if (entry := _parse(line))]
    verdict = read_verdict(terminated)
    if verdict and not any(entry.why.startswith(verdict[1]) for entry in entries):
        entries.insert(0, LogEntry(*verdict, blind=self_test_failed))
    stops: list[LogEntry] = []
    reports: list[LogEntry] = []
    blind = not_held = ""
    for entry in entries:
        match entry.message:
            case LogMessage.STOPPING | LogMessage.STOPPING_CONTAINER | LogMessage.ENDING_POD:
                stops.append(entry)
            case LogMessage.WOULD_STOP:
                reports.append(entry)
            case LogMessage.BLIND | LogMessage.DRIVER_CHANGED:
                blind = entry.why
            case LogMessage.MEASURING:
                blind = ""
            case LogMessage.SELF_TEST:
                blind = entry.why if entry.blind else ""
            case LogMessage.NOT_HELD | LogMessage.WAITING_FOR_LIMIT:
                not_held = entry.why
            case LogMessage.HELD | LogMessage.HELD_LATE:
                not_held = ""
    return EnforcerLog(tuple(stops), tuple(reports), blind, not_held)


def _parse(line: str) -> LogEntry | None:
    try:
        values = json.loads(line)
        message = LogMessage(values["msg"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return LogEntry(
        message,
        text_of(values, "why"),
        read_time(values.get("ts")),
        _bytes(values, "peak_bytes"),
        values.get("ability") == "blind",
    )


def _bytes(values: Mapping[str, Any], key: str) -> int | None:
    value = values.get(key)
    return value if type(value) is int and 0 <= value <= MOST_GPU_BYTES else None


def peak_words(peak_bytes: int | None, cap_bytes: int) -> str:
    """Return a peak in words: `peak 6.1Gi of 16Gi`."""
    peak = (
        "no peak was measured, the cap was"
        if peak_bytes is None
        else (f"peak {amount(peak_bytes)} of")
    )
    return f"{peak} {exactly(cap_bytes)}"


def stops_words(stops: int) -> str:
    """Say how often something was stopped."""
    if not stops:
        return "nothing was stopped"
    return "something was stopped " + ("once" if stops == 1 else f"{stops} times")


def held_words(run: Run) -> str:
    """Return the peak of a run and its number of stops, in words."""
    return f"{peak_words(run.peak_bytes, run.asked_bytes)}, {stops_words(run.stops)}"


def find_run(
    histories: Iterable[History], pod: str, since_s: float = 0.0
) -> tuple[Run, History] | None:
    """Return the newest run of a pod of this name that ended since a Unix time, and its history."""
    found = ((run, one) for one in histories for run in one.runs if run.pod == pod)
    later = (pair for pair in found if pair[0].ended_s >= since_s)
    return max(later, key=lambda pair: pair[0].ended_s, default=None)


def find_history(histories: Iterable[History], workload: Workload) -> History | None:
    """Return the history of a workload."""
    for one in histories:
        if (one.kind, one.workload) == (workload.kind, workload.name):
            return one
    return None


def history_notes(
    history: History | None,
    asked_bytes: int,
    nodes: Iterable[NodeFigures] | None,
    pod: ClusterPod | None,
) -> Iterator[tuple[str, str]]:
    """Yield what the last pods of a workload held, and what would do for this one."""
    peak = peak_bytes(history) if history else None
    if history is None or peak is None:
        return
    advice = advise(history, asked_bytes, largest_gpu(nodes))
    whose = f"{history.kind} {history.workload}"
    runs, known = len(history.runs), measured_runs(history)
    last = "the last pod" if runs == 1 else f"the last {counted(runs, 'pod')}"
    of = (
        f"{last} of {whose}"
        if known == runs
        else f"of {last} of {whose} {known} were measured, and"
    )
    said = f"{of} peaked at {amount(peak)}"
    if advice.amount_bytes is not None:
        would = exactly(advice.amount_bytes)
        said += f"; {would} would do: {line_for(pod, advice.amount_bytes, nodes)}"
    yield HISTORY, said


def largest_gpu(nodes: Iterable[NodeFigures] | None) -> int | None:
    """Return the usable bytes of the largest GPU; None if no node's figures are known."""
    sizes = (gpu.usable_bytes for node in nodes or () for gpu in node.gpus)
    return max(sizes, default=None)


def line_for(pod: ClusterPod | None, amount_bytes: int, nodes: Iterable[NodeFigures] | None) -> str:
    """Return what to write, so that a pod like this one gets an amount on each of its GPUs.

    | the pod's annotation gpu-memory | then |
    | --- | --- |
    | any, and no GPU has that amount | that, and what to do instead |
    | is one quantity, or the pod is gone | the annotation, to be copied |
    | is a list by container | the sum of its entries |
    | is absent: its containers say it themselves | the sum of their limits, per GPU |
    """
    asks, largest_bytes = exactly(amount_bytes), largest_gpu(nodes)
    if largest_bytes is not None and amount_bytes > largest_bytes:
        return f"no GPU here has {asks}: let it take less at a time, as by smaller batches"
    if pod is None:
        return f"{GPU_MEMORY_ANNOTATION}: {asks}"
    written = pod.annotations.get(GPU_MEMORY_ANNOTATION)
    if not isinstance(written, str):
        return f"{asks} per GPU in the limits {VRAM_RESOURCE}"
    if "=" in written:
        return f"{asks} in sum over the containers in {GPU_MEMORY_ANNOTATION}"
    return f"{GPU_MEMORY_ANNOTATION}: {asks}"
