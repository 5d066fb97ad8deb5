"""Output of `vramwarden top`: text lines for a terminal, or an updating screen."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from shutil import get_terminal_size
from textwrap import wrap
from types import FrameType
from typing import Any, Final

import click

from webhook.adapters.kube.errors import KubeError
from webhook.tools.problems.problem import Severity
from webhook.tools.render.output import Column, clean, table, write_json
from webhook.tools.top.columns import (
    ASCII,
    GPU_COLUMNS,
    NODE_COLUMNS,
    POD_COLUMNS,
    UNICODE,
    WORKLOAD_COLUMNS,
    Shades,
    TopColumn,
    select_columns,
)
from webhook.tools.top.json_report import as_json, without_times
from webhook.tools.top.report import (
    describe_problem,
    describe_totals,
    describe_unavailable_nodes,
    group_problems,
)
from webhook.tools.top.rows import TopReport

MOST_GPU_LINES: Final = 40
"""Maximum number of GPUs with a line each; with more GPUs, each node has one line."""
_EXTRAS_FROM: Final = 100
"""Minimum width, in characters, at which extra columns are shown."""
_MOST_ALIKE: Final = 5
"""Maximum number of problems shown per code; the others are only counted."""

_BOLD, _DIM, _RED, _GREEN, _YELLOW = "1", "2", "31", "32", "33"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """Capabilities of a terminal."""

    width: int | None = None
    """Characters per line; None if lines are not shortened, as in a file."""
    height: int | None = None
    """Number of lines; None if lines scroll."""
    unicode: bool = True
    colour: bool = False
    wide: bool = False
    command: str = "vramwarden"
    """Name by which the user called the program."""

    @property
    def shades(self) -> Shades:
        """Characters for bars."""
        return UNICODE if self.unicode else ASCII

    @property
    def dots(self) -> str:
        """Mark for shortened strings."""
        return "…" if self.unicode else ".."

    def paint(self, text: str, style: str) -> str:
        """Colour a string if colours are enabled. Colour never carries information alone."""
        return f"\033[{style}m{text}\033[0m" if self.colour and text and style else text


def as_lines(
    report: TopReport, term: Terminal, parts: Sequence[str] = ("nodes", "pods")
) -> list[str]:
    """Return the lines of a report's `nodes`, `pods` and `workloads`."""
    by_gpu = not _has_node_lines(report, term)
    rows = {
        "nodes": (
            GPU_COLUMNS if by_gpu else NODE_COLUMNS,
            report.node_rows(by_gpu=by_gpu) or None,
        ),
        "pods": (POD_COLUMNS, report.pods),
        "workloads": (WORKLOAD_COLUMNS, report.workloads),
    }
    tables = [
        _table(columns, of_part, report, term) if of_part else _no_pods(report)
        for part, (columns, of_part) in rows.items()
        if part in parts and of_part is not None
    ]
    has_totals = "nodes" in parts and report.nodes and report.amounts.nodes
    head = _wrap_sentences([describe_totals(report.amounts)] if has_totals else [], term, _BOLD)
    tail = _tail(report, term, parts)
    if term.height is not None:
        room = term.height - len(head) - len(tail) - 2 * (len(tables) + 1)
        _shorten(tables, max(room, 2 * len(tables)), term)
    blocks = [block for block in (head, *tables, tail) if block]
    drawn = [line for block in blocks for line in ("", *block)][1:]
    return drawn if term.height is None else drawn[: term.height]


def _has_node_lines(report: TopReport, term: Terminal) -> bool:
    gpus = sum(len(node.gpus) for node in report.nodes or ())
    return gpus > MOST_GPU_LINES and not term.wide


def _table(
    columns: Sequence[TopColumn], rows: Sequence[Any], report: TopReport, term: Terminal
) -> list[str]:
    has_extras = term.width is None or term.width >= _EXTRAS_FROM
    shown = [
        column
        for top_column in select_columns(columns, report, wide=term.wide)
        if (column := _draw_column(top_column, rows, report, term))
        and (not top_column.is_extra or term.wide or (has_extras and {*column.texts} != {"-"}))
    ]
    lines = table(shown, None if term.wide else term.width, term.dots)
    lines[0] = term.paint(lines[0], _BOLD)
    return lines


def _draw_column(
    column: TopColumn, rows: Sequence[Any], report: TopReport, term: Terminal
) -> Column:
    """Return a column with its strings, coloured by severity, and its bars."""
    texts = [column.text(row, report) for row in rows]
    if column.merges_repeats:
        texts = ["" if text == before else text for before, text in pairwise(["", *texts])]

    def style(text: str, number: int) -> str:
        if severity := column.severity(rows[number], report):
            return term.paint(text, _RED if severity is Severity.ERROR else _YELLOW)
        return _paint_bar(text, term) if column.bar else text

    def draw(number: int, width: int) -> str:
        if number < 0:
            return column.title or _bar_title(width, term)
        amount = f" {texts[number]:>7}" if texts[number] else ""
        return (
            column.bar(rows[number], width - len(amount), term.shades) + amount
            if column.bar
            else ""
        )

    draw_bar = draw if column.bar else None
    return Column(title=column.title, texts=texts, style=style, draw=draw_bar, **column.layout)


def _no_pods(report: TopReport) -> list[str]:
    where = f"namespace {report.namespace}" if report.namespace else "any namespace"
    return [clean(f"no pods with VRAM in {where}")]


