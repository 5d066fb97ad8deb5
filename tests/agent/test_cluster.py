"""The agent with a real API server: its patches of the node, and its reconciliation."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.agent.nodes import BOTH, FULL, RULES
from tests.support import gpu_nodes
from tests.support.cluster_programs import wait_until
from tests.support.clusters import a_gpu, a_node
from tests.support.scripted_nvml import MEASURED, VRAM


def health(node):
    """Return the health of each GPU in the node's list."""
    listed = json.loads(node.read()["metadata"]["annotations"]["vramwarden.io/gpus"])
    return {gpu["uuid"]: gpu.get("healthy") for gpu in listed}


@pytest.fixture
def agent(make_agent, node):
    """Run an agent whose grace period for a lost GPU is four seconds."""
    with make_agent("--lost-after", "4s") as running:
        node.wait_for(FULL)
        yield running


def test_capacity_labels_and_the_list_appear_and_those_of_others_stay(agent, node):
    assert node.read()["metadata"]["labels"] == {
        "nvidia.com/gpu.product": "NVIDIA-A100",
        "vramwarden.io/share": "true",
        "vramwarden.io/gpu": "true",
        "vramwarden.io/gpu-memory-mib": "81300",
        "vramwarden.io/gpu-memory-free-mib": "81300",
        "vramwarden.io/gpu-memory-free-mib.2": "40340",
        "vramwarden.io/gpu-count": "2",
        "vramwarden.io/gpu-product": "NVIDIA-A100-SXM4-80GB",
        "vramwarden.io/driver-version": "570.86.15",
        "vramwarden.io/enforcement": MEASURED,
        "vramwarden.io/device-names": "uuid",
    }
    gpus = json.loads(node.read()["metadata"]["annotations"]["vramwarden.io/gpus"])
    assert [(gpu["uuid"], gpu["index"]) for gpu in gpus] == [("GPU-a", 0), ("GPU-b", 1)]
    *verdicts, last = agent.events("node patched")
    assert all(
        "annotations[vramwarden.io/sharing]" in str(verdict["changes"]) for verdict in verdicts
    )
    assert "labels[vramwarden.io/gpu]" in str(last["changes"])


def test_capacity_that_is_zeroed_or_removed_comes_back(agent, node):
    node.zero()
    node.wait_for(FULL)
    node.patch({"status": {"capacity": {VRAM: None}, "allocatable": None}}, "/status")
    node.wait_for(FULL)


def test_labels_and_the_list_come_back_and_labels_of_others_are_theirs(agent, node):
    labels = node.labels()
    removed = {"labels": dict.fromkeys(labels), "annotations": {"vramwarden.io/gpus": "[]"}}
    removed["labels"]["nvidia.com/gpu.product"] = None
    node.patch({"metadata": removed})
    wait_until("the labels", lambda: node.labels() == labels)
    metadata = node.read()["metadata"]
    assert "GPU-a" in metadata["annotations"]["vramwarden.io/gpus"]
    assert "nvidia.com/gpu.product" not in metadata["labels"]


def test_a_lost_gpu_leaves_after_the_grace_and_comes_back_at_once(agent, node):
    agent.script(BOTH + "fail nvmlDeviceGetUUID 15 gpu=1\n")
    agent.wait_for("a GPU is lost; it leaves the list if that lasts")
    wait_until("a mark", lambda: health(node) == {"GPU-a": None, "GPU-b": False})
    assert node.amounts() == [FULL, FULL]
    node.wait_for("81300Mi")
    assert node.labels()["vramwarden.io/gpu-count"] == "1"
    agent.script(BOTH)
    node.wait_for(FULL)
    assert health(node) == {"GPU-a": None, "GPU-b": None}


def test_it_waits_for_a_node_that_does_not_exist_yet(make_agent, node, control_plane):
    control_plane.api.delete(node.manifest)
    with make_agent() as agent:
        agent.wait_for("waiting for the node")
        control_plane.api.create(node.manifest)
        node.wait_for(FULL)


def ready(agent):
    program = (sys.executable, "-I", "-m", "webhook.agent.heartbeat")
    command = [*program, "ready", str(agent.run_folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_the_rights_in_the_package_s_docstring_are_enough(make_agent, account, node):
    with make_agent(kubeconfig=account(RULES)) as agent:
        node.wait_for(FULL)
        node.zero()
        node.wait_for(FULL)
        assert not [event for event in agent.events() if event["level"] in ("warning", "error")]


def test_a_sentry_that_acts_is_shown_beside_conditions_of_others(
    make_agent, account, node, control_plane
):
    api = control_plane.api
    gpu_nodes.define(api)
    gpus = (a_gpu(9, uuid="GPU-a", measured=True), a_gpu(9, uuid="GPU-b", measured=True))
    ready = {"type": "Ready", "status": "True"}
    node.patch({"status": {"conditions": [ready]}}, "/status")

    def conditions():
        return {
            condition["type"]: condition["status"]
            for condition in node.read()["status"]["conditions"]
        }

    expects = {"Ready": "True", "vramwarden.io/SentryActing": "True"}
    try:
        with make_agent("--expect-sentry", kubeconfig=account(RULES)) as agent:
            node.wait_for(FULL)
            gpu_nodes.store(api, [replace(a_node(node.name, *gpus, age_s=0).figures, acts=True)])
            wait_until("the condition", lambda: conditions() == expects)
            assert node.labels()["vramwarden.io/sentry"] == "true"
            assert not [event for event in agent.events() if event["level"] in ("warning", "error")]
        with make_agent():
            wait_until("no condition", lambda: conditions() == {"Ready": "True"})
    finally:
        api.delete(gpu_nodes.CRD)


@pytest.mark.parametrize(
    ("rule", "verb", "message"),
    [
        (0, "get", "the node cannot be watched; retrying"),
        (0, "watch", "the node cannot be watched; retrying"),
        (0, "patch", "the node cannot be patched; retrying"),
        (1, "patch", "the node cannot be patched; retrying"),
    ],
)
def test_each_right_is_needed_and_its_absence_is_reported(rule, verb, message, make_agent, account):
    rules = json.loads(json.dumps(RULES))
    rules[rule]["verbs"].remove(verb)
    rules[rule]["verbs"] = rules[rule]["verbs"] or ["get"]
    with make_agent(kubeconfig=account(rules)) as agent:
        event = agent.wait_for(message)
        assert "missing from our role" in event["why"]
        assert f'cannot {verb} resource "nodes' in event["why"]


def test_it_is_ready_once_the_node_shows_what_it_should(make_agent, account, control_plane, node):
    kubeconfig = account([RULES[0]])
    with make_agent(kubeconfig=kubeconfig) as agent:
        agent.wait_for("the node cannot be patched; retrying")
        assert not ready(agent)
        account(RULES)
        node.wait_for(FULL)
        wait_until("readiness", lambda: ready(agent))
