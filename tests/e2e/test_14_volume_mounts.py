"""Access by volume mounts if NVIDIA's runtime ignores unprivileged containers' variables."""

from __future__ import annotations

import pytest

from tests.e2e.cluster import SYSTEM
from tests.e2e.conftest import namespace
from tests.e2e.pods import holding, pod
from tests.e2e.test_13_device_names import nodes_of, nvidia

MERGE = "application/merge-patch+json"


@pytest.fixture(scope="module")
def hardened(toolkit, at_home, release, values, agent):
    """Harden the node's runtime; return a function that upgrades the release's agent."""
    # Host volumes, which `restricted` does not allow.
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    path = f"/api/v1/namespaces/{SYSTEM}"
    at_home.api.request("PATCH", path, namespace(SYSTEM, labels), content_type=MERGE)
    toolkit.switch("hardened")

    def upgrade(**more):
        changed = {**values["agent"], "gpuAccess": "VolumeMounts", **more}
        release.install({**values, "agent": changed})
        agent.forget()
        at_home.wait("VRAM advertised", agent.advertised)
        agent.ready()

    return upgrade


def test_the_agent_sees_the_gpus_and_says_that_no_pod_would(hardened, at_home, agent):
    hardened()
    assert agent.advertised() == "160Gi"
    assert agent.labels()["vramwarden.io/device-names"] == "none"
    at_home.create(pod("nowhere", "1Gi", holding("forever")))
    said = "didn't match Pod's node affinity"
    print(*at_home.wait("no node", lambda: [e for e in at_home.events("nowhere") if said in e]))
    at_home.delete_pod("nowhere")


def test_what_the_cluster_admin_says_counts(hardened, toolkit, at_home, agent):
    toolkit.switch("management")
    vendor = "k8s.device-plugin.nvidia.com"
    hardened(deviceNames=vendor)
    assert agent.labels()["vramwarden.io/device-names"] == vendor
    at_home.create(pod("named", "1Gi", holding("forever")))
    annotations = at_home.wait_ready("named")["metadata"]["annotations"]
    uuid = annotations["vramwarden.io/gpu"]
    assert annotations["vramwarden.io/visible-devices"] == f"{vendor}/gpu={uuid}"
    assert nvidia(at_home.run("named", "ls", "/dev")) == nodes_of(uuid)
    at_home.delete_pod("named")
