"""How a report of `top` leaves: drawn once, as a page or JSON, or again and again."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Final

import click

from webhook.tools.shared.output import clean, write_json
from webhook.tools.top.show.draw import Terminal, lines
from webhook.tools.top.show.output import as_value, unchanging
from webhook.tools.top.show.watching import Reader, watch_screen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from webhook.tools.top.judge import TopReport

_NO_COLOUR_TERMS: Final = frozenset({"dumb", ""})


@dataclass(frozen=True, slots=True)
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
        encoding = (sys.stdout.encoding or "").lower().replace("-", "")
        return Terminal(
            width,
            height,
            unicode=not self.plain and encoding == "utf8",
            colour=_may_colour(no_color=self.no_color),
            wide=self.output == "wide",
            command=self.command,
        )


def _may_colour(*, no_color: bool) -> bool:
    """Say whether to colour: on a terminal, unless somebody says no (https://no-color.org)."""
    dumb = os.environ.get("TERM", "") in _NO_COLOUR_TERMS
    return sys.stdout.isatty() and not (no_color or os.environ.get("NO_COLOR") or dumb)
