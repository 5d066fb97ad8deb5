"""Texts of `vramwarden top`: sentences, and the cells of tables, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from textwrap import shorten
from typing import Any, Final

from webhook.core.formatting import (
    format_amount,
    format_count,
    format_duration,
    format_exact,
    join_names,
)
from webhook.tools.problems.problem import Problem, Severity
from webhook.tools.snapshot.pod import scheduler_says
from webhook.tools.top.bars import Shades, cap_bar, gpu_bar, letter_of, lettered_bar
from webhook.tools.top.judge import GpuSums, PlaceRow, PodPhase, PodRow, TopReport, sums_of

Cell = Callable[[Any, TopReport], str]
"""A function that returns the text of a row."""

_NODES_NAMED: Final = 5
_UUID_SHOWN: Final = 12
"""Number of characters of the UUID of a GPU without figures."""
_LONGEST_WHY: Final = 160
"""Maximum number of characters of the scheduler's message; sentences of ours have fewer."""
_LEAST_CELLS: Final = 3
"""Minimum number of cells of a GPU's bar in the line of its node."""
_NAMESPACE: Final = "NAMESPACE"


def totals(sums: GpuSums) -> str:
    """Return how much memory there is, is promised, used, and free on one GPU."""

    def of_all(what: str, known: int | None, gpus: int) -> str:
        if known is None:
            return f"{what} unknown"
        if gpus < sums.gpus:
            return f"{format_amount(known)} {what} on {gpus:,} of them"
        percent = f" ({known * 100 // sums.usable_bytes}%)" if sums.usable_bytes else ""
        return f"{format_amount(known)} {what}{percent}"

    nodes, gpus = format_count(sums.nodes, "node"), format_count(sums.gpus, "GPU")
    promised = of_all("promised", sums.promised_bytes, sums.promised_gpus)
    used = of_all("used", sums.used_bytes, sums.used_gpus)
    usable = format_amount(sums.usable_bytes, down=True)
    text = f"{nodes}, {gpus}, {usable} usable: {promised}, {used}"
    if sums.largest_free_bytes is not None:
        text += f"; largest free {format_amount(sums.largest_free_bytes, down=True)}"
    return text


def unavailable_nodes(report: TopReport) -> Iterator[str]:
    """Yield which nodes are not shared, or are held, and why."""
    nodes = report.nodes or ()
    kinds = {
        "not shared, and in no sum": [(node.name, node.not_shared) for node in nodes],
        "held, and what is free there is given to no pod": [(one.name, one.held) for one in nodes],
    }
    for what, reasons in kinds.items():
        named = [f"{name} ({reason})" for name, reason in reasons if reason]
        if named:
            yield f"{what}: {join_names(named, _NODES_NAMED)}"


def alike_problems(report: TopReport, parts: Sequence[str]) -> Iterator[list[Problem]]:
    """Yield the problems by their code; without the part `nodes` those of the pods' nodes only."""
    nodes = {row.pod.node for row in report.pods or ()}
    concern = (
        one
        for one in report.problems
        if "nodes" in parts or one.subject.name.partition("/")[0] in nodes
    )
    for _, alike in groupby(concern, key=lambda one: one.code):
        yield list(alike)


def problem(found: Problem) -> str:
    """Return a problem with its node and GPU."""
    node, _, gpu = found.subject.name.partition("/")
    return f"{node} GPU {gpu}: {found.message}" if gpu else f"{node}: {found.message}"


