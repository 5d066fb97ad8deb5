"""Preemption by the stock scheduler, which counts the memory of a node as one sum.

The pod with high priority is from policies/recipes/priority.yaml.
"""

from __future__ import annotations

import pytest

from tests.support.control_planes import wait_until
from tests.support.recipes import recipe, workload
from tests.support.schedulers import refusals, remove_pod


@pytest.fixture(scope="module", autouse=True)
def priority_class(control_plane):
    """Create the PriorityClass of the recipe."""
    for item in recipe("priority"):
        if item["kind"] == "PriorityClass":
            control_plane.api.apply(item)


def create_high(cluster):
    """Create the pod of the recipe, which requests 12Gi."""
    template = workload("priority")["spec"]["template"]
    metadata = {**template["metadata"], "name": "high", "namespace": cluster.namespace}
    assert metadata["annotations"] == {"vramwarden.io/gpu-memory": "12Gi"}
    cluster.api.create({"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata})


def create_low(cluster, **sizes):
    """Create pods with low priority one by one, waiting until each is bound."""
    for count, (name, size) in enumerate(sizes.items(), 1):
        cluster.create(name, size)
        cluster.wait(count)


def evicted(cluster):
    """Return the pods that the scheduler deleted but no kubelet has ended yet."""
    return [pod for pod in cluster.pods() if "deletionTimestamp" in pod["metadata"]]


def wait_evicted(cluster):
    """Wait for the eviction of one pod, end the pod as its kubelet would, and return its name."""
    (pod,) = wait_until("an eviction", lambda: evicted(cluster))
    remove_pod(cluster.api, pod)
    return pod["metadata"]["name"]


def test_where_a_node_has_one_gpu_a_pod_of_low_priority_makes_room(cluster):
    cluster.node("n1", 16)
    create_low(cluster, low="10Gi")
    create_high(cluster)
    assert wait_evicted(cluster) == "low"
    assert wait_until("it is bound", lambda: cluster.wait(1).get("high")) == ("n1", "GPU-n1-0")


def test_where_the_sum_is_enough_nothing_is_evicted(cluster):
    cluster.node("n1", 16, 16)
    create_low(cluster, a="10Gi", b="10Gi")
    create_high(cluster)
    wait_until("denials", lambda: refusals(cluster.api, cluster.namespace) >= 3)
    assert evicted(cluster) == []
    placed = cluster.wait(2)
    (first,) = [pod for pod in cluster.pods() if pod["metadata"]["name"] == "a"]
    remove_pod(cluster.api, first)
    assert cluster.wait(2)["high"] == placed["a"]


def test_where_the_sum_is_too_small_a_pod_may_be_evicted_in_vain(cluster):
    """Without `low`, the sum is 15Gi, but the GPUs have 8Gi and 7Gi."""
    cluster.node("n1", 16, 16)
    for count, size in enumerate(("8Gi", "9Gi"), 1):
        cluster.create(f"equal-{count}", size, priorityClassName="serving")
        cluster.wait(count)
    cluster.create("low", "5Gi")
    cluster.wait(3)
    create_high(cluster)
    assert wait_evicted(cluster) == "low"
    wait_until("denials", lambda: refusals(cluster.api, cluster.namespace) >= 3)
    assert evicted(cluster) == []
    assert "high" not in cluster.wait(2)
