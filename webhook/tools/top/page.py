"""The page of `vramwarden top -o html`: the values that the template page.html.jinja shows.

The user's pods have names. Pods of others are one part of each GPU, without a name.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from webhook.core.words import amount, counted, printable, shortened, span
from webhook.tools.render.output import cut
from webhook.tools.top import texts
from webhook.tools.top.judge import sums_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from webhook.core.kinds.nodes import GpuFigures, NodeFigures
    from webhook.tools.top.judge import PodRow, TopReport, WorkloadRow

    Cells = dict[str, str]
    """Texts of a table's row, by the title of their column."""

_MOST_LINES: Final = 16
"""Maximum number of GPUs that have a line each; more are drawn side by side."""
_MOST_DRAWN: Final = 2000
"""Maximum number of GPUs in the picture."""
_LONGEST: Final = 2000
"""Maximum number of characters of a text."""


class _Part(NamedTuple):
    """Memory of a GPU that is promised or held."""

    css: str
    size_bytes: int
    used_bytes: int
    title: str
    name: str = ""


def as_html(report: TopReport, parts: Sequence[str] = ("nodes", "pods")) -> str:
    """Return the page with parts of a report: `nodes`, `pods`, `workloads`."""
    nodes = (report.nodes or ()) if "nodes" in parts else ()
    drawn = _nodes_to_draw(report, nodes)
    gpus = [_gpu_cells(node, gpu, report) for node in nodes for gpu in node.gpus]
    pods = (report.pods or ()) if "pods" in parts else ()
    workloads = (report.workloads or ()) if "workloads" in parts else ()
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_displayed,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.jinja").render(
        report=report,
        parts=parts,
        time=datetime.fromtimestamp(int(report.at_s), UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        problems=[
            [texts.problem(one) + (f" ({one.fix})" if one.fix else "") for one in alike]
            for _, alike in groupby(report.problems, key=lambda one: one.code)
        ],
        nodes=drawn,
        in_lines=len(gpus) <= _MOST_LINES,
        largest_bytes=max((gpu.usable_bytes for node in drawn for gpu in node.gpus), default=0),
        gpus=gpus,
        waiting=[_waiting_cells(pod, report) for pod in pods if pod.is_waiting],
        placed=[_placed_cells(pod, report) for pod in pods if not pod.is_waiting],
        workloads=[_workload_cells(one, report) for one in workloads],
        cut=cut,
        figures=_figures,
        parts_of=partial(_parts, report),
        percent=lambda part, whole: 100 * part / max(1, whole),
        span=span,
        sums_of=sums_of,
        texts=texts,
    )


def _displayed(value: object) -> object:
    """Return a value of the template as it is displayed; texts are escaped afterwards.

    Texts may come from a tenant: characters that XML 1.0 forbids (section 2.2) or that change the
    direction of later text are replaced, as all that are not printable, and long texts are cut.
    """
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return printable(shortened(value, _LONGEST), _LONGEST)
    return value


def _nodes_to_draw(report: TopReport, nodes: Sequence[NodeFigures]) -> list[NodeFigures]:
    """Return nodes up to the maximum number of GPUs, in their order.

    Nodes with the user's pods or with memory in use without a cap have precedence.
    """

    def matters(node: NodeFigures) -> bool:
        return any(
            gpu.unmanaged or any(pod.uid in report.names for pod in gpu.pods) for gpu in node.gpus
        )

    first = sorted(nodes, key=lambda node: not matters(node))
    sums = accumulate(len(node.gpus) for node in first)
    chosen = {node.name for node, gpus in zip(first, sums, strict=True) if gpus <= _MOST_DRAWN}
    return [node for node in nodes if node.name in chosen]


