"""Entry points: the command `vramwarden`, also as a kubectl plugin.

For `kubectl NAME` kubectl runs the program `kubectl-NAME`. For completion it runs
`kubectl_complete-NAME` with the typed arguments. Like kubectl's own completion, the latter prints
one line per candidate, with a tab and a description after it. The last line is a number, which
selects what the shell does if no candidate fits.

Source: Kubernetes, "Extend kubectl with plugins"; cobra's `ShellCompDirective`.
"""

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
from click.shell_completion import CompletionItem, ShellComplete

from webhook import __version__
from webhook.options import KUBECTL_OPTIONS, ExitCode

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_BROKEN_PIPE: Final = 141
"""Exit code that shells report for a program ended by SIGPIPE; 1 would mean a denial."""

_PLUGIN: Final = "kubectl vramwarden"
_COMPLETE_FILES, _COMPLETE_NOTHING = 0, 4
"""Values of `ShellCompDirective`: the shell completes file names, or nothing."""

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
        "sentry": "webhook.cli.enforcement:sentry_command",
        "limiter": "webhook.cli.enforcement:limiter_command",
        "enforce": "webhook.cli.enforcement:enforce_command",
    },
    "A first try": {"demo": "webhook.cli.demo:demo_command"},
}
"""Commands keyed by `--help` section, with the object that implements each. Only the requested
command is imported: reading policies would cost 20 MB in agent, sentry and limiter."""
_COMMANDS: Final = {name: path for section in SECTIONS.values() for name, path in section.items()}

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

_MAX_SUMMARY_LENGTH: Final = 200
"""Maximum number of characters of a command's summary in `--help`, which may take several lines."""


@cache
def _load_command(name: str) -> click.Command:
    module, _, attribute = _COMMANDS[name].partition(":")
    command: click.Command = getattr(import_module(module), attribute)
    _add_version_option(command)
    return command


class _CommandGroup(click.Group):
    """The group of all commands. It ends quietly if its output is closed, as by `| head`."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """Return all command names in alphabetical order."""
        return sorted(_COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        """Import a command."""
        if name == "version":
            return _version
        return _load_command(name) if name in _COMMANDS else None

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command; if it does not exist, suggest a similar one."""
        try:
            return super().resolve_command(context, args)
        except click.UsageError as error:
            similar = get_close_matches(args[0], _COMMANDS, n=1)
            suggestion = f" Did you mean {similar[0]!r}?" if similar else ""
            raise click.UsageError(f"{error.message}{suggestion}", context) from None

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections of `--help`, with the full summary of each command."""
        for title, names in SECTIONS.items():
            with formatter.section(title):
                rows = [
                    (name, _load_command(name).get_short_help_str(_MAX_SUMMARY_LENGTH))
                    for name in names
                ]
                formatter.write_dl(rows)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command, or complete the command line."""
        quiet_libraries()
        return super().main(*args, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accept kubectl's options before the command, like kubectl, by moving them after it."""
        start = 0
        while start < len(args) and (name := args[start].partition("=")[0]) in KUBECTL_OPTIONS:
            start += 1 if name != args[start] else 2
        words = 2 if args[start : start + 1] in (["certs"], ["policy"]) else 1
        end = start + words
        return super().parse_args(ctx, [*args[start:end], *args[:start], *args[end:]])

    def invoke(self, context: click.Context) -> Any:
        """Run a command, and flush its output while a failure can still be reported."""
        try:
            try:
                return super().invoke(context)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            _discard_output()
            context.exit(_BROKEN_PIPE)


def quiet_libraries() -> None:
    """Hide warnings of libraries from users, since they are for developers.

    PYTHONWARNINGS shows the warnings again. Log lines of programs have separate handlers.
    """
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    if not logging.getLogger().handlers:  # otherwise errors are written to the terminal
        logging.getLogger().addHandler(logging.NullHandler())


@click.command("version", hidden=True)
def _version() -> None:
    """Show the version, as --version does."""
    click.echo(f"vramwarden, version {__version__}")


def _discard_output() -> None:
    """Discard buffered output, which Python would otherwise flush at exit with another failure."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(null, stream.fileno())


@click.version_option(__version__, prog_name="vramwarden")
@click.group(cls=_CommandGroup, context_settings=CONTEXT, epilog=_EPILOG)
def main() -> None:
    """Share NVIDIA GPUs by memory on Kubernetes, with the stock scheduler."""


def _add_version_option(command: click.Command) -> None:
    click.version_option(__version__, prog_name="vramwarden")(command)
    for subcommand in getattr(command, "commands", {}).values():
        _add_version_option(subcommand)


def run_as_kubectl_plugin() -> None:
    """Run the command under the name that kubectl's user typed."""
    main(prog_name=_PLUGIN)


def complete_for_kubectl() -> None:
    """Print the completions of the last argument, in the format that kubectl reads."""
    quiet_libraries()
    *words, incomplete = sys.argv[1:] or [""]
    directive = _COMPLETE_NOTHING
    for item in ShellComplete(main, {}, _PLUGIN, "").get_completions(words, incomplete):
        if item.type == "plain":
            click.echo(_completion_line(item))
        else:
            directive = _COMPLETE_FILES
    click.echo(f":{directive}")


def _completion_line(item: CompletionItem) -> str:
    description = " ".join((item.help or "").split())
    return f"{item.value}\t{description}" if description else str(item.value)
