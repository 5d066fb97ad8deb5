"""Actions of a sidecar, parsed from its log and termination message (`webhook.sidecar.events`).

Tenants can run the sidecar's image in any pod, so each value's type is checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from webhook.core.enforcement.messages import LogMessage
from webhook.core.enforcement.termination_message import read_verdict
from webhook.core.formatting import PLAUSIBLE_GPU_BYTES
from webhook.core.kinds.nodes import read_time
from webhook.core.pod.fields import find_string


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A line of a sidecar's log, or the verdict in its termination message."""

    message: LogMessage
    why: str
    """Message that the sidecar wrote."""
    at_s: float | None = None
    """Unix time; None for a termination message."""
    peak_bytes: int | None = None
    """Peak of the pod on one GPU, in bytes; None unless the entry reports an excess."""
    blind: bool = False
    """True if the sidecar's self-test failed."""


@dataclass(frozen=True, slots=True)
class EnforcerLog:
    """Actions and state of one sidecar; the newest entries are last."""

    stops: tuple[LogEntry, ...] = ()
    reports: tuple[LogEntry, ...] = ()
    """Excesses that were only reported, as the policy requires."""
    blind: str = ""
    """Reason why the sidecar cannot measure memory; empty if it can."""
    not_held: str = ""
    """Reason why the driver does not enforce the cap; empty if it does."""


def read_log(
    lines: Iterable[str], terminated: str = "", *, self_test_failed: bool = False
) -> EnforcerLog:
    """Parse log lines, the oldest first, and the last termination message.

    | line | effect |
    | --- | --- |
    | is no JSON object, or has another message | ignored |
    | reports the start of a stop | one more stop |
    | reports what would be stopped | one more report |
    | reports whether memory can be measured | the last one counts |
    | reports whether the driver enforces the cap | the last one counts |

    A log may be gone while its pod still exists. Therefore the termination message counts as the
    first line, unless a line has the same message. A self-test's message is a failure only if
    the exit code is that of a failure.
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
        find_string(values, "why"),
        read_time(values.get("ts")),
        _bytes(values, "peak_bytes"),
        values.get("ability") == "blind",
    )


def _bytes(values: Mapping[str, Any], key: str) -> int | None:
    value = values.get(key)
    return value if type(value) is int and 0 <= value <= PLAUSIBLE_GPU_BYTES else None
