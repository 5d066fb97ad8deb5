"""The same command as a plugin of kubectl: `kubectl vramwarden`, and its completion.

kubectl runs a program `kubectl-NAME` for `kubectl NAME`, and `kubectl_complete-NAME` with the words
typed so far. The latter answers as kubectl's own completion does: a line for each word, a tab and a
description behind it, and last a number that says what the shell is to do where none fits.

Source: Kubernetes, "Extend kubectl with plugins"; cobra's `ShellCompDirective`.
"""

from __future__ import annotations

import sys
from typing import Final

import click
from click.shell_completion import CompletionItem, ShellComplete

from webhook.cli.main import main as command
from webhook.cli.main import quiet_libraries

_NAME: Final = "kubectl vramwarden"
_FILES, _NO_FILES = 0, 4
"""What the shell may offer besides: names of files, or nothing."""


def main() -> None:
    """Run the command under the name by which the user called it."""
    command(prog_name=_NAME)


def complete() -> None:
    """Write the words that may stand where the last argument stands, as kubectl reads them."""
    quiet_libraries()
    *words, begun = sys.argv[1:] or [""]
    found = ShellComplete(command, {}, _NAME, "").get_completions(words, begun)
    directive = _NO_FILES
    for item in found:
        if item.type == "plain":
            click.echo(_line(item))
        else:
            directive = _FILES
    click.echo(f":{directive}")


def _line(item: CompletionItem) -> str:
    said = " ".join((item.help or "").split())
    return f"{item.value}\t{said}" if said else str(item.value)
