"""What a pod's enforcer did, read back from its log lines and its termination message.

`webhook.sidecar.events` writes them. A tenant may run the sidecar's image in a pod of its own, so
each line is bounded before it is read, and nothing in it is believed to have a type.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from webhook.core.kinds.nodes import read_time
from webhook.core.words import MAX_BYTES
from webhook.tools.shared.facts import bounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MOST_LINES: Final = 500
"""Of a log, the newest; and as many of the log before the last restart."""
LONGEST_LINE: Final = 16 * 2**10
"""Characters; the enforcer's own have at most some thousand."""
LONGEST_SENTENCE: Final = 1024
_LONGEST_COMMAND: Final = 120
_LONGEST_PID: Final = 2**31


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
    WAITING = "waiting for a GPU"


_STOPS: Final = {Said.STOPPING, Said.STOPPING_CONTAINER, Said.ENDING_POD}
_VERDICT: Final = re.compile(f"({'|'.join(map(re.escape, Said))}): (.+)")
_PEAK: Final = re.compile(r"gpu-memory: ([0-9]{1,12})Mi would have been enough")
_MIB: Final = 2**20


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
class Heard:
    """What an enforcer said."""

    stops: tuple[Stop, ...] = ()
    """The newest last."""
    reports: tuple[Stop, ...] = ()
    """What it would have stopped, and only reported; the newest last."""
    blind: str = ""
    """Why it cannot measure, where that was its last word on it."""


def hear(lines: Iterable[str], terminated: str = "", *, self_test_failed: bool = False) -> Heard:
    """Read log lines, the oldest first, and the last termination message.

    | line | then |
    | --- | --- |
    | longer than `LONGEST_LINE`, no JSON object, another message | passed over |
    | begins a stop | a stop more |
    | reports what would be stopped | a report more |
    | tells how a stop went on | it completes the last stop of that process |
    | says that nothing, or that everything can be measured | the last one counts |

    The message counts where no line says the same: a log may be gone while the pod still is there.
    That of a self-test is a failure only where the exit code says so.
    """
    stops: list[Stop] = []
    reports: list[Stop] = []
    blind = ""
    for line in lines:
        event = _read(line)
        if event is None:
            continue
        said, values = event
        why = bounded(values.get("why"), LONGEST_SENTENCE)
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
    left = _last_verdict(terminated)
    if left and left[0] in _STOPS and all(stop.why != left[1] for stop in stops):
        stops.append(_stop(left[0], left[1], {}))
    if left and left[0] is Said.WOULD_STOP and not reports:
        reports.append(_stop(left[0], left[1], {}))
    if left and not blind and not stops:
        is_blind = left[0] in {Said.BLIND, Said.DRIVER_CHANGED}
        blind = left[1] if is_blind or (self_test_failed and left[0] is Said.SELF_TEST) else ""
    return Heard(tuple(stops), tuple(reports), blind)


def _last_verdict(terminated: str) -> tuple[Said, str] | None:
    """Return the verdict in a termination message: the first line that is one."""
    for line in terminated[:LONGEST_LINE].splitlines():
        found = _VERDICT.fullmatch(line)
        if found:
            return Said(found[1]), bounded(found[2], LONGEST_SENTENCE)
    return None


def _read(line: str) -> tuple[Said, Mapping[str, Any]] | None:
    if len(line) > LONGEST_LINE:
        return None
    try:
        values = json.loads(line)
        return Said(values["msg"]), values
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _stop(said: Said, why: str, values: Mapping[str, Any]) -> Stop:
    peak = _PEAK.search(why)
    told = int(peak[1]) * _MIB if peak else None
    return Stop(
        reason=said,
        why=why,
        at_s=read_time(bounded(values.get("ts"), 64)),
        sum_bytes=_number(values, "sum_bytes"),
        cap_bytes=_number(values, "cap_bytes"),
        peak_bytes=_number(values, "peak_bytes") or told,
        pid=_number(values, "pid", _LONGEST_PID),
        command=" ".join(bounded(values.get("command"), _LONGEST_COMMAND).split()),
        container=bounded(values.get("container"), 80),
    )


def _go_on(stops: list[Stop], said: Said, values: Mapping[str, Any]) -> None:
    pid = _number(values, "pid", _LONGEST_PID)
    for index in range(len(stops) - 1, -1, -1):
        stop = stops[index]
        if pid is not None and stop.pid == pid:
            after = values.get("after_s")
            if said is Said.KILLING:
                stops[index] = replace(stop, killed=True)
            elif said is Said.CAME_BACK and isinstance(after, int | float):
                stops[index] = replace(stop, freed_after_s=max(0.0, min(float(after), 1e6)))
            return


def _number(values: Mapping[str, Any], key: str, most: int = MAX_BYTES) -> int | None:
    value = values.get(key)
    return value if type(value) is int and 0 <= value <= most else None
