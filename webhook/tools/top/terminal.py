"""Lines of text that `vramwarden top` prints, for a terminal with its capabilities."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, TypeVar

from webhook.core.words import span
from webhook.tools.problems.problem import Code
from webhook.tools.render.output import Column, clean, fits, table
from webhook.tools.top import texts
from webhook.tools.top.bars import (
    ASCII,
    UNICODE,
    Shades,
    cap_bar,
    gpu_bar,
    letter_of,
    lettered_bar,
)
from webhook.tools.top.judge import sums_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from webhook.core.kinds.nodes import GpuFigures, NodeFigures
    from webhook.tools.snapshot.pod import ClusterPod
    from webhook.tools.top.judge import GpuSums, PodRow, TopReport, WorkloadRow

    AnyColumn = Column | Callable[[int], Column]
    """A column, or a function that returns it with bars of a number of cells."""

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
_NODE_LEAST, _POD_LEAST, _PRODUCT_LEAST, _STATE_LEAST = 10, 14, 8, 16
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
    if _has_node_lines(report, term):
        return _fitting(_node_columns(report, term), term, _GPU_BARS, names=_NODE_SHOWN)
    return _fitting(_gpu_columns(report, term), term, (_WIDE_BAR,) if term.wide else _BARS)


def _has_node_lines(report: TopReport, term: Terminal) -> bool:
    gpus = sum(len(node.gpus) for node in report.nodes or ())
    return gpus > MOST_GPU_LINES and not term.wide


def _gpu_columns(report: TopReport, term: Terminal) -> list[AnyColumn]:
    """Return columns with a line for each GPU."""
    rows = [(node, gpu) for node in report.nodes or () for gpu in node.gpus]
    nodes, gpus = [node for node, _ in rows], [gpu for _, gpu in rows]
    bar = lettered_bar if term.wide else gpu_bar

    def bars(cells: int) -> Column:
        drawn = [bar(gpu, cells, term.shades) for gpu in gpus]
        return _bars(_bar_title(cells, term), drawn, term)

    more, last = [], []
    if term.wide:
        more = [
            _figures("UNMANAGED", gpus, lambda gpu: texts.amount(gpu.unmanaged_bytes)),
            _figures("OTHER", gpus, lambda gpu: texts.amount(gpu.unattributed_bytes)),
            _column("DRIVER LIMIT", nodes, _driver_limit),
        ]
        last = [
            _column("UUID", gpus, lambda gpu: gpu.uuid),
            _column("WHO", gpus, lambda gpu: _pods_by_letter(gpu, report)),
        ]
    return [
        _node_column(rows, lambda row: row[0].name if row[1] is row[0].gpus[0] else ""),
        _figures("GPU", gpus, lambda gpu: str(gpu.index)),
        _column("PRODUCT", gpus, _product, least=_PRODUCT_LEAST, optional=2),
        bars,
        *_amounts(rows),
        _figures("PODS", gpus, _number_of_pods),
        *more,
        _ages(report, nodes, term, optional=3),
        *last,
    ]


def _node_columns(report: TopReport, term: Terminal) -> list[AnyColumn]:
    """Return columns with a line for each node: a short bar for each of its GPUs, or one bar."""
    nodes = report.nodes or ()
    rows = [(node, sums_of(node.gpus)) for node in nodes]
    sums = [one for _, one in rows]

    def bars(cells: int) -> Column:
        drawn = [" ".join(gpu_bar(gpu, cells, term.shades) for gpu in node.gpus) for node in nodes]
        if not cells:
            drawn = [gpu_bar(one, _BARS[-2], term.shades) for one in sums]
        return _bars(_bar_title(max(map(len, drawn)), term), drawn, term)

    return [
        _node_column(nodes, lambda node: node.name),
        _figures("GPUS", nodes, lambda node: str(len(node.gpus)), 2),
        _column("PRODUCT", nodes, _products, least=_PRODUCT_LEAST, optional=5),
        bars,
        *_amounts(rows),
        _figures("LARGEST", sums, lambda one: texts.amount(one.largest_free_bytes, down=True), 4),
        _figures("PODS", sums, lambda one: str(one.pods), 3),
        _ages(report, nodes, term, optional=1),
    ]


def _column(title: str, rows: Sequence[T], text: Callable[[T], str], **options: Any) -> Column:
    """Return a column with one text for each row."""
    return Column(title=title, texts=[text(row) for row in rows], **options)


def _figures(title: str, rows: Sequence[T], text: Callable[[T], str], optional: int = 0) -> Column:
    """Return a column of figures, which are aligned at the right."""
    return _column(title, rows, text, right=True, optional=optional)


def _node_column(rows: Sequence[T], text: Callable[[T], str], optional: int = 0) -> Column:
    return _column("NODE", rows, text, least=_NODE_LEAST, optional=optional)


def _amounts(rows: Sequence[tuple[NodeFigures, GpuFigures | GpuSums]]) -> list[Column]:
    return [
        _figures("PROMISED", rows, lambda row: texts.amount(row[1].promised_bytes)),
        _figures("USED", rows, lambda row: texts.amount(row[1].used_bytes)),
        _figures("FREE", rows, lambda row: _free(*row)),
    ]


def _bars(title: str, bars: Sequence[str], term: Terminal) -> Column:
    return Column(title=title, texts=bars, bars=True, style=lambda bar, _: _painted(bar, term))


def _ages(report: TopReport, nodes: Sequence[NodeFigures], term: Terminal, optional: int) -> Column:
    """Return the column with the age of figures; old ones are painted."""

    def style(text: str, number: int) -> str:
        return term.paint(text, _YELLOW) if report.stale(nodes[number]) else text

    def age(node: NodeFigures) -> str:
        return span(report.age_s(node)) + " old" * report.stale(node)

    return _column("SEEN", nodes, age, optional=optional, style=style)


def _fitting(
    columns: Sequence[AnyColumn], term: Terminal, sizes: Sequence[int], names: int | None = None
) -> list[str]:
    """Return a table with the largest bars for which no text is cut, or with the smallest.

    `names`: names may be cut to this number of characters, and optional columns be left out.
    """
    width = None if term.wide else term.width

    for cells in sizes:
        drawn = _sized(columns, cells)
        if fits([one for one in drawn if not (names and one.optional)], width, names=names):
            break
    lines = table(drawn, width, term.dots)
    lines[0] = term.paint(lines[0], _BOLD)
    return lines


def _sized(columns: Sequence[AnyColumn], cells: int) -> list[Column]:
    return [one if isinstance(one, Column) else one(cells) for one in columns]


def _pods(report: TopReport, term: Terminal) -> list[str]:
    rows = report.pods or ()
    pods = [row.pod for row in rows]

    def style_of_use(text: str, number: int) -> str:
        style = _style_of_cap(rows[number])
        return term.paint(text, style) if style else _painted(text, term)

    def used(cells: int) -> Column:
        bars = [_use(row.used_bytes, row.cap_bytes, cells, term) for row in rows]
        return Column(title="USED OF CAP", texts=bars, bars=True, style=style_of_use)

    def style_of_state(text: str, number: int) -> str:
        row = rows[number]
        alarm = _YELLOW if row.is_waiting or row.stops else ""
        return term.paint(text, _style_of_cap(row) or alarm)

    held_by = _column("HELD BY", rows, lambda row: row.held_by or "-")
    idle = _figures("IDLE", rows, lambda row: texts.since(row.idle_since_s, report))
    more = [one for one in (held_by, idle) if term.wide or {*one.texts} != {"-"}]
    options = {"least": _STATE_LEAST, "at_end": True, "style": style_of_state}
    last = [_column("STATE", rows, lambda row: texts.state(row, report), **options)]
    if term.wide:
        more = [
            _figures("STOPS", rows, lambda row: _number(row.stops)),
            _figures("AGE", pods, lambda pod: texts.since(pod.created_s, report)),
            *more,
        ]
        last = [
            _column("WORKLOAD", pods, lambda pod: str(pod.workload) if pod.workload.name else "-"),
            _column("UID", pods, lambda pod: pod.uid),
            *last,
        ]

    first: list[AnyColumn] = [
        *_name_columns("POD", report, pods, [pod.name for pod in pods]),
        _node_column(pods, lambda pod: pod.node or "-", optional=1),
        _column("GPU", rows, lambda row: texts.gpu_numbers(row, report), least=3, optional=2),
        _figures("CAP", rows, texts.cap_of_pod),
        used,
        _figures("PEAK", rows, lambda row: texts.amount(row.peak_bytes), 3),
    ]
    while more and not term.wide:
        if fits(_sized([*first, *more, *last], _CAP_BARS[-1]), term.width):
            break
        more.pop()
    return _fitting([*first, *more, *last], term, _CAP_BARS)


def _name_columns(
    title: str, report: TopReport, rows: Sequence[ClusterPod | WorkloadRow], names: list[str]
) -> list[Column]:
    """Return the columns that name a row; a namespace column if there are several."""
    if report.namespace:
        return [Column(title=f"{title} ({report.namespace})", texts=names, least=_POD_LEAST)]
    return [
        _column("NAMESPACE", rows, lambda row: row.namespace, least=_NODE_LEAST),
        Column(title=title, texts=names, least=_POD_LEAST),
    ]


def _no_pods(report: TopReport) -> list[str]:
    where = f"namespace {report.namespace}" if report.namespace else "any namespace"
    return [clean(f"no pods with VRAM in {where}")]


def _workloads(report: TopReport, term: Terminal) -> list[str]:
    rows = report.workloads or ()
    names = [f"{row.kind}/{row.name}" for row in rows]

    def used(cells: int) -> Column:
        bars = [_use(row.used_bytes, row.promised_bytes, cells, term) for row in rows]
        return _bars("USED OF PROMISED", bars, term)

    columns: list[AnyColumn] = [
        *_name_columns("WORKLOAD", report, rows, names),
        _figures("PODS", rows, lambda row: str(row.pods)),
        _figures("RUNNING", rows, lambda row: str(row.running), 2),
        _figures("WAITING", rows, lambda row: str(row.waiting), 1),
        _figures("CAP", rows, lambda row: texts.cap(row.cap_bytes), 3),
        _figures("PROMISED", rows, lambda row: texts.amount(row.promised_bytes)),
        used,
        _figures("PEAK", rows, lambda row: texts.amount(row.peak_bytes)),
        _figures("STOPS", rows, lambda row: _number(row.stops), 4),
    ]
    return _fitting(columns, term, _CAP_BARS)


def _tail(report: TopReport, term: Terminal, parts: Sequence[str]) -> list[str]:
    """Return problems, facts that could not be read, and commands that show more."""
    painted = _wrapped([f"! {sentence}" for sentence in report.missing], term)
    problems = report.problems
    if "nodes" not in parts:  # only those of these pods' nodes
        nodes = {row.pod.node for row in report.pods or ()}
        problems = tuple(one for one in problems if one.subject.name.partition("/")[0] in nodes)
    for code, group in groupby(problems, key=lambda one: one.code):
        alike = list(group)
        sentences = [f"! {texts.problem(one)}" for one in alike[:_MOST_ALIKE]]
        if len(alike) > _MOST_ALIKE:
            sentences.append(f"! {len(alike) - _MOST_ALIKE:,} more: {_MORE[code]}")
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


_MORE: Final = {
    Code.OVERCOMMITTED: "more is promised than there is",
    Code.UNMANAGED_MEMORY: "memory is held by pods without a cap",
    Code.GPU_UNHEALTHY: "lost or unhealthy",
    Code.NO_FIGURES: "nodes without figures",
    Code.STALE_FIGURES: "old figures",
}


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


def _use(used: int | None, cap: int | None, cells: int, term: Terminal) -> str:
    bar = cap_bar(used, cap, cells, term.shades)
    return f"{bar} {texts.amount(used):>7}"


def _driver_limit(node: NodeFigures) -> str:
    """Return the mechanism by which a node's driver enforces caps; "no" if it does not."""
    if node.limit is None:
        return "-"
    return node.limit.back_end or "yes" if node.limit.holds else "no"


def _free(node: NodeFigures, place: GpuFigures | GpuSums) -> str:
    if node.not_shared:
        return "not shared"
    if node.held:
        return "held"
    return texts.free(place)


def _style_of_cap(row: PodRow) -> str:
    return _RED if row.over_cap else _YELLOW if row.near_cap else ""


def _number(known: int | None) -> str:
    return "-" if known is None else str(known)


def _number_of_pods(gpu: GpuFigures) -> str:
    return str(len(gpu.pods)) if gpu.pods or gpu.promised_bytes is not None else "-"


def _product(gpu: GpuFigures) -> str:
    return gpu.product.removeprefix("NVIDIA-").removeprefix("NVIDIA ")


def _products(node: NodeFigures) -> str:
    return ", ".join(dict.fromkeys(_product(gpu) for gpu in node.gpus))


def _pods_by_letter(gpu: GpuFigures, report: TopReport) -> str:
    """Return the pods of a GPU by their letters; pods of others have no names."""
    return " ".join(
        f"{letter_of(number)}={report.name_of(pod.uid)[1] or '*'}"
        for number, pod in enumerate(gpu.pods)
    )
