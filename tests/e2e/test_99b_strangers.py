"""NVIDIA's mock of the driver library: exact figures, a stop, a lost GPU."""

from __future__ import annotations

import json

import pytest

from tests.e2e.asking import ask, diagnose
from tests.e2e.node import NODE_MANIFEST
from tests.e2e.nvidia_runtime import UUIDS
from tests.e2e.pods import GIB, holding, pod
from tests.e2e.sentry import NAMESPACE as SENTRY
from tests.e2e.sentry import NodeSentry
from tests.e2e.strangers import Mock
from tests.e2e.team import Team

A100_MIB = 40960 - 583
"""Memory of the simulated machine, less the driver's reserve."""


@pytest.fixture(scope="module")
def mock(strange):
    return Mock(strange)


@pytest.fixture(scope="module")
def sentry(strange):
    return NodeSentry(strange, Team(strange, SENTRY))


@pytest.fixture(scope="module")
def own(strange, make_team):
    """Return a team with a pod that uses no memory yet."""
    found = make_team()
    found.create(pod("trains", "30Gi", holding("forever"), restartPolicy="Never"))
    found.wait_ready("trains")
    yield found
    for item in strange.api.list(f"/api/v1/namespaces/{found.namespace}/pods"):
        found.delete_pod(item["metadata"]["name"])  # while one has VRAM, the node is not withdrawn


@pytest.fixture
def say(own):
    """Return a function that runs a command for the team's namespace."""
    return lambda *words, code=0: ask(own.cluster.kubeconfig, *words, code=code)


def used(say, own):
    """Return the bytes that `top` shows for the pod."""
    report = json.loads(say("top", "-n", own.namespace, "-o", "json"))
    (found,) = [found_pod for found_pod in report["pods"] if found_pod["name"] == "trains"] or [{}]
    return found.get("usedBytes")


def test_the_node_shows_what_nvidias_library_says(strange, system, agent):
    system.wait("VRAM advertised", agent.advertised)
    assert agent.advertised() == f"{len(UUIDS) * A100_MIB}Mi"
    labels = agent.labels()
    assert labels["vramwarden.io/gpu-memory-mib"] == str(A100_MIB)
    assert labels["vramwarden.io/gpu-product"] == "NVIDIA-A100-SXM4-40GB"
    assert labels["vramwarden.io/enforcement"] == "sidecar"


def test_top_and_explain_say_what_a_pod_holds(own, mock, sentry, say):
    mock.hold(own.pod("trains"), 20 * GIB, sentry.pod())
    own.wait("its use in top", lambda: used(say, own) == 20 * GIB)
    print(say("top", "-n", own.namespace))
    said = say("explain", "trains", "-n", own.namespace)
    print(said)
    assert "20Gi" in said
    assert "30Gi" in said


def test_who_holds_too_much_is_stopped_and_explain_says_so(own, mock, sentry, say):
    mock.hold(own.pod("trains"), 32 * GIB, sentry.pod())
    assert own.wait_ended("trains")["exitCode"] == 143
    said = say("explain", "trains", "-n", own.namespace, code=1)
    print(said)
    assert "the pod's peak was 32Gi" in said
    assert "→ vramwarden.io/gpu-memory: 37Gi" in said


def test_a_gpu_that_is_lost_is_passed_over_and_everybody_says_so(own, agent, mock, sentry, say):
    own.create(pod("stays", "8Gi", holding("forever")))
    found = own.wait_ready("stays")
    lost = UUIDS.index(found["metadata"]["annotations"]["vramwarden.io/gpu"])
    for sees in (agent.running(), sentry.pod()):
        mock.change(sees, lost, failure={"mode": "lost"})

    def unhealthy():
        annotations = own.api.get(NODE_MANIFEST)["metadata"]["annotations"]
        gpus = json.loads(annotations["vramwarden.io/gpus"])
        return [gpu["uuid"] for gpu in gpus if gpu.get("healthy") is False] == [UUIDS[lost]]

    own.wait("it unhealthy", unhealthy)
    own.create(pod("next", "8Gi", holding("forever")))
    next_one = own.wait_ready("next")
    assert next_one["metadata"]["annotations"]["vramwarden.io/gpu"] == UUIDS[1 - lost]
    told = f"GPU {lost}: is lost"
    own.wait("top", lambda: told in say("top", "-n", own.namespace))
    said = diagnose(own.cluster.kubeconfig, "stays", own.namespace)
    assert f"its GPU {lost} is lost or unhealthy" in said
    for sees in (agent.running(), sentry.pod()):
        mock.change(sees, lost, failure={"mode": "healthy"})
    own.wait("it healthy", lambda: not unhealthy())
    for name in ("trains", "stays", "next"):
        own.delete_pod(name)
