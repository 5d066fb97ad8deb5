"""Lines of text that `vramwarden top` prints, for a terminal with its capabilities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from textwrap import wrap
from typing import Any, Final

from webhook.tools.problems.problem import Severity
from webhook.tools.render.output import Column, clean, table
from webhook.tools.top import texts
from webhook.tools.top.bars import ASCII, UNICODE, Shades
from webhook.tools.top.judge import TopReport
from webhook.tools.top.texts import (
    GPU_COLUMNS,
    NODE_COLUMNS,
    POD_COLUMNS,
    WORKLOAD_COLUMNS,
    TopColumn,
    columns_of,
)

MOST_GPU_LINES: Final = 40
"""Maximum number of GPUs that have a line each; for more GPUs, each node has one line."""
_EXTRAS_FROM: Final = 100
"""Minimum width with all columns that are not only for `-o wide`, in characters."""
_MOST_ALIKE: Final = 5
"""Maximum number of problems with one reason; the others are counted."""

_BOLD, _DIM, _RED, _GREEN, _YELLOW = "1", "2", "31", "32", "33"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """Capabilities of a terminal."""

    width: int | None = None
    """Characters per line; None if no line has to be cut, as in a file."""
    height: int | None = None
    """Number of lines; None if lines scroll."""
    unicode: bool = True
    colour: bool = False
    wide: bool = False
    command: str = "vramwarden"
    """Name under which the user called the program."""

    @property
    def shades(self) -> Shades:
        """Characters of bars."""
        return UNICODE if self.unicode else ASCII

    @property
    def dots(self) -> str:
        """Replacement of text that was cut."""
        return "…" if self.unicode else ".."

    def paint(self, text: str, style: str) -> str:
        """Return a text in colour if that is wanted; colour never is the only sign of a fact."""
        return f"\033[{style}m{text}\033[0m" if self.colour and text and style else text


def as_lines(
    report: TopReport, term: Terminal, parts: Sequence[str] = ("nodes", "pods")
) -> list[str]:
    """Return lines with parts of a report: `nodes`, `pods`, `workloads`."""
    by_gpu = not _has_node_lines(report, term)
    rows = {
        "nodes": (
            GPU_COLUMNS if by_gpu else NODE_COLUMNS,
            report.places(by_gpu=by_gpu) or None,
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
    head = _wrapped([texts.totals(report.amounts)] if has_totals else [], term, _BOLD)
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
        for one in columns_of(columns, report, wide=term.wide)
        if (column := _drawn(one, rows, report, term))
        and (not one.is_extra or term.wide or (has_extras and {*column.texts} != {"-"}))
    ]
    lines = table(shown, None if term.wide else term.width, term.dots)
    lines[0] = term.paint(lines[0], _BOLD)
    return lines


def _drawn(one: TopColumn, rows: Sequence[Any], report: TopReport, term: Terminal) -> Column:
    """Return a column with its texts, which are painted by their alarm, and its bars."""
    texts = [one.text(row, report) for row in rows]
    if one.is_once:
        texts = ["" if text == before else text for before, text in pairwise(["", *texts])]

    def style(text: str, number: int) -> str:
        if severity := one.alarm(rows[number], report):
            return term.paint(text, _RED if severity is Severity.ERROR else _YELLOW)
        return _painted(text, term) if one.bar else text

    def draw(number: int, width: int) -> str:
        if number < 0:
            return one.title or _bar_title(width, term)
        amount = f" {texts[number]:>7}" if texts[number] else ""
        return one.bar(rows[number], width - len(amount), term.shades) + amount if one.bar else ""

    drawn = draw if one.bar else None
    return Column(title=one.title, texts=texts, style=style, draw=drawn, **one.layout)


def _no_pods(report: TopReport) -> list[str]:
    where = f"namespace {report.namespace}" if report.namespace else "any namespace"
    return [clean(f"no pods with VRAM in {where}")]


def _tail(report: TopReport, term: Terminal, parts: Sequence[str]) -> list[str]:
    """Return problems, facts that could not be read, and commands that show more."""
    painted = _wrapped([f"! {sentence}" for sentence in report.missing], term)
    for alike in texts.alike_problems(report, parts):
        sentences = [f"! {texts.problem(one)}" for one in alike[:_MOST_ALIKE]]
        if len(alike) > _MOST_ALIKE:
            sentences.append(f"! {len(alike) - _MOST_ALIKE:,} more like the last one")
        painted += _wrapped(sentences, term)
        painted += [f"  {alike[0].fix}"] if alike[0].fix else []
    waiting = [row.pod for row in report.pods or () if row.is_waiting]
    if "pods" in parts and waiting:
        pod = f"{waiting[0].name} -n {waiting[0].namespace}"
        painted.append(clean(f"why a pod waits: {term.command} explain {pod}"))
    if "nodes" in parts:
        painted += _wrapped(texts.unavailable_nodes(report), term, _DIM)
    if "nodes" in parts and _has_node_lines(report, term):
        painted.append(f"the GPUs of a node: {term.command} top --node NAME")
    return painted


def _wrapped(sentences: Iterable[str], term: Terminal, style: str = _RED) -> list[str]:
    """Return sentences in lines of the terminal's width."""
    width = term.width or 10_000
    broken = [line for one in sentences for line in wrap(clean(one), width, subsequent_indent="  ")]
    return [term.paint(line, style) for line in broken]


def _shorten(tables: list[list[str]], room: int, term: Terminal) -> None:
    """Cut tables to a screen, the last one first; each has at least its equal share."""
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


def _painted(bar: str, term: Terminal) -> str:
    if not term.colour:
        return bar
    styles = {term.shades.used: _GREEN, term.shades.unmanaged: _RED, term.shades.free: _DIM}
    parts = ((shade, "".join(alike)) for shade, alike in groupby(bar))
    return "".join(term.paint(text, styles.get(shade, "")) for shade, text in parts)
