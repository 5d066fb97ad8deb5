"""What `vramwarden top` says to programs: everything, in bytes and Unix times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from webhook.core.kinds.nodes import write_time
from webhook.tools.shared.output import as_report, known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from webhook.core.kinds.nodes import GpuFigures, PodFigures
    from webhook.tools.top.judge import (
        Amounts,
        NodeRow,
        PodOnGpu,
        PodRow,
        TopReport,
        Trouble,
        WorkloadRow,
    )

    Json = dict[str, Any]


def as_value(report: TopReport, parts: Sequence[str]) -> Json:
    """Return parts of a report, `nodes`, `pods` and `workloads`, as JSON."""
    value = as_report("TopReport", {"time": write_time(report.at_s)})
    if report.namespace:
        value["namespace"] = report.namespace
    if "nodes" in parts and report.nodes is not None:
        value["totals"] = _amounts(report.amounts)
        value["nodes"] = [_node(one) for one in report.nodes]
    if "pods" in parts and report.pods is not None:
        value["pods"] = [_pod(one) for one in report.pods]
    if "workloads" in parts and report.workloads is not None:
        value["workloads"] = [_workload(one) for one in report.workloads]
    value["troubles"] = [_trouble(one) for one in report.troubles]
    value["missing"] = list(report.missing)
    return value


def unchanging(value: Json) -> Json:
    """Return a report as JSON without the times at which it was made, to compare it by."""
    nodes = [
        {key: one for key, one in node.items() if key != "observedAt"}
        for node in value.get("nodes", ())
    ]
    troubles = [
        {key: one for key, one in trouble.items() if key != "message"}
        for trouble in value["troubles"]
    ]
    return {**value, "time": "", "nodes": nodes, "troubles": troubles}


def _amounts(sums: Amounts) -> Json:
    return known(
        nodes=sums.nodes,
        gpus=sums.gpus,
        usableBytes=sums.usable_bytes,
        promisedBytes=sums.promised_bytes,
        promisedKnownGPUs=sums.promised_gpus,
        usedBytes=sums.used_bytes,
        usedKnownGPUs=sums.used_gpus,
        freeBytes=sums.free_bytes,
        largestFreeBytes=sums.largest_free_bytes,
        unmanagedBytes=sums.unmanaged_bytes,
        pods=sums.pods,
    )


def _node(node: NodeRow) -> Json:
    return known(
        name=node.name,
        observedAt=write_time(node.observed_s),
        stale=node.stale,
        driverVersion=node.driver_version,
        enforcement=node.enforcement,
        notShared=node.not_shared,
        held=node.held,
        totals=_amounts(node.amounts),
        gpus=[_gpu(gpu, node) for gpu in node.gpus],
    )


def _gpu(gpu: GpuFigures, node: NodeRow) -> Json:
    return known(
        uuid=gpu.uuid,
        index=gpu.index,
        product=gpu.product,
        healthy=gpu.healthy,
        fault=gpu.fault,
        totalBytes=gpu.total_bytes,
        usableBytes=gpu.usable_bytes,
        promisedBytes=gpu.promised_bytes,
        usedBytes=gpu.used_bytes,
        freeBytes=gpu.free_bytes,
        unmanagedBytes=gpu.unmanaged_bytes,
        unattributedBytes=gpu.unattributed_bytes,
        pods=[_named(node, one.uid) | _held(one) for one in gpu.pods],
        unmanaged=[_named(node, one.uid) | {"usedBytes": one.used_bytes} for one in gpu.unmanaged],
    )


def _held(held: PodFigures | PodOnGpu) -> Json:
    return known(
        capBytes=held.cap_bytes,
        usedBytes=held.used_bytes,
        peakBytes=held.peak_bytes,
        stops=held.stops,
    )


def _named(node: NodeRow, uid: str) -> Json:
    namespace, name = node.name_of(uid)
    return known(uid=uid, namespace=namespace, name=name)


def _pod(pod: PodRow) -> Json:
    return known(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        node=pod.node,
        createdAt=None if pod.created_s is None else write_time(pod.created_s),
        phase=pod.phase.value,
        status=pod.status,
        reason=pod.why,
        gpuCount=pod.gpu_count,
        capBytes=pod.cap_bytes,
        usedBytes=pod.used_bytes,
        peakBytes=pod.peak_bytes,
        nearCap=pod.near_cap,
        stops=pod.stops,
        workload=known(kind=pod.kind, name=pod.workload) or None,
        gpus=[known(uuid=held.uuid, index=held.index) | _held(held) for held in pod.held],
    )


def _workload(row: WorkloadRow) -> Json:
    return known(
        namespace=row.namespace,
        kind=row.kind,
        name=row.name,
        pods=row.pods,
        running=row.running,
        waiting=row.waiting,
        capBytes=row.cap_bytes,
        promisedBytes=row.promised_bytes,
        usedBytes=row.used_bytes,
        peakBytes=row.peak_bytes,
        stops=row.stops,
    )


def _trouble(trouble: Trouble) -> Json:
    return known(
        reason=trouble.reason.value,
        node=trouble.node,
        gpu=trouble.gpu,
        bytes=trouble.amount_bytes,
        uid=trouble.uid,
        message=trouble.sentence,
        fix=trouble.fix,
    )
