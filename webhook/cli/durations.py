"""Durations as options: `500ms`, `30s`, `5m`, or a bare number of seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from webhook.core.pod.duration import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable


def duration(least_s: float = 0.0, most_s: float = float("inf")) -> Callable[..., float]:
    """Return what reads a duration within bounds, as the callback of an option."""

    def read(_context: click.Context, _option: click.Parameter, text: str) -> float:
        try:
            return parse_seconds(text, least_s, most_s)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return read
