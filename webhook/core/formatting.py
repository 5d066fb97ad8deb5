"""Short text forms of bytes, times, numbers and names, for output that people read.

| value | function | reason |
| --- | --- | --- |
| used or reserved bytes | `format_amount`, rounded up | an amount over a cap never looks smaller |
| free or usable bytes | `format_amount(..., down=True)` | never shows more than there is |
| requests, caps, sufficient amounts | `format_exact` | can be copied into a manifest |
| durations, ages | `format_duration`, rounded down | has the form of kubectl's column AGE |
| text from another program | `shorten` | limits the length |
| text from a node | `replace_unprintable` | also removes control characters of terminals |
| text that must stay complete | `escape_unprintable` | escapes control characters of terminals |

Programs read other forms: JSON has bytes and seconds as numbers, and `pod.quantity` formats the
quantities of pods. The sidecar loads this module, so it only imports `typing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_BYTES: Final = 2**63 - 1
"""Largest int64, in which scheduler and API server store amounts of extended resources."""
PLAUSIBLE_GPU_BYTES: Final = 2**50
"""Maximum plausible memory of a GPU, 1 PiB. Larger values are rejected, so sums fit int64."""

_MIB: Final = 2**20
_GIB: Final = 2**30
_TENTHS_BELOW: Final = 100
"""Number of units from which tenths are omitted."""
_TIB_FROM: Final = 10 * 2**40
_MIN_UNITS: Final = 2
"""Minimum number of a time unit. Below it the next smaller unit is used."""


def format_amount(amount_bytes: int, *, down: bool = False) -> str:
    """Format bytes as `512Mi`, `6.1Gi`, `58.7Gi`, `283Gi`, `625Ti`, rounded up unless `down`."""
    if amount_bytes < 0:
        return f"-{format_amount(-amount_bytes, down=not down)}"
    whole_mib = _divide(amount_bytes, _MIB, down=down)
    if whole_mib < _GIB // _MIB:
        return f"{whole_mib}Mi" if whole_mib else "0"
    unit, letter = (_GIB, "Gi") if amount_bytes < _TIB_FROM else (2**40, "Ti")
    whole, tenth = divmod(_divide(10 * amount_bytes, unit, down=down), 10)
    if whole >= _TENTHS_BELOW:
        return f"{_divide(amount_bytes, unit, down=down):,}{letter}"
    return f"{whole}.{tenth}{letter}" if tenth else f"{whole}{letter}"


def format_exact(amount_bytes: int) -> str:
    """Format bytes as a quantity for a pod, rounded up to a Mi: `16Gi`, `7.25Gi`, `7630Mi`."""
    quarters, rest = divmod(amount_bytes, _GIB // 4)
    if rest or quarters < 4:  # noqa: PLR2004 - of a Gi
        return f"{_divide(amount_bytes, _MIB, down=False)}Mi"
    decimals = ("", ".25", ".5", ".75")[quarters % 4]
    return f"{quarters // 4}{decimals}Gi"


def _divide(amount_bytes: int, unit: int, *, down: bool) -> int:
    return amount_bytes // unit if down else -(-amount_bytes // unit)


def format_duration(seconds: float) -> str:
    """Format a duration as `14s`, `9m`, `3h12m`, `5d`, rounded down; a negative one as `0s`."""
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if days >= _MIN_UNITS:
        return f"{days}d"
    if hours >= _MIN_UNITS:
        rest = minutes % 60
        return f"{hours}h{rest}m" if rest else f"{hours}h"
    return f"{minutes}m" if minutes >= _MIN_UNITS else f"{whole}s"


def format_count(number: int, what: str) -> str:
    """Format a number and a noun: `1 node`, `8,000 GPUs`, `2 classes`, `2 policies`."""
    if number != 1 and what.endswith("cy"):
        what = f"{what[:-1]}ie"
    plural = "" if number == 1 else "es" if what.endswith("s") else "s"
    return f"{number:,} {what}{plural}"


def join_names(names: Iterable[str], most: int = 3) -> str:
    """Join at most `most` names with commas, and add the number of omitted names."""
    every = list(names)
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def join_names_within(names: Sequence[str], room: int, count: int = 0) -> str:
    """Join at most three names in `room` characters, and add the number of omitted names.

    The first name is shortened if it does not fit. `count` is the number of all names if `names`
    contains only some of them.
    """
    total = max(count, len(names))
    for most in range(min(len(names), 3), 0, -1):
        more = f" and {total - most:,} more" if total > most else ""
        text = ", ".join(names[:most])
        if len(text) + len(more) <= room:
            return text + more
    return shorten(text, room - len(more)) + more


def replace_unprintable(text: str, limit: int) -> str:
    """Cut a string to `limit` characters, and replace unprintable ones by `?`."""
    return "".join(item if item.isprintable() else "?" for item in text[:limit])


def escape_unprintable(text: str, *, ascii_only: bool = False) -> str:
    """Replace unprintable characters by Python escapes; with `ascii_only`, also non-ASCII ones."""
    return "".join(
        item if item.isprintable() and (not ascii_only or item.isascii()) else ascii(item)[1:-1]
        for item in text
    )


def shorten(text: str, limit: int) -> str:
    """Cut a string to `limit` characters, the last of which is an ellipsis if it was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
