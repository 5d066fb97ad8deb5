"""One allocator per GPU on a Node of a real API server: a plugin that appears and goes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.agent.nodes import BOTH, CONFIG_MAPS, FULL, RULES, SLICES
from tests.support.cluster_programs import wait_until
from tests.support.control_planes import needs
from webhook.core.node.other_allocators import SETTLE_S
from webhook.core.placement.assignment_codec import (
    WholeGpuPods,
    config_map_name,
    write_assignments,
    write_whole_gpu_pods,
)
from webhook.core.placement.assignments import Assignment
from webhook.names import NODE_DRA_ANNOTATION as MARK
from webhook.names import NODE_QUESTION_LABEL, NODE_SHARE_LABEL, NODE_SHARING_ANNOTATION

EVENTS = {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]}
IN_USE = BOTH.replace("GPU-b", "GPU-b used=1073741824")
TAINT = "startup-taint.cluster-autoscaler.kubernetes.io/vramwarden"
OTHER = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}


SETTLED = SETTLE_S + 60.0
"""Timeout within which a node without whole GPUs is shared, in seconds."""


class Plugin:
    """NVIDIA's device plugin as a kubelet shows it, on a Node without the label `share`."""

    def __init__(self, node):
        self._node = node
        node.patch({"metadata": {"labels": {NODE_SHARE_LABEL: None}}})

    def comes(self):
        self._offers("8", "8")

    def goes(self):
        """Remove the plugin, as after the five minutes for which the kubelet remembers it."""
        self._offers("8", "0")
        self._offers("0", "0")

    def _offers(self, capacity, allocatable):
        amounts = {"capacity": capacity, "allocatable": allocatable}
        status = {part: {"nvidia.com/gpu": amount} for part, amount in amounts.items()}
        self._node.patch({"status": status}, "/status")


@pytest.fixture
def plugin(node):
    return Plugin(node)


@pytest.fixture
def told(control_plane, node):
    """Return a function that returns the reasons of the node's Events in order.

    A repeated Event has its count.
    """

    def reasons():
        about = f"involvedObject.kind=Node,involvedObject.name={node.name}"
        path = "/api/v1/namespaces/default/events"
        found = control_plane.api.request("GET", path, fieldSelector=about)["items"]
        ordered = sorted(found, key=lambda event: int(event["metadata"]["resourceVersion"]))
        counts = [(event.get("series") or {}).get("count", 1) for event in ordered]
        return [
            f"{event['reason']} x{count}" if count > 1 else event["reason"]
            for event, count in zip(ordered, counts, strict=True)
        ]

    return reasons


@pytest.fixture
def listed(control_plane, node):
    """Return a function that writes the node's assignment list with pods and a response."""
    metadata = {"name": config_map_name(node.name), "namespace": "default"}
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}

    def write(pods, whole=None):
        control_plane.api.delete(made)
        control_plane.api.create(
            {**made, "data": write_assignments(pods) | write_whole_gpu_pods(whole)}
        )

    yield write
    control_plane.api.delete(made)


SHARE = {"uid": Assignment(pod="team/train", uuids=("GPU-a",), memory_bytes=2**30, since_s=1)}


