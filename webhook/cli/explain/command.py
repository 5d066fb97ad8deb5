"""The command `explain`."""

from __future__ import annotations

import click


@click.command("explain")
def explain_command() -> None:
    """Not built yet."""
