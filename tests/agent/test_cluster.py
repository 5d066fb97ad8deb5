"""The agent against a real API server: what it writes to a node, and what it reconciles."""

import json
import subprocess
import sys
import time

import pytest

from tests.agent.nodes import BOTH, FULL, GPU_A, GPU_B, RULES, SECONDS
from tests.support.agents import MEASURED, VRAM, wait_until


def health(node):
    """Return what the list of GPUs says of the health of each."""
    listed = json.loads(node.read()["metadata"]["annotations"]["vramwarden.io/gpus"])
    return {gpu["uuid"]: gpu.get("healthy") for gpu in listed}


@pytest.fixture
def agent(make_agent, node):
    """Run an agent for which a lost GPU is lost after four seconds."""
    with make_agent("--lost-after", "4s") as running:
        node.wait_for(FULL, timeout=20)
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
    assert len(agent.events("node patched")) == 1


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
    wait_until("the labels", lambda: node.labels() == labels, timeout=SECONDS)
    metadata = node.read()["metadata"]
    assert "GPU-a" in metadata["annotations"]["vramwarden.io/gpus"]
    assert "nvidia.com/gpu.product" not in metadata["labels"]


def test_a_lost_gpu_leaves_after_the_grace_and_comes_back_at_once(agent, node):
    agent.script(BOTH + "fail nvmlDeviceGetUUID 15 gpu=1\n")
    agent.wait_for("a GPU is lost; it leaves the list if that lasts")
    wait_until("a mark", lambda: health(node) == {"GPU-a": None, "GPU-b": False}, timeout=SECONDS)
    assert node.amounts() == [FULL, FULL]
    node.wait_for("81300Mi", timeout=20)
    assert node.labels()["vramwarden.io/gpu-count"] == "1"
    agent.script(BOTH)
    node.wait_for(FULL)
    assert health(node) == {"GPU-a": None, "GPU-b": None}


def test_another_machine_behind_the_same_node_shows_its_own_gpus_alone(make_agent, node):
    """The grace is the usual one, of minutes."""
    node.patch({"status": {"nodeInfo": {"bootID": "one"}}}, "/status")
    with make_agent():
        node.wait_for(FULL, timeout=20)
    node.patch({"status": {"nodeInfo": {"bootID": "two"}}}, "/status")
    again = make_agent()
    again.script(f"driver 570.86.15\n{GPU_A.replace('GPU-a', 'GPU-z')}")
    with again:
        node.wait_for("81300Mi", timeout=20)
        assert health(node) == {"GPU-z": None}


def test_a_driver_that_is_down_lowers_nothing_and_the_node_is_still_reconciled(agent, node):
    before = node.labels()
    agent.script("fail * 9\n")
    agent.wait_for("the driver does not answer; the node keeps what it shows")
    time.sleep(6)  # longer than the grace
    assert node.amounts() == [FULL, FULL]
    node.zero()
    node.wait_for(FULL)
    assert node.labels() == before
    agent.script(BOTH)
    agent.wait_for("the driver answers")
    assert node.amounts() == [FULL, FULL]


def test_a_gpu_in_mig_mode_is_skipped_with_a_line(agent, node):
    agent.script("driver 570.86.15\n" + GPU_A + GPU_B.replace(" name", " mig=1 name"))
    node.wait_for("81300Mi")
    assert agent.wait_for("GPU skipped")["gpu"] == "GPU-b"


def test_an_agent_that_starts_while_the_driver_is_down_remembers(make_agent, node):
    with make_agent():
        node.wait_for(FULL, timeout=20)
    node.zero()
    again = make_agent()
    again.script("fail * 9\n")
    with again:
        node.wait_for(FULL, timeout=20)


def test_a_node_without_a_driver_is_left_alone_and_that_is_reported_once(make_agent, node):
    agent = make_agent()
    agent.script("fail * 9\n")
    with agent:
        agent.wait_for("no GPU can be read on this node; waiting, and leaving the node alone")
        time.sleep(3)
        said = [event["msg"] for event in agent.events()][1:]
        assert [msg for msg in said if not msg.startswith("ResourceSlices")] == [  # of old servers
            "no GPU can be read on this node; waiting, and leaving the node alone"
        ]
        assert node.labels() == {}
        agent.script(BOTH)
        node.wait_for(FULL)


def test_a_fixed_amount_is_advertised_without_a_driver(make_agent, node):
    agent = make_agent("--vram", "48Gi")
    agent.script("fail * 9\n")
    with agent:
        node.wait_for("48Gi", timeout=20)
    assert node.labels()["vramwarden.io/enforcement"] == "none"
    assert "vramwarden.io/gpus" not in node.read()["metadata"].get("annotations", {})


def test_two_agents_on_one_node_do_not_fight(agent, make_agent, node, tmp_path):
    with make_agent(folder=tmp_path / "other") as other:
        other.wait_for("GPUs" if other.events("GPUs") else "started")
        time.sleep(2)
        node.zero()
        node.wait_for(FULL)
        time.sleep(2)
        version = node.read()["metadata"]["resourceVersion"]
        time.sleep(3)
        assert node.read()["metadata"]["resourceVersion"] == version
        patched = len(agent.events("node patched")) + len(other.events("node patched"))
        assert patched <= 3  # at first, and after the zeroing one or both


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
        node.wait_for(FULL, timeout=20)
        node.zero()
        node.wait_for(FULL)
        assert not [event for event in agent.events() if event["level"] in ("warning", "error")]


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
        time.sleep(1)
        assert not ready(agent)
        account(RULES)
        node.wait_for(FULL, timeout=30)
        wait_until("readiness", lambda: ready(agent), timeout=10)
