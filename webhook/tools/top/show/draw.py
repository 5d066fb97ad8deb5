"""What `vramwarden top` prints: lines of text, made of a report and of what the terminal can do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING, Final, TypeVar

from webhook.core.kinds.nodes import GpuFigures
from webhook.core.words import amount, counted, exactly, named, span
from webhook.tools.render.output import Column, clean, fits, table
from webhook.tools.top.judge import TopReason, sums_of
from webhook.tools.top.show.bars import (
    ASCII,
    UNICODE,
    Shades,
    cap_bar,
    gpu_bar,
    letter_of,
    lettered_bar,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from webhook.core.kinds.nodes import NodeFigures
    from webhook.tools.top.judge import (
        GpuSums,
        PodRow,
        TopReport,
        Trouble,
        WorkloadRow,
    )

T = TypeVar("T")

ALL: Final = ("nodes", "pods")
"""What is shown where nothing is named."""
MOST_GPU_LINES: Final = 40
"""More GPUs have one line per node."""
_GPU_CELLS: Final = 4
"""Of a GPU's bar in the line of its node."""
_LEAST_GPU_CELLS: Final = 2
"""Where so many do not fit, the node has one bar."""
_NODE_SHOWN: Final = 20
"""Characters of a node's name that count more than such bars."""
_MOST_ALIKE: Final = 5
"""Troubles of one kind; the rest is counted."""
_BARS: Final = (24, 20, 16, 13, 10)
_NODE_LEAST, _POD_LEAST, _PRODUCT_LEAST, _STATE_LEAST = 10, 14, 8, 16
_WIDE_BAR: Final = 32
_UUID_SHOWN: Final = 12

_BOLD, _DIM, _RED, _GREEN, _YELLOW = "1", "2", "31", "32", "33"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """What a drawing may use."""

    width: int | None = None
    """Characters of a line; None where nothing has to be cut, as in a file."""
    height: int | None = None
    """Lines; None where they scroll."""
    unicode: bool = True
    colour: bool = False
    wide: bool = False
    command: str = "vramwarden"
    """How the user calls us."""

    @property
    def shades(self) -> Shades:
        """The characters of bars."""
        return UNICODE if self.unicode else ASCII

    @property
    def dots(self) -> str:
        """What stands where something was cut."""
        return "…" if self.unicode else ".."

    def paint(self, text: str, *styles: str) -> str:
        """Colour a text, where colours are wanted: never the only sign of anything."""
        return f"\033[{';'.join(styles)}m{text}\033[0m" if self.colour and text else text


def lines(report: TopReport, term: Terminal, parts: Sequence[str] = ALL) -> list[str]:
    """Draw parts of a report: `nodes`, `pods`, `workloads`."""
    tables = [
        drawn
        for part, draw in (("nodes", _nodes), ("pods", _pods), ("workloads", _workloads))
        if part in parts and (drawn := draw(report, term))
    ]
    head = _wrapped(_head(report), term, _BOLD) if "nodes" in parts else []
    tail = _tail(report, term, parts)
    if term.height is not None:
        room = term.height - len(head) - len(tail) - 2 * (len(tables) + 1)
        tables = _shortened(tables, max(room, 2 * len(tables)), term)
    blocks = [block for block in (head, *tables, tail) if block]
    drawn = [line for block in blocks for line in ("", *block)][1:]
    return drawn if term.height is None else drawn[: term.height]


def _head(report: TopReport) -> list[str]:
    sums = report.amounts
    if not report.nodes or not sums.nodes:
        return []
    line = summed(sums)
    if sums.largest_free_bytes is not None:
        line += f"; largest free {amount(sums.largest_free_bytes, down=True)}"
    return [line]


def summed(sums: GpuSums) -> str:
    """Say what of the GPUs' memory is promised and used."""
    promised = _of_all("promised", sums.promised_bytes, sums.promised_gpus, sums)
    used = _of_all("used", sums.used_bytes, sums.used_gpus, sums)
    nodes, gpus = counted(sums.nodes, "node"), counted(sums.gpus, "GPU")
    return f"{nodes}, {gpus}, {amount(sums.usable_bytes, down=True)} usable: {promised}, {used}"


