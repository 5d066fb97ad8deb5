"""Durations in Kubernetes' and Go's syntax. No `fractions`: the sidecar imports this module."""

from __future__ import annotations

import re
from typing import Final

DURATION: Final = r"([0-9]+(\.[0-9]+)?(h|ms|m|s))+"

_DURATION: Final = re.compile(DURATION)
_PART: Final = re.compile(r"([0-9]+)(?:\.([0-9]+))?(h|ms|m|s)")
_BARE: Final = re.compile(r"[0-9]+(\.[0-9]+)?")
_LENGTH: Final = 32
_MS: Final = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_UNITS_PER_MS: Final = 10**_LENGTH
"""Units per millisecond: one decimal more than a duration can have, so that sums are exact."""


def parse_ms(text: str) -> int:
    """Parse a duration such as `1m30s` exactly, in milliseconds.

    Raises ValueError. Its message completes a sentence that begins with the duration.
    """
    if len(text) > _LENGTH or not _DURATION.fullmatch(text):
        is_bare = re.fullmatch("[0-9]{1,9}", text)
        hint = f"add its unit, e.g. {text}s" if is_bare else "write e.g. 500ms, 1s or 1m30s"
        raise ValueError(f"is not a duration; {hint}")
    total = sum(
        int(whole + decimals.ljust(_LENGTH, "0")) * _MS[unit]
        for whole, decimals, unit in _PART.findall(text)
    )
    total_ms, rest = divmod(total, _UNITS_PER_MS)
    if rest:
        raise ValueError("is finer than a millisecond; write whole milliseconds")
    return total_ms


def parse_seconds(text: str, least_s: float = 0.0, most_s: float = float("inf")) -> float:
    """Parse a duration or a number of seconds. Raises ValueError if malformed or out of bounds."""
    try:
        value_s = float(text) if _BARE.fullmatch(text) else parse_ms(text) / 1_000
    except ValueError as error:
        raise ValueError(f"{text!r} {error}") from None
    if not least_s <= value_s <= most_s:
        raise ValueError(f"{text!r} must be between {least_s:g}s and {most_s:g}s")
    return value_s
