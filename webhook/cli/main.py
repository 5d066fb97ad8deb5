"""The command `vramwarden`: one file per subcommand, each a thin layer over a library call."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

from webhook import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_BROKEN_PIPE: Final = 141
"""What shells report of a program that SIGPIPE ended; 1 would mean that something was denied."""

_COMMANDS: Final = {
    "admit": "webhook.tools.admit.command:admit_command",
    "advise": "webhook.tools.advise.command:advise_command",
    "agent": "webhook.cli.agent:agent_command",
    "certs": "webhook.cli.certs.command:certs_group",
    "check": "webhook.tools.check.command:check_command",
    "demo": "webhook.cli.demo:demo_command",
    "enforce": "webhook.cli.enforce:enforce_command",
    "explain": "webhook.tools.explain.command:explain_command",
    "policy": "webhook.cli.policy:policy_group",
    "report": "webhook.tools.report.command:report_command",
    "sentry": "webhook.cli.sentry:sentry_command",
    "serve": "webhook.cli.serve:serve_command",
    "simulate": "webhook.tools.simulate.command:simulate_command",
    "top": "webhook.tools.top.command:top_command",
}
"""Where each is. Only the one that is asked for is imported: on every node, agent and sentry would
hold 20 MB of what reads policies."""


_SECTIONS: Final = {
    "Your pods": ("admit", "top", "explain", "advise"),
    "Your cluster": ("check", "report", "policy", "simulate", "certs"),
    "What runs in it": ("serve", "agent", "sentry", "enforce"),
    "A first try": ("demo",),
}
"""As `--help` shows them."""

_WHOLE: Final = 200
"""Characters of the sentence about a command, which may take several lines."""


class _Imported(MutableMapping[str, click.Command]):
    """The commands by name, each imported when it is asked for."""

    def __init__(self) -> None:
        self._imported: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._imported:
            module, _, attribute = _COMMANDS[name].partition(":")
            command = getattr(import_module(module), attribute)
            _show_version_everywhere(command)
            self._imported[name] = command
        return self._imported[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._imported[name] = command

    def __delitem__(self, name: str) -> None:
        del self._imported[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


class _Commands(click.Group):
    """Ends quietly where the reader has seen enough, as before `| head`."""

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by who needs them, and what is said of each in full."""
        for title, names in _SECTIONS.items():
            with formatter.section(title):
                shown = [(name, self.commands[name].get_short_help_str(_WHOLE)) for name in names]
                formatter.write_dl(shown)

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


@click.version_option(__version__, prog_name="vramwarden")
@click.group(cls=_Commands, commands=_Imported(), context_settings=CONTEXT)
def main() -> None:
    """Share NVIDIA GPUs by memory on any Kubernetes cluster, with the stock scheduler."""


def _show_version_everywhere(command: click.Command) -> None:
    """Give every level a --version, as the contract promises."""
    click.version_option(__version__, prog_name="vramwarden")(command)
    for sub in getattr(command, "commands", {}).values():
        _show_version_everywhere(sub)
