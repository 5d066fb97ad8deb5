"""Profiles in deploy/scheduler with the real scheduler: the node of a pod, and why.

Nodes have no kubelet, and no GPU is chosen. test_steering.py also runs webhook and agents.
"""

from __future__ import annotations

import itertools
import re
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster_programs import start, stop
from tests.support.command_coverage import commands_of
from tests.support.control_planes import ControlPlane, wait_until
from tests.support.paths import ROOT
from tests.support.pods import a_container, a_pod, a_policy, a_request
from tests.support.schedulers import add_node, patch, remove_node, remove_pod
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Phase
from webhook.core.pod.quantity import MIB
from webhook.core.policy.cluster import UNKNOWN_CLUSTER
from webhook.names import MANAGED_LABEL, NODE_GPU_MEMORY_FREE_LABEL, VRAM_RESOURCE

Json = dict[str, Any]

NUMBERS = itertools.count(1)
SMALL = {"cpu": "8", "memory": "32Gi"}
SECOND = ("second-profile.yaml", "vramwarden-binpack")
AS_DEFAULT = ("default-profile.yaml", "default-scheduler")
UNTOUCHED = ("", "default-scheduler")
"""The scheduler with its default configuration."""


class SchedulerPlane:
    """Control plane with its own scheduler, which would also bind the pods of other tests."""

    def __init__(self, plane: ControlPlane, scheduler_name: str) -> None:
        self.api = plane.api
        self._scheduler_name = scheduler_name

    def node(self, name: str, *gpus_mib: int) -> None:
        """Create a node with these GPUs, all free, as its agent writes it."""
        add_node(self.api, name, [mib * MIB for mib in gpus_mib], SMALL)
        self._until_seen(name, max(gpus_mib))

    def shows_free(self, name: str, mib: int) -> None:
        """Write the free memory of a node's GPUs, as its agent does."""
        labels = {NODE_GPU_MEMORY_FREE_LABEL: str(mib)}
        patch(self.api, f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}})
        self._until_seen(name, mib)

    def _until_seen(self, name: str, free_mib: int) -> None:
        """Wait until the scheduler, which watches nodes and pods separately, knows the node."""
        labels = {"kubernetes.io/hostname": name, NODE_GPU_MEMORY_FREE_LABEL: str(free_mib)}
        self._bind_plain_pod(nodeSelector=labels)

    def keep_busy(self, node: str, **amounts: str) -> None:
        """Bind a pod without VRAM that uses most of a node's CPU and memory."""
        selector = {"kubernetes.io/hostname": node}
        containers = [a_container(resources={"requests": amounts})]
        self._bind_plain_pod(nodeSelector=selector, containers=containers)

    def _bind_plain_pod(self, **spec: Any) -> None:
        pod = a_pod(schedulerName=self._scheduler_name, **spec)
        pod["metadata"] |= {"name": f"plain-{next(NUMBERS)}", "namespace": "default"}
        self.api.create(pod)
        wait_until("the binding", lambda: self.api.get(pod)["spec"].get("nodeName"))

    def create(self, memory: str, gpus: int = 1, **spec: Any) -> Json:
        """Create a pod as vramwarden's webhook mutates it."""
        amounts = {"cpu": "1", "memory": "4Gi"}
        main = a_container(resources={"requests": amounts, "limits": amounts})
        pod = a_pod(memory, containers=[main], schedulerName=self._scheduler_name, **spec)
        pod["metadata"] |= {"name": f"pod-{next(NUMBERS)}", "namespace": "default"}
        pod["metadata"]["annotations"]["vramwarden.io/gpu-count"] = str(gpus)
        decision = decide(a_request(pod), a_policy(), UNKNOWN_CLUSTER, Phase.MUTATE)
        assert decision.allowed, decision.message
        return self.api.create(decision.obj)

    def binds(self, memory: str, gpus: int = 1, **spec: Any) -> str:
        """Create a pod; return the node to which the scheduler binds it."""
        pod = self.create(memory, gpus, **spec)
        return wait_until("the binding", lambda: self.api.get(pod)["spec"].get("nodeName"))

    def leaves_pending(self, memory: str, gpus: int = 1) -> str:
        """Create a pod; return the scheduler's reason why no node is suitable."""
        pod = self.create(memory, gpus)

        def why() -> str:
            conditions = self.api.get(pod)["status"].get("conditions", [])
            return next((c["message"] for c in conditions if c["reason"] == "Unschedulable"), "")

        return wait_until("the scheduler's word", why)

    def serve(self) -> None:
        """Create a Service for all pods with VRAM, which the scheduler spreads by default."""
        ports = [{"port": 80}]
        spec = {"selector": {MANAGED_LABEL: "true"}, "ports": ports}
        metadata = {"name": "replicas", "namespace": "default"}
        service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
        self.api.create(service)

    def clean(self) -> None:
        for pod in self.api.list("/api/v1/namespaces/default/pods"):
            remove_pod(self.api, pod)
        for node in self.api.list("/api/v1/nodes"):
            remove_node(self.api, node["metadata"]["name"])
        metadata = {"name": "replicas", "namespace": "default"}
        self.api.delete({"apiVersion": "v1", "kind": "Service", "metadata": metadata})


