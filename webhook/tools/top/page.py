"""The page of `vramwarden top -o html`: the values that the template page.html.jinja shows.

The user's pods have names. Pods of others are one part of each GPU, without a name.
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
from webhook.tools.top import texts
from webhook.tools.top.judge import TopReport, sums_of
from webhook.tools.top.texts import GPU_COLUMNS, POD_COLUMNS, WORKLOAD_COLUMNS, columns_of

_MOST_LINES: Final = 16
"""Maximum number of GPUs that have a line each; more are drawn side by side."""
_MOST_DRAWN: Final = 2000
"""Maximum number of GPUs in the picture."""
_ALARMS: Final = frozenset({Code.GPU_UNHEALTHY, Code.OVERCOMMITTED})
"""Problems of a GPU by which its bar is marked."""
_OF_PLACED: Final = frozenset({"GPU", "USED OF CAP", "PEAK", "HELD BY", "IDLE"})
"""Columns that are empty of pods that wait."""
_WHO: Final = "WHO"
"""Column with the letters of a terminal's bars."""
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
    nodes: Sequence[NodeFigures] = (report.nodes or ()) if "nodes" in parts else ()
    gpus = sum(len(node.gpus) for node in nodes)
    if gpus > _MOST_DRAWN:  # those with the user's pods come first
        nodes = sorted(nodes, key=lambda node: not any(_own_pods(node, report)))
    counts = accumulate(len(node.gpus) for node in nodes)
    drawn = [node for node, sum_ in zip(nodes, counts, strict=True) if sum_ <= _MOST_DRAWN]
    pods, gpu_columns = columns_of(POD_COLUMNS, report), columns_of(GPU_COLUMNS, report, wide=True)
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
        time=datetime.fromtimestamp(int(report.now_s), UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        problems=[
            [texts.problem(one) + (f" ({one.fix})" if one.fix else "") for one in alike]
            for alike in texts.alike_problems(report, parts)
        ],
        nodes=drawn,
        alarms={one.subject.name for one in report.problems if one.code in _ALARMS},
        in_lines=gpus <= _MOST_LINES,
        largest_bytes=max((gpu.usable_bytes for node in drawn for gpu in node.gpus), default=0),
        gpus=report.places(by_gpu=True) if nodes else [],
        gpu_columns=[one for one in gpu_columns if one.title != _WHO],
        waiting=[one for one in report.pods or () if one.is_waiting],
        waiting_columns=[one for one in pods if one.title not in _OF_PLACED],
        placed=[one for one in report.pods or () if not one.is_waiting],
        pod_columns=pods,
        workloads=report.workloads or (),
        workload_columns=columns_of(WORKLOAD_COLUMNS, report),
        cut=cut,
        figures=_figures,
        parts_of=partial(_parts, report),
        percent=lambda part, whole: 100 * part / max(1, whole),
        span=format_duration,
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
        return replace_unprintable(shorten(value, _LONGEST), _LONGEST)
    return value


def _own_pods(node: NodeFigures, report: TopReport) -> Iterator[bool]:
    return (pod.uid in report.names for gpu in node.gpus for pod in gpu.pods)


def _parts(report: TopReport, gpu: GpuFigures) -> Iterator[_Part]:
    """Yield the user's pods, then pods of others as one part, then memory without a cap."""
    own = [pod for pod in gpu.pods if pod.uid in report.names]
    others = [pod for pod in gpu.pods if pod.uid not in report.names]
    for pod in own:
        space, name = report.name_of(pod.uid)
        used = texts.amount(pod.used_bytes, "unknown")
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
        whose = "/".join(report.name_of(uid)) if uid in report.names else f"pod {uid}"
        title = f"{format_amount(held_bytes)} held by {whose if uid else 'no pod'}, without a cap"
        yield _Part("unmanaged", held_bytes, 0, title)


def _figures(gpu: GpuFigures) -> str:
    if not gpu.healthy:
        return gpu.fault or "lost or unhealthy"
    used = f"{texts.amount(gpu.used_bytes, 'unknown')} used"
    if gpu.promised_bytes is None:
        return f"promised unknown, {used}"
    free = texts.amount(sums_of([gpu]).free_bytes, down=True)
    return f"{used} of {format_amount(gpu.promised_bytes)} promised, {free} free"
