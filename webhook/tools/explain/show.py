"""What `vramwarden explain` writes: lines for people, or JSON.

Others' texts stand in a report: a command, a scheduler's message, an annotation. No character of
them that a terminal would act on is written.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from webhook.core.kinds.nodes import STALE_S
from webhook.core.words import amount, named, span
from webhook.tools.explain.judge.report import Severity
from webhook.tools.explain.judge.room import Blocker
from webhook.tools.render.output import IN_ASCII, as_report, known, write_json, write_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.core.kinds.nodes import GpuFigures
    from webhook.tools.explain.judge.report import Cause, Report
    from webhook.tools.explain.judge.room import NodeRoom

KIND: Final = "ExplainReport"
MOST_NODES: Final = 10
"""Drawn; JSON has all."""
_MOST_GPUS: Final = 4
_SIGNS: Final = {Severity.ERROR: "✗", Severity.WARNING: "!", Severity.INFO: "-"}
_WITH_ROOM: Final = {Blocker.GPUS_SPLIT, Blocker.NO_ROOM}
"""Reasons of nodes whose GPUs are drawn."""
_ASIDE_AT: Final = 60
_INDENT: Final = "    "


def as_text(report: Report, *, ascii_only: bool = False) -> str:
    """Write lines for people."""
    return write_lines(_lines(report, ascii_only=ascii_only), ascii_only=ascii_only)


def as_json(report: Report) -> str:
    """Write everything for programs: amounts in bytes, absent where unknown."""
    return write_json(as_report(KIND, _value(report)))


def _lines(report: Report, *, ascii_only: bool) -> Iterator[str]:
    yield report.headline
    for number, cause in enumerate(report.causes):
        yield from _cause(cause, ascii_only=ascii_only)
        if number == 0:
            yield from _nodes(report.nodes)
    width = max((len(label) for label, _ in report.notes), default=0) + 1
    for label, text in report.notes:
        yield f"  {label + ':':<{width}}  {text}"
    for remark in report.remarks:
        yield remark[0].upper() + remark[1:]
    if report.left_out:
        yield "Not looked at:"
        yield from (f"  {one}" for one in report.left_out)
    if report.pod is not None:
        yield ""
        yield from _lines(report.pod, ascii_only=ascii_only)


def _cause(cause: Cause, *, ascii_only: bool) -> Iterator[str]:
    sign, arrow = _SIGNS[cause.severity], "→"
    if ascii_only:
        sign, arrow = IN_ASCII[sign], IN_ASCII[arrow]
    line = f"{sign} {cause.detail}"
    yield f"{line:<{_ASIDE_AT}} {cause.aside}" if cause.aside else line
    if cause.fix:
        yield f"{_INDENT}{arrow} {cause.fix}"


def _nodes(nodes: tuple[NodeRoom, ...]) -> Iterator[str]:
    """Yield what each node has, those with most for the pod first; what is none, by its reason."""
    room = [node for node in nodes if _draws_gpus(node)]
    room.sort(key=lambda one: (not one.fits, -one.largest_bytes, one.name))
    without: dict[str, list[str]] = {}
    for node in nodes:
        if not _draws_gpus(node):
            without.setdefault(node.detail, []).append(node.name)
    rows = [(node.name, _gpus(node)) for node in room[:MOST_NODES]]
    if len(room) > MOST_NODES:
        rows.append(("...", f"{len(room) - MOST_NODES} more nodes with less (-o json has all)"))
    rows += [
        (named(names), f"no: {detail}") for detail, names in islice(without.items(), MOST_NODES)
    ]
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        yield f"{_INDENT}{name:<{width}}  {text}"


def _draws_gpus(node: NodeRoom) -> bool:
    return node.fits or (node.reason in _WITH_ROOM)


def _gpus(node: NodeRoom) -> str:
    gpus = sorted(node.gpus, key=lambda gpu: (-(gpu.free_bytes or 0), gpu.index))
    parts = [_gpu(gpu) for gpu in gpus[:_MOST_GPUS]]
    if len(gpus) > _MOST_GPUS:
        parts.append(f"and {len(gpus) - _MOST_GPUS} more with less")
    old = f"  ({span(node.age_s)} old)" if node.age_s > STALE_S else ""
    return "    ".join(parts) + old


def _gpu(gpu: GpuFigures) -> str:
    if not gpu.healthy:
        return f"GPU {gpu.index}: {gpu.fault or 'unhealthy'}"
    free = "?" if gpu.free_bytes is None else amount(max(0, gpu.free_bytes), down=True)
    return f"GPU {gpu.index}: {free} free"


def _value(report: Report) -> dict[str, Any]:
    enough = report.enough
    value: dict[str, Any] = {
        "subject": {"kind": report.kind, "namespace": report.namespace, "name": report.name},
        "state": report.state.value,
        "headline": report.headline,
        "causes": [
            known(
                severity=one.severity.value,
                reason=one.reason.value,
                detail=one.detail,
                fix=one.fix,
            )
            for one in report.causes
        ],
        "nodes": [_node_value(one) for one in report.nodes],
        "enough": known(
            admit=enough.admit_bytes,
            startNow=enough.start_now_bytes,
            startNowNode=enough.start_now_node,
            run=enough.run_bytes,
        ),
        "notes": [{"about": label, "text": text} for label, text in report.notes],
        "remarks": list(report.remarks),
        "leftOut": list(report.left_out),
    }
    if report.pod is not None:
        value["pod"] = _value(report.pod)
    return value


def _node_value(node: NodeRoom) -> dict[str, Any]:
    return known(
        name=node.name,
        fits=node.fits,
        reason=node.reason.value if node.reason else None,
        detail=node.detail,
        largest=node.largest_bytes if node.matches else None,
        ageSeconds=round(node.age_s),
        gpus=[
            known(index=gpu.index, uuid=gpu.uuid, free=gpu.free_bytes, usable=gpu.usable_bytes)
            for gpu in node.gpus
        ],
    )
