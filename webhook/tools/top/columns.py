"""Columns of the tables of `vramwarden top`, with strings and bars, for terminal and page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from string import ascii_lowercase
from textwrap import shorten
from typing import Any, Final, NamedTuple

from webhook.core.formatting import format_amount, format_count, format_duration, format_exact
from webhook.core.kinds.nodes import GpuFigures
from webhook.tools.problems.problem import Severity
from webhook.tools.snapshot.pod import scheduler_reasons
from webhook.tools.top.rows import GpuSums, NodeRow, PodPhase, PodRow, TopReport, sum_gpus

Cell = Callable[[Any, TopReport], str]
"""Function that returns the string of a row."""

_UUID_SHOWN: Final = 12
"""Number of characters to show of a UUID if the GPU has no figures."""
_LONGEST_WHY: Final = 160
"""Maximum length of the scheduler's message, in characters."""
_LEAST_CELLS: Final = 3
"""Minimum width of each GPU's bar in the line of its node, in cells."""
_NAMESPACE: Final = "NAMESPACE"


def format_optional_amount(known: int | None, unknown: str = "-", *, down: bool = False) -> str:
    """Format an amount; return `unknown` if the amount is None."""
    return unknown if known is None else format_amount(known, down=down)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopColumn:
    """A column of a table."""

    title: str = ""
    """Title; empty for a bar without a string, whose title depends on its width."""
    text: Cell = lambda _row, _report: ""
    layout: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `render.output.Column`."""
    severity: Callable[[Any, TopReport], Severity | None] = lambda _row, _report: None
    """Returns the severity of a row's cell; None if there is no problem."""
    bar: Callable[[Any, int, Shades], str] | None = None
    """Draws a bar of a given number of cells, which terminals show before the string."""
    wide: bool | None = None
    """True: only in `-o wide`. False: only in other output. None: in all output."""
    is_extra: bool = False
    """True if the column needs a wide terminal and at least one figure."""
    merges_repeats: bool = False
    """True if terminals show a repeated string only in the first row."""


def select_columns(
    columns: Sequence[TopColumn], report: TopReport, *, wide: bool = False
) -> list[TopColumn]:
    """Return the columns to show.

    If the report is about one namespace, a title has the namespace instead of a column.
    """
    shown = [column for column in columns if column.wide in (None, wide)]
    if shown[0].title == _NAMESPACE and report.namespace:
        title = f"{shown[1].title} ({report.namespace})"
        return [replace(shown[1], title=title), *shown[2:]]
    return shown


def _text_column(
    title: str, text: Cell, min_width: int = 0, drop_order: int = 0, **options: Any
) -> TopColumn:
    layout = {"min_width": min_width, "drop_order": drop_order}
    return TopColumn(title=title, text=text, layout=layout, **options)


def _number_column(title: str, text: Cell, drop_order: int = 0, **options: Any) -> TopColumn:
    layout = {"align_right": True, "drop_order": drop_order}
    return TopColumn(title=title, text=text, layout=layout, **options)


def _bar_column(
    bar: Callable[[Any, int, Shades], str], min_width: int, width: int, **options: Any
) -> TopColumn:
    return TopColumn(bar=bar, layout={"min_width": min_width, "drawn_width": width}, **options)


def _format_known(value: Any, write: Callable[[Any], str] = str) -> str:
    return "-" if value is None else write(value)


def _free(row: NodeRow, _: TopReport) -> str:
    if row.node.not_shared:
        return "not shared"
    return "held" if row.node.held else format_optional_amount(row.sums.free_bytes, down=True)


def _product(row: NodeRow, _: TopReport) -> str:
    names = (gpu.product.removeprefix("NVIDIA-").removeprefix("NVIDIA ") for gpu in row.gpus)
    return ", ".join(dict.fromkeys(names))


def _number_of_pods(row: NodeRow, _: TopReport) -> str:
    return str(row.sums.pods) if row.sums.pods or row.sums.promised_bytes is not None else "-"


def _driver_limit(row: NodeRow, _: TopReport) -> str:
    """Return how a node's driver enforces caps, or "no" if it does not."""
    return _format_known(
        row.node.limit, lambda limit: limit.back_end or "yes" if limit.holds else "no"
    )


def _age(row: NodeRow, report: TopReport) -> str:
    return format_duration(report.age_s(row.node)) + " old" * report.is_stale(row.node)


def _age_alarm(row: NodeRow, report: TopReport) -> Severity | None:
    return Severity.WARNING if report.is_stale(row.node) else None


def _pod_letters(row: NodeRow, report: TopReport) -> str:
    """Return letter and name of each pod of a GPU; `*` for pods of other namespaces."""
    pods = enumerate(row.gpus[0].pods)
    return " ".join(f"{pod_letter(at)}={report.find_name(pod.uid)[1] or '*'}" for at, pod in pods)


