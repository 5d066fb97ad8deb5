"""Fixtures of `make e2e`: a cluster, the product installed in it, and teams that use it.

README.md has the settings. The files run in the order of their names: the first fails to install,
on purpose, the second installs for a laptop, the third for all others; the last uninstalls.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from pathlib import Path

import pytest

from tests.e2e import images
from tests.e2e.cluster import SYSTEM, NamedCluster, Release, image_names, impossible
from tests.e2e.node import NODE_MANIFEST, NodeCluster
from tests.e2e.pods import GIB, holding, pod
from tests.e2e.team import Team
from tests.support import charts

SKIPPED = "end-to-end tests need"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Name the cluster; start it where KUBECONFIG names none."""
    if reason := impossible():
        pytest.skip(f"{SKIPPED} {reason}")
    if os.environ.get("KUBECONFIG"):
        named = NamedCluster()
        if named.in_use():
            pytest.skip(f"{SKIPPED} a cluster without the namespace {SYSTEM}: they uninstall")
        yield named
        named.close()
        return
    archives = product_archives(tmp_path_factory.mktemp("images"))
    began = time.monotonic()
    with NodeCluster() as started:
        started.start_node()
        print(f"cluster of one node: {time.monotonic() - began:.1f} s")
        for archive in archives:
            started.import_image(archive)
        print(f"with the images: {time.monotonic() - began:.1f} s")
        yield started
        if logs := os.environ.get("E2E_LOGS"):
            Path(logs).mkdir(parents=True, exist_ok=True)
            for log in started.state.glob("*.log"):
                shutil.copy(log, logs)


def product_archives(folder):
    """Return both images as archives: those that exist, or new ones."""
    given = os.environ.get("E2E_IMAGES")
    if given:
        return [Path(given) / f"{name}.tar" for name in ("vramwarden", "enforcer")]
    began = time.monotonic()
    archives = images.build_product(folder)
    print(f"images built: {time.monotonic() - began:.1f} s")
    return archives


@pytest.fixture(scope="session")
def node(cluster):
    """Return the cluster where it is ours, for stories that stop a kubelet or play a GPU."""
    if not isinstance(cluster, NodeCluster):
        pytest.skip("needs the node that the tests start themselves")
    return cluster


@pytest.fixture(scope="session")
def values():
    """Return the values of the release."""
    given = os.environ.get("E2E_IMAGES")
    names = ("vramwarden", "enforcer")
    named = [images.name_of(Path(given) / f"{n}.tar") for n in names] if given else None
    split = [name.rpartition(":") for name in named or image_names()]
    image, enforcer = ({"repository": name, "tag": tag} for name, _, tag in split)
    return {"image": image, "enforcer": enforcer}


@pytest.fixture(scope="session")
def release(cluster, values, tmp_path_factory):
    """Install the product as deploy/README.md says."""
    helm = charts.Helm(tmp_path_factory.mktemp("helm"), cluster.kubeconfig)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.api.create(namespace(SYSTEM, labels))
    found = Release(helm)
    began = time.monotonic()
    found.install(values)
    print(f"helm install --wait: {time.monotonic() - began:.1f} s")
    yield found
    if found.is_installed():
        found.uninstall()
    cluster.api.delete(namespace(SYSTEM))


@pytest.fixture(scope="session")
def system(cluster, release):
    """Return a team for the release's own namespace."""
    return Team(cluster, SYSTEM)


@pytest.fixture(scope="session")
def make_team(cluster, release):
    """Return a function that makes a team, with labels on its namespace."""
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
    """Be a team."""
    return make_team()


@pytest.fixture(scope="session")
def quiet(gpu_node, team):
    """Name a pod that holds less than its cap, from here on until the last story."""
    team.create(pod("quiet", "8Gi", holding(f"hold {7 * GIB}; forever")))
    return "quiet"


@pytest.fixture(scope="session")
def gpu_node(node, system):
    """Name the node once its agent has shown what it has."""
    advertised = "vramwarden.io/vram"
    system.wait(
        "VRAM advertised",
        lambda: advertised in node.api.get(NODE_MANIFEST)["status"]["allocatable"],
    )
    return node


def namespace(name, labels=None):
    metadata = {"name": name, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
