"""`explain` of a pod that the stock scheduler cannot place."""

from __future__ import annotations

import time

import pytest

from tests.scheduling.replicas import Cluster, placing
from tests.support.control_planes import wait_until
from tests.support.schedulers import GIB
from webhook.core.kinds.nodes import GpuFigures, NodeFigures
from webhook.core.placement.fit import Need
from webhook.tools.problems.capacity import find_best_fit, find_fits
from webhook.tools.problems.pending_pod import Room, find_pending
from webhook.tools.snapshot.node import ClusterNode
from webhook.tools.snapshot.pod import ClusterPod


@pytest.fixture
def cluster(control_plane, tmp_path, make_namespace):
    with placing(control_plane, tmp_path), Cluster(control_plane.api, make_namespace()) as made:
        yield made


def test_a_binding_that_was_denied_is_told_and_what_would_start_now_starts(cluster):
    api, namespace = cluster.api, cluster.namespace
    cluster.node("n1", 8, 8)
    for name in ("a", "b"):
        cluster.create(name, "5Gi")
    cluster.wait(2)
    cluster.create("c", "5Gi")
    free = [
        GpuFigures(
            uuid=f"GPU-n1-{index}",
            index=index,
            product="H",
            total_bytes=8 * GIB,
            usable_bytes=8 * GIB,
            free_bytes=3 * GIB,
        )
        for index in range(2)
    ]
    nodes = (
        NodeFigures(
            name="n1",
            observed_s=time.time(),
            driver_version="580",
            enforcement="sidecar",
            gpus=tuple(free),
        ),
    )
    seen = {"n1": ClusterNode(api.request("GET", "/api/v1/nodes/n1"))}

    def explained():
        pod = ClusterPod(api.request("GET", f"/api/v1/namespaces/{namespace}/pods/c"))
        need = Need(5 * GIB)
        fits = find_fits(pod, need, nodes, seen, time.time())
        room = Room(need=need, nodes=nodes, fits=fits, own_pods={}, reads_nodes=True)
        problems = [*find_pending(pod, room, explained=False)]
        return (problems, find_best_fit(fits)) if len(problems) > 1 else None

    problems, found = wait_until("a condition of the pod", explained)
    assert [problem.code.value for problem in problems] == ["GPUsSplit", "BindingDenied"]
    assert problems[1].message == (
        "the scheduler tried a node, and vramwarden denied that binding: no GPU of node n1 has 5Gi "
        "free, which this pod needs; the largest free amount is 3Gi, on GPU 0 (GPU-n1-0); the "
        "scheduler retries, also on other nodes"
    )
    amount = found.largest_bytes
    assert amount == 3 * GIB
    cluster.create("d", str(amount))
    assert cluster.wait(3)["d"][0] == "n1"
