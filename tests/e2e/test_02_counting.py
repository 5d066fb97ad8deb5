"""The stock scheduler counts memory, and no pod gets more than exists."""

from __future__ import annotations

import json

import pytest

from tests.e2e.pods import GIB, pod

SELECTOR = {"e2e-seed": "yes"}
STATUS = "application/merge-patch+json"


@pytest.fixture(scope="module")
def two_nodes(cluster, system):
    """Create nodes of 4Gi and 8Gi without a kubelet. Pods are bound to them but never run."""
    nodes = [fake_node(cluster.api, f"fake-{gib}", gib) for gib in (4, 8)]
    yield
    for made in nodes:
        cluster.api.delete(made)
    # The agent's DaemonSet created pods for these nodes.
    for found in system.pods():
        if found["spec"].get("nodeName", "").startswith("fake-"):
            system.delete_pod(found["metadata"]["name"])


def fake_node(api, name, gib):
    labels = {
        **SELECTOR,
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "vramwarden.io/gpu": "true",
        "vramwarden.io/gpu-memory-mib": str(gib * 1024),
        "vramwarden.io/enforcement": "sidecar",
    }
    gpu = {"uuid": f"GPU-{name}", "memory": gib * GIB, "product": "Fake", "index": 0}
    annotations = {"vramwarden.io/gpus": json.dumps([gpu])}
    made = api.create(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels, "annotations": annotations},
            "spec": {"taints": [{"key": "e2e-seed", "effect": "NoSchedule"}]},
        }
    )
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "99", "vramwarden.io/vram": f"{gib}Gi"}
    ready = {"type": "Ready", "status": "True", "reason": "Fake", "message": ""}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    path = f"/api/v1/nodes/{name}/status"
    api.request("PATCH", path, {"status": status}, content_type=STATUS)
    return made


def a_pod(name):
    # The pod tolerates all taints of a node whose kubelet does not report.
    return pod(name, "3Gi", ["true"], nodeSelector=SELECTOR, tolerations=[{"operator": "Exists"}])


def test_three_of_3gi_fit_on_4_and_8_and_the_fourth_waits_for_one_to_go(two_nodes, make_team):
    team = make_team()

    def node_of(name):
        return team.pod(name)["spec"].get("nodeName")

    for name in ("one", "two", "three"):
        team.create(a_pod(name))
        team.wait(f"{name} bound", lambda name=name: node_of(name))
    assert sorted(map(node_of, ("one", "two", "three"))) == ["fake-4", "fake-8", "fake-8"]

    team.create(a_pod("four"))
    said = "Insufficient vramwarden.io/vram"
    team.wait("an event that says why", lambda: any(said in e for e in team.events("four")))
    assert team.pod("four")["status"]["phase"] == "Pending"
    assert node_of("four") is None

    freed = node_of("two")
    team.delete_pod("two")
    team.wait("four bound", lambda: node_of("four"))
    assert node_of("four") == freed
