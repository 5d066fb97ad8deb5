"""Webhook, real scheduler and real agents together bind pods to nodes where they fit.

The agents read a scripted NVML and know pods only from the webhook's lists.
"""

from __future__ import annotations

import contextlib
import itertools
from unittest import mock

import pytest
import yaml

from tests.scheduling.replicas import SYSTEM, Cluster, placing
from tests.support import schedulers
from tests.support.control_planes import wait_until
from tests.support.paths import DEPLOY
from tests.support.pods import a_container, a_pod
from tests.support.schedulers import GIB, refusals
from tests.support.scripted_nvml import AgentProcess, stub_library
from webhook.names import NODE_GPU_MEMORY_FREE_LABEL

PROFILE = DEPLOY / "scheduler" / "default-profile.yaml"
NUMBERS = itertools.count(1)


class SteeredCluster(Cluster):
    """A cluster with an agent per node, and GPUs with memory as reported by the driver."""

    def __init__(self, control_plane, folder, library, stack):
        super().__init__(control_plane.api, "default")
        self._kubeconfig, self._folder = control_plane.kubeconfig, folder
        self._library, self._stack = library, stack

    def node(self, name, *gib, **labels):
        super().node(name, *gib, **labels)
        folder = self._folder / f"agent-{name}"
        folder.mkdir()
        told = ("--node", name, "--namespace", SYSTEM, "--kubeconfig", self._kubeconfig)
        agent = AgentProcess(folder, self._library, *map(str, told))
        gpus = (f"gpu {gpu} total={size * GIB}\n" for gpu, size in self.sizes[name].items())
        agent.script("driver 570.86.15\n" + "".join(gpus))
        self._stack.enter_context(agent)
        self.wait_free(name, max(gib))

    def wait_free(self, name, gib):
        """Wait until the agent reports this amount of free memory."""
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}

        def says():
            labels = self.api.get(node)["metadata"]["labels"]
            return labels.get(NODE_GPU_MEMORY_FREE_LABEL) == str(gib * 1024)

        wait_until(f"{gib} GiB free on {name}", says)

    def bind(self, size, count=1, **spec):
        """Create a pod; wait until it is bound, and return node and GPUs."""
        name = f"pod-{next(NUMBERS)}"
        cpu = a_container(resources={"requests": {"cpu": "1", "memory": "1Gi"}})
        self.create(name, size, count, containers=[cpu], **spec)
        found = wait_until(name, lambda: schedulers.bound(self.api, self.namespace).get(name))
        return found[0], found[1].split(",")

    def keep_busy(self, node):
        """Bind pods without VRAM that use most of a node's CPU and memory."""
        amounts = {"cpu": "200", "memory": "1600Gi"}
        containers = [a_container(resources={"requests": amounts})]
        pod = a_pod(containers=containers, nodeSelector={"kubernetes.io/hostname": node})
        pod["metadata"] |= {"namespace": self.namespace, "name": f"busy-{next(NUMBERS)}"}
        self.api.create(pod)
        wait_until(
            "it is", lambda: pod["metadata"]["name"] in schedulers.bound(self.api, "default")
        )


@pytest.fixture
def steered(control_plane, tmp_path, tmp_path_factory, request):
    """Run all programs with a file of deploy/scheduler or the default scheduler."""
    library = stub_library(tmp_path_factory)
    profiles = yaml.safe_load(request.param.read_text())["profiles"] if request.param else []
    settings = {**schedulers.CONFIGURATION, **({"profiles": profiles} if profiles else {})}
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(schedulers, "CONFIGURATION", settings))
        stack.enter_context(placing(control_plane, tmp_path))
        agents = contextlib.ExitStack()
        made = stack.enter_context(SteeredCluster(control_plane, tmp_path, library, agents))
        stack.enter_context(agents)  # agents stop before their nodes are removed
        yield made


def by(*files):
    names = [file.name if file else "as it comes" for file in files]
    return pytest.mark.parametrize("steered", files, indirect=True, ids=names)


@by(PROFILE)
def test_the_bin_packing_story(steered):
    steered.node("a", 8, 8)
    steered.node("b", 8, 8)
    first, one = steered.bind("8Gi")
    steered.wait_free(first, 8)
    second, other = steered.bind("8Gi")
    assert (second, sorted(one + other)) == (first, [f"GPU-{first}-0", f"GPU-{first}-1"])
    steered.wait_free(first, 0)
    last = "b" if first == "a" else "a"
    assert steered.bind("8Gi", 2) == (last, [f"GPU-{last}-0", f"GPU-{last}-1"])
    assert refusals(steered.api, "default") == 0


@by(PROFILE, None)
def test_a_pod_is_not_tried_for_ever_where_the_sum_fits_and_no_gpu_does(steered):
    steered.node("full", 8, 8)
    for _ in range(2):
        assert steered.bind("5Gi")[0] == "full"
    steered.node("busy", 8, 8)
    steered.keep_busy("busy")
    steered.wait_free("full", 3)
    assert steered.bind("5Gi")[0] == "busy"
    # `full` has two GPUs with 3Gi free, `busy` has GPUs with 8Gi and 3Gi free.
    assert steered.bind("3Gi", 2)[0] == "full"
    print(f"{refusals(steered.api, 'default')} refusals")


@by(PROFILE, None)
def test_a_pod_of_two_gpus_is_not_sent_where_one_of_them_has_room(steered):
    steered.node("half", 8, 8)
    assert steered.bind("5Gi")[0] == "half"
    steered.node("busy", 8, 8)
    steered.keep_busy("busy")
    steered.wait_free("half", 8)
    # 11Gi are free on `half`, 8Gi of them on one GPU.
    assert steered.bind("5Gi", 2)[0] == "busy"
    print(f"{refusals(steered.api, 'default')} refusals")