def _node_bars(row: NodeRow, cells: int, shades: Shades) -> str:
    """Return a bar per GPU, or one bar for all GPUs if the line is too short."""
    of_each = (cells + 1) // max(1, len(row.gpus)) - 1
    if of_each < _LEAST_CELLS:
        return gpu_bar(row.sums, cells, shades)
    return " ".join(gpu_bar(sum_gpus([gpu]), of_each, shades) for gpu in row.gpus)


_NODE: Final = _text_column("NODE", lambda row, _: row.node.name, 10, merges_repeats=True)
_PRODUCT: Final = _text_column("PRODUCT", _product, 8, 2)
_AMOUNTS: Final = (
    _number_column("PROMISED", lambda row, _: format_optional_amount(row.sums.promised_bytes)),
    _number_column("USED", lambda row, _: format_optional_amount(row.sums.used_bytes)),
    _number_column("FREE", _free),
)
_PODS: Final = _number_column("PODS", _number_of_pods, 1)
_SEEN: Final = _text_column("SEEN", _age, drop_order=3, severity=_age_alarm)
NODE_COLUMNS: Final = (
    _NODE,
    _number_column("GPUS", lambda row, _: str(len(row.gpus)), 1),
    _PRODUCT,
    _bar_column(_node_bars, 39, 39),
    *_AMOUNTS,
    _number_column(
        "LARGEST", lambda row, _: format_optional_amount(row.sums.largest_free_bytes, down=True), 4
    ),
    _PODS,
    _text_column("SEEN", _age, drop_order=1, severity=_age_alarm),
)
GPU_COLUMNS: Final = (
    _NODE,
    _number_column("GPU", lambda row, _: str(row.gpus[0].index)),
    _PRODUCT,
    _bar_column(lambda row, *size: gpu_bar(row.sums, *size), 10, 24, wide=False),
    _bar_column(lambda row, *size: lettered_bar(row.gpus[0], *size), 32, 32, wide=True),
    _number_column(
        "USABLE", lambda row, _: format_optional_amount(row.sums.usable_bytes, down=True), wide=True
    ),
    *_AMOUNTS,
    _PODS,
    _number_column(
        "UNMANAGED", lambda row, _: format_optional_amount(row.sums.unmanaged_bytes), wide=True
    ),
    _number_column(
        "OTHER", lambda row, _: format_optional_amount(row.gpus[0].unattributed_bytes), wide=True
    ),
    _text_column("DRIVER LIMIT", _driver_limit, wide=True),
    _SEEN,
    _text_column("UUID", lambda row, _: row.gpus[0].uuid, wide=True),
    _text_column("WHO", _pod_letters, wide=True),
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
    return several + _format_known(row.cap_bytes, format_exact)


def _gpu_numbers(row: PodRow, report: TopReport) -> str:
    """Return the indexes of a pod's GPUs, or a shortened UUID for a GPU without figures."""
    known = sorted(report.indexes[uuid] for uuid, _ in row.gpu_figures if uuid in report.indexes)
    rest = [uuid[:_UUID_SHOWN] for uuid, _ in row.gpu_figures if uuid not in report.indexes]
    return ",".join([*map(str, known), *rest]) or "-"


def _time_since(began_s: float | None, report: TopReport) -> str:
    """Return the time from a Unix time to the report, or a dash if unknown."""
    return _format_known(began_s, lambda began_s: format_duration(report.now_s - began_s))


def state(row: PodRow, report: TopReport) -> str:
    """Return a pod's phase with the reason why it waits or its problem."""
    if row.is_waiting:
        age = _time_since(row.pod.created_s, report).removeprefix("-")
        begun, why = f"pending {age}".rstrip(), row.reason
        if row.phase is PodPhase.WAITING:  # the time of the binding is unknown
            begun = "waits for a GPU" + (f" (created {age} ago)" if age else "")
        else:  # `explain` shows the whole message
            why = shorten(", ".join(scheduler_reasons(why)), _LONGEST_WHY, placeholder="...")
        return f"{begun}: {why}" if why else begun
    status = row.pod.status
    says_more = row.phase is PodPhase.STARTING and status != "Pending"
    parts = [status if says_more and status else row.phase.value]
    if row.over_cap or row.near_cap:
        parts.append("over its cap" if row.over_cap else "near its cap")
    if row.stops:
        parts.append(f"{format_count(row.stops, 'process')} stopped")
    return ", ".join(parts)


POD_COLUMNS: Final = (
    _text_column(_NAMESPACE, lambda row, _: row.pod.namespace, 10),
    _text_column("POD", lambda row, _: row.pod.name, 14),
    _text_column("NODE", lambda row, _: row.pod.node or "-", 10, 1),
    _text_column("GPU", _gpu_numbers, 3, 2),
    _number_column("CAP", _cap_of_pod),
    _bar_column(
        lambda row, *size: cap_bar(row.used_bytes, row.cap_bytes, *size),
        *(12, 18),
        title="USED OF CAP",
        text=lambda row, _: format_optional_amount(row.used_bytes),
        severity=_cap_alarm,
    ),
    _number_column("PEAK", lambda row, _: format_optional_amount(row.peak_bytes), 3),
    _number_column("STOPS", lambda row, _: _format_known(row.stops), wide=True),
    _number_column("AGE", lambda row, report: _time_since(row.pod.created_s, report), wide=True),
    _text_column("HELD BY", lambda row, _: row.held_by or "-", is_extra=True),
    _number_column(
        "IDLE", lambda row, report: _time_since(row.idle_since_s, report), is_extra=True
    ),
    _text_column("WORKLOAD", lambda row, _: str(row.pod.workload), wide=True),
    _text_column("UID", lambda row, _: row.pod.uid, wide=True),
    TopColumn(
        title="STATE", text=state, layout={"min_width": 16, "wraps": True}, severity=_state_alarm
    ),
)
WORKLOAD_COLUMNS: Final = (
    _text_column(_NAMESPACE, lambda row, _: row.namespace, 10),
    _text_column("WORKLOAD", lambda row, _: f"{row.kind}/{row.name}", 14),
    _number_column("PODS", lambda row, _: str(row.pods)),
    _number_column("RUNNING", lambda row, _: str(row.running), 2),
    _number_column("WAITING", lambda row, _: str(row.waiting), 1),
    _number_column("CAP", lambda row, _: _format_known(row.cap_bytes, format_exact), 3),
    _number_column("PROMISED", lambda row, _: format_optional_amount(row.promised_bytes)),
    _bar_column(
        lambda row, *size: cap_bar(row.used_bytes, row.promised_bytes, *size),
        *(12, 18),
        title="USED OF PROMISED",
        text=lambda row, _: format_optional_amount(row.used_bytes),
    ),
    _number_column("PEAK", lambda row, _: format_optional_amount(row.peak_bytes)),
    _number_column("STOPS", lambda row, _: _format_known(row.stops), 4),
)


_UNKNOWN: Final = "?"


class Shades(NamedTuple):
    """Characters of a bar."""

    used: str
    promised: str
    unmanaged: str
    free: str


UNICODE: Final = Shades("█", "▒", "!", "·")
ASCII: Final = Shades("#", "=", "!", ".")


def gpu_bar(sums: GpuSums, cells: int, shades: Shades) -> str:
    """Return the bar of a GPU, or of several GPUs together.

    The order is: used promised memory, unused promised memory, unmanaged memory, free memory.
    Unknown memory is a question mark.
    """
    used, promised, unmanaged = sums.used_bytes, sums.promised_bytes, sums.unmanaged_bytes or 0
    if used is None and promised is None:
        return _UNKNOWN * cells
    own = max(0, (used or 0) - unmanaged)
    unused = max(0, (promised or 0) - own)
    parts = [(own, shades.used), (unused, shades.promised), (unmanaged, shades.unmanaged)]
    return _bar(parts, sums.usable_bytes, cells, _rest(sums, shades))


def lettered_bar(gpu: GpuFigures, cells: int, shades: Shades) -> str:
    """Return a bar with a letter per pod of a GPU, in upper case for used memory."""
    parts: list[tuple[int, str]] = []
    for number, pod in enumerate(gpu.pods):
        letter = pod_letter(number)
        used = min(pod.used_bytes or 0, pod.cap_bytes)
        parts += [(used, letter.upper()), (pod.cap_bytes - used, letter)]
    parts.append((gpu.unmanaged_bytes or 0, shades.unmanaged))
    return _bar(parts, gpu.usable_bytes, cells, _rest(sum_gpus([gpu]), shades))


def pod_letter(number: int) -> str:
    """Return the letter of a GPU's pod; the letters repeat after z."""
    return ascii_lowercase[number % len(ascii_lowercase)]


def cap_bar(used_bytes: int | None, cap_bytes: int | None, cells: int, shades: Shades) -> str:
    """Return a bar of the used part of a cap, or spaces if it is unknown."""
    if used_bytes is None or not cap_bytes:
        return " " * cells
    return _bar([(used_bytes, shades.used)], cap_bytes, cells, shades.free)


def _rest(sums: GpuSums, shades: Shades) -> str:
    """Return the shade of the remaining memory: free if all figures are known."""
    known = sums.used_gpus == sums.promised_gpus == sums.gpus
    return shades.free if known else _UNKNOWN


def _bar(parts: Sequence[tuple[int, str]], whole: int, cells: int, rest: str) -> str:
    """Return a bar of consecutive parts, each at least one cell long if possible.

    The ends of parts are rounded, not their lengths, so that errors do not add up.
    """
    bar, sum_bytes = "", 0
    for size, shade in parts:
        if size <= 0:
            continue
        sum_bytes += size
        end = (2 * sum_bytes * cells + whole) // (2 * whole) if whole > 0 else cells
        bar += shade * max(1, end - len(bar))
    return bar[:cells].ljust(cells, rest)
