"""JSON of `vramwarden top`, with all facts of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from typing import Any, Final

from webhook.core.kinds.nodes import GpuFigures, NodeFigures, PodFigures, write_time
from webhook.tools.render.output import known, make_report
from webhook.tools.top.rows import PodRow, TopReport, sum_gpus

Json = dict[str, Any]

_KEYS: Final = {
    "promised_gpus": "promisedKnownGPUs",
    "used_gpus": "usedKnownGPUs",
}
"""JSON keys that are not the camel-case field name."""
_USE: Final = "cap_bytes used_bytes peak_bytes stops held_by"


def as_json(report: TopReport, parts: Sequence[str]) -> Json:
    """Return the `nodes`, `pods` and `workloads` of a report as JSON."""
    value = make_report("TopReport", {"time": write_time(report.now_s)})
    if report.namespace:
        value["namespace"] = report.namespace
    if "nodes" in parts and report.nodes is not None:
        value["totals"] = _known_fields(report.amounts)
        value["nodes"] = [_node_value(node, report) for node in report.nodes]
    if "pods" in parts and report.pods is not None:
        value["pods"] = [_pod_value(pod, report) for pod in report.pods]
    if "workloads" in parts and report.workloads is not None:
        value["workloads"] = [_known_fields(workload) for workload in report.workloads]
    value["problems"] = [problem.json for problem in report.problems]
    value["missing"] = list(report.missing)
    return value


def without_times(value: Json) -> Json:
    """Return a report without times and ages, for comparison with another report."""
    nodes = [node | {"observedAt": ""} for node in value.get("nodes", ())]
    problems = [problem | {"message": ""} for problem in value["problems"]]
    return value | {"time": "", "nodes": nodes, "problems": problems}


def _known_fields(row: Any, names: str = "") -> Json:
    """Return the known fields of a row: those in `names`, or all if `names` is empty."""
    wanted = names or " ".join(field.name for field in fields(row))
    return known(**{key: getattr(row, name) for name, key in _keys(wanted)})


@cache
def _keys(names: str) -> list[tuple[str, str]]:
    """Return fields with their JSON keys; cached, since a cluster may have 100,000 rows."""
    found = []
    for name in names.split():
        first, *rest = _KEYS.get(name, name).split("_")
        found.append((name, first + "".join(map(str.capitalize, rest))))
    return found


def _node_value(node: NodeFigures, report: TopReport) -> Json:
    limit = node.limit
    return {
        **known(
            name=node.name, observedAt=write_time(node.observed_s), stale=report.is_stale(node)
        ),
        **_known_fields(node, "driver_version enforcement not_shared held"),
        **known(
            driverLimit=limit and known(proven=limit.holds, backEnd=limit.back_end, why=limit.why)
        ),
        "totals": _known_fields(sum_gpus(node.gpus)),
        "gpus": [_gpu_value(gpu, report) for gpu in node.gpus],
    }


def _gpu_value(gpu: GpuFigures, report: TopReport) -> Json:
    return {
        **_known_fields(
            gpu, "uuid index product healthy fault total_bytes usable_bytes promised_bytes"
        ),
        **_known_fields(gpu, "used_bytes free_bytes unmanaged_bytes unattributed_bytes"),
        "pods": [_pod_name(report, pod.uid) | _use_value(pod) for pod in gpu.pods],
        "unmanaged": [
            _pod_name(report, uid) | known(usedBytes=held) for uid, held in gpu.unmanaged.items()
        ],
    }


def _use_value(one: PodFigures | PodRow) -> Json:
    return _known_fields(one, _USE) | known(idleSince=_format_time(one.idle_since_s))


def _format_time(at_s: float | None) -> str | None:
    return None if at_s is None else write_time(at_s)


def _pod_name(report: TopReport, uid: str) -> Json:
    namespace, name = report.find_name(uid)
    return known(uid=uid, namespace=namespace, name=name)


def _pod_value(row: PodRow, report: TopReport) -> Json:
    pod = row.pod
    return {
        **_known_fields(pod, "namespace name uid node"),
        **known(createdAt=_format_time(pod.created_s), phase=row.phase, status=pod.status),
        **_known_fields(row, "reason gpu_count over_cap near_cap"),
        **_use_value(row),
        **known(workload=_known_fields(pod.workload, "kind name") or None),
        "gpus": [
            known(uuid=uuid, index=report.indexes.get(uuid))
            | (_use_value(figures) if figures else known(capBytes=row.cap_bytes))
            for uuid, figures in row.gpu_figures
        ],
    }