@contextmanager
def scheduling(plane: ControlPlane, profile: str, folder: Path):
    """Run kube-scheduler with a profile, or by default, until the block ends."""
    if profile:
        ((_, command),) = commands_of(__file__)
        config = folder / profile
        place, written = re.search(r"\|(/var/\S+)\|.* > (\S+)$", command).groups()
        for there, here in ((place, plane.kubeconfig), (written, config), (SECOND[0], profile)):
            command = command.replace(there, str(here))
        subprocess.run(["bash", "-ec", command], cwd=ROOT, check=True)
        assert config.read_text().count(str(plane.kubeconfig)) == 1
        options = [f"--config={config}"]
    else:
        options = [f"--kubeconfig={plane.kubeconfig}"]
    log = folder / "kube-scheduler.log"
    options += ["--leader-elect=false", "--secure-port=0"]
    process = start(log, "kube-scheduler", *options)
    try:
        yield process, log
    finally:
        stop(process)


@pytest.fixture
def cluster(control_plane, tmp_path, request):
    """Run the scheduler with the profile that a test names."""
    file, scheduler_name = request.param
    made = SchedulerPlane(control_plane, scheduler_name)
    with scheduling(control_plane, file, tmp_path) as (process, log):
        yield made
        assert process.poll() is None, log.read_text()[-2000:]
        made.clean()


def by(*profiles):
    return pytest.mark.parametrize(
        "cluster", profiles, indirect=True, ids=[file or "as it comes" for file, _ in profiles]
    )


def two_nodes(cluster):
    cluster.node("a", 8192, 8192)
    cluster.node("b", 8192, 8192)


@by(SECOND, AS_DEFAULT)
def test_one_gpu_pods_leave_a_whole_node_for_a_pod_of_two(cluster):
    two_nodes(cluster)
    first = cluster.binds("8Gi")
    assert cluster.binds("8Gi") == first
    cluster.shows_free(first, 0)
    assert cluster.binds("8Gi", 2) != first


@by(UNTOUCHED)
def test_without_a_profile_they_spread_and_the_pod_of_two_waits(cluster):
    two_nodes(cluster)
    first = cluster.binds("8Gi")
    assert cluster.binds("8Gi") != first  # spread by CPU and memory; each pod uses half a node
    assert f"2 Insufficient {VRAM_RESOURCE}" in cluster.leaves_pending("8Gi", 2)


def one_full_and_one_busy(cluster):
    """Create a node where 5Gi fit only in sum, and one with free GPUs but little CPU."""
    cluster.node("full", 8192, 8192)
    for _ in range(2):
        assert cluster.binds("5Gi") == "full"
    cluster.node("busy", 8192, 8192)
    cluster.keep_busy("busy", cpu="5", memory="20Gi")


@by(SECOND, AS_DEFAULT, UNTOUCHED)
def test_a_node_whose_sum_fits_and_whose_gpus_do_not_is_left_aside(cluster):
    one_full_and_one_busy(cluster)
    cluster.shows_free("full", 3072)
    assert cluster.binds("5Gi") == "busy"


@by(SECOND, AS_DEFAULT, UNTOUCHED)
def test_without_the_agent_s_word_the_scheduler_would_try_it_in_vain(cluster):
    one_full_and_one_busy(cluster)
    cluster.shows_free("full", 8192)
    assert cluster.binds("5Gi") == "full"


@by(SECOND, AS_DEFAULT)
def test_what_is_left_of_a_node_is_preferred_to_a_larger_one(cluster):
    cluster.node("large", *[8192] * 8)
    cluster.node("small", 8192)
    assert cluster.binds("5Gi") == "small"
    cluster.shows_free("small", 3072)
    assert cluster.binds("2Gi") == "small"
    cluster.shows_free("small", 1024)
    assert cluster.binds("2Gi") == "large"


@by(SECOND)
def test_replicas_of_a_service_are_packed_as_well(cluster):
    cluster.node("a", *[8192] * 8)
    cluster.node("b", *[8192] * 8)
    cluster.serve()
    assert len({cluster.binds("1Gi") for _ in range(3)}) == 1