def _of_all(what: str, known: int | None, gpus: int, sums: GpuSums) -> str:
    """Say a sum, and of how many GPUs it is where not of all."""
    if known is None:
        return f"{what} unknown"
    if gpus < sums.gpus:
        return f"{amount(known)} {what} on {gpus:,} of them"
    percent = f" ({known * 100 // sums.usable_bytes}%)" if sums.usable_bytes else ""
    return f"{amount(known)} {what}{percent}"


def _nodes(report: TopReport, term: Terminal) -> list[str]:
    if not report.nodes:
        return []
    if _has_node_lines(report, term):
        return _node_lines(report, report.nodes, term)
    rows = [(node, gpu) for node in report.nodes for gpu in node.gpus]
    names = [node.name if gpu is node.gpus[0] else "" for node, gpu in rows]
    of_gpus = partial(_figures, [gpu for _, gpu in rows])

    def made(cells: int) -> list[Column]:
        bar = lettered_bar if term.wide else gpu_bar
        columns = [
            Column(title="NODE", texts=names, least=_NODE_LEAST),
            of_gpus("GPU", lambda gpu: str(gpu.index)),
            _products_of([_product(gpu) for _, gpu in rows], optional=2),
            _bars([bar(gpu, cells, term.shades) for _, gpu in rows], cells, term),
            of_gpus("PROMISED", lambda gpu: amount_of(gpu.promised_bytes)),
            of_gpus("USED", lambda gpu: amount_of(gpu.used_bytes)),
            _figures(rows, "FREE", lambda row: _free(*row)),
            of_gpus("PODS", _number_of_pods),
            _ages(report, [node for node, _ in rows], term, optional=3),
        ]
        if term.wide:
            columns[-1:-1] = [
                of_gpus("UNMANAGED", lambda gpu: amount_of(gpu.unmanaged_bytes)),
                of_gpus("OTHER", lambda gpu: amount_of(gpu.unattributed_bytes)),
                Column(title="DRIVER LIMIT", texts=[_limit(node) for node, _ in rows]),
            ]
            columns += [
                Column(title="UUID", texts=[gpu.uuid for _, gpu in rows]),
                Column(title="WHO", texts=[_who(gpu, report) for _, gpu in rows]),
            ]
        return columns

    return _fitting(made, term, (_WIDE_BAR,) if term.wide else _BARS)


def _figures(
    rows: Sequence[T], title: str, figure: Callable[[T], str], optional: int = 0
) -> Column:
    """Return a column of figures, one of each row."""
    return Column(title=title, texts=[figure(row) for row in rows], right=True, optional=optional)


def _products_of(products: list[str], optional: int) -> Column:
    return Column(title="PRODUCT", texts=products, least=_PRODUCT_LEAST, optional=optional)


def _bars(bars: list[str], cells: int, term: Terminal) -> Column:
    return Column(
        title=_bar_title(cells, term),
        texts=bars,
        bars=True,
        style=lambda text, _: _painted(text, term),
    )


def _ages(report: TopReport, nodes: Sequence[NodeFigures], term: Terminal, optional: int) -> Column:
    """Return the column of how old figures are; old ones are painted."""

    def style(text: str, number: int) -> str:
        return term.paint(text, _YELLOW) if report.stale(nodes[number]) else text

    seen = [span(report.age_s(node)) + " old" * report.stale(node) for node in nodes]
    return Column(title="SEEN", texts=seen, optional=optional, style=style)


def _has_node_lines(report: TopReport, term: Terminal) -> bool:
    gpus = sum(len(node.gpus) for node in report.nodes or ())
    return gpus > MOST_GPU_LINES and not term.wide


