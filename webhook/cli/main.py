"""The command `vramwarden`: one file per subcommand, each a thin layer over a library call."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Any, Final

import click

from webhook import __version__
from webhook.options import OF_KUBECTL, ExitCode

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_BROKEN_PIPE: Final = 141
"""What shells report of a program that SIGPIPE ended; 1 would mean that something was denied."""

SECTIONS: Final = {
    "Your pods": {
        "admit": "webhook.tools.admit.command:admit_command",
        "top": "webhook.tools.top.command:top_command",
        "explain": "webhook.tools.explain.command:explain_command",
        "advise": "webhook.tools.advise.command:advise_command",
    },
    "Your cluster": {
        "check": "webhook.tools.check.command:check_command",
        "report": "webhook.tools.report.command:report_command",
        "policy": "webhook.cli.policy:policy_group",
        "simulate": "webhook.tools.simulate.command:simulate_command",
        "certs": "webhook.cli.certs:certs_group",
        "clean": "webhook.tools.clean.command:clean_command",
    },
    "What runs in it": {
        "serve": "webhook.cli.serve:serve_command",
        "agent": "webhook.cli.agent:agent_command",
        "sentry": "webhook.cli.sentry:sentry_command",
        "limiter": "webhook.cli.limiter:limiter_command",
        "enforce": "webhook.cli.enforce:enforce_command",
    },
    "A first try": {"demo": "webhook.cli.demo:demo_command"},
}
"""As `--help` shows them, and where each is. Only the one that is asked for is imported: on every
node, agent, sentry and limiter would hold 20 MB of what reads policies."""
_COMMANDS: Final = {name: at for section in SECTIONS.values() for name, at in section.items()}

_EPILOG: Final = (
    "\b\nExit codes, of several the first of 2, 1, 3:\n"
    + "".join(f"  {code:d}  {code.meaning}\n" for code in ExitCode)
    + """
\b
Completion of commands, options, pods, namespaces and nodes:
  eval "$(_VRAMWARDEN_COMPLETE=bash_source vramwarden)"             in ~/.bashrc
  eval "$(_VRAMWARDEN_COMPLETE=zsh_source vramwarden)"              in ~/.zshrc
  _VRAMWARDEN_COMPLETE=fish_source vramwarden | source              in config.fish

kubectl completes `kubectl vramwarden` where its own completion is set up.
"""
)

_WHOLE: Final = 200
"""Characters of the sentence about a command, which may take several lines."""


@cache
def _imported(name: str) -> click.Command:
    module, _, attribute = _COMMANDS[name].partition(":")
    command: click.Command = getattr(import_module(module), attribute)
    _show_version_everywhere(command)
    return command


class _Commands(click.Group):
    """Ends quietly where the reader has seen enough, as before `| head`."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """Return all names, in the order of the alphabet."""
        return sorted(_COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        """Import a command."""
        return _version if name == "version" else _imported(name) if name in _COMMANDS else None

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the command that was meant, if there is no such one."""
        try:
            return super().resolve_command(context, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], _COMMANDS, n=1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"{error.message}{meant}", context) from None

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by who needs them, and what is said of each in full."""
        for title, names in SECTIONS.items():
            with formatter.section(title):
                shown = [(name, _imported(name).get_short_help_str(_WHOLE)) for name in names]
                formatter.write_dl(shown)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command line, or complete it."""
        quiet_libraries()
        return super().main(*args, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Let options that kubectl takes anywhere stand before the command, too."""
        at = 0
        while at < len(args) and (name := args[at].partition("=")[0]) in OF_KUBECTL:
            at += 1 if name != args[at] else 2
        words = 2 if args[at : at + 1] in (["certs"], ["policy"]) else 1
        behind = at + words
        return super().parse_args(ctx, [*args[at:behind], *args[:at], *args[behind:]])

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


def quiet_libraries() -> None:
    """Keep what libraries warn of from the terminal: it is for who changes the code.

    PYTHONWARNINGS shows it all the same. What programs log has handlers of its own.
    """
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    if not logging.getLogger().handlers:  # else errors go to the terminal
        logging.getLogger().addHandler(logging.NullHandler())


@click.command("version", hidden=True)
def _version() -> None:
    """Show the version, as --version does."""
    click.echo(f"vramwarden, version {__version__}")


def _drop_what_is_left() -> None:
    """Send the rest nowhere: Python writes it at the end, and would report another failure."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())


@click.version_option(__version__, prog_name="vramwarden")
@click.group(cls=_Commands, context_settings=CONTEXT, epilog=_EPILOG)
def main() -> None:
    """Share NVIDIA GPUs by memory on Kubernetes, with the stock scheduler."""


def _show_version_everywhere(command: click.Command) -> None:
    """Give every level a --version, as the contract promises."""
    click.version_option(__version__, prog_name="vramwarden")(command)
    for sub in getattr(command, "commands", {}).values():
        _show_version_everywhere(sub)