def amount(known: int | None, otherwise: str = "-", *, down: bool = False) -> str:
    """Return an amount, which may be unknown."""
    return otherwise if known is None else format_amount(known, down=down)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopColumn:
    """A column of a table."""

    title: str = ""
    """Empty for a bar alone, the title of which depends on its width."""
    text: Cell = lambda _row, _report: ""
    layout: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `render.output.Column`."""
    alarm: Callable[[Any, TopReport], Severity | None] = lambda _row, _report: None
    """Severity of what the text says; None if all is well."""
    bar: Callable[[Any, int, Shades], str] | None = None
    """Returns a bar of a number of cells, which a terminal draws before the text."""
    wide: bool | None = None
    """True if only `-o wide` shows it, False if only other output does."""
    is_extra: bool = False
    """Shown only if it has a figure, and the terminal is not narrow."""
    is_once: bool = False
    """A terminal shows a text once if the next rows repeat it."""


def columns_of(
    columns: Sequence[TopColumn], report: TopReport, *, wide: bool = False
) -> list[TopColumn]:
    """Return the columns to show. The namespace is in a title if the report is about one only."""
    shown = [one for one in columns if one.wide in (None, wide)]
    if shown[0].title == _NAMESPACE and report.namespace:
        title = f"{shown[1].title} ({report.namespace})"
        return [replace(shown[1], title=title), *shown[2:]]
    return shown


def _words(title: str, text: Cell, least: int = 0, optional: int = 0, **more: Any) -> TopColumn:
    layout = {"least": least, "optional": optional}
    return TopColumn(title=title, text=text, layout=layout, **more)


def _figures(title: str, text: Cell, optional: int = 0, **more: Any) -> TopColumn:
    """Return a column that is aligned at the right."""
    layout = {"right": True, "optional": optional}
    return TopColumn(title=title, text=text, layout=layout, **more)


def _bars(bar: Callable[[Any, int, Shades], str], least: int, most: int, **more: Any) -> TopColumn:
    return TopColumn(bar=bar, layout={"least": least, "most": most}, **more)


def _known(value: Any, write: Callable[[Any], str] = str) -> str:
    return "-" if value is None else write(value)


def _free(row: PlaceRow, _: TopReport) -> str:
    if row.node.not_shared:
        return "not shared"
    return "held" if row.node.held else amount(row.sums.free_bytes, down=True)


def _product(row: PlaceRow, _: TopReport) -> str:
    names = (gpu.product.removeprefix("NVIDIA-").removeprefix("NVIDIA ") for gpu in row.gpus)
    return ", ".join(dict.fromkeys(names))


def _number_of_pods(row: PlaceRow, _: TopReport) -> str:
    return str(row.sums.pods) if row.sums.pods or row.sums.promised_bytes is not None else "-"


def _driver_limit(row: PlaceRow, _: TopReport) -> str:
    """Return the mechanism by which a node's driver enforces caps; "no" if it does not."""
    return _known(row.node.limit, lambda limit: limit.back_end or "yes" if limit.holds else "no")


def _age(row: PlaceRow, report: TopReport) -> str:
    return format_duration(report.age_s(row.node)) + " old" * report.stale(row.node)


def _age_alarm(row: PlaceRow, report: TopReport) -> Severity | None:
    return Severity.WARNING if report.stale(row.node) else None


def _who(row: PlaceRow, report: TopReport) -> str:
    """Return the pods of a GPU by their letters; pods of others have no names."""
    pods = enumerate(row.gpus[0].pods)
    return " ".join(f"{letter_of(at)}={report.name_of(pod.uid)[1] or '*'}" for at, pod in pods)


def _bars_of_node(row: PlaceRow, cells: int, shades: Shades) -> str:
    """Return a bar for each GPU; one bar for all if there is no room."""
    of_each = (cells + 1) // max(1, len(row.gpus)) - 1
    if of_each < _LEAST_CELLS:
        return gpu_bar(row.sums, cells, shades)
    return " ".join(gpu_bar(sums_of([gpu]), of_each, shades) for gpu in row.gpus)


_NODE: Final = _words("NODE", lambda row, _: row.node.name, 10, is_once=True)
_PRODUCT: Final = _words("PRODUCT", _product, 8, 2)
_AMOUNTS: Final = (
    _figures("PROMISED", lambda row, _: amount(row.sums.promised_bytes)),
    _figures("USED", lambda row, _: amount(row.sums.used_bytes)),
    _figures("FREE", _free),
)
_PODS: Final = _figures("PODS", _number_of_pods, 1)
_SEEN: Final = _words("SEEN", _age, optional=3, alarm=_age_alarm)
NODE_COLUMNS: Final = (
    _NODE,
    _figures("GPUS", lambda row, _: str(len(row.gpus)), 1),
    _PRODUCT,
    _bars(_bars_of_node, 39, 39),
    *_AMOUNTS,
    _figures("LARGEST", lambda row, _: amount(row.sums.largest_free_bytes, down=True), 4),
    _PODS,
    _words("SEEN", _age, optional=1, alarm=_age_alarm),
)
GPU_COLUMNS: Final = (
    _NODE,
    _figures("GPU", lambda row, _: str(row.gpus[0].index)),
    _PRODUCT,
    _bars(lambda row, *size: gpu_bar(row.sums, *size), 10, 24, wide=False),
    _bars(lambda row, *size: lettered_bar(row.gpus[0], *size), 32, 32, wide=True),
    _figures("USABLE", lambda row, _: amount(row.sums.usable_bytes, down=True), wide=True),
    *_AMOUNTS,
    _PODS,
    _figures("UNMANAGED", lambda row, _: amount(row.sums.unmanaged_bytes), wide=True),
    _figures("OTHER", lambda row, _: amount(row.gpus[0].unattributed_bytes), wide=True),
    _words("DRIVER LIMIT", _driver_limit, wide=True),
    _SEEN,
    _words("UUID", lambda row, _: row.gpus[0].uuid, wide=True),
    _words("WHO", _who, wide=True),
)


