"""Output of `vramwarden explain`: text or JSON.

A report contains untrusted strings, such as a scheduler's message or an annotation. Their control
characters are not written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from webhook.core.formatting import format_amount, format_duration, join_names
from webhook.core.kinds.nodes import STALE_S, GpuFigures
from webhook.tools.explain.report import Diagnosis
from webhook.tools.problems.capacity import NodeFit
from webhook.tools.problems.problem import Code, Problem, Severity
from webhook.tools.render.output import IN_ASCII, known, make_report, write_json, write_lines

KIND: Final = "ExplainReport"
MOST_NODES: Final = 10
"""Maximum number of nodes in the text output; JSON has all nodes."""
_MOST_GPUS: Final = 4
_SIGNS: Final = {Severity.ERROR: "✗", Severity.WARNING: "!", Severity.INFO: "-"}
_WITH_ROOM: Final = {None, Code.GPUS_SPLIT, Code.NO_ROOM}
"""Codes of nodes whose GPUs are listed; None if the pod fits on the node."""
_INDENT: Final = "    "


def as_text(found: Diagnosis, *, ascii_only: bool = False) -> str:
    """Return the report as text."""
    return write_lines(_lines(found, ascii_only=ascii_only), ascii_only=ascii_only)


def as_json(found: Diagnosis) -> str:
    """Return the report as JSON with amounts in bytes; unknown values are absent."""
    return write_json(make_report(KIND, _diagnosis_value(found)))


def _lines(found: Diagnosis, *, ascii_only: bool) -> Iterator[str]:
    yield found.headline
    about_nodes = {Code.NODES_SPLIT, *(node.code for node in found.nodes)}
    numbers = (n for n, problem in enumerate(found.problems) if problem.code in about_nodes)
    last = next(numbers, len(found.problems) - 1)
    for number, problem in enumerate(found.problems):
        yield from _problem_lines(problem, ascii_only=ascii_only)
        if number == last:
            yield from _node_lines(found.nodes)
    width = max((len(label) for label, _ in found.notes), default=0) + 1
    for label, text in found.notes:
        yield f"  {label + ':':<{width}}  {text}"
    if found.pod is not None:
        yield ""
        yield from _lines(found.pod, ascii_only=ascii_only)
    if found.left_out:
        yield "Not looked at:"
        yield from (f"  {fact}" for fact in found.left_out)


def _problem_lines(problem: Problem, *, ascii_only: bool) -> Iterator[str]:
    sign, arrow = _SIGNS[problem.severity], "→"
    if ascii_only:
        sign, arrow = IN_ASCII[sign], IN_ASCII[arrow]
    yield f"{sign} {problem.message}"
    if problem.fix:
        yield f"{_INDENT}{arrow} {problem.fix}"


def _node_lines(nodes: Sequence[NodeFit]) -> Iterator[str]:
    """Yield a line for each node that has enough free memory, then the others by reason."""
    room = [node for node in nodes if node.code in _WITH_ROOM]
    room.sort(key=lambda node: (node.code is not None, -node.largest_bytes, node.name))
    without: dict[str, list[str]] = {}
    for node in nodes:
        if node.code not in _WITH_ROOM:
            without.setdefault(node.detail, []).append(node.name)
    rows = [(node.name, _describe_gpus(node)) for node in room[:MOST_NODES]]
    if len(room) > MOST_NODES:
        rows.append(("...", f"{len(room) - MOST_NODES} more nodes with less (-o json has all)"))
    rows += [
        (join_names(names), f"no: {detail}")
        for detail, names in islice(without.items(), MOST_NODES)
    ]
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        yield f"{_INDENT}{name:<{width}}  {text}"


def _describe_gpus(node: NodeFit) -> str:
    gpus = sorted(node.gpus, key=lambda gpu: (-(gpu.free_bytes or 0), gpu.index))
    parts = [_describe_gpu(gpu) for gpu in gpus[:_MOST_GPUS]]
    if len(gpus) > _MOST_GPUS:
        parts.append(f"and {len(gpus) - _MOST_GPUS} more with less")
    old = f"  ({format_duration(node.age_s)} old)" if node.age_s > STALE_S else ""
    return "    ".join(parts) + old


def _describe_gpu(gpu: GpuFigures) -> str:
    if not gpu.healthy:
        return f"GPU {gpu.index}: {gpu.fault or 'unhealthy'}"
    free = "?" if gpu.free_bytes is None else format_amount(max(0, gpu.free_bytes), down=True)
    return f"GPU {gpu.index}: {free} free"


def _diagnosis_value(found: Diagnosis) -> dict[str, Any]:
    value: dict[str, Any] = {
        "subject": found.subject._asdict(),
        "state": found.state.value,
        "headline": found.headline,
        "problems": [problem.json for problem in found.problems],
        "nodes": [_node_value(node) for node in found.nodes],
        "notes": [{"about": label, "text": text} for label, text in found.notes],
        "leftOut": list(found.left_out),
    }
    if found.pod is not None:
        value["pod"] = _diagnosis_value(found.pod)
    return value


def _node_value(node: NodeFit) -> dict[str, Any]:
    return known(
        name=node.name,
        fits=node.code is None,
        code=node.code.value if node.code else None,
        detail=node.detail,
        largest=node.largest_bytes if node.is_eligible else None,
        ageSeconds=round(node.age_s),
        gpus=[
            known(index=gpu.index, uuid=gpu.uuid, free=gpu.free_bytes, usable=gpu.usable_bytes)
            for gpu in node.gpus
        ],
    )
