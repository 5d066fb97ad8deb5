"""Texts of `vramwarden top`: sentences, and the cells of tables, for the terminal and the page."""

from __future__ import annotations

from dataclasses import dataclass, replace
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Final

from webhook.core import words
from webhook.tools.problems.problem import Severity
from webhook.tools.snapshot.pod import scheduler_says
from webhook.tools.top.bars import letter_of
from webhook.tools.top.judge import PodPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from webhook.tools.problems.problem import Problem
    from webhook.tools.top.judge import GpuSums, PlaceRow, PodRow, TopReport

_NODES_NAMED: Final = 5
_UUID_SHOWN: Final = 12
"""Number of characters of the UUID of a GPU without figures."""
_LONGEST_WHY: Final = 160
"""Maximum number of characters of the scheduler's message; sentences of ours have fewer."""
_NAMESPACE: Final = "NAMESPACE"


def totals(sums: GpuSums) -> str:
    """Return how much memory there is, is promised, used, and free on one GPU."""

    def of_all(what: str, known: int | None, gpus: int) -> str:
        if known is None:
            return f"{what} unknown"
        if gpus < sums.gpus:
            return f"{words.amount(known)} {what} on {gpus:,} of them"
        percent = f" ({known * 100 // sums.usable_bytes}%)" if sums.usable_bytes else ""
        return f"{words.amount(known)} {what}{percent}"

    nodes, gpus = words.counted(sums.nodes, "node"), words.counted(sums.gpus, "GPU")
    promised = of_all("promised", sums.promised_bytes, sums.promised_gpus)
    used = of_all("used", sums.used_bytes, sums.used_gpus)
    usable = words.amount(sums.usable_bytes, down=True)
    text = f"{nodes}, {gpus}, {usable} usable: {promised}, {used}"
    if sums.largest_free_bytes is not None:
        text += f"; largest free {words.amount(sums.largest_free_bytes, down=True)}"
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
            yield f"{what}: {words.named(named, _NODES_NAMED)}"


def problem(found: Problem) -> str:
    """Return a problem with its node and GPU."""
    node, _, gpu = found.subject.name.partition("/")
    return f"{node} GPU {gpu}: {found.message}" if gpu else f"{node}: {found.message}"


def amount(known: int | None, otherwise: str = "-", *, down: bool = False) -> str:
    """Return an amount, which may be unknown."""
    return otherwise if known is None else words.amount(known, down=down)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopColumn:
    """A column: its title, and the text of a row. See `render.output.Column` for the layout."""

    title: str = ""
    text: Callable[[Any, TopReport], str] = lambda _row, _report: ""
    alarm: Callable[[Any, TopReport], Severity | None] | None = None
    """Severity of what the text says; None if all is well."""
    is_wide: bool = False
    """Shown in a terminal only with `-o wide`."""
    is_extra: bool = False
    """Shown in a narrow terminal only if it has a figure, and all other columns fit beside it."""
    is_once: bool = False
    """A terminal shows a text once if the next rows repeat it."""
    has_bar: bool = False
    """A terminal draws a bar before the text."""
    right: bool = False
    least: int = 0
    at_end: bool = False
    optional: int = 0


def columns_of(
    columns: Sequence[TopColumn], report: TopReport, *, is_wide: bool = False
) -> list[TopColumn]:
    """Return the columns to show. The namespace is in a title if the report is about one only."""
    shown = [one for one in columns if is_wide or not one.is_wide]
    if shown[0].title == _NAMESPACE and report.namespace:
        title = f"{shown[1].title} ({report.namespace})"
        return [replace(shown[1], title=title), *shown[2:]]
    return shown


def _figures(title: str, text: Callable[[Any, TopReport], str], **options: Any) -> TopColumn:
    """Return a column of figures, which are aligned at the right."""
    return TopColumn(title=title, text=text, right=True, **options)


def _bytes(title: str, attribute: str, **options: Any) -> TopColumn:
    """Return a column of amounts, which may be unknown."""
    return _figures(title, lambda row, _: amount(getattr(row, attribute)), **options)


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
    limit = row.node.limit
    if limit is None:
        return "-"
    return limit.back_end or "yes" if limit.holds else "no"


def _age(row: PlaceRow, report: TopReport) -> str:
    return words.span(report.age_s(row.node)) + " old" * report.stale(row.node)


def _pods_by_letter(row: PlaceRow, report: TopReport) -> str:
    """Return the pods of a GPU by their letters; pods of others have no names."""
    return " ".join(
        f"{letter_of(number)}={report.name_of(pod.uid)[1] or '*'}"
        for number, pod in enumerate(row.gpus[0].pods)
    )


