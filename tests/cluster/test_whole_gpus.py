"""A share in place of a whole GPU, as a real API server stores it, and as people read of it."""

from __future__ import annotations

import pytest

from tests.cluster.test_advised_workloads import a_workload
from tests.cluster.test_plugins import quota, used
from tests.support.our_server import container, refused
from tests.support.pods import a_container, a_pod

VRAM = "vramwarden.io/vram"
GPU = "nvidia.com/gpu"
PATH = f"spec.containers[0].resources.limits[{GPU}]"
SAID = (
    f'{PATH}: rule "shared" gives 16Gi of a GPU in place of a whole one; for another size write '
    "vramwarden.io/gpu-memory in its place; for a whole GPU ask your platform team"
)


@pytest.fixture
def shared(make_team):
    """Be a team whose rule gives shares in place of whole GPUs."""
    return make_team("shared")


def a_whole_pod(amount=1, **fields):
    return a_pod(containers=[a_container(resources={"limits": {GPU: amount}})], **fields)


def test_a_whole_gpu_is_stored_as_a_share(shared):
    pod = shared.accepts(a_whole_pod())
    assert container(pod, "main")["resources"] == {
        "limits": {VRAM: "16Gi"},
        "requests": {VRAM: "16Gi"},
    }
    assert container(pod, "vram-enforcer")["restartPolicy"] == "Always"
    notes = pod["metadata"]["annotations"]
    assert notes["vramwarden.io/gpu-memory"] == "main=16Gi"
    assert notes["vramwarden.io/in-place-of"] == GPU
    decisions = [(webhook, decision) for webhook, decision, _ in shared.calls()]
    assert decisions == [("mutate", "mutated"), ("validate", "allowed")]


def test_who_creates_it_reads_what_became_of_it(shared, kubectl):
    done = kubectl("create", shared.pod(a_whole_pod()))
    assert done.stderr == f"Warning: {SAID}\n"


def test_so_does_who_applies_a_workload(shared, kubectl):
    manifest = a_workload("Deployment", shared.namespace, "")
    manifest["spec"]["template"]["spec"]["containers"] = a_whole_pod()["spec"]["containers"]
    assert kubectl("create", manifest).stderr == f"Warning: {SAID}\n"


def test_what_keeps_its_whole_gpu_is_stored_as_it_came(shared, kubectl):
    for pod in (a_whole_pod(2), a_whole_pod(hostPID=True)):
        stored = shared.accepts(pod)
        assert GPU in container(stored, "main")["resources"]["limits"]
        assert "initContainers" not in stored["spec"]
        shared.patch(stored, {"metadata": {"labels": {"app": "x"}}})
    done = kubectl("create", shared.pod(a_whole_pod(hostPID=True)))
    assert f"Warning: {PATH}: the pod keeps its whole GPU, for a share" in done.stderr
    assert "HostPID: spec.hostPID: " in done.stderr


def test_a_quota_of_whole_gpus_no_longer_counts_it_and_one_of_vram_does(control_plane, shared):
    hard = {f"requests.{GPU}": "0", f"requests.{VRAM}": "24Gi"}
    counted = quota(control_plane, shared, **hard)
    shared.accepts(a_whole_pod())
    assert used(shared, counted) == {f"requests.{GPU}": "0", f"requests.{VRAM}": "16Gi"}
    assert "exceeded quota" in refused(lambda: shared.accepts(a_whole_pod())).message
