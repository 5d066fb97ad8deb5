"""The command `advise`."""

from __future__ import annotations

import click


@click.command("advise")
def advise_command() -> None:
    """Not built yet."""
