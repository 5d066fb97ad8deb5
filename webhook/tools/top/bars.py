"""Bars of characters that show how much of a GPU is used, promised, unmanaged and free."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase
from typing import Final, NamedTuple

from webhook.core.kinds.nodes import GpuFigures
from webhook.tools.top.judge import GpuSums, sums_of

_UNKNOWN: Final = "?"


class Shades(NamedTuple):
    """The characters of a bar."""

    used: str
    promised: str
    unmanaged: str
    free: str


UNICODE: Final = Shades("█", "▒", "!", "·")
ASCII: Final = Shades("#", "=", "!", ".")


def gpu_bar(sums: GpuSums, cells: int, shades: Shades) -> str:
    """Return the bar of a GPU, or of several GPUs together.

    Used memory that was promised is first, then the rest of the promised memory, then memory held
    without a promise, then free memory. Unknown memory is a question mark, never free.
    """
    used, promised, unmanaged = sums.used_bytes, sums.promised_bytes, sums.unmanaged_bytes or 0
    if used is None and promised is None:
        return _UNKNOWN * cells
    own = max(0, (used or 0) - unmanaged)
    unused = max(0, (promised or 0) - own)
    parts = [(own, shades.used), (unused, shades.promised), (unmanaged, shades.unmanaged)]
    return _bar(parts, sums.usable_bytes, cells, _rest(sums, shades))


def lettered_bar(gpu: GpuFigures, cells: int, shades: Shades) -> str:
    """Return a bar with a letter for each pod of a GPU: uppercase for used memory."""
    parts: list[tuple[int, str]] = []
    for number, pod in enumerate(gpu.pods):
        letter = letter_of(number)
        used = min(pod.used_bytes or 0, pod.cap_bytes)
        parts += [(used, letter.upper()), (pod.cap_bytes - used, letter)]
    parts.append((gpu.unmanaged_bytes or 0, shades.unmanaged))
    return _bar(parts, gpu.usable_bytes, cells, _rest(sums_of([gpu]), shades))


def letter_of(number: int) -> str:
    """Return the letter of a GPU's pod; z is followed by a."""
    return ascii_lowercase[number % len(ascii_lowercase)]


def cap_bar(used_bytes: int | None, cap_bytes: int | None, cells: int, shades: Shades) -> str:
    """Return a bar of the used part of a cap; spaces if that is unknown."""
    if used_bytes is None or not cap_bytes:
        return " " * cells
    return _bar([(used_bytes, shades.used)], cap_bytes, cells, shades.free)


def _rest(sums: GpuSums, shades: Shades) -> str:
    """Return the shade of memory that is in no part: it is free if all figures are known."""
    known = sums.used_gpus == sums.promised_gpus == sums.gpus
    return shades.free if known else _UNKNOWN


def _bar(parts: Sequence[tuple[int, str]], whole: int, cells: int, rest: str) -> str:
    """Return parts of a whole one after the other, each with at least one cell if there is room.

    The end of a part is rounded, not its length, so that errors do not add up.
    """
    bar, sum_bytes = "", 0
    for size, shade in parts:
        if size <= 0:
            continue
        sum_bytes += size
        end = (2 * sum_bytes * cells + whole) // (2 * whole) if whole > 0 else cells
        bar += shade * max(1, end - len(bar))
    return bar[:cells].ljust(cells, rest)