def _node_lines(report: TopReport, nodes: Sequence[NodeFigures], term: Terminal) -> list[str]:
    """Draw a line for each node, with a short bar for each of its GPUs where there is room."""
    sums = [sums_of(node.gpus) for node in nodes]

    def made(cells: int) -> list[Column]:
        if cells < _LEAST_GPU_CELLS:
            bars = [gpu_bar(one, _BARS[-2], term.shades) for one in sums]
        else:
            bars = [
                " ".join(gpu_bar(gpu, cells, term.shades) for gpu in node.gpus) for node in nodes
            ]
        return [
            Column(title="NODE", texts=[node.name for node in nodes], least=_NODE_LEAST),
            _figures(nodes, "GPUS", lambda node: str(len(node.gpus)), 2),
            _products_of([_products(node) for node in nodes], optional=5),
            _bars(bars, max(map(len, bars)), term),
            _figures(sums, "PROMISED", lambda one: amount_of(one.promised_bytes)),
            _figures(sums, "USED", lambda one: amount_of(one.used_bytes)),
            _figures(tuple(zip(nodes, sums, strict=True)), "FREE", lambda row: _free(*row)),
            _figures(sums, "LARGEST", lambda one: amount_of(one.largest_free_bytes, down=True), 4),
            _figures(sums, "PODS", lambda one: str(one.pods), 3),
            _ages(report, nodes, term, optional=1),
        ]

    for cells in range(_GPU_CELLS, _LEAST_GPU_CELLS - 2, -1):
        columns = made(cells)
        needed = [one for one in columns if not one.optional]
        if fits(needed, term.width, names=_NODE_SHOWN):
            break
    return _titled(table(columns, term.width, term.dots), term)


def _fitting(
    made: Callable[[int], list[Column]], term: Terminal, sizes: Sequence[int]
) -> list[str]:
    """Draw a table with the largest bars beside which nothing is cut; else with the smallest."""
    columns = made(sizes[-1])
    for cells in sizes:
        columns = made(cells)
        if fits(columns, None if term.wide else term.width):
            break
    return _titled(table(columns, None if term.wide else term.width, term.dots), term)


def _titled(drawn: list[str], term: Terminal) -> list[str]:
    return [term.paint(drawn[0], _BOLD), *drawn[1:]]


def _pods(report: TopReport, term: Terminal) -> list[str]:
    if report.pods is None:
        return []
    if not report.pods:
        return _no_pods(report)
    where, pods = report.namespace, report.pods
    held = Column(title="HELD BY", texts=[pod.held_by or "-" for pod in pods])
    idle = _figures(pods, "IDLE", lambda pod: idle_of(pod, report.at_s))
    more = [one for one in (held, idle) if term.wide or {*one.texts} != {"-"}]

    def made(cells: int) -> list[Column]:
        used = [_of_cap(pod.used_bytes, pod.cap_bytes, cells, term) for pod in pods]
        columns = [
            *_named("POD", where, pods, [pod.name for pod in pods]),
            Column(
                title="NODE",
                texts=[pod.node or "-" for pod in pods],
                least=_NODE_LEAST,
                optional=1,
            ),
            Column(title="GPU", texts=[_gpus(pod, report) for pod in pods], least=3, optional=2),
            _figures(pods, "CAP", _cap),
            Column(
                title="USED OF CAP",
                texts=used,
                bars=True,
                style=lambda text, number: _full(text, pods[number], term),
            ),
            _figures(pods, "PEAK", lambda pod: amount_of(pod.peak_bytes), 3),
        ]
        if term.wide:
            columns += [
                _figures(pods, "STOPS", lambda pod: _count(pod.stops)),
                _figures(pods, "AGE", lambda pod: _age(pod, report.at_s)),
                *more,
                Column(title="WORKLOAD", texts=[_workload_of(pod) for pod in pods]),
                Column(title="UID", texts=[pod.uid for pod in pods]),
            ]
        else:
            columns += more
        states = Column(
            title="STATE",
            texts=[pod.state for pod in pods],
            least=_STATE_LEAST,
            at_end=True,
            style=lambda text, number: _alarming(text, pods[number], term),
        )
        return [*columns, states]

    sizes = (10, 8, 6, 4)
    while more and not (term.wide or fits(made(sizes[-1]), term.width)):
        more.pop()
    return _fitting(made, term, sizes)


def _named(
    title: str, where: str, rows: Sequence[PodRow | WorkloadRow], names: list[str]
) -> list[Column]:
    """Return the columns that name a row; the namespace is one where there are several."""
    if where:
        return [Column(title=f"{title} ({where})", texts=names, least=_POD_LEAST)]
    namespaces = [row.namespace for row in rows]
    return [
        Column(title="NAMESPACE", texts=namespaces, least=_NODE_LEAST),
        Column(title=title, texts=names, least=_POD_LEAST),
    ]


