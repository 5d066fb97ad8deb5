"""Other programs' changes of the node are reverted, and no pod is affected."""

from __future__ import annotations

import time

import pytest

from tests.e2e.node import NODE, NODE_MANIFEST
from tests.e2e.pods import holding, pod, statuses
from tests.e2e.test_09_placement import entries
from webhook.core.pod.quantity import parse_quantity

VRAM = "vramwarden.io/vram"
LABEL = "vramwarden.io/gpu-memory-mib"
MERGE = "application/merge-patch+json"


class Seen:
    """The pods of both namespaces, and their restart counts."""

    def __init__(self, *teams):
        self._teams = teams

    def now(self):
        return {
            (found["metadata"]["uid"], name): status["restartCount"]
            for team in self._teams
            for found in team.pods()
            if found["status"]["phase"] == "Running"
            for name, status in statuses(found).items()
        }


@pytest.fixture
def undisturbed(gpu_node, team, system, quiet):
    """Check after a story that every pod ran undisturbed."""
    team.wait_ready(quiet)
    seen = Seen(team, system)
    before = seen.now()
    assert before
    yield
    assert seen.now() == before


def capacity(node):
    status = node.api.get(NODE_MANIFEST)["status"]
    return status["capacity"].get(VRAM), status["allocatable"].get(VRAM)


def until(team, what, check):
    """Wait for a condition and print how long it took."""
    began = time.monotonic()
    team.wait(what, check)
    print(f"{what}: {time.monotonic() - began:.2f} s")


def test_capacity_zeroed_by_hand_comes_back(gpu_node, team, undisturbed):
    before = capacity(gpu_node)
    nothing = {"status": {"capacity": {VRAM: "0"}, "allocatable": {VRAM: "0"}}}
    path = f"/api/v1/nodes/{NODE}/status"
    answer = gpu_node.api.request("PATCH", path, nothing, content_type=MERGE)
    assert answer["status"]["capacity"][VRAM] == "0"
    until(team, "capacity restored", lambda: capacity(gpu_node) == before)


def test_a_label_that_was_removed_comes_back(gpu_node, team, undisturbed):
    before = gpu_node.api.get(NODE_MANIFEST)["metadata"]["labels"][LABEL]
    change = {"metadata": {"labels": {LABEL: None}}}
    path = f"/api/v1/nodes/{NODE}"
    answer = gpu_node.api.request("PATCH", path, change, content_type=MERGE)
    assert LABEL not in answer["metadata"]["labels"]

    def label():
        return gpu_node.api.get(NODE_MANIFEST)["metadata"]["labels"].get(LABEL)

    until(team, "label restored", lambda: label() == before)


def test_a_device_plugin_that_comes_while_pods_have_vram_is_told_of_them(
    gpu_node, team, agent, undisturbed
):
    before = capacity(gpu_node)
    gpu_node.offer_whole_gpus(1)

    def told():
        return [line for line in agent.events() if "SharedBesidePlugin" in line]

    print(*team.wait("a warning", told))
    promised = sum(entry.memory_bytes * len(entry.uuids) for entry in entries(gpu_node))

    def held():
        return [parse_quantity(amount) for amount in capacity(gpu_node)] == [promised] * 2

    until(team, "no more than what is promised", held)
    agent.ready()
    gpu_node.offer_whole_gpus(0)
    until(team, "all of it again", lambda: capacity(gpu_node) == before)


def test_a_restart_of_the_kubelet_loses_nothing(gpu_node, team, undisturbed):
    before = capacity(gpu_node)
    gpu_node.stop_kubelet()
    gpu_node.start_kubelet()
    # A new pod that runs shows that the node works again.
    team.create(pod("after", "1Gi", holding("forever")))
    team.wait_ready("after")
    assert capacity(gpu_node) == before
    team.delete_pod("after")
    team.wait("it gone", lambda: "after" not in [p["metadata"]["name"] for p in team.pods()])