_NODE: Final = TopColumn(title="NODE", text=lambda row, _: row.node.name, least=10, is_once=True)
_PRODUCT: Final = TopColumn(title="PRODUCT", text=_product, least=8, optional=2)
_AMOUNTS: Final = (
    _figures("PROMISED", lambda row, _: amount(row.sums.promised_bytes)),
    _figures("USED", lambda row, _: amount(row.sums.used_bytes)),
    _figures("FREE", _free),
)
_PODS: Final = _figures("PODS", _number_of_pods, optional=1)
_SEEN: Final = TopColumn(
    title="SEEN",
    text=_age,
    alarm=lambda row, report: Severity.WARNING if report.stale(row.node) else None,
    optional=3,
)
NODE_COLUMNS: Final = (
    _NODE,
    _figures("GPUS", lambda row, _: str(len(row.gpus)), optional=1),
    _PRODUCT,
    TopColumn(has_bar=True),
    *_AMOUNTS,
    _figures("LARGEST", lambda row, _: amount(row.sums.largest_free_bytes, down=True), optional=4),
    _PODS,
    _SEEN,
)
GPU_COLUMNS: Final = (
    _NODE,
    _figures("GPU", lambda row, _: str(row.gpus[0].index)),
    _PRODUCT,
    TopColumn(has_bar=True),
    _figures("USABLE", lambda row, _: amount(row.sums.usable_bytes, down=True), is_wide=True),
    *_AMOUNTS,
    _PODS,
    _figures("UNMANAGED", lambda row, _: amount(row.sums.unmanaged_bytes), is_wide=True),
    _figures("OTHER", lambda row, _: amount(row.gpus[0].unattributed_bytes), is_wide=True),
    TopColumn(title="DRIVER LIMIT", text=_driver_limit, is_wide=True),
    _SEEN,
    TopColumn(title="UUID", text=lambda row, _: row.gpus[0].uuid, is_wide=True),
    TopColumn(title="WHO", text=_pods_by_letter, is_wide=True),
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
    return several + _cap(row.cap_bytes)


def _cap(cap_bytes: int | None) -> str:
    return "-" if cap_bytes is None else words.exactly(cap_bytes)


def _number(known: int | None) -> str:
    return "-" if known is None else str(known)


def _gpu_numbers(row: PodRow, report: TopReport) -> str:
    """Return the numbers of a pod's GPUs; a GPU without figures has its UUID, shortened."""
    known = sorted(report.indexes[uuid] for uuid, _ in row.held if uuid in report.indexes)
    rest = [uuid[:_UUID_SHOWN] for uuid, _ in row.held if uuid not in report.indexes]
    return ",".join([*map(str, known), *rest]) or "-"


def _since(began_s: float | None, report: TopReport, otherwise: str = "-") -> str:
    """Return the time from a Unix time until the report, which may be unknown."""
    return otherwise if began_s is None else words.span(report.now_s - began_s)


def state(row: PodRow, report: TopReport) -> str:
    """Return the phase of a pod, and the reason why it waits or its trouble."""
    if row.is_waiting:
        age = _since(row.pod.created_s, report, "")
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
        said.append(f"{words.counted(row.stops, 'process')} stopped")
    return ", ".join(said)


POD_COLUMNS: Final = (
    TopColumn(title=_NAMESPACE, text=lambda row, _: row.pod.namespace, least=10),
    TopColumn(title="POD", text=lambda row, _: row.pod.name, least=14),
    TopColumn(title="NODE", text=lambda row, _: row.pod.node or "-", least=10, optional=1),
    TopColumn(title="GPU", text=_gpu_numbers, least=3, optional=2),
    _figures("CAP", _cap_of_pod),
    _bytes("USED OF CAP", "used_bytes", has_bar=True, alarm=_cap_alarm),
    _bytes("PEAK", "peak_bytes", optional=3),
    _figures("STOPS", lambda row, _: _number(row.stops), is_wide=True),
    _figures("AGE", lambda row, report: _since(row.pod.created_s, report), is_wide=True),
    TopColumn(title="HELD BY", text=lambda row, _: row.held_by or "-", is_extra=True),
    _figures("IDLE", lambda row, report: _since(row.idle_since_s, report), is_extra=True),
    TopColumn(
        title="WORKLOAD",
        text=lambda row, _: str(row.pod.workload) if row.pod.workload.name else "-",
        is_wide=True,
    ),
    TopColumn(title="UID", text=lambda row, _: row.pod.uid, is_wide=True),
    TopColumn(title="STATE", text=state, alarm=_state_alarm, least=16, at_end=True),
)
WORKLOAD_COLUMNS: Final = (
    TopColumn(title=_NAMESPACE, text=lambda row, _: row.namespace, least=10),
    TopColumn(title="WORKLOAD", text=lambda row, _: f"{row.kind}/{row.name}", least=14),
    _figures("PODS", lambda row, _: str(row.pods)),
    _figures("RUNNING", lambda row, _: str(row.running), optional=2),
    _figures("WAITING", lambda row, _: str(row.waiting), optional=1),
    _figures("CAP", lambda row, _: _cap(row.cap_bytes), optional=3),
    _bytes("PROMISED", "promised_bytes"),
    _bytes("USED OF PROMISED", "used_bytes", has_bar=True),
    _bytes("PEAK", "peak_bytes"),
    _figures("STOPS", lambda row, _: _number(row.stops), optional=4),
)