def _tail(report: TopReport, term: Terminal, parts: Sequence[str]) -> list[str]:
    """Return problems, unreadable facts, and commands that show more."""
    painted = _wrap_sentences([f"! {sentence}" for sentence in report.missing], term)
    for alike in group_problems(report, parts):
        sentences = [f"! {describe_problem(problem)}" for problem in alike[:_MOST_ALIKE]]
        if len(alike) > _MOST_ALIKE:
            sentences.append(f"! {len(alike) - _MOST_ALIKE:,} more like the last one")
        painted += _wrap_sentences(sentences, term)
        painted += [f"  {alike[0].fix}"] if alike[0].fix else []
    waiting = [row.pod for row in report.pods or () if row.is_waiting]
    if "pods" in parts and waiting:
        pod = f"{waiting[0].name} -n {waiting[0].namespace}"
        painted.append(clean(f"why a pod waits: {term.command} explain {pod}"))
    if "nodes" in parts:
        painted += _wrap_sentences(describe_unavailable_nodes(report), term, _DIM)
    if "nodes" in parts and _has_node_lines(report, term):
        painted.append(f"the GPUs of a node: {term.command} top --node NAME")
    return painted


def _wrap_sentences(sentences: Iterable[str], term: Terminal, style: str = _RED) -> list[str]:
    width = term.width or 10_000
    broken = [
        line
        for sentence in sentences
        for line in wrap(clean(sentence), width, subsequent_indent="  ")
    ]
    return [term.paint(line, style) for line in broken]


def _shorten(tables: list[list[str]], room: int, term: Terminal) -> None:
    """Shorten tables to fit a screen, the last one first. Each keeps at least an equal share."""
    for number, drawn in enumerate(tables, 1):
        later = tables[number:]
        share = max(room - sum(map(len, later)), room // (1 + len(later)))
        if len(drawn) > share:
            more = term.paint(f"{term.dots} {len(drawn) - share + 1:,} more lines", _DIM)
            drawn[share - 1 :] = [more]
        room -= len(drawn)


def _bar_title(cells: int, term: Terminal) -> str:
    shades = term.shades
    if term.wide:
        return "A used a promised"
    whole = f"{shades.used} used {shades.promised} promised {shades.free} free"
    if cells >= len(whole):
        return whole
    return "USED/PROMISED" if cells >= len("USED/PROMISED") else ""


def _paint_bar(bar: str, term: Terminal) -> str:
    if not term.colour:
        return bar
    styles = {term.shades.used: _GREEN, term.shades.unmanaged: _RED, term.shades.free: _DIM}
    parts = ((shade, "".join(alike)) for shade, alike in groupby(bar))
    return "".join(term.paint(text, styles.get(shade, "")) for shade, text in parts)


_ENTER: Final = "\033[?1049h\033[?25l\033[?7l"
"""Escape sequence for the alternate screen without cursor and wrapping (xterm, "Private Modes")."""
_LEAVE: Final = "\033[?7h\033[?25h\033[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\033[H", "\033[K", "\033[J"
_GLANCE_S: Final = 0.3
"""Maximum delay until a key or a new terminal size is noticed, in seconds."""
_QUIT: Final = frozenset(b"qQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOutput:
    """Output of `top`, with its options."""

    parts: Sequence[str]
    all_parts: Sequence[str]
    """Default parts of JSON output: all of them."""
    format: str | None
    term: Terminal
    read: Callable[[], TopReport]
    every_s: int

    def once(self, report: TopReport) -> None:
        """Write a report once."""
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
        """Write a report and all later ones, until Ctrl-C."""
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
        """Draw reports on the terminal until `q`, and again when the size changes."""
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
                    if _wants_to_quit(keys):
                        return
                report, failure = self._read_after(report)

    def _read_after(self, report: TopReport) -> tuple[TopReport, str]:
        """Return a new report, or the last one with the reason why no new one is available."""
        try:
            return self.read(), ""
        except KubeError as error:
            return report, " ".join(str(error).split())

    def _screen(self, report: TopReport, failure: str, size: os.terminal_size) -> list[str]:
        term = replace(self.term, width=size.columns, height=size.lines - 2)
        last = f"each {self.every_s} s; q quits, Ctrl-C also while it reads"
        if failure:
            old_s = max(0, round(time.time() - report.now_s))
            notice = clean(f"! figures of {old_s} s ago: {failure}")
            last = term.paint(notice[: size.columns], "31")
        drawn = as_lines(report, term, self.parts)
        return [*drawn, *[""] * (size.lines - 1 - len(drawn)), last]


@contextmanager
def _alternate_screen(keys: int | None) -> Iterator[None]:
    """Switch to the alternate screen; restore the terminal at the end and while suspended."""
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
        os.kill(os.getpid(), signal.SIGSTOP)  # execution continues here after `fg`
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


def _wants_to_quit(keys: int | None) -> bool:
    """Return True if the user presses `q` within `_GLANCE_S` or the input has ended."""
    if keys is None:
        time.sleep(_GLANCE_S)
        return False
    ready, _, _ = select.select([keys], [], [], _GLANCE_S)
    if not ready:
        return False
    pressed = os.read(keys, 64)
    return not pressed or not _QUIT.isdisjoint(pressed)
