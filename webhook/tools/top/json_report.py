"""JSON of `vramwarden top`, with all facts of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from typing import Any, Final

from webhook.core.kinds.nodes import GpuFigures, NodeFigures, PodFigures, write_time
from webhook.tools.render.output import as_report, known
from webhook.tools.top.judge import PodRow, TopReport, sums_of

Json = dict[str, Any]

_KEYS: Final = {
    "promised_gpus": "promisedKnownGPUs",
    "used_gpus": "usedKnownGPUs",
    "why": "reason",
}
"""Keys that differ from the name of their field in camel case."""
_USE: Final = "cap_bytes used_bytes peak_bytes stops held_by"


def as_json(report: TopReport, parts: Sequence[str]) -> Json:
    """Return parts of a report: `nodes`, `pods`, `workloads`."""
    value = as_report("TopReport", {"time": write_time(report.now_s)})
    if report.namespace:
        value["namespace"] = report.namespace
    if "nodes" in parts and report.nodes is not None:
        value["totals"] = _row(report.amounts)
        value["nodes"] = [_node(one, report) for one in report.nodes]
    if "pods" in parts and report.pods is not None:
        value["pods"] = [_pod(one, report) for one in report.pods]
    if "workloads" in parts and report.workloads is not None:
        value["workloads"] = [_row(one) for one in report.workloads]
    value["problems"] = [one.json for one in report.problems]
    value["missing"] = list(report.missing)
    return value


def without_times(value: Json) -> Json:
    """Return a report without times and ages, for comparison."""
    nodes = [node | {"observedAt": ""} for node in value.get("nodes", ())]
    problems = [problem | {"message": ""} for problem in value["problems"]]
    return value | {"time": "", "nodes": nodes, "problems": problems}


def _row(row: Any, names: str = "") -> Json:
    """Return known fields of a row: the given ones, or all of them."""
    wanted = names or " ".join(one.name for one in fields(row))
    return known(**{key: getattr(row, name) for name, key in _keys(wanted)})


@cache
def _keys(names: str) -> list[tuple[str, str]]:
    """Return names of fields with their keys, cached for clusters with 100,000 rows."""
    found = []
    for name in names.split():
        first, *rest = _KEYS.get(name, name).split("_")
        found.append((name, first + "".join(map(str.capitalize, rest))))
    return found


def _node(node: NodeFigures, report: TopReport) -> Json:
    limit = node.limit
    return {
        **known(name=node.name, observedAt=write_time(node.observed_s), stale=report.stale(node)),
        **_row(node, "driver_version enforcement not_shared held"),
        **known(
            driverLimit=limit and known(proven=limit.holds, backEnd=limit.back_end, why=limit.why)
        ),
        "totals": _row(sums_of(node.gpus)),
        "gpus": [_gpu(gpu, report) for gpu in node.gpus],
    }


def _gpu(gpu: GpuFigures, report: TopReport) -> Json:
    return {
        **_row(gpu, "uuid index product healthy fault total_bytes usable_bytes promised_bytes"),
        **_row(gpu, "used_bytes free_bytes unmanaged_bytes unattributed_bytes"),
        "pods": [_named(report, one.uid) | _use(one) for one in gpu.pods],
        "unmanaged": [
            _named(report, uid) | known(usedBytes=held) for uid, held in gpu.unmanaged.items()
        ],
    }


def _use(one: PodFigures | PodRow) -> Json:
    return _row(one, _USE) | known(idleSince=_time(one.idle_since_s))


def _time(at_s: float | None) -> str | None:
    return None if at_s is None else write_time(at_s)


def _named(report: TopReport, uid: str) -> Json:
    namespace, name = report.name_of(uid)
    return known(uid=uid, namespace=namespace, name=name)


def _pod(row: PodRow, report: TopReport) -> Json:
    pod = row.pod
    return {
        **_row(pod, "namespace name uid node"),
        **known(createdAt=_time(pod.created_s), phase=row.phase, status=pod.status),
        **_row(row, "why gpu_count over_cap near_cap"),
        **_use(row),
        **known(workload=_row(pod.workload, "kind name") or None),
        "gpus": [
            known(uuid=uuid, index=report.indexes.get(uuid))
            | (_use(one) if one else known(capBytes=row.cap_bytes))
            for uuid, one in row.held
        ],
    }
