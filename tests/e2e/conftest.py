"""Fixtures of `make e2e`: a cluster, the product installed in it, and teams.

README.md has the settings. The files run in the order of their names: the first is `make dev`, the
second an install that fails on purpose, the third an install for a laptop, the fourth the install
for all others. The last one uninstalls.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from pathlib import Path

import pytest

from tests.e2e import images, nvidia_toolkit
from tests.e2e.agent import NodeAgent
from tests.e2e.cluster import SYSTEM, NamedCluster, Release, impossible
from tests.e2e.node import NODE_VALUES, NVIDIA_BY_DEFAULT, NodeCluster
from tests.e2e.pods import GIB, holding, pod
from tests.e2e.sentry import NAMESPACE as SENTRY
from tests.e2e.sentry import NodeSentry
from tests.e2e.team import Team
from tests.support import charts, other_programs
from tests.support.command_coverage import commands_of
from tests.support.page_reader import Reader

SKIPPED = "end-to-end tests need"


@pytest.fixture(scope="session")
def archives(tmp_path_factory):
    if not os.environ.get("KUBECONFIG") and (reason := impossible()):
        pytest.skip(f"{SKIPPED} {reason}")
    return images.product_archives(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def cluster(request):
    """Return the cluster. Start one if KUBECONFIG is not set."""
    if reason := impossible():
        pytest.skip(f"{SKIPPED} {reason}")
    if os.environ.get("KUBECONFIG"):
        named = NamedCluster()
        if named.in_use():
            pytest.skip(f"{SKIPPED} a cluster without the namespace {SYSTEM}: they uninstall")
        yield named
        named.close()
        return
    archives = request.getfixturevalue("archives")
    began = time.monotonic()
    with NodeCluster() as started, kept_logs(started):
        started.start_node()
        print(f"cluster of one node: {time.monotonic() - began:.1f} s")
        for archive in archives:
            started.import_image(archive)
        print(f"with the images: {time.monotonic() - began:.1f} s")
        yield started


@contextlib.contextmanager
def kept_logs(node):
    """Copy the logs of the node's programs to E2E_LOGS at the end, even after a failure."""
    try:
        yield
    finally:
        if logs := os.environ.get("E2E_LOGS"):
            Path(logs).mkdir(parents=True, exist_ok=True)
            for log in (*node.state.glob("*.log"), *node.state.glob("toolkit/*.log")):
                shutil.copy(log, logs)


@pytest.fixture(scope="session")
def node(cluster):
    """Return the node if the tests started it, for stories that change kubelet or driver."""
    if not isinstance(cluster, NodeCluster):
        pytest.skip("needs the node that the tests start themselves")
    return cluster


@pytest.fixture(scope="session")
def values(cluster):
    ours = NODE_VALUES if isinstance(cluster, NodeCluster) else {}
    return images.product_values() | ours


@pytest.fixture(scope="session")
def release(cluster, values, tmp_path_factory):
    """Install vramwarden as described in deploy/install.md."""
    found = Release(charts.Helm(tmp_path_factory.mktemp("helm"), cluster.kubeconfig))
    reader = Reader(tmp_path_factory.mktemp("reader"), cluster.kubeconfig)
    if isinstance(cluster, NodeCluster) and not NVIDIA_BY_DEFAULT:
        cluster.offer_whole_gpus(1)  # another allocator has GPUs until `gpu_node` or a story starts
    here = f" --timeout=5m {' '.join(found.helm.values(values))} {images.naming(values)}"
    for command in dict.fromkeys(command for _, command in commands_of(__file__)):
        began = time.monotonic()
        reader.run(command + here if command.startswith("helm ") else command)
    print(f"helm install --wait: {time.monotonic() - began:.1f} s")
    yield found
    if found.is_installed():
        found.uninstall()
    for name in (SYSTEM, SENTRY):  # Helm does not delete namespaces
        cluster.api.delete(namespace(name))


@pytest.fixture(scope="session")
def system(cluster, release):
    """Return a team for the release's namespace."""
    return Team(cluster, SYSTEM)


