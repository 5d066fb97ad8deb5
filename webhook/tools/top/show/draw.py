"""What `vramwarden top` prints: lines of text, made of a report and of what the terminal can do."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING, Final

from webhook.core.kinds.nodes import GpuFigures
from webhook.core.words import amount, counted, exactly, named, span
from webhook.tools.shared.output import Column, clean, fits, table
from webhook.tools.top.judge import Phase, Reason
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

    from webhook.tools.top.judge import (
        Amounts,
        NodeRow,
        PodRow,
        TopReport,
        Trouble,
    )

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


@dataclass(frozen=True, slots=True)
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
    if not report.nodes:
        return []
    said = [_of_all("promised", sums.promised_bytes, sums.promised_gpus, sums)]
    said.append(_of_all("used", sums.used_bytes, sums.used_gpus, sums))
    if not sums.nodes:
        return []
    line = f"{counted(sums.nodes, 'node')}, {counted(sums.gpus, 'GPU')}, "
    line += f"{amount(sums.usable_bytes, down=True)} usable: {', '.join(said)}"
    if sums.largest_free_bytes is not None:
        line += f"; largest free {amount(sums.largest_free_bytes, down=True)}"
    return [line]


def _of_all(what: str, known: int | None, gpus: int, sums: Amounts) -> str:
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
        return _node_lines(report.nodes, term)
    rows = [(node, gpu) for node in report.nodes for gpu in node.gpus]
    firsts = [
        not before or before[0] is not one[0]
        for before, one in zip([None, *rows], rows, strict=False)
    ]

    def made(cells: int) -> list[Column]:
        bar = lettered_bar if term.wide else gpu_bar
        bars = [bar(gpu, cells, term.shades) for _, gpu in rows]
        columns = [
            Column(
                "NODE",
                [
                    clean(node.name) if first else ""
                    for first, (node, _) in zip(firsts, rows, strict=True)
                ],
                least=_NODE_LEAST,
            ),
            Column("GPU", [str(gpu.index) for _, gpu in rows], right=True),
            Column(
                "PRODUCT",
                [_product(gpu) for _, gpu in rows],
                least=_PRODUCT_LEAST,
                optional=2,
            ),
            Column(_bar_title(cells, term), bars, style=lambda text, _: _painted(text, term)),
            Column("PROMISED", [_amount(gpu.promised_bytes) for _, gpu in rows], right=True),
            Column("USED", [_amount(gpu.used_bytes) for _, gpu in rows], right=True),
            Column("FREE", [_free(node, gpu) for node, gpu in rows], right=True),
            Column("PODS", [_number_of_pods(gpu) for _, gpu in rows], right=True),
            Column(
                "SEEN",
                [_seen(node) for node, _ in rows],
                optional=3,
                style=lambda text, number: _aged(text, rows[number][0], term),
            ),
        ]
        if term.wide:
            columns[-1:-1] = [
                Column("UNMANAGED", [_amount(gpu.unmanaged_bytes) for _, gpu in rows], right=True),
                Column("OTHER", [_amount(gpu.unattributed_bytes) for _, gpu in rows], right=True),
            ]
            columns += [
                Column("UUID", [clean(gpu.uuid) for _, gpu in rows]),
                Column("WHO", [_who(gpu, node) for node, gpu in rows]),
            ]
        return columns

    return _fitting(made, term, (_WIDE_BAR,) if term.wide else _BARS)


def _has_node_lines(report: TopReport, term: Terminal) -> bool:
    gpus = sum(len(node.gpus) for node in report.nodes or ())
    return gpus > MOST_GPU_LINES and not term.wide


def _node_lines(nodes: Sequence[NodeRow], term: Terminal) -> list[str]:
    """Draw a line for each node, with a short bar for each of its GPUs where there is room."""
    sums = [node.amounts for node in nodes]

    def made(cells: int) -> list[Column]:
        if cells < _LEAST_GPU_CELLS:
            bars = [gpu_bar(one, _BARS[-2], term.shades) for one in sums]
        else:
            bars = [
                " ".join(gpu_bar(gpu, cells, term.shades) for gpu in node.gpus) for node in nodes
            ]
        return [
            Column("NODE", [clean(node.name) for node in nodes], least=_NODE_LEAST),
            Column("GPUS", [str(len(node.gpus)) for node in nodes], right=True, optional=2),
            Column(
                "PRODUCT", [_products(node) for node in nodes], least=_PRODUCT_LEAST, optional=5
            ),
            Column(
                _bar_title(max(map(len, bars)), term),
                bars,
                style=lambda text, _: _painted(text, term),
            ),
            Column("PROMISED", [_amount(one.promised_bytes) for one in sums], right=True),
            Column("USED", [_amount(one.used_bytes) for one in sums], right=True),
            Column("FREE", [_free(node, node.amounts) for node in nodes], right=True),
            Column(
                "LARGEST",
                [_amount(one.largest_free_bytes, down=True) for one in sums],
                right=True,
                optional=4,
            ),
            Column("PODS", [str(one.pods) for one in sums], right=True, optional=3),
            Column(
                "SEEN",
                [_seen(node) for node in nodes],
                optional=1,
                style=lambda text, number: _aged(text, nodes[number], term),
            ),
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
    where = clean(report.namespace)
    if not report.pods:
        return [f"no pods with VRAM in {f'namespace {where}' if where else 'any namespace'}"]
    pods = report.pods

    def made(cells: int) -> list[Column]:
        used = [_of_cap(pod.used_bytes, pod.cap_bytes, cells, term) for pod in pods]
        columns = [
            Column(
                f"POD ({where})" if where else "POD",
                [clean(pod.name) for pod in pods],
                least=_POD_LEAST,
            ),
            Column("NODE", [clean(pod.node) or "-" for pod in pods], least=_NODE_LEAST, optional=1),
            Column("GPU", [_gpus(pod) for pod in pods], least=3, optional=2),
            Column("CAP", [_cap(pod) for pod in pods], right=True),
            Column("USED OF CAP", used, style=lambda text, number: _full(text, pods[number], term)),
            Column("PEAK", [_amount(pod.peak_bytes) for pod in pods], right=True, optional=3),
        ]
        if not where:
            columns.insert(
                0, Column("NAMESPACE", [clean(pod.namespace) for pod in pods], least=_NODE_LEAST)
            )
        if term.wide:
            columns += [
                Column("STOPS", [_count(pod.stops) for pod in pods], right=True),
                Column("AGE", [_age(pod, report.at_s) for pod in pods], right=True),
                Column("WORKLOAD", [_workload_of(pod) for pod in pods]),
                Column("UID", [clean(pod.uid) for pod in pods]),
            ]
        states = Column(
            "STATE",
            [clean(pod.state) for pod in pods],
            least=_STATE_LEAST,
            at_end=True,
            style=lambda text, number: _alarming(text, pods[number], term),
        )
        return [*columns, states]

    return _fitting(made, term, (10, 8, 6, 4))


def _workloads(report: TopReport, term: Terminal) -> list[str]:
    if report.workloads is None:
        return []
    where = clean(report.namespace)
    if not report.workloads:
        return [f"no pods with VRAM in {f'namespace {where}' if where else 'any namespace'}"]
    rows = report.workloads

    def made(cells: int) -> list[Column]:
        columns = [
            Column(
                f"WORKLOAD ({where})" if where else "WORKLOAD",
                [clean(f"{row.kind}/{row.name}") for row in rows],
                least=_POD_LEAST,
            ),
            Column("PODS", [str(row.pods) for row in rows], right=True),
            Column("RUNNING", [str(row.running) for row in rows], right=True, optional=2),
            Column("WAITING", [str(row.waiting) for row in rows], right=True, optional=1),
            Column("CAP", [_exactly(row.cap_bytes) for row in rows], right=True, optional=3),
            Column("PROMISED", [_amount(row.promised_bytes) for row in rows], right=True),
            Column(
                "USED OF PROMISED",
                [_of_cap(row.used_bytes, row.promised_bytes, cells, term) for row in rows],
                style=lambda text, _: _painted(text, term),
            ),
            Column("PEAK", [_amount(row.peak_bytes) for row in rows], right=True),
            Column("STOPS", [_count(row.stops) for row in rows], right=True, optional=4),
        ]
        if not where:
            columns.insert(
                0, Column("NAMESPACE", [clean(row.namespace) for row in rows], least=_NODE_LEAST)
            )
        return columns

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
        said = [f"! {_trouble(one)}" for one in alike[:_MOST_ALIKE]]
        if len(alike) > _MOST_ALIKE:
            said.append(f"! {len(alike) - _MOST_ALIKE:,} more: {_MORE[reason]}")
        painted += _wrapped(said, term)
        painted += [f"  {clean(alike[0].fix)}"] if alike[0].fix else []
    waiting = [pod for pod in report.pods or () if pod.phase in (Phase.PENDING, Phase.WAITING)]
    if "pods" in parts and waiting:
        which = f"{clean(waiting[0].name)} -n {clean(waiting[0].namespace)}"
        painted.append(f"why a pod waits: {term.command} explain {which}")
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
    Reason.OVERPROMISED: "more is promised than there is",
    Reason.UNMANAGED: "memory is held by pods without a promise",
    Reason.GPU_LOST: "lost or unhealthy",
    Reason.UNREPORTED: "nodes without figures",
    Reason.STALE: "old figures",
}


def _trouble(trouble: Trouble) -> str:
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
    return f"{bar} {_amount(used):>7}"


def _full(text: str, pod: PodRow, term: Terminal) -> str:
    return term.paint(text, _YELLOW) if pod.near_cap else _painted(text, term)


def _aged(text: str, node: NodeRow, term: Terminal) -> str:
    return term.paint(text, _YELLOW) if node.stale else text


def _alarming(text: str, pod: PodRow, term: Terminal) -> str:
    waits = pod.phase in (Phase.PENDING, Phase.WAITING)
    return term.paint(text, _YELLOW) if waits or pod.near_cap or pod.stops else text


def _amount(known: int | None, *, down: bool = False) -> str:
    return "-" if known is None else amount(known, down=down)


def _exactly(known: int | None) -> str:
    return "-" if known is None else exactly(known)


def _free(node: NodeRow, place: GpuFigures | Amounts) -> str:
    if node.not_shared:
        return "not shared"
    if node.held:
        return "held"
    if place.free_bytes is None or (isinstance(place, GpuFigures) and not place.healthy):
        return "-"
    return amount(max(0, place.free_bytes), down=True)


def _count(known: int | None) -> str:
    return "-" if known is None else str(known)


def _number_of_pods(gpu: GpuFigures) -> str:
    return str(len(gpu.pods)) if gpu.pods or gpu.promised_bytes is not None else "-"


def _seen(node: NodeRow) -> str:
    return f"{span(node.age_s)} old" if node.stale else span(node.age_s)


def _product(gpu: GpuFigures) -> str:
    return clean(gpu.product.removeprefix("NVIDIA-").removeprefix("NVIDIA "))


def _products(node: NodeRow) -> str:
    return ", ".join(dict.fromkeys(_product(gpu) for gpu in node.gpus))


def _who(gpu: GpuFigures, node: NodeRow) -> str:
    """Return the pods of a GPU by their letters; those of others have no names."""
    return " ".join(
        f"{letter_of(number)}={clean(node.name_of(pod.uid)[1]) or '*'}"
        for number, pod in enumerate(gpu.pods)
    )


def _gpus(pod: PodRow) -> str:
    """Return the numbers of its GPUs; where no figures tell them, how their UUIDs begin."""
    known = sorted(held.index for held in pod.held if held.index is not None)
    rest = [clean(held.uuid)[:_UUID_SHOWN] for held in pod.held if held.index is None]
    return ",".join([*map(str, known), *rest]) or "-"


def _cap(pod: PodRow) -> str:
    cap = _exactly(pod.cap_bytes)
    return f"{pod.gpu_count}x{cap}" if pod.gpu_count > 1 and pod.cap_bytes is not None else cap


def _age(pod: PodRow, at_s: float) -> str:
    return "-" if pod.created_s is None else span(at_s - pod.created_s)


def _workload_of(pod: PodRow) -> str:
    return clean(f"{pod.kind}/{pod.workload}") if pod.workload else "-"
