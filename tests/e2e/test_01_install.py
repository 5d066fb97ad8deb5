"""One command installs vramwarden in a namespace with the strictest Pod Security level.

The tests' own node offers whole GPUs at first, as with NVIDIA's device plugin: one allocator per
card.
"""

from __future__ import annotations

import time

from tests.e2e.cluster import SYSTEM
from tests.e2e.node import NODE_MANIFEST
from tests.e2e.pods import GIB, is_ready

DEPLOYMENT = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/vramwarden-webhook"
REMEMBERED_S = 20.0
"""Part of the five minutes for which a kubelet remembers a plugin; exceeds an earlier wait."""
CURE = "nvidia.com/gpu.deploy.device-plugin=false"


def test_two_replicas_are_ready_in_a_restricted_namespace(system):
    status = system.api.request("GET", DEPLOYMENT)["status"]
    assert status["readyReplicas"] == 2
    # Helm counts a DaemonSet as ready even if an update makes this many pods unavailable.
    system.wait("all pods ready", lambda: all(map(is_ready, system.pods())))
    labels = system.api.request("GET", f"/api/v1/namespaces/{SYSTEM}")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_a_node_that_offers_whole_gpus_is_not_shared_and_its_agent_is_ready(system, agent):
    (said,) = system.wait("the cure", lambda: [line for line in agent.events() if CURE in line])
    print(said)
    agent.ready()
    assert agent.advertised() is None
    assert "vramwarden.io/gpu" not in agent.labels()


def test_without_the_plugin_it_is_shared_once_its_gpus_are_free(node, system, agent):
    agent.hold(GIB)
    node.offer_whole_gpus(0)

    def told():
        return [line for line in agent.events() if "drain the whole-GPU pods first" in line]

    print(*system.wait("what to wait for", told))
    assert agent.advertised() is None
    agent.hold(0)
    began = time.monotonic()
    system.wait("VRAM advertised", agent.advertised)
    print(f"advertised after the GPUs were free: {time.monotonic() - began:.1f} s")


def test_the_plugin_that_comes_back_has_the_gpus_while_no_pod_has_vram(node, system, agent):
    node.offer_whole_gpus(1)
    began = time.monotonic()
    system.wait("VRAM withdrawn", lambda: agent.advertised() is None)
    print(f"withdrawn after the plugin came: {time.monotonic() - began:.1f} s")
    system.wait("the label gone", lambda: "vramwarden.io/gpu" not in agent.labels())
    agent.ready()
    node.offer_whole_gpus(0, remembered=1)
    began = time.monotonic()
    while time.monotonic() - began < REMEMBERED_S:
        assert agent.advertised() is None
        time.sleep(0.5)
    node.offer_whole_gpus(0)
    began = time.monotonic()
    system.wait("VRAM advertised", agent.advertised)
    print(f"advertised after the kubelet forgot the plugin: {time.monotonic() - began:.1f} s")


def test_the_agent_shows_what_the_node_has(gpu_node):
    found = gpu_node.api.get(NODE_MANIFEST)
    assert found["status"]["capacity"]["vramwarden.io/vram"] == "160Gi"
    labels = found["metadata"]["labels"]
    assert labels["vramwarden.io/gpu"] == "true"
    assert labels["vramwarden.io/gpu-memory-mib"] == str(80 * 1024)
    assert labels["vramwarden.io/enforcement"] == "sidecar"
    # A runtime that keeps NVIDIA_VISIBLE_DEVICES and resolves it itself.
    assert labels["vramwarden.io/device-names"] == "uuid"
