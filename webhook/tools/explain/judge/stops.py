"""What a pod's enforcer did, what the pod held, and the pods before it, in words and amounts.

What it did is read back from its log lines and its termination message, which
`webhook.sidecar.events` writes. A tenant may run the sidecar's image in a pod of its own, so
nothing in a line is believed to have a type.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Any, Final

from webhook.core.kinds.histories import advise, measured_runs, peak_bytes
from webhook.core.kinds.nodes import read_time
from webhook.core.pod.fields import text_of
from webhook.core.words import MAX_BYTES, amount, counted, exactly
from webhook.names import GPU_MEMORY_ANNOTATION, VRAM_RESOURCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from webhook.core.kinds.histories import History, Run
    from webhook.core.kinds.nodes import NodeFigures
    from webhook.core.kinds.workloads import Workload
    from webhook.tools.snapshot.pod import ClusterPod

HISTORY: Final = "history"


class Said(StrEnum):
    """The enforcer's events that `explain` knows: the constant messages of its log lines."""

    STOPPING = "stopping a process"
    STOPPING_CONTAINER = "stopping a container"
    WOULD_STOP = "would stop a process"
    KILLING = "killing a process"
    CAME_BACK = "memory came back"
    STAYED = "memory did not come back"
    ENDING_POD = "the pod must restart"
    BLIND = "cannot measure"
    MEASURING = "measuring again"
    SELF_TEST = "self-test"
    DRIVER_CHANGED = "the driver changed"
    WAITING_FOR_LIMIT = "waiting for the driver's limit"
    HELD = "held by the driver"
    HELD_LATE = "held by the driver, late"
    NOT_HELD = "not held by the driver"


_STOPS: Final = {Said.STOPPING, Said.STOPPING_CONTAINER, Said.ENDING_POD}
_VERDICT: Final = re.compile(f"({'|'.join(map(re.escape, Said))}): (.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Something of a pod that was stopped for what it held."""

    reason: Said
    why: str
    """The enforcer's own sentence."""
    at_s: float | None = None
    """Unix time; None where only the termination message is left of it."""
    sum_bytes: int | None = None
    """By the whole pod, on one GPU."""
    cap_bytes: int | None = None
    peak_bytes: int | None = None
    pid: int | None = None
    command: str = ""
    container: str = ""
    """Its id."""
    killed: bool = False
    """SIGTERM was not enough."""
    freed_after_s: float | None = None
    """After its first signal; None while its memory did not come back, or nobody saw it."""


@dataclass(frozen=True, slots=True)
class EnforcerLog:
    """What an enforcer said."""

    stops: tuple[Stop, ...] = ()
    """The newest last."""
    reports: tuple[Stop, ...] = ()
    """What it would have stopped, and only reported; the newest last."""
    blind: str = ""
    """Why it cannot measure, where that was its last word on it."""
    not_held: str = ""
    """Why the driver does not hold the pod to its cap, likewise."""


def read_log(
    lines: Iterable[str], terminated: str = "", *, self_test_failed: bool = False
) -> EnforcerLog:
    """Read log lines, the oldest first, and the last termination message.

    | line | then |
    | --- | --- |
    | no JSON object, another message | passed over |
    | begins a stop | a stop more |
    | reports what would be stopped | a report more |
    | tells how a stop went on | it completes the last stop of that process |
    | says that nothing, or that everything can be measured | the last one counts |
    | says whether the driver holds the pod | the last one counts |

    The message counts where no line says the same: a log may be gone while the pod still is there.
    That of a self-test is a failure only where the exit code says so.
    """
    stops: list[Stop] = []
    reports: list[Stop] = []
    blind = not_held = ""
    for line in lines:
        event = _read(line)
        if event is None:
            continue
        said, values = event
        why = text_of(values, "why")
        if said in _STOPS:
            stops.append(_stop(said, why, values))
        elif said is Said.WOULD_STOP:
            reports.append(_stop(said, why, values))
        elif said in {Said.KILLING, Said.CAME_BACK, Said.STAYED}:
            _go_on(stops, said, values)
        elif said in {Said.BLIND, Said.DRIVER_CHANGED}:
            blind = why
        elif said is Said.MEASURING:
            blind = ""
        elif said is Said.SELF_TEST:
            blind = why if values.get("ability") == "blind" else ""
        elif said in {Said.NOT_HELD, Said.WAITING_FOR_LIMIT}:
            not_held = why
        elif said in {Said.HELD, Said.HELD_LATE}:
            not_held = ""
    left = _last_verdict(terminated)
    if left and left[0] in _STOPS and all(stop.why != left[1] for stop in stops):
        stops.append(_stop(left[0], left[1], {}))
    if left and left[0] is Said.WOULD_STOP and not reports:
        reports.append(_stop(left[0], left[1], {}))
    if left and not blind and not stops:
        is_blind = left[0] in {Said.BLIND, Said.DRIVER_CHANGED}
        blind = left[1] if is_blind or (self_test_failed and left[0] is Said.SELF_TEST) else ""
    return EnforcerLog(tuple(stops), tuple(reports), blind, not_held)


def _last_verdict(terminated: str) -> tuple[Said, str] | None:
    """Return the verdict in a termination message: the first line that is one."""
    for line in terminated.splitlines():
        found = _VERDICT.fullmatch(line)
        if found:
            return Said(found[1]), found[2]
    return None


def _read(line: str) -> tuple[Said, Mapping[str, Any]] | None:
    try:
        values = json.loads(line)
        return Said(values["msg"]), values
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _stop(said: Said, why: str, values: Mapping[str, Any]) -> Stop:
    return Stop(
        reason=said,
        why=why,
        at_s=read_time(values.get("ts")),
        sum_bytes=_number(values, "sum_bytes"),
        cap_bytes=_number(values, "cap_bytes"),
        peak_bytes=_number(values, "peak_bytes"),
        pid=_number(values, "pid"),
        command=text_of(values, "command"),
        container=text_of(values, "container"),
    )


def _go_on(stops: list[Stop], said: Said, values: Mapping[str, Any]) -> None:
    pid = _number(values, "pid")
    for index in range(len(stops) - 1, -1, -1):
        stop = stops[index]
        if pid is not None and stop.pid == pid:
            after = values.get("after_s")
            if said is Said.KILLING:
                stops[index] = replace(stop, killed=True)
            elif said is Said.CAME_BACK and type(after) is float and 0 <= after < inf:
                stops[index] = replace(stop, freed_after_s=after)
            return


def _number(values: Mapping[str, Any], key: str) -> int | None:
    value = values.get(key)
    return value if type(value) is int and 0 <= value <= MAX_BYTES else None


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
