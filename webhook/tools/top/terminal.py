"""Lines of text that `vramwarden top` prints, for a terminal with its capabilities."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby, pairwise, product
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, TypeVar

from webhook.tools.problems.problem import Severity
from webhook.tools.render.output import Column, clean, fits, table
from webhook.tools.top import texts
from webhook.tools.top.bars import ASCII, UNICODE, Shades, cap_bar, gpu_bar, lettered_bar
from webhook.tools.top.judge import sums_of
from webhook.tools.top.texts import (
    GPU_COLUMNS,
    NODE_COLUMNS,
    POD_COLUMNS,
    WORKLOAD_COLUMNS,
    columns_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from webhook.tools.top.judge import PlaceRow, PodRow, TopReport, WorkloadRow
    from webhook.tools.top.texts import TopColumn

T = TypeVar("T")

MOST_GPU_LINES: Final = 40
"""Maximum number of GPUs that have a line each; for more GPUs, each node has one line."""
_GPU_BARS: Final = (4, 3, 2, 0)
"""Widths of a GPU's bar in the line of its node, in characters; 0: the node has one bar."""
_NODE_SHOWN: Final = 20
"""Characters of a node's name that have precedence over such bars."""
_MOST_ALIKE: Final = 5
"""Maximum number of problems with one reason; the others are counted."""
_BARS: Final = (24, 20, 16, 13, 10)
_CAP_BARS: Final = (10, 8, 6, 4)
_WIDE_BAR: Final = 32

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
    tables = []
    if "nodes" in parts and report.nodes:
        tables.append(_nodes(report, term))
    if "pods" in parts and report.pods is not None:
        tables.append(_pods(report, term) if report.pods else _no_pods(report))
    if "workloads" in parts and report.workloads is not None:
        tables.append(_workloads(report, term) if report.workloads else _no_pods(report))
    has_totals = "nodes" in parts and report.nodes and report.amounts.nodes
    head = _wrapped([texts.totals(report.amounts)] if has_totals else [], term, _BOLD)
    tail = _tail(report, term, parts)
    if term.height is not None:
        room = term.height - len(head) - len(tail) - 2 * (len(tables) + 1)
        _shorten(tables, max(room, 2 * len(tables)), term)
    blocks = [block for block in (head, *tables, tail) if block]
    drawn = [line for block in blocks for line in ("", *block)][1:]
    return drawn if term.height is None else drawn[: term.height]


def _nodes(report: TopReport, term: Terminal) -> list[str]:
    if not _has_node_lines(report, term):
        rows, sizes = report.places(by_gpu=True), (_WIDE_BAR,) if term.wide else _BARS

        def bar(row: PlaceRow, cells: int) -> str:
            if term.wide:
                return lettered_bar(row.gpus[0], cells, term.shades)
            return gpu_bar(row.sums, cells, term.shades)

        return _fitting(GPU_COLUMNS, rows, report, term, bar, sizes)
    sums = {id(gpu): sums_of([gpu]) for node in report.nodes or () for gpu in node.gpus}

    def bars(row: PlaceRow, cells: int) -> str:
        if not cells:
            return gpu_bar(row.sums, _BARS[-2], term.shades)
        return " ".join(gpu_bar(sums[id(gpu)], cells, term.shades) for gpu in row.gpus)

    rows = report.places(by_gpu=False)
    return _fitting(NODE_COLUMNS, rows, report, term, bars, _GPU_BARS, names=_NODE_SHOWN)


def _has_node_lines(report: TopReport, term: Terminal) -> bool:
    gpus = sum(len(node.gpus) for node in report.nodes or ())
    return gpus > MOST_GPU_LINES and not term.wide


def _pods(report: TopReport, term: Terminal) -> list[str]:
    def bar(row: PodRow, cells: int) -> str:
        return cap_bar(row.used_bytes, row.cap_bytes, cells, term.shades)

    return _fitting(POD_COLUMNS, report.pods or (), report, term, bar, _CAP_BARS)


def _workloads(report: TopReport, term: Terminal) -> list[str]:
    def bar(row: WorkloadRow, cells: int) -> str:
        return cap_bar(row.used_bytes, row.promised_bytes, cells, term.shades)

    return _fitting(WORKLOAD_COLUMNS, report.workloads or (), report, term, bar, _CAP_BARS)


def _fitting(
    columns: Sequence[TopColumn],
    rows: Sequence[T],
    report: TopReport,
    term: Terminal,
    bar: Callable[[T, int], str],
    sizes: Sequence[int],
    names: int | None = None,
) -> list[str]:
    """Return a table with the largest bars for which no text is cut, or with the smallest.

    `names`: names may be cut to this number of characters, and optional columns be left out.
    """
    width = None if term.wide else term.width
    drawn = [
        (one, _drawn(one, rows, report, term))
        for one in columns_of(columns, report, is_wide=term.wide)
    ]
    extras = [] if term.wide else [one for one, _ in drawn if one.is_extra]
    known = [one for one, column in drawn if one in extras and {*column.texts} != {"-"}]
    for number, cells in product(range(len(known), -1, -1), sizes):
        shown = [
            _with_bars(column, [bar(row, cells) for row in rows], term) if one.has_bar else column
            for one, column in drawn
            if one not in extras or one in known[:number]
        ]
        if fits([one for one in shown if not (names and one.optional)], width, names=names):
            break
    lines = table(shown, width, term.dots)
    lines[0] = term.paint(lines[0], _BOLD)
    return lines


def _drawn(one: TopColumn, rows: Sequence[Any], report: TopReport, term: Terminal) -> Column:
    """Return a column with its texts, which are painted by their alarm."""

    def style(text: str, number: int) -> str:
        if one.alarm and (severity := one.alarm(rows[number], report)):
            return term.paint(text, _RED if severity is Severity.ERROR else _YELLOW)
        return _painted(text, term) if one.has_bar else text

    texts = [one.text(row, report) for row in rows]
    if one.is_once:
        texts = ["" if text == before else text for before, text in pairwise(["", *texts])]
    return Column(
        title=one.title,
        texts=texts,
        right=one.right and not one.has_bar,
        least=one.least,
        at_end=one.at_end,
        optional=one.optional,
        style=style if one.alarm or one.has_bar else None,
    )


def _with_bars(column: Column, bars: Sequence[str], term: Terminal) -> Column:
    """Return a column with a bar before each text; one without texts has a legend as its title."""
    pairs = zip(bars, column.texts, strict=True)
    texts = [f"{bar} {text:>7}" if text else bar for bar, text in pairs]
    title = column.title or _bar_title(max(map(len, bars), default=0), term)
    return replace(column, title=title, texts=texts, bars=True)


def _no_pods(report: TopReport) -> list[str]:
    where = f"namespace {report.namespace}" if report.namespace else "any namespace"
    return [clean(f"no pods with VRAM in {where}")]


def _tail(report: TopReport, term: Terminal, parts: Sequence[str]) -> list[str]:
    """Return problems, facts that could not be read, and commands that show more."""
    painted = _wrapped([f"! {sentence}" for sentence in report.missing], term)
    problems = report.problems
    if "nodes" not in parts:  # only those of these pods' nodes
        nodes = {row.pod.node for row in report.pods or ()}
        problems = tuple(one for one in problems if one.subject.name.partition("/")[0] in nodes)
    for _, group in groupby(problems, key=lambda one: one.code):
        alike = list(group)
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
