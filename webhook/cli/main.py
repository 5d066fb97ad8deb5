"""The command `vramwarden`: one file per subcommand, each a thin layer over a library call."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import click

from webhook import __version__
from webhook.cli.admit.command import admit_command
from webhook.cli.agent import agent_command
from webhook.cli.certs.command import certs_group
from webhook.cli.demo import demo_command
from webhook.cli.enforce import enforce_command
from webhook.cli.policy import policy_group
from webhook.cli.sentry import sentry_command
from webhook.cli.serve import serve_command
from webhook.cli.simulate.command import simulate_command

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_BROKEN_PIPE: Final = 141
"""What shells report of a program that SIGPIPE ended; 1 would mean that something was denied."""


class _Commands(click.Group):
    """Ends quietly where the reader has seen enough, as before `| head`."""

    def invoke(self, context: click.Context) -> Any:
        """Run a command, and write what is left while a failure can still be reported."""
        try:
            try:
                return super().invoke(context)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            _drop_what_is_left()
            context.exit(_BROKEN_PIPE)


def _drop_what_is_left() -> None:
    """Send the rest nowhere: Python writes it at the end, and would report another failure."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())


@click.group(cls=_Commands, context_settings=CONTEXT)
def main() -> None:
    """Share NVIDIA GPUs by memory on any Kubernetes cluster, with the stock scheduler."""


COMMANDS = (
    admit_command,
    agent_command,
    certs_group,
    demo_command,
    enforce_command,
    policy_group,
    sentry_command,
    serve_command,
    simulate_command,
)

for command in COMMANDS:
    main.add_command(command)


def _show_version_everywhere(command: click.Command) -> None:
    """Give every level a --version, as the contract promises."""
    click.version_option(__version__, prog_name="vramwarden")(command)
    for sub in getattr(command, "commands", {}).values():
        _show_version_everywhere(sub)


_show_version_everywhere(main)