def _no_pods(report: TopReport) -> list[str]:
    where = f"namespace {report.namespace}" if report.namespace else "any namespace"
    return [clean(f"no pods with VRAM in {where}")]


def _workloads(report: TopReport, term: Terminal) -> list[str]:
    if report.workloads is None:
        return []
    if not report.workloads:
        return _no_pods(report)
    where, rows = report.namespace, report.workloads

    def made(cells: int) -> list[Column]:
        used = [_of_cap(row.used_bytes, row.promised_bytes, cells, term) for row in rows]
        return [
            *_named("WORKLOAD", where, rows, [f"{row.kind}/{row.name}" for row in rows]),
            _figures(rows, "PODS", lambda row: str(row.pods)),
            _figures(rows, "RUNNING", lambda row: str(row.running), 2),
            _figures(rows, "WAITING", lambda row: str(row.waiting), 1),
            _figures(rows, "CAP", lambda row: cap_of(row.cap_bytes), 3),
            _figures(rows, "PROMISED", lambda row: amount_of(row.promised_bytes)),
            Column(
                title="USED OF PROMISED",
                texts=used,
                bars=True,
                style=lambda text, _: _painted(text, term),
            ),
            _figures(rows, "PEAK", lambda row: amount_of(row.peak_bytes)),
            _figures(rows, "STOPS", lambda row: _count(row.stops), 4),
        ]

    return _fitting(made, term, (10, 8, 6, 4))


def _tail(report: TopReport, term: Terminal, parts: Sequence[str]) -> list[str]:
    """Return what is wrong or missing, and who says more."""
    painted = _wrapped([f"! {sentence}" for sentence in report.missing], term)
    troubles = report.troubles
    if "nodes" not in parts:  # only what concerns these pods
        of_pods = {pod.node for pod in report.pods or ()}
        troubles = tuple(one for one in troubles if one.node in of_pods)
    for reason, group in groupby(troubles, key=lambda one: one.reason):
        alike = list(group)
        said = [f"! {sentence_of(one)}" for one in alike[:_MOST_ALIKE]]
        if len(alike) > _MOST_ALIKE:
            said.append(f"! {len(alike) - _MOST_ALIKE:,} more: {_MORE[reason]}")
        painted += _wrapped(said, term)
        painted += [f"  {alike[0].fix}"] if alike[0].fix else []
    waiting = [pod for pod in report.pods or () if pod.is_waiting]
    if "pods" in parts and waiting:
        which = f"{waiting[0].name} -n {waiting[0].namespace}"
        painted.append(clean(f"why a pod waits: {term.command} explain {which}"))
    if "nodes" in parts:
        painted += _wrapped(left_out(report), term, _DIM)
    if "nodes" in parts and _has_node_lines(report, term):
        painted.append(f"the GPUs of a node: {term.command} top --node NAME")
    return painted


def left_out(report: TopReport) -> Iterator[str]:
    """Say which nodes are not shared, or give nothing more to anybody, and why."""
    nodes = report.nodes or ()
    kinds = {
        "not shared, and in no sum": [(node.name, node.not_shared) for node in nodes],
        "held, and what is free there is given to no pod": [(one.name, one.held) for one in nodes],
    }
    for what, whys in kinds.items():
        said = [f"{name} ({why})" for name, why in whys if why]
        if said:
            yield f"{what}: {named(said, _MOST_ALIKE)}"


def _wrapped(sentences: Iterable[str], term: Terminal, style: str = _RED) -> list[str]:
    """Break sentences at the terminal's width."""
    width = term.width or 10_000
    broken = [line for one in sentences for line in wrap(clean(one), width, subsequent_indent="  ")]
    return [term.paint(line, style) for line in broken]


_MORE: Final = {
    TopReason.OVERPROMISED: "more is promised than there is",
    TopReason.UNMANAGED: "memory is held by pods without a cap",
    TopReason.GPU_LOST: "lost or unhealthy",
    TopReason.UNREPORTED: "nodes without figures",
    TopReason.STALE: "old figures",
}


def sentence_of(trouble: Trouble) -> str:
    """Say what is wrong, and where."""
    where = trouble.node if trouble.gpu is None else f"{trouble.node} GPU {trouble.gpu}"
    return f"{where}: {trouble.sentence}"