def _parts(report: TopReport, gpu: GpuFigures) -> Iterator[_Part]:
    """Yield the user's pods, then pods of others as one part, then memory without a cap."""
    own = [pod for pod in gpu.pods if pod.uid in report.names]
    others = [pod for pod in gpu.pods if pod.uid not in report.names]
    for pod in own:
        space, name = report.name_of(pod.uid)
        used = texts.amount(pod.used_bytes, "unknown")
        peak = "" if pod.peak_bytes is None else f", at most {amount(pod.peak_bytes)}"
        title = f"{space}/{name}: {used} used of its cap of {amount(pod.cap_bytes)}{peak}"
        yield _Part("cap", pod.cap_bytes, pod.used_bytes or 0, title, name)
    promised = (gpu.promised_bytes or 0) - sum(pod.cap_bytes for pod in own)
    promised = max(promised, sum(pod.cap_bytes for pod in others))
    if promised:
        known = [pod.used_bytes for pod in others if pod.used_bytes is not None]
        used = amount(sum(known)) if known else "unknown"
        whose = f"{counted(len(others), 'pod')} of others" if others else "others"
        title = f"{whose}: {used} used of {amount(promised)} promised"
        yield _Part("others", promised, sum(known), title)
    for uid, held_bytes in gpu.unmanaged.items():
        whose = "/".join(report.name_of(uid)) if uid in report.names else f"pod {uid}"
        title = f"{amount(held_bytes)} held by {whose if uid else 'no pod'}, without a cap"
        yield _Part("unmanaged", held_bytes, 0, title)


def _figures(gpu: GpuFigures) -> str:
    if not gpu.healthy:
        return gpu.fault or "lost or unhealthy"
    used = f"{texts.amount(gpu.used_bytes, 'unknown')} used"
    if gpu.promised_bytes is None:
        return f"promised unknown, {used}"
    return f"{used} of {amount(gpu.promised_bytes)} promised, {texts.free(gpu)} free"


def _gpu_cells(node: NodeFigures, gpu: GpuFigures, report: TopReport) -> Cells:
    return {
        "GPU": f"{node.name} GPU {gpu.index}",
        "product": gpu.product,
        "usable": amount(gpu.usable_bytes, down=True),
        "promised": texts.amount(gpu.promised_bytes),
        "used": texts.amount(gpu.used_bytes),
        "free": texts.free(gpu),
        "unmanaged": texts.amount(gpu.unmanaged_bytes),
        "pods": f"{len(gpu.pods)}",
        "seen": f"{span(report.age_s(node))} ago",
    }


def _waiting_cells(row: PodRow, report: TopReport) -> Cells:
    return {
        "pod": _name(report, row.pod.namespace, row.pod.name),
        "cap": texts.cap_of_pod(row),
        "since": texts.since(row.pod.created_s, report),
        "node": row.pod.node or "-",
        "why": row.why or row.pod.status or "-",
    }


def _placed_cells(row: PodRow, report: TopReport) -> Cells:
    used, cap = row.used_bytes, row.cap_bytes
    return {
        "pod": _name(report, row.pod.namespace, row.pod.name),
        "node": row.pod.node or "-",
        "GPU": texts.gpu_numbers(row, report),
        "cap": texts.cap_of_pod(row),
        "used": texts.amount(used),
        "of it": f"{100 * used // cap}%" if used is not None and cap else "-",
        "at most": texts.amount(row.peak_bytes),
        "held by": row.held_by or "-",
        "idle": texts.since(row.idle_since_s, report),
        "state": texts.state(row, report),
    }


def _workload_cells(workload: WorkloadRow, report: TopReport) -> Cells:
    return {
        "workload": _name(report, workload.namespace, f"{workload.kind}/{workload.name}"),
        "pods": f"{workload.pods:,}",
        "run": f"{workload.running:,}",
        "wait": f"{workload.waiting:,}",
        "cap": texts.cap(workload.cap_bytes),
        "promised": texts.amount(workload.promised_bytes),
        "used": texts.amount(workload.used_bytes),
        "one at most": texts.amount(workload.peak_bytes),
    }


def _name(report: TopReport, namespace: str, name: str) -> str:
    """Return a name, with its namespace if the report is about all namespaces."""
    return name if report.namespace else f"{namespace}/{name}"
