"""Parameters of enforcement: defaults, bounds and parsing, for policies and for the sidecar."""

from __future__ import annotations

import re
from typing import Final

from webhook.core.formatting import MAX_BYTES
from webhook.core.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Default and inclusive bounds of a duration, in the format of policies."""

    default: str
    least: str
    most: str


# The sidecar uses these defaults if an environment variable is unset. So running pods depend on
# them, even after an upgrade or a rollback. Within 0.x a default only changes together with the
# variable's name.
POLL_INTERVAL: Final = Span("1s", "100ms", "60s")
GRACE: Final = Span("5s", "0s", "1h")
BLIND_AFTER: Final = Span("60s", "1s", "1h")
TOLERANCE: Final = "2%"
MOST_PERCENT: Final = 50
LONGEST_MESSAGE: Final = 4096  # bytes of a termination message, limited by the kubelet

WHEN_BLIND: Final = ("Report", "Terminate")
"""Reactions if memory in use cannot be measured for long; the first one is the default."""
ON_EXCESS: Final = ("Stop", "Report")
"""Reactions to an excess; the first one is the default."""

_BYTES: Final = re.compile("[0-9]{1,19}")
_PERCENTAGE: Final = re.compile(r"([0-9]{1,3})(?:\.([0-9]))?%")


def parse_permille(text: str) -> int:
    """Parse a percentage such as `2.5%` and return it in tenths of a percent.

    Raises ValueError; its message continues a sentence that begins with the value.
    """
    match = _PERCENTAGE.fullmatch(text)
    if match is None:
        raise ValueError("is not a percentage; write e.g. 2% or 2.5%")
    permille = int(match[1]) * 10 + int(match[2] or 0)
    if permille > MOST_PERCENT * 10:
        raise ValueError(f"is more than {MOST_PERCENT}%; write less")
    return permille


def parse_cap(text: str) -> int:
    """Parse the enforcer's cap, a number of bytes above 0; raises ValueError."""
    if not text:
        raise ValueError("is not set; it is the cap per GPU in bytes, e.g. 8589934592")
    if not _BYTES.fullmatch(text) or not 0 < int(text) <= MAX_BYTES:
        raise ValueError(f"{text!r} is not a number of bytes above 0, e.g. 8589934592")
    return int(text)


def parse_stops(text: str) -> bool:
    """Return True if an excess leads to a stop, False if it is only reported; raises ValueError."""
    if text not in ("", *ON_EXCESS):
        raise ValueError(f"{text!r} must be one of {', '.join(ON_EXCESS)}")
    return text != ON_EXCESS[1]


def parse_tolerance(text: str, cap_bytes: int) -> int:
    """Parse a percentage of the cap, rounded down, or a number of bytes; raises ValueError."""
    text = text or TOLERANCE
    if text.endswith("%"):
        try:
            return cap_bytes * parse_permille(text) // 1000
        except ValueError as error:
            raise ValueError(f"{text!r} {error}") from None
    if _BYTES.fullmatch(text) and int(text) <= MAX_BYTES:
        return int(text)
    raise ValueError(f"{text!r} is neither a percentage, e.g. 2%, nor a number of bytes")
