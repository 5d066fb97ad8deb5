"""Choice of one of the node's two GPUs at binding, visible to the pod from the start."""

from __future__ import annotations

import json

import pytest

from tests.e2e.asking import diagnose
from tests.e2e.cluster import SYSTEM
from tests.e2e.node import NODE_MANIFEST
from tests.e2e.nvidia_runtime import UUIDS
from tests.e2e.pods import GIB, holding, pod
from webhook.core.placement.assignment_codec import config_map_name, read_assignments

SHOWS = holding("echo NVIDIA_VISIBLE_DEVICES=$NVIDIA_VISIBLE_DEVICES; forever")
ENFORCER_SHOWS = ("python3", "-c", "import os; print(os.environ['NVIDIA_VISIBLE_DEVICES'])")


def entries(cluster):
    """Return the assignments of the node."""
    name = config_map_name(NODE_MANIFEST["metadata"]["name"])
    found = cluster.api.request("GET", f"/api/v1/namespaces/{SYSTEM}/configmaps/{name}")
    assignments, whole = read_assignments(found["data"])
    assert whole
    return assignments.values()


def entered(team):
    """Return the pods of a team that are in the node's assignments."""
    pods = [entry.pod.partition("/") for entry in entries(team.cluster)]
    return {name for namespace, _, name in pods if namespace == team.namespace}


def gpus_of_node(cluster):
    """Return the unassigned memory of the node's GPUs, keyed by UUID."""
    annotations = cluster.api.get(NODE_MANIFEST)["metadata"]["annotations"]
    listed = json.loads(annotations["vramwarden.io/gpus"])
    gpus = {item["uuid"]: {**item, "free": item["memory"]} for item in listed}
    for entry in entries(cluster):
        for uuid in entry.uuids:
            gpus[uuid]["free"] -= entry.memory_bytes
    return gpus


def free_gib(cluster):
    """Return the free memory of each GPU according to the node's assignments."""
    return {uuid: gpu["free"] / GIB for uuid, gpu in gpus_of_node(cluster).items()}


@pytest.fixture(scope="module")
def alone(gpu_node, make_team):
    """Return a new team, separate from the pods of other stories."""
    return make_team()


@pytest.fixture(scope="module")
def size_gib(alone, team, quiet):
    """Return a size of which one fits on each GPU, but not two."""
    team.wait_ready(quiet)  # the pod is bound and has an assignment
    free = free_gib(alone.cluster)
    size = int(max(free.values()) / 2) + 1
    assert size <= min(free.values()), free
    return size


def gpu_of(team, name):
    return team.pod(name)["metadata"]["annotations"]["vramwarden.io/gpu"]


def test_two_pods_run_on_a_gpu_each_and_the_third_is_told_what_is_free(alone, size_gib):
    for name in ("one", "two"):
        alone.create(pod(name, f"{size_gib}Gi", SHOWS))
        alone.wait_ready(name)
    assert {gpu_of(alone, "one"), gpu_of(alone, "two")} == set(UUIDS)
    alone.create(pod("three", f"{size_gib}Gi", SHOWS))
    denials = alone.wait(
        "a denial",
        lambda: [line for line in alone.events("three") if "bind.vramwarden.io" in line],
    )
    print(denials[-1])
    largest = max(free_gib(alone.cluster).values())
    assert f"{size_gib}Gi free, which this pod needs" in denials[-1]
    assert f"the largest free amount is {largest:g}Gi, on GPU " in denials[-1]
    assert "nodeName" not in alone.pod("three")["spec"]
    said = diagnose(alone.cluster.kubeconfig, "three", alone.namespace)
    assert f"ask for {largest:g}Gi or less" in said


@pytest.mark.parametrize("name", ["one", "two"])
def test_application_and_enforcer_see_that_gpu_and_no_other(alone, name):
    gpu = gpu_of(alone, name)
    assert alone.log(name).splitlines() == [f"NVIDIA_VISIBLE_DEVICES={gpu}"]
    assert alone.run(name, *ENFORCER_SHOWS, container="vram-enforcer").strip() == gpu


def test_a_pod_that_is_deleted_frees_its_gpu_for_the_one_that_waits(alone):
    freed = gpu_of(alone, "one")
    alone.delete_pod("one")
    alone.wait_ready("three")
    assert gpu_of(alone, "three") == freed
    assert entered(alone) == {"two", "three"}
    for name in ("two", "three"):
        alone.delete_pod(name)
    alone.wait("an empty list", lambda: not entered(alone))