def is_ready(agent):
    program = (sys.executable, "-I", "-m", "webhook.agent.heartbeat")
    command = [*program, "ready", str(agent.run_folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_a_plugin_that_is_there_goes_and_comes_back(
    make_agent, account, node, plugin, told, listed
):
    """The agent has the permissions of the package's docstring, and its scans are minutes apart."""
    plugin.comes()
    rights = account([*RULES, CONFIG_MAPS, EVENTS, SLICES])
    options = ("--namespace", "default", "--interval", "300s")
    with make_agent(*options, kubeconfig=rights) as agent:
        line = agent.wait_for("the GPUs are not shared")
        assert "nvidia.com/gpu.deploy.device-plugin=false" in line["why"]
        wait_until("an Event", lambda: told() == ["GPUsNotShared"])
        wait_until("readiness", lambda: is_ready(agent))
        assert (node.amounts(), node.labels()) == ([None, None], {})
        plugin.goes()
        asked = wait_until(
            "a question", lambda: node.labels().get(NODE_QUESTION_LABEL), timeout=SETTLED
        )
        assert node.amounts() == [None, None]
        listed({}, WholeGpuPods(asked, 0, ()))
        node.wait_for(FULL)
        assert node.labels()["vramwarden.io/gpu"] == "true"
        assert NODE_QUESTION_LABEL not in node.labels()
        plugin.comes()
        node.wait_for("0")
        wait_until("no label", lambda: node.labels() == {})
        assert "vramwarden.io/gpus" not in node.read()["metadata"].get("annotations", {})
        expected = ["GPUsShared", "GPUsNotShared x2"]
        wait_until("Events", lambda: told() == expected)
        assert not [event for event in agent.events() if event["level"] == "error"]


def test_a_plugin_that_comes_to_a_share_waits_until_that_has_ended(
    make_agent, node, told, listed, request
):
    listed(SHARE)
    with make_agent("--namespace", "default") as agent:
        node.wait_for(FULL)
        request.getfixturevalue("plugin").comes()
        assert "device plugin" in agent.wait_for("the GPUs are shared and offered whole")["why"]
        wait_until("an Event", lambda: told() == ["SharedBesidePlugin"])
        node.wait_for("1Gi")
        verdict = node.read()["metadata"]["annotations"][NODE_SHARING_ANNOTATION]
        assert verdict.startswith("Draining: a device plugin")
        listed({})
        node.wait_for("0")
        expected = ["SharedBesidePlugin", "GPUsNotShared"]
        wait_until("an Event", lambda: told() == expected)


def test_a_restart_beside_a_plugin_and_a_share_changes_nothing(make_agent, node, listed, request):
    listed(SHARE)
    with make_agent("--namespace", "default") as agent:
        node.wait_for(FULL)
        request.getfixturevalue("plugin").comes()
        node.wait_for("1Gi")
    with make_agent("--namespace", "default") as agent:
        agent.wait_for("the GPUs are shared and offered whole")
        assert not agent.events("node patched")
    assert node.amounts() == ["1Gi", "1Gi"]


def test_a_slice_with_one_of_its_gpus_keeps_a_node_from_being_shared(
    control_plane, make_agent, account, node, told
):
    needs(control_plane.api, "ResourceSlice", "resource.k8s.io/v1")
    node.patch({"metadata": {"labels": {NODE_SHARE_LABEL: None}}})
    attributes = {"type": {"string": "gpu"}, "uuid": {"string": "GPU-b"}}
    made = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node.name}-gpu"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": node.name,
            "pool": {"name": node.name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-1", "attributes": attributes}],
        },
    }
    control_plane.api.create(made)
    rights = account([*RULES, CONFIG_MAPS, EVENTS, SLICES])
    with make_agent("--namespace", "default", kubeconfig=rights) as agent:
        assert "(gpu.nvidia.com)" in agent.wait_for("the GPUs are not shared")["why"]
        wait_until("an Event", lambda: told() == ["GPUsNotShared"])
        control_plane.api.delete(made)
        wait_until("the mark", lambda: MARK in str(node.read()))
        assert node.amounts() == [None, None]


def test_a_node_whose_gpus_are_in_use_begins_once_they_are_free(make_agent, node, told):
    agent = make_agent()
    agent.script(IN_USE)
    with agent:
        assert "GPU-b" in agent.wait_for("the GPUs are in use; waiting until they are free")["why"]
        wait_until("readiness", lambda: is_ready(agent))
        assert (node.amounts(), node.labels()) == ([None, None], {})
        agent.script(BOTH)
        node.wait_for(FULL)
        agent.script(IN_USE)  # used by a share
        expected = ["DrainWholeGPUPods", "GPUsShared"]
        wait_until("Events", lambda: told() == expected)
    again = make_agent()
    again.script(IN_USE)
    node.zero()
    with again:
        node.wait_for(FULL)


def test_the_startup_taint_goes_with_the_first_capacity_and_others_stay(make_agent, node):
    ours = {"key": TAINT, "value": "true", "effect": "NoSchedule"}
    node.patch({"spec": {"taints": [ours, OTHER]}})
    with make_agent("--startup-taint", TAINT):
        wait_until("the taint", lambda: node.read()["spec"].get("taints") == [OTHER])
        assert node.amounts() == [FULL, FULL]


def test_without_the_right_to_write_events_everything_else_works(make_agent, account, node):
    agent = make_agent(kubeconfig=account(RULES))
    agent.script(IN_USE)
    with agent:
        why = agent.wait_for("events of the node cannot be written")["why"]
        assert 'cannot create resource "events"' in why
        agent.script(BOTH)
        node.wait_for(FULL)
