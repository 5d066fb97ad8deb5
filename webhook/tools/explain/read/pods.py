"""Reads what `explain` goes by of a pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

from webhook.adapters.kube.histories import HistoriesApi
from webhook.core.placement.assignments import read_pod_state
from webhook.tools.explain.judge.report import PodFacts
from webhook.tools.explain.judge.untranslated import seems_to_ask
from webhook.tools.explain.kinds import POD
from webhook.tools.explain.read.reader import ExplainReader
from webhook.tools.shared.node import ClusterNode
from webhook.tools.shared.pod import ClusterPod
from webhook.tools.shared.read import (
    read_gpu_nodes,
    read_pods,
    read_shared_nodes,
    why_no_figures,
)

if TYPE_CHECKING:
    from webhook.adapters.kube.client import Kube


def read_pod_facts(
    kube: Kube, namespace: str, name: str, pod: ClusterPod | None = None
) -> PodFacts:
    """Read what is to be known of a pod, which may have been read already; raises KubeError."""
    reader = ExplainReader(kube, namespace)
    if pod is None:
        raw = kube.find(reader.path(POD, name))
        pod = None if raw is None else ClusterPod(raw)
    nodes = histories = None
    if pod is None or pod.managed:
        nodes = reader.tried(lambda: tuple(read_gpu_nodes(kube)), why_no_figures)
        histories = reader.tried(lambda: HistoriesApi(kube).of(namespace))
    seen: dict[str, ClusterNode] | None = None
    names: dict[str, str] = {}
    workloads: set[str] = set()
    log: list[str] = []
    pods = anew = None
    if pod is None:
        rows = reader.pod_rows()
        names = {one.uid: one.name for one in rows}
        made = (one.workload for one in rows if one.owner is not None)
        workloads = {f"{one.kind.lower()}/{one.name}" for one in made}
    elif pod.managed and not pod.node:
        found = reader.tried(lambda: read_shared_nodes(kube))
        seen = None if found is None else {one.name: one for one in found}
        own = reader.tried(lambda: read_pods(kube, namespace))
        names = {one.uid: one.name for one in own or ()}
        if not read_pod_state(pod.raw).at_binding and seen:
            pods = reader.tried(lambda: tuple(read_pods(kube, "")))
    elif pod.managed:
        log = reader.log(pod, name)
        if nodes is not None and all(one.name != pod.node for one in nodes):
            node = reader.tried(lambda: kube.node(pod.node))
            seen = None if node is None else {pod.node: ClusterNode(node)}
    elif not pod.ended and seems_to_ask(pod):
        # Imported here: few need policies, which are slow to load.
        from webhook.tools.explain.read.anew import read_anew  # noqa: PLC0415

        anew = read_anew(reader, pod)
    return PodFacts(
        namespace=namespace,
        name=name,
        now_s=kube.now_s(),
        pod=pod,
        nodes=nodes,
        seen=seen,
        pods=pods,
        names=names,
        workloads=tuple(sorted(workloads)),
        anew=anew,
        log=tuple(log),
        histories=tuple(histories or ()),
        left_out=tuple(reader.left_out),
    )
