"""The sidecar's name as a process: its stops and its largest peak, for who reads from outside.

The sidecar has no port, no token and no volume that others read. Its name is in `/proc/PID/comm`,
which everybody may read who sees the process. A tenant can forge it, for its own pod alone, so
nothing is decided by it.
"""

from __future__ import annotations

from typing import Final

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
