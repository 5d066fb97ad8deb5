"""How bytes, times, numbers and names are said to people, in few characters: one way for each.

| what | is said by | so that |
| --- | --- | --- |
| used, held, promised | `format_amount`, rounded up | what is over a cap never seems within it |
| free, usable | `amount(..., down=True)` | nobody is shown more than there is |
| asked for, a cap, what would be enough | `format_exact` | it can be written into a pod |
| how long, how old | `format_duration`, rounded down | it has the form of kubectl's column AGE |
| a text of somebody else | `shorten` | nobody fills a line of ours |
| a text of a node | `replace_unprintable` | in addition, it steers no terminal |
| a text that must lose nothing | `escape_unprintable` | it steers no terminal |

What programs read is not written here: JSON has bytes and seconds as numbers, and a pod's own
quantities are those of `pod.quantity`. The sidecar loads this, so it needs nothing but `typing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_BYTES: Final = 2**63 - 1
"""The scheduler and the API server hold extended resources in an int64."""
MOST_GPU_BYTES: Final = 2**50
"""No GPU has a PiB, and no sum of fewer passes int64: what is said to be more is not believed."""

_MIB: Final = 2**20
_GIB: Final = 2**30
_WHOLE_FROM: Final = 100
"""Of a unit: from so many on, a tenth says nothing."""
_TIB_FROM: Final = 10 * 2**40
_TWO: Final = 2
"""Of a unit of time: below, the next smaller one says more."""


def format_amount(amount_bytes: int, *, down: bool = False) -> str:
    """Write bytes as `512Mi`, `6.1Gi`, `58.7Gi`, `283Gi`, `625Ti`: rounded up, or `down`."""
    if amount_bytes < 0:
        return f"-{format_amount(-amount_bytes, down=not down)}"
    whole_mib = _divided(amount_bytes, _MIB, down=down)
    if whole_mib < _GIB // _MIB:
        return f"{whole_mib}Mi" if whole_mib else "0"
    unit, letter = (_GIB, "Gi") if amount_bytes < _TIB_FROM else (2**40, "Ti")
    whole, tenth = divmod(_divided(10 * amount_bytes, unit, down=down), 10)
    if whole >= _WHOLE_FROM:
        return f"{_divided(amount_bytes, unit, down=down):,}{letter}"
    return f"{whole}.{tenth}{letter}" if tenth else f"{whole}{letter}"


def format_exact(amount_bytes: int) -> str:
    """Write bytes as a pod does, up to whole Mi: `16Gi`, `7.25Gi`, `7630Mi`."""
    quarters, rest = divmod(amount_bytes, _GIB // 4)
    if rest or quarters < 4:  # noqa: PLR2004 - of a Gi
        return f"{_divided(amount_bytes, _MIB, down=False)}Mi"
    decimals = ("", ".25", ".5", ".75")[quarters % 4]
    return f"{quarters // 4}{decimals}Gi"


def _divided(amount_bytes: int, unit: int, *, down: bool) -> int:
    return amount_bytes // unit if down else -(-amount_bytes // unit)


def format_duration(seconds: float) -> str:
    """Write a time as `14s`, `9m`, `3h12m`, `5d`, rounded down; one that is to come as `0s`."""
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if days >= _TWO:
        return f"{days}d"
    if hours >= _TWO:
        rest = minutes % 60
        return f"{hours}h{rest}m" if rest else f"{hours}h"
    return f"{minutes}m" if minutes >= _TWO else f"{whole}s"


def format_count(number: int, what: str) -> str:
    """Write `1 node`, `3 nodes`, `8,000 GPUs`, `2 classes`, `2 policies`."""
    if number != 1 and what.endswith("cy"):
        what = f"{what[:-1]}ie"
    plural = "" if number == 1 else "es" if what.endswith("s") else "s"
    return f"{number:,} {what}{plural}"


def join_names(names: Iterable[str], most: int = 3) -> str:
    """Write the first names in a row, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def join_names_within(names: Sequence[str], room: int, count: int = 0) -> str:
    """Write at most three names in `room` characters, and how many more there are.

    The first one is cut if it does not fit. `count` is the number of all names, if it is larger.
    """
    total = max(count, len(names))
    for most in range(min(len(names), 3), 0, -1):
        more = f" and {total - most:,} more" if total > most else ""
        text = ", ".join(names[:most])
        if len(text) + len(more) <= room:
            return text + more
    return shorten(text, room - len(more)) + more


def replace_unprintable(text: str, limit: int) -> str:
    """Cut a text to `limit` characters, with `?` for each that could steer a terminal."""
    return "".join(one if one.isprintable() else "?" for one in text[:limit])


def escape_unprintable(text: str, *, ascii_only: bool = False) -> str:
    """Write what is not printable as an escape of Python, with `ascii_only` all but ASCII."""
    return "".join(
        one if one.isprintable() and (not ascii_only or one.isascii()) else ascii(one)[1:-1]
        for one in text
    )


def shorten(text: str, limit: int) -> str:
    """Cut a text to `limit` characters, the last of which says that it was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
