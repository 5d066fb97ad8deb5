"""HTML page of `vramwarden top -o html`, from the template page.html.jinja.

Pods that the user may list have names. All other pods of a GPU are drawn as one unnamed part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from webhook.core.formatting import (
    format_amount,
    format_count,
    format_duration,
    replace_unprintable,
    shorten,
)
from webhook.core.kinds.nodes import GpuFigures, NodeFigures
from webhook.tools.problems.problem import Code
from webhook.tools.render.output import cut
from webhook.tools.top.columns import (
    GPU_COLUMNS,
    POD_COLUMNS,
    WORKLOAD_COLUMNS,
    format_optional_amount,
    select_columns,
)
from webhook.tools.top.report import (
    describe_problem,
    describe_totals,
    describe_unavailable_nodes,
    group_problems,
)
from webhook.tools.top.rows import TopReport, sum_gpus

_MOST_LINES: Final = 16
"""Maximum number of GPUs with a line each; more GPUs are drawn side by side."""
_MOST_DRAWN: Final = 2000
"""Maximum number of GPUs in the picture."""
_ALARMS: Final = frozenset({Code.GPU_UNHEALTHY, Code.OVERCOMMITTED})
"""Problems that are marked on the bar of a GPU."""
_OF_PLACED: Final = frozenset({"GPU", "USED OF CAP", "PEAK", "HELD BY", "IDLE"})
"""Columns that are empty for waiting pods."""
_WHO: Final = "WHO"
"""Column for the pod letters in a terminal's bars."""
_LONGEST: Final = 2000
"""Maximum length of a string on the page, in characters."""


class _Part(NamedTuple):
    css: str
    size_bytes: int
    used_bytes: int
    title: str
    name: str = ""


def as_html(report: TopReport, parts: Sequence[str] = ("nodes", "pods")) -> str:
    """Return the page with parts of a report: `nodes`, `pods`, `workloads`."""
    nodes: Sequence[NodeFigures] = (report.nodes or ()) if "nodes" in parts else ()
    gpus = sum(len(node.gpus) for node in nodes)
    if gpus > _MOST_DRAWN:  # nodes with the user's pods come first
        nodes = sorted(nodes, key=lambda node: not any(_own_pods(node, report)))
    counts = accumulate(len(node.gpus) for node in nodes)
    drawn = [node for node, sum_ in zip(nodes, counts, strict=True) if sum_ <= _MOST_DRAWN]
    pods = select_columns(POD_COLUMNS, report)
    gpu_columns = select_columns(GPU_COLUMNS, report, wide=True)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_display_text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.jinja").render(
        report=report,
        parts=parts,
        time=datetime.fromtimestamp(int(report.now_s), UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        problems=[
            [
                describe_problem(problem) + (f" ({problem.fix})" if problem.fix else "")
                for problem in alike
            ]
            for alike in group_problems(report, parts)
        ],
        nodes=drawn,
        alarms={problem.subject.name for problem in report.problems if problem.code in _ALARMS},
        in_lines=gpus <= _MOST_LINES,
        largest_bytes=max((gpu.usable_bytes for node in drawn for gpu in node.gpus), default=0),
        gpus=report.node_rows(by_gpu=True) if nodes else [],
        gpu_columns=[column for column in gpu_columns if column.title != _WHO],
        waiting=[pod for pod in report.pods or () if pod.is_waiting],
        waiting_columns=[pod for pod in pods if pod.title not in _OF_PLACED],
        placed=[pod for pod in report.pods or () if not pod.is_waiting],
        pod_columns=pods,
        workloads=report.workloads or (),
        workload_columns=select_columns(WORKLOAD_COLUMNS, report),
        cut=cut,
        figures=_describe_figures,
        parts_of=partial(_parts, report),
        percent=lambda part, whole: 100 * part / max(1, whole),
        span=format_duration,
        sum_gpus=sum_gpus,
        describe_totals=describe_totals,
        describe_unavailable_nodes=describe_unavailable_nodes,
        format_optional_amount=format_optional_amount,
    )


def _display_text(value: object) -> object:
    """Return a template value for display, before it is escaped.

    Tenants can write strings. Unprintable characters are replaced, including those that XML 1.0
    forbids (section 2.2) or that change the direction of text. Long strings are shortened.
    """
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return replace_unprintable(shorten(value, _LONGEST), _LONGEST)
    return value


def _own_pods(node: NodeFigures, report: TopReport) -> Iterator[bool]:
    return (pod.uid in report.pods_by_uid for gpu in node.gpus for pod in gpu.pods)


def _parts(report: TopReport, gpu: GpuFigures) -> Iterator[_Part]:
    """Yield a GPU's named pods, all other pods as one part, and unmanaged memory."""
    own = [pod for pod in gpu.pods if pod.uid in report.pods_by_uid]
    others = [pod for pod in gpu.pods if pod.uid not in report.pods_by_uid]
    for pod in own:
        space, name = report.find_name(pod.uid)
        used = format_optional_amount(pod.used_bytes, "unknown")
        peak = "" if pod.peak_bytes is None else f", peak {format_amount(pod.peak_bytes)}"
        title = f"{space}/{name}: {used} used of its cap of {format_amount(pod.cap_bytes)}{peak}"
        yield _Part("cap", pod.cap_bytes, pod.used_bytes or 0, title, name)
    promised = (gpu.promised_bytes or 0) - sum(pod.cap_bytes for pod in own)
    promised = max(promised, sum(pod.cap_bytes for pod in others))
    if promised:
        known = [pod.used_bytes for pod in others if pod.used_bytes is not None]
        used = format_amount(sum(known)) if known else "unknown"
        whose = f"{format_count(len(others), 'pod')} of others" if others else "others"
        title = f"{whose}: {used} used of {format_amount(promised)} promised"
        yield _Part("others", promised, sum(known), title)
    for uid, held_bytes in gpu.unmanaged.items():
        whose = "/".join(report.find_name(uid)) if uid in report.pods_by_uid else f"pod {uid}"
        title = f"{format_amount(held_bytes)} held by {whose if uid else 'no pod'}, without a cap"
        yield _Part("unmanaged", held_bytes, 0, title)


def _describe_figures(gpu: GpuFigures) -> str:
    if not gpu.healthy:
        return gpu.fault or "lost or unhealthy"
    used = f"{format_optional_amount(gpu.used_bytes, 'unknown')} used"
    if gpu.promised_bytes is None:
        return f"promised unknown, {used}"
    free = format_optional_amount(sum_gpus([gpu]).free_bytes, down=True)
    return f"{used} of {format_amount(gpu.promised_bytes)} promised, {free} free"