@pytest.fixture(scope="session")
def make_team(cluster, release):
    """Return a function that creates a team and labels its namespace."""
    made = []

    def make(**labels):
        name = f"team-{uuid.uuid4().hex[:6]}"
        cluster.api.create(namespace(name, labels))
        made.append(name)
        team = Team(cluster, name)
        path = f"/api/v1/namespaces/{name}/serviceaccounts"
        team.wait("its service account", lambda: cluster.api.list(path))
        return team

    yield make
    for name in made:
        cluster.api.delete(namespace(name))


@pytest.fixture(scope="session")
def team(make_team):
    return make_team()


@pytest.fixture(scope="session")
def quiet(gpu_node, team):
    """Return the name of a pod that stays below its cap until the last story."""
    team.create(pod("quiet", "8Gi", holding(f"hold {7 * GIB}; forever")))
    return "quiet"


@pytest.fixture(scope="session")
def agent(node, system):
    """Return the agent of the tests' own node."""
    return NodeAgent(node, system)


@pytest.fixture(scope="session")
def gpu_node(node, system, agent):
    """Return the node's name once no other program offers its GPUs and the node advertises VRAM."""
    node.offer_whole_gpus(0)
    began = time.monotonic()
    system.wait("VRAM advertised", agent.advertised)
    print(f"VRAM advertised: {time.monotonic() - began:.1f} s")
    return node


@pytest.fixture(scope="session")
def sentry(gpu_node):
    """Return the sentry of the tests' own node when it is ready."""
    found = NodeSentry(gpu_node, Team(gpu_node, SENTRY))
    found.pod()
    return found


@pytest.fixture(scope="session")
def toolkit(node):
    """Return NVIDIA's container toolkit on the node."""
    needs("NVIDIA_TOOLKIT")
    return node.toolkit


@pytest.fixture(scope="session")
def at_home(toolkit, gpu_node, release, values, make_team, team, quiet):
    """Return a team on a node with NVIDIA's runtime as a RuntimeClass, from here to the end."""
    team.wait_ready(quiet)  # the pod got its GPU without a RuntimeClass, and keeps it
    gpu_node.api.create(nvidia_toolkit.RUNTIME_CLASS)
    began = time.monotonic()
    release.install(values)
    print(f"helm upgrade --wait, with a RuntimeClass: {time.monotonic() - began:.1f} s")
    found = make_team()

    def translated():
        path = f"/api/v1/namespaces/{found.namespace}/pods"
        asks = pod("asks", "1Gi", ["true"])
        answer = found.api.request("POST", path, asks, dryRun="All")
        return answer["spec"].get("runtimeClassName") == "nvidia"

    found.wait("pods with the RuntimeClass", translated)
    return found


@pytest.fixture(scope="session")
def strange(node, release, values, system, agent):
    """Install vramwarden alone on a node whose driver library is NVIDIA's mock.

    This removes what earlier stories left.
    """
    needs("NVIDIA_MOCK")
    for found in node.api.list("/api/v1/pods"):
        namespace, name = (found["metadata"][key] for key in ("namespace", "name"))
        if namespace.startswith("team-"):
            Team(node, namespace).delete_pod(name)
    node.api.delete(nvidia_toolkit.RUNTIME_CLASS)
    node.driver.play_mock()
    node.set_amount("nvidia.com/gpu", None)
    began = time.monotonic()
    with node.without_api_server():
        pass  # without a restart, the fence's rules stay in effect (deploy/uninstall.md)
    release.install(values)
    agent.replace()
    NodeSentry(node, Team(node, SENTRY)).delete()
    print(f"installed beside NVIDIA's mock: {time.monotonic() - began:.1f} s")
    return node


def needs(variable):
    """Skip the test if programs in the folder of an environment variable are missing."""
    if reason := other_programs.why_not(variable):
        pytest.skip(f"needs {reason}")


def namespace(name, labels=None):
    metadata = {"name": name, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
