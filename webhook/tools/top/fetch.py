"""Read the facts of `top`. The report has a message for each unreadable fact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from webhook.adapters.kube.client import Kube, core_path
from webhook.adapters.kube.errors import KubeError
from webhook.core.kinds.nodes import NodeFigures
from webhook.tools.problems.gpus import UNMANAGED_FROM_BYTES, explain_missing_figures
from webhook.tools.snapshot.cluster import ClusterSnapshot, read_unmanaged_pods
from webhook.tools.snapshot.pod import ClusterPod
from webhook.tools.top.report import build_report
from webhook.tools.top.rows import Order, TopReport, sort_report

MOST_ASKED: Final = 8
"""Maximum number of nodes whose unmanaged pods are listed, with one request each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOptions:
    """Options of the user."""

    namespace: str
    """Namespace; empty for all."""
    selector: str = ""
    """Label selector for pods."""
    node: str = ""
    pod: str = ""
    workload: str = ""
    """Name of the workload, or `kind/name`."""
    order: Order = Order.NAME


def read_report(kube: Kube, wanted: TopOptions) -> TopReport:
    """Return the report. Raises KubeError if the API server does not respond."""
    snapshot = ClusterSnapshot(kube, wanted.namespace, wanted.selector)
    nodes: Sequence[NodeFigures] | None = snapshot.attempt(
        lambda: snapshot.gpu_nodes, "no figures of GPUs"
    )
    pods: Sequence[ClusterPod] | None = snapshot.attempt(lambda: snapshot.pods, "no pods")
    missing = [f"{what}: {why}" for what, why in snapshot.left_out.items()]
    if nodes == ():
        shared = snapshot.attempt(lambda: snapshot.shared_nodes)
        missing.append(explain_missing_figures(None if shared is None else shared.values()))
    if pods == () and _lacks_namespace(kube, wanted.namespace):
        missing.append(f"no pods: there is no namespace {wanted.namespace}; name one with -n")
    if wanted.node:
        known = nodes
        nodes = nodes and [node for node in nodes if node.name == wanted.node]
        if known and not nodes:
            missing.append(f"no figures of node {wanted.node}: no sentry reports of it")
        pods = pods and [pod for pod in pods if pod.node == wanted.node]
    if nodes and pods is not None:
        pods = [*pods, *_read_unmanaged_pods(kube, wanted.namespace, nodes)]
    report = build_report(nodes, pods, snapshot.now_s, namespace=wanted.namespace, missing=missing)
    return sort_report(_filter_rows(report, wanted), wanted.order)


def _lacks_namespace(kube: Kube, namespace: str) -> bool:
    """Return True if the namespace does not exist; False if unknown or ""."""
    try:
        return bool(namespace) and kube.find(core_path("namespaces", namespace)) is None
    except KubeError:
        return False


def _read_unmanaged_pods(
    kube: Kube, namespace: str, nodes: Sequence[NodeFigures]
) -> list[ClusterPod]:
    uids_by_node = {
        node.name: {
            uid
            for gpu in node.gpus
            for uid, held_bytes in gpu.unmanaged.items()
            if uid and held_bytes >= UNMANAGED_FROM_BYTES
        }
        for node in nodes
        if not node.not_shared
    }
    found: list[ClusterPod] = []
    for node in [name for name, uids in uids_by_node.items() if uids][:MOST_ASKED]:
        try:
            pods = read_unmanaged_pods(kube, namespace, node)
        except KubeError:
            break
        found += [pod for pod in pods if pod.uid in uids_by_node[node]]
    return found


def _filter_rows(report: TopReport, wanted: TopOptions) -> TopReport:
    kind, _, name = wanted.workload.rpartition("/")
    pods = (row for row in report.pods or () if wanted.pod in {"", row.pod.name})
    workloads = (
        row
        for row in report.workloads or ()
        if name in {"", row.name} and kind.lower() in {"", row.kind.lower()}
    )
    return replace(
        report,
        pods=report.pods and tuple(pods),
        workloads=report.workloads and tuple(workloads),
    )
