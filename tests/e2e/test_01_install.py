"""One command installs it, into a namespace at the strictest level of Pod Security."""

from __future__ import annotations

from tests.e2e.cluster import SYSTEM
from tests.e2e.node import NODE_MANIFEST
from tests.e2e.pods import is_ready

DEPLOYMENT = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/vramwarden-webhook"


def test_two_replicas_are_ready_in_a_restricted_namespace(system):
    status = system.api.request("GET", DEPLOYMENT)["status"]
    assert status["readyReplicas"] == 2
    # Helm takes a DaemonSet for ready while as many pods are away as an update may take.
    system.wait("all pods ready", lambda: all(map(is_ready, system.pods())))
    labels = system.api.request("GET", f"/api/v1/namespaces/{SYSTEM}")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_agent_shows_what_the_node_has(gpu_node):
    found = gpu_node.api.get(NODE_MANIFEST)
    assert found["status"]["capacity"]["vramwarden.io/vram"] == "160Gi"
    labels = found["metadata"]["labels"]
    assert labels["vramwarden.io/gpu"] == "true"
    assert labels["vramwarden.io/gpu-memory-mib"] == str(80 * 1024)
    assert labels["vramwarden.io/enforcement"] == "sidecar"
