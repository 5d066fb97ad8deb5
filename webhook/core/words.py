"""How amounts and times are said to people, in few characters."""

from __future__ import annotations

from typing import Final

_MIB: Final = 2**20
_GIB: Final = 2**30
_WHOLE_FROM: Final = 100
"""Of a unit: from so many on, a tenth says nothing."""
_TIB_FROM: Final = 10 * 2**40
_TWO: Final = 2
"""Of a unit of time: below, the next smaller one says more."""


def amount(amount_bytes: int, *, down: bool = False) -> str:
    """Write bytes as `512Mi`, `6.1Gi`, `58.7Gi`, `283Gi`, `625Ti`: rounded, or `down`.

    Down is for what may be taken: nobody is shown more than there is.
    """
    if amount_bytes < 0:
        return f"-{amount(-amount_bytes)}"
    whole_mib = (amount_bytes + (0 if down else _MIB // 2)) // _MIB
    if whole_mib < _GIB // _MIB:
        return f"{whole_mib}Mi" if amount_bytes else "0"
    unit, letter = (_GIB, "Gi") if amount_bytes < _TIB_FROM else (2**40, "Ti")
    tenths = (10 * amount_bytes + (0 if down else unit // 2)) // unit
    if tenths >= 10 * _WHOLE_FROM:
        return f"{(amount_bytes + (0 if down else unit // 2)) // unit:,}{letter}"
    whole, tenth = divmod(tenths, 10)
    return f"{whole}.{tenth}{letter}" if tenth else f"{whole}{letter}"


def span(seconds: float) -> str:
    """Write a time as `14s`, `9m`, `3h12m`, `5d`, rounded down."""
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if days >= _TWO:
        return f"{days}d"
    if hours >= _TWO:
        rest = minutes % 60
        return f"{hours}h{rest}m" if rest else f"{hours}h"
    return f"{minutes}m" if minutes >= _TWO else f"{whole}s"


def counted(number: int, what: str) -> str:
    """Write `1 node`, `3 nodes`, `8,000 GPUs`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
