"""The sidecar's termination message: what its pod held at most, for people and for programs.

The kubelet puts the message into the pod's status before the pod goes, where `kubectl describe`
shows the line for people, and the webhook, which watches the pod anyway, reads the one of JSON.
Written and read here, with what the sidecar can afford to load.

While it runs its name as a process says a little of the same: it has no port, no token and no
volume that others read, and everybody may read `/proc/PID/comm` who sees the process. A tenant can
forge it, for its own pod alone, so nothing is decided by it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from webhook.core.enforcement.messages import LogMessage
from webhook.core.enforcement.parameters import LONGEST_MESSAGE
from webhook.core.formatting import MOST_GPU_BYTES, format_amount, format_duration, format_exact
from webhook.core.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_GPUS: Final = 16
"""Of a pod; of more, those on which it held most."""
MOST_SECONDS: Final = 10 * 366 * 86_400
_LONGEST_UUID: Final = 64
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class TerminationMessage:
    """What a sidecar knows of its pod when it ends."""

    cap_bytes: int
    """Per GPU."""
    peaks: Mapping[str, int]
    """What the pod held at most, in bytes, by the UUID of each GPU on which it was measured."""
    stops: int
    """How often something of the pod was stopped for its cap."""
    seconds: int
    """For how long it was guarded."""

    @property
    def peak_bytes(self) -> int | None:
        """What it held at most on one GPU; None where nothing was measured."""
        return max(self.peaks.values(), default=None)


def write_message(words: TerminationMessage) -> str:
    """Return the line for people and the one of JSON, each with its line feed."""
    largest = sorted(words.peaks.items(), key=lambda one: one[1], reverse=True)[:MOST_GPUS]
    written = {
        "v": _VERSION,
        "cap": words.cap_bytes,
        "peak": dict(largest),
        "stops": words.stops,
        "s": words.seconds,
    }
    return f"ended: {in_words(words)}\n{json.dumps(written, separators=(',', ':'))}\n"


def in_words(words: TerminationMessage) -> str:
    """Return the sentence for people."""
    if words.peaks:
        gpu, peak_bytes = max(words.peaks.items(), key=lambda one: one[1])
        peak = f"peak {format_amount(peak_bytes)} of {format_exact(words.cap_bytes)} on {gpu}"
    else:
        peak = f"no peak was measured, the cap is {format_exact(words.cap_bytes)}"
    return f"{peak}, {stops_in_words(words.stops)}, guarded for {format_duration(words.seconds)}"


def stops_in_words(stops: int) -> str:
    """Return how often something was stopped."""
    if not stops:
        return "nothing was stopped"
    return "something was stopped " + ("once" if stops == 1 else f"{stops} times")


def read_verdict(message: str) -> tuple[LogMessage, str] | None:
    """Return the sidecar's last verdict and its sentence; None if a message does not begin so.

    `webhook.sidecar.journal` writes both in the first line, as `cannot measure: the sentence`. They
    may be forged, or cut.
    """
    name, _, why = message[:LONGEST_MESSAGE].partition("\n")[0].partition(": ")
    try:
        return LogMessage(name), why
    except ValueError:
        return None


def read_message(message: object) -> TerminationMessage | None:
    """Read a termination message; None where it holds no such words.

    It may be forged, or cut by the kubelet: nothing of it is believed that is not within bounds.
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
    if not (_within(cap, MOST_GPU_BYTES) and cap and _within(stops, MOST_GPU_BYTES)):
        return None
    if not (_within(seconds, MOST_SECONDS) and isinstance(peaks, dict)):
        return None
    if len(peaks) > MOST_GPUS or not all(
        len(gpu) <= _LONGEST_UUID and _within(peak, MOST_GPU_BYTES) for gpu, peak in peaks.items()
    ):
        return None
    return TerminationMessage(cap, peaks, stops, seconds)


def _within(value: object, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


LONGEST_NAME: Final = 15
"""Bytes that the kernel keeps of a process's name (TASK_COMM_LEN less one, proc_pid_comm(5))."""

MOST_STOPS: Final = 999
MOST_MEBIBYTES: Final = 9_999_999
"""What fits; more is written as this."""

_MARK: Final = "vw s"
_MIB: Final = 2**20


def write_process_name(stops: int, peak_bytes: int | None) -> str:
    """Return the name, as `vw s3 6144`: stops, and the peak in whole MiB, rounded down.

    Without a peak, as `vw s0`, until something was measured: unknown is not zero.
    """
    written = f"{_MARK}{min(max(stops, 0), MOST_STOPS)}"
    if peak_bytes is None:
        return written
    return f"{written} {min(max(peak_bytes, 0) // _MIB, MOST_MEBIBYTES)}"


def read_process_name(text: str) -> tuple[int, int | None] | None:
    """Return stops and peak, in bytes, of a process's name; None for any other name.

    `text` may end as `/proc/PID/comm` does, with a line end.
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
