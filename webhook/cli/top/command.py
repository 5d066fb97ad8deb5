"""The command `top`."""

from __future__ import annotations

import click


@click.command("top")
def top_command() -> None:
    """Not built yet."""
