"""Parts of sentences, and what bounds the texts that others stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from webhook.core.words import shortened

if TYPE_CHECKING:
    from collections.abc import Iterable


def some(names: Iterable[str], most: int = 3) -> str:
    """Name a few, and say how many more there are."""
    every = list(names)
    rest = len(every) - most
    shown = ", ".join(every[:most])
    return f"{shown} and {rest} more" if rest > 0 else shown


def bounded(value: object, most: int) -> str:
    """Return a text that somebody stored, cut before anything reads it; empty where it is none."""
    return shortened(value, most) if isinstance(value, str) else ""
