"""Numbers that lack their unit, and which one was probably meant."""

from __future__ import annotations

from typing import Final

_MIB: Final = 2**20

MOST_GIBIBYTES: Final = 1024
"""As much memory as a GPU may have: a larger number without a unit is meant in smaller ones."""


def with_unit(number: float) -> str:
    """Return an amount as it was probably meant; empty where its number of bytes may be meant."""
    if not 0 < number < _MIB:
        return ""
    if number < 1:
        return f"{max(1, round(number * 1024))}Mi"
    return f"{number:.15g}{'Gi' if number <= MOST_GIBIBYTES else 'Mi'}"
