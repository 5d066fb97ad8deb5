"""Texts of figures, pods and problems that the terminal and the page have in common."""

from __future__ import annotations

from textwrap import shorten
from typing import TYPE_CHECKING, Final

from webhook.core import words
from webhook.core.kinds.nodes import GpuFigures
from webhook.tools.snapshot.pod import scheduler_says
from webhook.tools.top.judge import PodPhase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.tools.problems.problem import Problem
    from webhook.tools.top.judge import GpuSums, PodRow, TopReport

_NODES_NAMED: Final = 5
_UUID_SHOWN: Final = 12
"""Number of characters of a UUID."""
_LONGEST_WHY: Final = 80
"""Maximum number of characters of the scheduler's message."""


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


def cap(cap_bytes: int | None) -> str:
    """Return a cap, exactly."""
    return "-" if cap_bytes is None else words.exactly(cap_bytes)


def cap_of_pod(pod: PodRow) -> str:
    """Return a pod's cap with its number of GPUs, if that is not one."""
    several = f"{pod.gpu_count}x" if pod.gpu_count > 1 and pod.cap_bytes is not None else ""
    return several + cap(pod.cap_bytes)


def free(place: GpuFigures | GpuSums) -> str:
    """Return the amount that can still be promised; a GPU that is not healthy has none."""
    if place.free_bytes is None or (isinstance(place, GpuFigures) and not place.healthy):
        return "-"
    return words.amount(max(0, place.free_bytes), down=True)


def gpu_numbers(pod: PodRow, report: TopReport) -> str:
    """Return the numbers of a pod's GPUs; a GPU without figures has its UUID, shortened."""
    known = sorted(report.indexes[uuid] for uuid, _ in pod.held if uuid in report.indexes)
    rest = [uuid[:_UUID_SHOWN] for uuid, _ in pod.held if uuid not in report.indexes]
    return ",".join([*map(str, known), *rest]) or "-"


def since(began_s: float | None, report: TopReport, otherwise: str = "-") -> str:
    """Return the time from a Unix time until the report, which may be unknown."""
    return otherwise if began_s is None else words.span(report.at_s - began_s)


def state(row: PodRow, report: TopReport) -> str:
    """Return the phase of a pod, and the reason why it waits or its trouble."""
    if row.is_waiting:
        age = since(row.pod.created_s, report, "")
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
