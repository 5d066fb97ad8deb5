"""`vramwarden top -o html`: who has which part of which GPU, as one page.

Drawn with what the user could read: own pods have names, those of others are one grey part.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from webhook.core.words import amount, counted, span
from webhook.tools.top.judge import sums_of
from webhook.tools.top.show.draw import (
    amount_of,
    cap_of,
    free_of,
    idle_of,
    left_out,
    sentence_of,
    summed,
)
from webhook.tools.top.show.drawing import (
    WIDTH,
    cut,
    folded,
    legend,
    page,
    patterns,
    picture,
    rectangle,
    section,
    table,
    tag,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from webhook.core.kinds.nodes import GpuFigures, NodeFigures, PodFigures
    from webhook.tools.top.judge import GpuSums, PodRow, TopReport, Trouble
    from webhook.tools.top.show.drawing import Element

_MOST_LINES: Final = 16
"""GPUs that have a line each; more stand side by side, those of a node in a row."""
_SIDE_BY_SIDE: Final = 8
_MOST_DRAWN: Final = 2000
"""GPUs."""
_MOST_ROWS: Final = 500
"""Of a table."""
_MOST_ALIKE: Final = 3
"""Troubles of one kind that are not folded."""
_LEAST_NAMED: Final = 50
"""How wide a part is that has a name in it."""
_LEAST_SEEN: Final = 4
"""How wide a part is that nobody may miss."""
_NODE, _FIGURES, _NUMBERS = 190, 390, 130
"""Room for names at the left, for figures at the right: of a GPU, and of a node."""


_TEXTS: Final = ("node", "product", "why", "held by", "state")
"""Columns of tables that hold no figures."""
_LEGEND: Final = {
    "b": "promised to a pod that you see",
    "a": "in use by it",
    "p": "promised to pods of others",
    "o": "in use by them",
    "trouble": "in use without a cap",
    "empty": "free",
    "unknown": "not known",
    "alarm": "lost, or more promised than there is",
}
"""Classes of the picture."""


class _Slot(NamedTuple):
    """Where a GPU is drawn, and how many bytes are one unit."""

    left: float
    top: float
    width: float
    height: float
    unit_bytes: float


def as_html(report: TopReport, parts: Sequence[str] = ("nodes", "pods")) -> str:
    """Write the page, with parts of a report: `nodes`, `pods`, `workloads`."""
    at = datetime.fromtimestamp(int(report.at_s), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    whose = f"namespace {report.namespace}" if report.namespace else "all namespaces"
    shown = [tag("h1", "Who has the GPU memory")]
    if "nodes" in parts:
        shown.append(tag("p", _sums(report.amounts), class_="lead"))
        shown += [tag("p", f"{one[0].upper()}{one[1:]}.") for one in left_out(report)]
    shown.append(tag("p", f"As of {at}; pods of {whose}."))
    if report.missing or report.troubles:
        shown.append(_troubles(report))
    if "nodes" in parts and report.nodes:
        shown.append(_gpus(report, report.nodes))
    if "pods" in parts and report.pods is not None:
        shown += [_waiting(report), _pods(report)]
    if "workloads" in parts and report.workloads is not None:
        shown.append(_workloads(report))
    return page(f"vramwarden top, {at}", patterns(), *shown)


def _sums(sums: GpuSums) -> str:
    if not sums.gpus:
        return "There are no figures of GPUs."
    free = ""
    if sums.largest_free_bytes is not None:
        free = f", the largest free part is {amount(sums.largest_free_bytes, down=True)}"
    return f"{summed(sums)}{free}."


def _troubles(report: TopReport) -> Element:
    """List what is missing and what is wrong; of many of one kind the first, the rest folded."""
    items: list[Element] = [tag("li", sentence) for sentence in report.missing]
    for _, alike in groupby(report.troubles, key=lambda one: one.reason):
        said = [_trouble(one) for one in alike]
        items += [tag("li", sentence) for sentence in said[:_MOST_ALIKE]]
        rest = said[_MOST_ALIKE:]
        if rest:
            shown = (tag("li", sentence) for sentence in rest[:_MOST_ROWS])
            more = folded(f"{len(rest):,} more like the last one", tag("ul", *shown))
            items.append(tag("li", more))
    return tag("div", tag("ul", *items), class_="troubles", role="note")


def _trouble(trouble: Trouble) -> str:
    return sentence_of(trouble) + (f" ({trouble.fix})" if trouble.fix else "")


# The GPUs.


def _gpus(report: TopReport, nodes: Sequence[NodeFigures]) -> Element:
    drawn = _drawn(report, nodes)
    gpus = [gpu for node in nodes for gpu in node.gpus]
    body, height = (_lines if len(gpus) <= _MOST_LINES else _rows)(report, drawn)
    some = ""
    if len(drawn) < len(nodes):
        some = (
            f" {len(drawn):,} of {len(nodes):,} nodes are drawn, first those with your pods or "
            "with memory in use without a cap."
        )
    rows = [_row(report, node, gpu) for node in nodes for gpu in node.gpus][:_MOST_ROWS]
    head = ["GPU", "product", "usable", "promised", "used", "free", "unmanaged", "pods", "seen"]
    what = "As a table" + f", the first {_MOST_ROWS}" * (len(gpus) > _MOST_ROWS)
    return section(
        "GPUs",
        "Each bar is a GPU, as long as its usable memory. A block is a pod's cap, the "
        f"strip at its foot what of it is in use. Point at it for figures.{some}",
        legend(_LEGEND),
        picture("Memory of each GPU: promised, in use and free", height, *body),
        folded(what, table(head, rows, _TEXTS)),
    )


def _drawn(report: TopReport, nodes: Sequence[NodeFigures]) -> list[NodeFigures]:
    """Return the nodes that are drawn, in their order."""
    wanted = sorted(range(len(nodes)), key=lambda number: not _matters(report, nodes[number]))
    chosen, left = set(), _MOST_DRAWN
    for number in wanted:
        left -= len(nodes[number].gpus)
        if left < 0:
            break
        chosen.add(number)
    return [node for number, node in enumerate(nodes) if number in chosen]


def _matters(report: TopReport, node: NodeFigures) -> bool:
    return any(
        gpu.unmanaged or any(held.uid in report.names for held in gpu.pods) for gpu in node.gpus
    )


def _lines(report: TopReport, nodes: Sequence[NodeFigures]) -> tuple[list[Element], float]:
    """Draw a line for each GPU, its figures beside it."""
    body: list[Element] = []
    left, top = _NODE, 0.0
    room = WIDTH - left - _FIGURES
    unit = max(1, *(gpu.usable_bytes for node in nodes for gpu in node.gpus)) / room
    for node in nodes:
        top += 8
        body.append(_name(report, node, top + 17, _NODE - 60))
        for gpu in node.gpus:
            slot = _Slot(left, top, gpu.usable_bytes / unit, 26, unit)
            body += [
                words(left - 8, top + 17, f"GPU {gpu.index}", "faint end"),
                _gpu(report, node, gpu, slot, named=True),
                words(left + room + 12, top + 17, _figures(gpu) + _aged(report, node)),
            ]
            top += 32
    return body, top


def _rows(report: TopReport, nodes: Sequence[NodeFigures]) -> tuple[list[Element], float]:
    """Draw the GPUs of a node side by side, and behind them what is free there."""
    body: list[Element] = [words(WIDTH, 12, "free: on one GPU, in all", "faint end")]
    top = 20.0
    room = (WIDTH - _NODE - _NUMBERS) / _SIDE_BY_SIDE
    unit = max(1, *(gpu.usable_bytes for node in nodes for gpu in node.gpus)) / (room - 6)
    for node in nodes:
        body.append(_name(report, node, top + 11, _NODE - 10))
        sums = sums_of(node.gpus)
        if report.stale(node):
            body.append(
                words(WIDTH, top + 11, f"figures {span(report.age_s(node))} old", "faint end")
            )
        elif sums.largest_free_bytes is not None and sums.free_bytes is not None:
            said = [amount(one, down=True) for one in (sums.largest_free_bytes, sums.free_bytes)]
            body.append(words(WIDTH, top + 11, ", ".join(said), "faint end"))
        for place, gpu in enumerate(node.gpus):
            top += 17 if place and place % _SIDE_BY_SIDE == 0 else 0
            left = _NODE + place % _SIDE_BY_SIDE * room
            slot = _Slot(left, top, gpu.usable_bytes / unit, 14, unit)
            body.append(_gpu(report, node, gpu, slot, named=False))
        top += 20
    return body, top


def _name(report: TopReport, node: NodeFigures, base: float, width: float) -> Element:
    title = tag("title", f"{node.name}: seen {span(report.age_s(node))} ago")
    shown = cut(node.name, width)
    return tag("text", title, shown, x=0, y=base, class_="faint" if report.stale(node) else "name")


def _aged(report: TopReport, node: NodeFigures) -> str:
    return f" ({span(report.age_s(node))} old)" if report.stale(node) else ""


def _gpu(
    report: TopReport, node: NodeFigures, gpu: GpuFigures, slot: _Slot, *, named: bool
) -> Element:
    """Draw a GPU: own pods, those of others, what nobody was promised; the rest is free."""
    known = gpu.promised_bytes is not None
    back = "empty" if known else "unknown"
    parts = [rectangle(slot.left, slot.top, slot.width, slot.height, back)]
    left = slot.left
    for held in gpu.pods:
        if held.uid in report.names:
            begin, cap = left, held.cap_bytes
            left = _part(parts, slot, left, cap, held.used_bytes, "ba", _said(held, report))
            if named and left - begin >= _LEAST_NAMED:
                shown = cut(report.name_of(held.uid)[1], left - begin - 14)
                parts.append(words(begin + 4, slot.top + 14, shown, "in-b"))
    others = [held for held in gpu.pods if held.uid not in report.names]
    caps = sum(held.cap_bytes for held in gpu.pods)
    listed = sum(held.cap_bytes for held in others)
    promised = listed + max(0, (gpu.promised_bytes or 0) - caps)
    used = [held.used_bytes for held in others if held.used_bytes is not None]
    if promised:
        whose = counted(len(others), "pod") + " of others" if others else "others"
        title = f"{whose}: {_used_of(sum(used) if used else None, promised)}"
        left = _part(parts, slot, left, promised, sum(used), "po", title)
    for uid, held_bytes in gpu.unmanaged.items():
        whose = "/".join(report.name_of(uid)) if uid in report.names else f"pod {uid}"
        title = f"{amount(held_bytes)} held by {whose if uid else 'no pod'}, without a cap"
        # It is there also where all is promised: then it takes what was promised to others.
        width = max(_LEAST_SEEN, held_bytes / slot.unit_bytes)
        left = max(slot.left, min(left, slot.left + slot.width - width))
        left = _part(parts, slot, left, round(width * slot.unit_bytes), None, ("trouble",), title)
    if not gpu.healthy or (gpu.promised_bytes or 0) > gpu.usable_bytes:
        parts.append(rectangle(slot.left, slot.top, slot.width, slot.height, "alarm"))
    title = f"{node.name} GPU {gpu.index} {gpu.product}: {_figures(gpu)}"
    return tag("g", tag("title", title), *parts, class_="old" if report.stale(node) else "gpu")


def _part(
    parts: list[Element],
    slot: _Slot,
    left: float,
    whole: int,
    used: int | None,
    classes: Sequence[str],
    title: str,
) -> float:
    """Draw a part of a GPU, and at its foot what of it is in use; return where it ends.

    What has no room at the end of the bar is cut: the figures say how much it is.
    """
    width = min(whole / slot.unit_bytes, max(0.0, slot.left + slot.width - left))
    seen = max(0.0, width - 1)
    drawn = [rectangle(left, slot.top, seen, slot.height, classes[0])]
    if used:
        strip = round(slot.height * 0.36)
        inner = min(seen, used / slot.unit_bytes)
        drawn.append(rectangle(left, slot.top + slot.height - strip, inner, strip, classes[1]))
    parts.append(tag("g", tag("title", title), *drawn))
    return left + width


def _said(held: PodFigures, report: TopReport) -> str:
    peak = "" if held.peak_bytes is None else f", at most {amount(held.peak_bytes)}"
    used = f"{amount_of(held.used_bytes, 'unknown')} used of its cap of {amount(held.cap_bytes)}"
    return f"{'/'.join(report.name_of(held.uid))}: {used}{peak}"


def _used_of(used: int | None, promised: int) -> str:
    return f"{amount_of(used, 'unknown')} used of {amount(promised)} promised"


def _figures(gpu: GpuFigures) -> str:
    if not gpu.healthy:
        return gpu.fault or "lost or unhealthy"
    if gpu.promised_bytes is None:
        return f"promised unknown, {amount_of(gpu.used_bytes, 'unknown')} used"
    said = _used_of(gpu.used_bytes, gpu.promised_bytes)
    return f"{said}, {free_of(gpu)} free"


def _row(report: TopReport, node: NodeFigures, gpu: GpuFigures) -> list[str]:
    return [
        f"{node.name} GPU {gpu.index}",
        gpu.product,
        amount(gpu.usable_bytes, down=True),
        amount_of(gpu.promised_bytes),
        amount_of(gpu.used_bytes),
        free_of(gpu),
        amount_of(gpu.unmanaged_bytes),
        f"{len(gpu.pods)}",
        f"{span(report.age_s(node))} ago",
    ]


# The user's pods.


def _waiting(report: TopReport) -> Element:
    rows = [
        [
            _full_name(pod, report),
            _cap(pod),
            "-" if pod.created_s is None else span(report.at_s - pod.created_s),
            pod.node or "-",
            pod.why or pod.status or "-",
        ]
        for pod in report.pods or ()
        if pod.is_waiting
    ]
    if not rows:
        return section("Pods that wait", "None of them waits for a GPU.")
    said = "No container of them with VRAM starts yet. vramwarden explain POD says more of each."
    head = ["pod", "cap", "since", "node", "why"]
    return _listed("Pods that wait", said, head, rows)


def _pods(report: TopReport) -> Element:
    placed = [pod for pod in report.pods or () if not pod.is_waiting]
    if not placed:
        return section("Pods with GPU memory", "There are none.")
    indexes = report.indexes
    rows = [
        [
            _full_name(pod, report),
            pod.node or "-",
            ",".join(str(indexes[uuid]) for uuid, _ in pod.held if uuid in indexes) or "-",
            _cap(pod),
            amount_of(pod.used_bytes),
            _percent(pod),
            amount_of(pod.peak_bytes),
            pod.held_by or "-",
            idle_of(pod, report.at_s),
            pod.state,
        ]
        for pod in placed
    ]
    said = (
        "The cap of each on a GPU, what it uses and what it used at most. What a pod needs beyond "
        "its cap is denied where the driver holds it; elsewhere the pod is stopped. One that needs "
        "far less keeps others waiting, as one does that is idle."
    )
    head = ["pod", "node", "GPU", "cap", "used", "of it", "at most", "held by", "idle", "state"]
    return _listed("Pods with GPU memory", said, head, rows)


def _workloads(report: TopReport) -> Element:
    rows = [
        [
            f"{one.kind}/{one.name}"
            if report.namespace
            else f"{one.namespace}/{one.kind}/{one.name}",
            f"{one.pods:,}",
            f"{one.running:,}",
            f"{one.waiting:,}",
            cap_of(one.cap_bytes),
            amount_of(one.promised_bytes),
            amount_of(one.used_bytes),
            amount_of(one.peak_bytes),
        ]
        for one in report.workloads or ()
    ]
    said = (
        "The cap is that of a pod on a GPU; promised and used are those of all its pods together."
    )
    head = ["workload", "pods", "run", "wait", "cap", "promised", "used", "one at most"]
    return _listed("Workloads", said, head, rows)


def _listed(heading: str, said: str, head: list[str], rows: list[list[str]]) -> Element:
    """Return a section with a table, and how many rows have no room in it."""
    found = section(heading, said, table(head, rows[:_MOST_ROWS], _TEXTS))
    if len(rows) > _MOST_ROWS:
        found.append(tag("p", f"{len(rows) - _MOST_ROWS:,} more; vramwarden top shows them."))
    return found


def _full_name(pod: PodRow, report: TopReport) -> str:
    return pod.name if report.namespace else f"{pod.namespace}/{pod.name}"


def _cap(pod: PodRow) -> str:
    cap = cap_of(pod.cap_bytes)
    return f"{pod.gpu_count} x {cap}" if pod.gpu_count > 1 else cap


def _percent(pod: PodRow) -> str:
    if pod.used_bytes is None or not pod.cap_bytes:
        return "-"
    return f"{100 * pod.used_bytes // pod.cap_bytes}%"
