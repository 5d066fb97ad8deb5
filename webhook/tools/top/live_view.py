"""Output of `vramwarden top`: text, JSON or a page once, or a screen that is updated."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from shutil import get_terminal_size
from types import FrameType
from typing import Final

import click

from webhook.adapters.kube.errors import KubeError
from webhook.tools.render.output import clean, write_json
from webhook.tools.top.json_report import as_json, without_times
from webhook.tools.top.judge import TopReport
from webhook.tools.top.terminal import Terminal, as_lines

_ENTER: Final = "\033[?1049h\033[?25l\033[?7l"
"""Alternate screen, no cursor, no wrapping (xterm's control sequences, "Private Modes")."""
_LEAVE: Final = "\033[?7h\033[?25h\033[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\033[H", "\033[K", "\033[J"
_GLANCE_S: Final = 0.3
"""Maximum delay until a key or a new size is noticed, while nothing is read."""
_QUIT: Final = frozenset(b"qQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOutput:
    """Options of the output."""

    parts: Sequence[str]
    all_parts: Sequence[str]
    """Parts of the JSON output, which has all of them by default."""
    format: str | None
    term: Terminal
    read: Callable[[], TopReport]
    every_s: int

    def once(self, report: TopReport) -> None:
        """Write a report."""
        if self.format == "json":
            click.echo(write_json(as_json(report, self.all_parts)), nl=False)
        elif self.format == "html":
            # Imported here: only the page needs Jinja2.
            from webhook.tools.top.page import as_html  # noqa: PLC0415

            click.echo(as_html(report, self.parts))
        else:
            width = get_terminal_size().columns if sys.stdout.isatty() else None
            drawn = as_lines(report, replace(self.term, width=width), self.parts)
            click.echo("\n".join(drawn), color=True)

    def watch(self, report: TopReport) -> None:
        """Write a report and those that are read later, until Ctrl-C, which may come any time."""
        with suppress(KeyboardInterrupt):
            if sys.stdout.isatty() and self.format != "json":
                self._watch_screen(report)
            else:
                self._json_lines(report)

    def _json_lines(self, report: TopReport) -> None:
        before: object = None
        failure = ""
        while True:
            value = as_json(report, self.all_parts)
            if without_times(value) != before:
                before = without_times(value)
                click.echo(json.dumps(value, separators=(",", ":")))
                sys.stdout.flush()
            time.sleep(self.every_s)
            last_failure = failure
            report, failure = self._read_after(report)
            if failure and failure != last_failure:
                click.echo(f"Error: {failure}", err=True)

    def _watch_screen(self, report: TopReport) -> None:
        """Draw reports on the terminal until `q`, and again when its size changes."""
        keys = sys.stdin.fileno() if sys.stdin.isatty() else None
        failure = ""
        with _alternate_screen(keys):
            while True:
                drawn_size, until_s = None, time.monotonic() + self.every_s
                while time.monotonic() < until_s:
                    size = os.get_terminal_size(sys.stdout.fileno())
                    if size != drawn_size:
                        drawn_size = size
                        lines = self._screen(report, failure, size)[: size.lines]
                        body = "\r\n".join(line + _CLEAR_LINE for line in lines)
                        _write(_HOME + body + _CLEAR_BELOW)
                    if _asked_to_quit(keys):
                        return
                report, failure = self._read_after(report)

    def _read_after(self, report: TopReport) -> tuple[TopReport, str]:
        """Return a new report, or the last one with the reason why nothing could be read."""
        try:
            return self.read(), ""
        except KubeError as error:
            return report, " ".join(str(error).split())

    def _screen(self, report: TopReport, failure: str, size: os.terminal_size) -> list[str]:
        term = replace(self.term, width=size.columns, height=size.lines - 2)
        last = f"each {self.every_s} s; q quits, Ctrl-C also while it reads"
        if failure:
            old_s = max(0, round(time.time() - report.now_s))
            said = clean(f"! figures of {old_s} s ago: {failure}")
            last = term.paint(said[: size.columns], "31")
        drawn = as_lines(report, term, self.parts)
        return [*drawn, *[""] * (size.lines - 1 - len(drawn)), last]


@contextmanager
def _alternate_screen(keys: int | None) -> Iterator[None]:
    """Use the terminal, and restore it at the end and while the process is suspended."""
    before = None if keys is None else termios.tcgetattr(keys)

    def enter() -> None:
        if keys is not None:
            tty.setcbreak(keys)
        _write(_ENTER)

    def give_back() -> None:
        if keys is not None and before is not None:
            termios.tcsetattr(keys, termios.TCSADRAIN, before)
        _write(_LEAVE)

    def suspend(_number: int, _frame: FrameType | None) -> None:
        give_back()
        os.kill(os.getpid(), signal.SIGSTOP)  # goes on here after `fg`
        enter()

    def end(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    handlers = {signal.SIGTSTP: suspend, signal.SIGTERM: end, signal.SIGHUP: end}
    old = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    enter()
    try:
        yield
    finally:
        give_back()
        for number, handler in old.items():
            signal.signal(number, handler)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _asked_to_quit(keys: int | None) -> bool:
    """Return True if the user presses `q` within a moment, or if the input has ended."""
    if keys is None:
        time.sleep(_GLANCE_S)
        return False
    ready, _, _ = select.select([keys], [], [], _GLANCE_S)
    if not ready:
        return False
    pressed = os.read(keys, 64)
    return not pressed or not _QUIT.isdisjoint(pressed)
