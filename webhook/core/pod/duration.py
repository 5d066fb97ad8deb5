"""Durations as Kubernetes and Go write them, in seconds."""

from __future__ import annotations

import re
from typing import Final

_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_seconds(text: str) -> float:
    """Read `500ms`, `1s`, `1m30s` or a bare number of seconds; raises ValueError."""
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return float(text)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration; write e.g. 500ms, 1s or 1m30s")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)
