"""Bars of characters: what of a GPU is used, promised, unmanaged and free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from webhook.tools.top.judge import GpuSums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from webhook.core.kinds.nodes import GpuFigures

_UNKNOWN: Final = "?"
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"


class Shades(NamedTuple):
    """The characters of a bar."""

    used: str
    promised: str
    unmanaged: str
    free: str


UNICODE: Final = Shades("█", "▒", "!", "·")
ASCII: Final = Shades("#", "=", "!", ".")


def gpu_bar(place: GpuFigures | GpuSums, cells: int, shades: Shades) -> str:
    """Draw a GPU, or several as one.

    Used by who was promised it, promised besides, held by somebody without a promise, and free.
    What is not known is a question mark: no part of the bar claims that memory is free.
    """
    used, promised, stranger = place.used_bytes, place.promised_bytes, place.unmanaged_bytes or 0
    if used is None and promised is None:
        return _UNKNOWN * cells
    own = max(0, (used or 0) - stranger)
    parts = [
        (own, shades.used),
        (max(0, (promised or 0) - own), shades.promised),
        (stranger, shades.unmanaged),
    ]
    all_known = used is not None and promised is not None
    if isinstance(place, GpuSums):
        all_known = place.used_gpus == place.promised_gpus == place.gpus
    return _drawn(parts, place.usable_bytes, cells, shades.free if all_known else _UNKNOWN)


def lettered_bar(gpu: GpuFigures, cells: int, shades: Shades) -> str:
    """Draw a GPU with a letter for each of its pods: large where used, small where promised."""
    parts: list[tuple[int, str]] = []
    for number, pod in enumerate(gpu.pods):
        letter = letter_of(number)
        used = min(pod.used_bytes or 0, pod.cap_bytes or 0)
        parts += [(used, letter.upper()), ((pod.cap_bytes or 0) - used, letter)]
    if gpu.unmanaged_bytes:
        parts.append((gpu.unmanaged_bytes, shades.unmanaged))
    known = gpu.used_bytes is not None and gpu.promised_bytes is not None
    return _drawn(parts, gpu.usable_bytes, cells, shades.free if known else _UNKNOWN)


def letter_of(number: int) -> str:
    """Return the letter of a GPU's pod; they begin again after z."""
    return _LETTERS[number % len(_LETTERS)]


def cap_bar(used_bytes: int | None, cap_bytes: int | None, cells: int, shades: Shades) -> str:
    """Draw how much of its cap a pod uses; nothing where that is not known."""
    if used_bytes is None or not cap_bytes:
        return " " * cells
    return _drawn([(used_bytes, shades.used)], cap_bytes, cells, shades.free)


def _drawn(parts: Sequence[tuple[int, str]], whole: int, cells: int, rest: str) -> str:
    """Draw parts of a whole one after the other; each that is there has a cell, if they suffice.

    Where a part ends is rounded, so that the errors of many do not add up.
    """
    drawn, sum_bytes = "", 0
    for size, shade in parts:
        if size <= 0:
            continue
        sum_bytes += size
        end = (2 * sum_bytes * cells + whole) // (2 * whole) if whole > 0 else cells
        drawn += shade * max(1, end - len(drawn))
    return drawn[:cells].ljust(cells, rest)
