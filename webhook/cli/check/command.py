"""The command `check`."""

from __future__ import annotations

import click


@click.command("check")
def check_command() -> None:
    """Not built yet."""
