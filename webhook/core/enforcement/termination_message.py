"""The sidecar's termination message and process name, which contain the pod's peak.

The kubelet copies the message to the pod's status. Its first line is for people: `kubectl describe`
shows it. The webhook, which watches the pod, reads the line of JSON.

While the sidecar runs, the name of its process (`/proc/PID/comm`) contains the number of stops and
the peak, since a sidecar has no port, no token and no shared volume. A tenant can forge the name
for its own pod, so no decision depends on it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from webhook.core.enforcement.messages import LogMessage
from webhook.core.enforcement.parameters import LONGEST_MESSAGE
from webhook.core.formatting import (
    PLAUSIBLE_GPU_BYTES,
    format_amount,
    format_duration,
    format_exact,
)
from webhook.core.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_GPUS: Final = 16
"""Maximum number of GPUs in a message; GPUs with the highest peaks come first."""
MOST_SECONDS: Final = 10 * 366 * 86_400
_LONGEST_UUID: Final = 64
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class TerminationMessage:
    """Final figures of a sidecar about its pod."""

    cap_bytes: int
    """Cap per GPU, in bytes."""
    peaks: Mapping[str, int]
    """Peak in bytes by UUID, for each GPU on which the pod was measured."""
    stops: int
    seconds: int

    @property
    def peak_bytes(self) -> int | None:
        """Highest peak on a GPU, in bytes; None if nothing was measured."""
        return max(self.peaks.values(), default=None)


def write_message(figures: TerminationMessage) -> str:
    """Return the line for people and the line of JSON, each with a line feed."""
    largest = sorted(figures.peaks.items(), key=lambda entry: entry[1], reverse=True)[:MOST_GPUS]
    written = {
        "v": _VERSION,
        "cap": figures.cap_bytes,
        "peak": dict(largest),
        "stops": figures.stops,
        "s": figures.seconds,
    }
    return f"ended: {describe_for_people(figures)}\n{json.dumps(written, separators=(',', ':'))}\n"


def describe_for_people(figures: TerminationMessage) -> str:
    """Return the sentence for people."""
    if figures.peaks:
        gpu, peak_bytes = max(figures.peaks.items(), key=lambda entry: entry[1])
        peak = f"peak {format_amount(peak_bytes)} of {format_exact(figures.cap_bytes)} on {gpu}"
    else:
        peak = f"no peak was measured, the cap is {format_exact(figures.cap_bytes)}"
    return (
        f"{peak}, {stops_in_words(figures.stops)}, guarded for {format_duration(figures.seconds)}"
    )


def stops_in_words(stops: int) -> str:
    """Return the number of stops as part of a sentence."""
    if not stops:
        return "nothing was stopped"
    return "something was stopped " + ("once" if stops == 1 else f"{stops} times")


def read_verdict(message: str) -> tuple[LogMessage, str] | None:
    """Return the sidecar's last verdict and its sentence; None if the message has none.

    `webhook.sidecar.journal` writes both to the first line, such as `cannot measure: the sentence`.
    The line may be forged or truncated.
    """
    name, _, why = message[:LONGEST_MESSAGE].partition("\n")[0].partition(": ")
    try:
        return LogMessage(name), why
    except ValueError:
        return None


def read_message(message: object) -> TerminationMessage | None:
    """Parse a termination message; return None if it has no valid line of JSON.

    The message may be forged, or truncated by the kubelet, so each value must be within its bounds.
    """
    if not isinstance(message, str):
        return None
    for line in reversed(message[-LONGEST_MESSAGE:].splitlines()):
        if line.startswith("{"):
            return _read(line)
    return None


def _read(line: str) -> TerminationMessage | None:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if raw.get("v") != _VERSION:
        return None
    cap, stops, seconds = raw.get("cap"), raw.get("stops"), raw.get("s")
    peaks = raw.get("peak")
    if not (_within(cap, PLAUSIBLE_GPU_BYTES) and cap and _within(stops, PLAUSIBLE_GPU_BYTES)):
        return None
    if not (_within(seconds, MOST_SECONDS) and isinstance(peaks, dict)):
        return None
    if len(peaks) > MOST_GPUS or not all(
        len(gpu) <= _LONGEST_UUID and _within(peak, PLAUSIBLE_GPU_BYTES)
        for gpu, peak in peaks.items()
    ):
        return None
    return TerminationMessage(cap, peaks, stops, seconds)


def _within(value: object, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


LONGEST_NAME: Final = 15
"""Maximum length of a process name in bytes (TASK_COMM_LEN - 1, proc_pid_comm(5))."""

MOST_STOPS: Final = 999
MOST_MEBIBYTES: Final = 9_999_999
"""Largest peak that fits into the name, in MiB; larger peaks are written as this one."""

_MARK: Final = "vw s"
_MIB: Final = 2**20


def write_process_name(stops: int, peak_bytes: int | None) -> str:
    """Return the name, such as `vw s3 6144`: stops, and the peak in whole MiB, rounded down.

    Without a measured peak the name has only stops, such as `vw s0`.
    """
    written = f"{_MARK}{min(max(stops, 0), MOST_STOPS)}"
    if peak_bytes is None:
        return written
    return f"{written} {min(max(peak_bytes, 0) // _MIB, MOST_MEBIBYTES)}"


def read_process_name(text: str) -> tuple[int, int | None] | None:
    """Return stops, and the peak in bytes, from a process name; None for any other name.

    `text` may end with a line feed, as `/proc/PID/comm` does.
    """
    name = text[: LONGEST_NAME + 1].removesuffix("\n")
    if len(name) > LONGEST_NAME or not name.startswith(_MARK):
        return None
    stops, space, peak = name.removeprefix(_MARK).partition(" ")
    if not _is_number(stops, MOST_STOPS) or (space and not _is_number(peak, MOST_MEBIBYTES)):
        return None
    return int(stops), int(peak) * _MIB if space else None


def _is_number(text: str, most: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(most))