def _shortened(tables: list[list[str]], room: int, term: Terminal) -> list[list[str]]:
    """Cut tables to a screen: the last one gives first, each keeps its part."""
    shown = []
    for number, drawn in enumerate(tables):
        left = len(tables) - number
        later = sum(len(one) for one in tables[number + 1 :])
        mine = max(room - later, room // left)
        kept = drawn
        if len(drawn) > mine:
            more = term.paint(f"{term.dots} {len(drawn) - mine + 1:,} more lines", _DIM)
            kept = [*drawn[: mine - 1], more]
        room -= len(kept)
        shown.append(kept)
    return shown


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
    return "".join(
        term.paint("".join(alike), styles[shade]) if shade in styles else "".join(alike)
        for shade, alike in groupby(bar)
    )


def _of_cap(used: int | None, cap: int | None, cells: int, term: Terminal) -> str:
    bar = cap_bar(used, cap, cells, term.shades)
    return f"{bar} {amount_of(used):>7}"


def _full(text: str, pod: PodRow, term: Terminal) -> str:
    return term.paint(text, _YELLOW) if pod.near_cap else _painted(text, term)


def _alarming(text: str, pod: PodRow, term: Terminal) -> str:
    alarms = pod.is_waiting or pod.near_cap or pod.stops
    return term.paint(text, _YELLOW) if alarms else text


def amount_of(known: int | None, otherwise: str = "-", *, down: bool = False) -> str:
    """Say an amount that may be unknown."""
    return otherwise if known is None else amount(known, down=down)


def cap_of(known: int | None) -> str:
    """Say a cap that may be unknown, exactly."""
    return "-" if known is None else exactly(known)


def idle_of(pod: PodRow, at_s: float) -> str:
    """Say for how long a pod did nothing; a dash where that is unknown, or it does something."""
    return "-" if pod.idle_since_s is None else span(at_s - pod.idle_since_s)


def _limit(node: NodeFigures) -> str:
    """Say by what the driver holds caps on a node."""
    if node.limit is None:
        return "-"
    return node.limit.back_end or "yes" if node.limit.holds else "no"


def _free(node: NodeFigures, place: GpuFigures | GpuSums) -> str:
    if node.not_shared:
        return "not shared"
    if node.held:
        return "held"
    return free_of(place)


def free_of(place: GpuFigures | GpuSums) -> str:
    """Say what may still be promised; nothing of a GPU that is not healthy."""
    if place.free_bytes is None or (isinstance(place, GpuFigures) and not place.healthy):
        return "-"
    return amount(max(0, place.free_bytes), down=True)


def _count(known: int | None) -> str:
    return "-" if known is None else str(known)


def _number_of_pods(gpu: GpuFigures) -> str:
    return str(len(gpu.pods)) if gpu.pods or gpu.promised_bytes is not None else "-"


def _product(gpu: GpuFigures) -> str:
    return gpu.product.removeprefix("NVIDIA-").removeprefix("NVIDIA ")


def _products(node: NodeFigures) -> str:
    return ", ".join(dict.fromkeys(_product(gpu) for gpu in node.gpus))


def _who(gpu: GpuFigures, report: TopReport) -> str:
    """Return the pods of a GPU by their letters; those of others have no names."""
    return " ".join(
        f"{letter_of(number)}={report.name_of(pod.uid)[1] or '*'}"
        for number, pod in enumerate(gpu.pods)
    )


def _gpus(pod: PodRow, report: TopReport) -> str:
    """Return the numbers of its GPUs; where no figures tell them, how their UUIDs begin."""
    known = sorted(report.indexes[uuid] for uuid, _ in pod.held if uuid in report.indexes)
    rest = [uuid[:_UUID_SHOWN] for uuid, _ in pod.held if uuid not in report.indexes]
    return ",".join([*map(str, known), *rest]) or "-"


def _cap(pod: PodRow) -> str:
    cap = cap_of(pod.cap_bytes)
    return f"{pod.gpu_count}x{cap}" if pod.gpu_count > 1 and pod.cap_bytes is not None else cap


def _age(pod: PodRow, at_s: float) -> str:
    return "-" if pod.created_s is None else span(at_s - pod.created_s)


def _workload_of(pod: PodRow) -> str:
    return f"{pod.kind}/{pod.workload}" if pod.workload else "-"