def _cap_alarm(row: PodRow, _: TopReport) -> Severity | None:
    if row.over_cap:
        return Severity.ERROR
    return Severity.WARNING if row.near_cap else None


def _state_alarm(row: PodRow, report: TopReport) -> Severity | None:
    other = Severity.WARNING if row.is_waiting or row.stops else None
    return _cap_alarm(row, report) or other


def _cap_of_pod(row: PodRow, _: TopReport) -> str:
    several = f"{row.gpu_count}x" if row.gpu_count > 1 and row.cap_bytes is not None else ""
    return several + _known(row.cap_bytes, format_exact)


def _gpu_numbers(row: PodRow, report: TopReport) -> str:
    """Return the numbers of a pod's GPUs; a GPU without figures has its UUID, shortened."""
    known = sorted(report.indexes[uuid] for uuid, _ in row.held if uuid in report.indexes)
    rest = [uuid[:_UUID_SHOWN] for uuid, _ in row.held if uuid not in report.indexes]
    return ",".join([*map(str, known), *rest]) or "-"


def _since(began_s: float | None, report: TopReport) -> str:
    """Return the time from a Unix time until the report, which may be unknown."""
    return _known(began_s, lambda began_s: format_duration(report.now_s - began_s))


def state(row: PodRow, report: TopReport) -> str:
    """Return the phase of a pod, and the reason why it waits or its trouble."""
    if row.is_waiting:
        age = _since(row.pod.created_s, report).removeprefix("-")
        begun, why = f"pending {age}".rstrip(), row.why
        if row.phase is PodPhase.WAITING:  # since its binding, the time of which is unknown
            begun = "waits for a GPU" + (f" (created {age} ago)" if age else "")
        else:  # `explain` shows the whole message of the scheduler
            why = shorten(", ".join(scheduler_says(why)), _LONGEST_WHY, placeholder="...")
        return f"{begun}: {why}" if why else begun
    status = row.pod.status
    says_more = row.phase is PodPhase.STARTING and status != "Pending"
    said = [status if says_more and status else row.phase.value]
    if row.over_cap or row.near_cap:
        said.append("over its cap" if row.over_cap else "near its cap")
    if row.stops:
        said.append(f"{format_count(row.stops, 'process')} stopped")
    return ", ".join(said)


POD_COLUMNS: Final = (
    _words(_NAMESPACE, lambda row, _: row.pod.namespace, 10),
    _words("POD", lambda row, _: row.pod.name, 14),
    _words("NODE", lambda row, _: row.pod.node or "-", 10, 1),
    _words("GPU", _gpu_numbers, 3, 2),
    _figures("CAP", _cap_of_pod),
    _bars(
        lambda row, *size: cap_bar(row.used_bytes, row.cap_bytes, *size),
        *(12, 18),
        title="USED OF CAP",
        text=lambda row, _: amount(row.used_bytes),
        alarm=_cap_alarm,
    ),
    _figures("PEAK", lambda row, _: amount(row.peak_bytes), 3),
    _figures("STOPS", lambda row, _: _known(row.stops), wide=True),
    _figures("AGE", lambda row, report: _since(row.pod.created_s, report), wide=True),
    _words("HELD BY", lambda row, _: row.held_by or "-", is_extra=True),
    _figures("IDLE", lambda row, report: _since(row.idle_since_s, report), is_extra=True),
    _words("WORKLOAD", lambda row, _: str(row.pod.workload), wide=True),
    _words("UID", lambda row, _: row.pod.uid, wide=True),
    TopColumn(title="STATE", text=state, layout={"least": 16, "at_end": True}, alarm=_state_alarm),
)
WORKLOAD_COLUMNS: Final = (
    _words(_NAMESPACE, lambda row, _: row.namespace, 10),
    _words("WORKLOAD", lambda row, _: f"{row.kind}/{row.name}", 14),
    _figures("PODS", lambda row, _: str(row.pods)),
    _figures("RUNNING", lambda row, _: str(row.running), 2),
    _figures("WAITING", lambda row, _: str(row.waiting), 1),
    _figures("CAP", lambda row, _: _known(row.cap_bytes, format_exact), 3),
    _figures("PROMISED", lambda row, _: amount(row.promised_bytes)),
    _bars(
        lambda row, *size: cap_bar(row.used_bytes, row.promised_bytes, *size),
        *(12, 18),
        title="USED OF PROMISED",
        text=lambda row, _: amount(row.used_bytes),
    ),
    _figures("PEAK", lambda row, _: amount(row.peak_bytes)),
    _figures("STOPS", lambda row, _: _known(row.stops), 4),
)
