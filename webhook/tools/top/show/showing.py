"""How a report of `top` leaves: drawn once, as a page or JSON, or again and again on a screen."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Final

import click

from webhook.tools.render.output import clean, takes_colour, takes_signs, write_json
from webhook.tools.top.show.draw import Terminal, lines
from webhook.tools.top.show.output import as_value, unchanging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType
    from typing import TextIO

    from webhook.tools.top.judge import TopReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """How a report leaves."""

    parts: Sequence[str]
    all_parts: Sequence[str]
    """Of JSON, which has everything where nothing is named."""
    output: str | None
    plain: bool
    no_color: bool
    command: str

    def once(self, report: TopReport) -> None:
        """Write a report."""
        if self.output == "json":
            click.echo(write_json(as_value(report, self.all_parts)), nl=False)
        elif self.output == "html":
            # Pictures are for few: nobody else reads the program that draws them.
            from webhook.tools.top.show.page import as_html  # noqa: PLC0415

            click.echo(as_html(report, self.parts), nl=False)
        else:
            width = get_terminal_size().columns if sys.stdout.isatty() else None
            drawn = lines(report, self._terminal(width), self.parts)
            click.echo("\n".join(drawn), color=True)

    def watch(
        self,
        first: TopReport,
        read: Callable[[], TopReport],
        every_s: float,
        failure: type[Exception],
    ) -> None:
        """Write a report again and again, until Ctrl-C, which may come at any moment."""
        reader = Reader(read, every_s, (failure,))
        with suppress(KeyboardInterrupt):
            if sys.stdout.isatty() and self.output != "json":
                reader.start(first)
                watch_screen(reader, partial(self._screen, every_s), sys.stdout)
            else:
                self._json_lines(reader, first, every_s)

    def _json_lines(self, reader: Reader, report: TopReport, every_s: float) -> None:
        before: object = None
        said = ""
        while True:
            value = as_value(report, self.all_parts)
            if unchanging(value) != before:
                before = unchanging(value)
                click.echo(json.dumps(value, separators=(",", ":")))
                sys.stdout.flush()
            time.sleep(every_s)
            reader.once()
            if reader.failure and reader.failure != said:
                click.echo(f"Error: {reader.failure}", err=True)
            said = reader.failure
            report = reader.report or report

    def _screen(
        self, every_s: float, report: TopReport, failure: str, size: os.terminal_size
    ) -> list[str]:
        term = self._terminal(size.columns, size.lines - 2)
        last = f"each {every_s:g} s; q quits"
        if failure:
            old_s = max(0, round(time.time() - report.at_s))
            last = term.paint(clean(f"! figures of {old_s} s ago: {failure}")[: size.columns], "31")
        drawn = lines(report, term, self.parts)
        return [*drawn, *[""] * (size.lines - 1 - len(drawn)), last]

    def _terminal(self, width: int | None, height: int | None = None) -> Terminal:
        return Terminal(
            width=width,
            height=height,
            unicode=not self.plain and takes_signs(sys.stdout),
            colour=not self.no_color and takes_colour(sys.stdout),
            wide=self.output == "wide",
            command=self.command,
        )


_ENTER: Final = "\033[?1049h\033[?25l\033[?7l"
"""The alternate screen, no cursor, nothing wraps (xterm's control sequences, "Private Modes")."""
_LEAVE: Final = "\033[?7h\033[?25h\033[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\033[H", "\033[K", "\033[J"
_GLANCE_S: Final = 0.3
"""How late a key, a new size or new figures are noticed at most."""
_QUIT: Final = frozenset(b"qQ")


class Reader:
    """Reads reports on a thread of its own, so that no key waits for an API server."""

    def __init__(
        self, read: Callable[[], TopReport], every_s: float, failures: tuple[type[Exception], ...]
    ) -> None:
        """Prepare; a failure to read is kept as its sentence, beside the report before it."""
        self._read = read
        self._every_s = every_s
        self._failures = failures
        self.report: TopReport | None = None
        self.failure = ""
        self.number = 0
        """Of attempts so far: it changes when there is something new to draw."""

    def start(self, first: TopReport) -> None:
        """Go on reading after a first report, until the program ends."""
        self.report = first
        threading.Thread(target=self._run, name="top", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(self._every_s)
            self.once()

    def once(self) -> None:
        """Read once."""
        try:
            self.report, self.failure = self._read(), ""
        except self._failures as error:
            self.failure = " ".join(str(error).split())
        self.number += 1


@contextmanager
def _screen(out: TextIO, keys: int | None) -> Iterator[None]:
    """Take the terminal; give it back as it was in every case, also while we are suspended."""
    before = None if keys is None else termios.tcgetattr(keys)

    def enter() -> None:
        if keys is not None:
            tty.setcbreak(keys)
        out.write(_ENTER)
        out.flush()

    def give_back() -> None:
        if keys is not None and before is not None:
            termios.tcsetattr(keys, termios.TCSADRAIN, before)
        out.write(_LEAVE)
        out.flush()

    def suspend(number: int, frame: FrameType | None) -> None:
        del frame
        del number
        give_back()
        os.kill(os.getpid(), signal.SIGSTOP)  # goes on here after `fg`
        enter()

    def end(number: int, frame: FrameType | None) -> None:
        del frame
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


def watch_screen(
    reader: Reader, draw: Callable[[TopReport, str, os.terminal_size], list[str]], out: TextIO
) -> None:
    """Draw a reader's reports until `q`; `out` is a terminal.

    Again where there is something new, or the terminal has another size.
    """
    keys = sys.stdin.fileno() if sys.stdin.isatty() else None
    with _screen(out, keys):
        shown: object = None
        while True:
            size = os.get_terminal_size(out.fileno())
            if shown != (reader.number, size) and reader.report is not None:
                shown = reader.number, size
                lines = draw(reader.report, reader.failure, size)[: size.lines]
                body = "\r\n".join(line + _CLEAR_LINE for line in lines)
                out.write(_HOME + body + _CLEAR_BELOW)
                out.flush()
            if _asked_to_quit(keys):
                return


def _asked_to_quit(keys: int | None) -> bool:
    """Wait a moment for a key."""
    if keys is None:
        time.sleep(_GLANCE_S)
        return False
    ready, _, _ = select.select([keys], [], [], _GLANCE_S)
    if not ready:
        return False
    pressed = os.read(keys, 64)
    return not pressed or not _QUIT.isdisjoint(pressed)
