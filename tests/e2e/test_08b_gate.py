"""The gate: no container with VRAM is created before its pod has a GPU."""

from __future__ import annotations

import json
import time

import pytest

from tests.e2e.pods import container, holding, is_ready, pod, statuses
from tests.e2e.test_08_outage import GATE, SIDECAR, at_gate, gpu_of, remove_gate, scale
from tests.e2e.test_10_attacks import without_denials
from tests.support.control_planes import ApiError, wait_until

MANY = 30
DEBUGS = """
cd /proc
for pid in [0-9]*; do
  if grep -q '[w]ebhook.sidecar' $pid/cmdline; then kill -KILL $pid && echo $pid; fi
done
"""
KINDS = "application/strategic-merge-patch+json"
WRITABLE = {"name": "vram-gate", "mountPath": "/gate"}


@pytest.fixture(scope="module")
def tenant(gpu_node, make_team):
    return make_team()


@pytest.fixture
def outage(system, tenant):
    """Return a function that binds a pod without replicas. Replicas are restored at the end."""

    def bind(*names):
        scale(system, 0)
        for name in names:
            remove_gate(tenant, name)
        for name in names:
            tenant.wait(f"{name} at the gate", lambda n=name: at_gate(tenant, n, SIDECAR))

    yield bind
    scale(system, 2)


def back(system, tenant, *names):
    """Restore the replicas; print the time until the pods are ready."""
    scale(system, 2)
    began = time.monotonic()
    for name in names:
        tenant.wait_ready(name)
    print(f"{len(names)} ready {time.monotonic() - began:.1f} s after the replicas")


def test_an_init_container_with_vram_waits_and_sees_its_gpu(tenant, system, outage):
    shows = "echo NVIDIA_VISIBLE_DEVICES=$NVIDIA_VISIBLE_DEVICES"
    made = pod("init", "main=1Gi, first=1Gi", holding("forever"), schedulingGates=GATE)
    made["spec"]["initContainers"] = [{**container(["sh", "-c", shows]), "name": "first"}]
    tenant.create(made)
    outage("init")
    assert "running" not in statuses(tenant.pod("init"))["first"]["state"]
    back(system, tenant, "init")
    gpu = gpu_of(tenant, "init")
    assert tenant.log("init", "first").strip() == f"NVIDIA_VISIBLE_DEVICES={gpu}"
    tenant.delete_pod("init")


def test_a_debugging_container_starts_while_its_pod_waits_and_sees_no_gpu(tenant, system, outage):
    tenant.create(pod("debugged", "1Gi", holding("forever"), schedulingGates=GATE))
    outage("debugged")
    scale(system, 1)  # admits the debugging container; may assign the pod late by then
    image = container([])["image"]
    command = ("debug", "debugged", f"--image={image}", "--profile=baseline", "--container=shell")
    done = tenant.cluster.kubectl(
        "-n", tenant.namespace, *command, "--", "sh", "-c", "env; sleep 600"
    )
    assert done.returncode == 0, done.stderr

    def runs():
        found = tenant.pod("debugged")["status"].get("ephemeralContainerStatuses", ())
        return any("running" in item["state"] for item in found)

    tenant.wait("the debugging container", runs)
    assert "NVIDIA_VISIBLE_DEVICES=void" in tenant.log("debugged", "shell").splitlines()
    back(system, tenant, "debugged")
    tenant.delete_pod("debugged")


def test_a_resize_in_place_of_cpu_changes_nothing_of_it(tenant, system, outage):
    amounts = {"requests": {"cpu": "10m"}, "limits": {"cpu": "100m"}}
    sized = container(holding("forever"), resources=amounts)
    tenant.create(pod("sized", "1Gi", [], containers=[sized], schedulingGates=GATE))
    outage("sized")
    scale(system, 2)
    tenant.wait_ready("sized")
    gpu = gpu_of(tenant, "sized")
    change = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "200m"}}}]}}
    path = f"/api/v1/namespaces/{tenant.namespace}/pods/sized/resize"
    tenant.api.request("PATCH", path, change, content_type=KINDS)

    def resized():
        found = statuses(tenant.pod("sized"))["main"]
        return found.get("resources", {}).get("limits", {}).get("cpu") == "200m"

    tenant.wait("it resized", resized)
    assert gpu_of(tenant, "sized") == gpu
    assert statuses(tenant.pod("sized"))["main"]["restartCount"] == 0
    tenant.delete_pod("sized")


def test_after_a_reboot_of_the_node_a_pod_has_its_gpu_again(tenant, gpu_node):
    """The reboot is simulated: kubelet stopped, all containers and the sandbox killed."""
    tenant.create(pod("rebooted", "1Gi", holding("forever")))
    before = tenant.wait_ready("rebooted")
    gpu = gpu_of(tenant, "rebooted")
    gpu_node.stop_kubelet()
    for status in statuses(before).values():
        gpu_node.kill_container(status["containerID"])
    gpu_node.start_kubelet()

    def again():
        found = statuses(tenant.pod("rebooted"))
        return all(item["restartCount"] == 1 for item in found.values()) and is_ready(
            tenant.pod("rebooted")
        )

    tenant.wait("it runs again", again)
    assert gpu_of(tenant, "rebooted") == gpu
    tenant.delete_pod("rebooted")


def test_many_pods_wait_for_one_replica(tenant, system):
    names = [f"many-{number}" for number in range(MANY)]
    for name in names:
        tenant.create(pod(name, "1Gi", holding("forever"), schedulingGates=GATE))
    scale(system, 0)
    try:
        for name in names:
            remove_gate(tenant, name)
        for name in names:
            tenant.wait(f"{name} bound", lambda n=name: tenant.pod(n)["spec"].get("nodeName"))
        scale(system, 1)
        began = time.monotonic()
        tenant.wait("all have a GPU", lambda: all(gpu_of(tenant, name) for name in names))
        print(f"{MANY} pods assigned {time.monotonic() - began:.1f} s after one replica is ready")
        for name in names:
            tenant.wait_ready(name)
        print(f"and ready {time.monotonic() - began:.1f} s after it")
    finally:
        scale(system, 2)
    for name in names:
        tenant.delete_pod(name)


def test_who_replaces_the_gates_folder_by_a_link_shows_the_sidecar_nothing(tenant, gpu_node):
    """Such a mount is denied. A pod can have it from a time without webhook and fence."""
    manifest = pod("linked", "1Gi", holding("forever"), schedulingGates=GATE)
    said = json.loads(json.dumps(manifest))
    said["spec"]["volumes"] = [{"name": "vram-gate", "emptyDir": {}}]
    said["spec"]["containers"][0]["volumeMounts"] = [WRITABLE]
    assert "ReservedName" in tenant.denial(said)
    manifest["metadata"]["namespace"] = tenant.namespace
    path = f"/api/v1/namespaces/{tenant.namespace}/pods"
    made = tenant.api.request("POST", path, manifest, dryRun="All")
    made["spec"]["containers"][0].setdefault("volumeMounts", []).append(WRITABLE)
    kept = {key: made["metadata"][key] for key in ("name", "namespace", "labels", "annotations")}
    with without_denials(tenant.api):
        tenant.wait("it created", lambda: created(tenant, {**made, "metadata": kept}))
    remove_gate(tenant, "linked")
    before = statuses(tenant.wait_ready("linked"))[SIDECAR]
    attack = "cd /gate; for one in *; do busybox rmdir $one; busybox ln -s /etc $one; done"
    print(tenant.run("linked", "sh", "-c", attack))
    print(tenant.run("linked", "sh", "-c", DEBUGS))

    def ended():
        found = statuses(tenant.pod("linked"))[SIDECAR]
        return found["restartCount"] > before["restartCount"] or "waiting" in found["state"]

    tenant.wait("the sidecar ended", ended)
    wait_until("its next state", lambda: outcome(tenant) != "", timeout=120)
    print(f"the sidecar afterwards: {outcome(tenant)}")
    if "running" in statuses(tenant.pod("linked"))[SIDECAR]["state"]:
        shown = "import os; print(os.listdir('/run/vram-gate'))"
        assert tenant.run("linked", "python3", "-c", shown, container=SIDECAR).strip() == "[]"
    tenant.delete_pod("linked")


def created(tenant, manifest):
    try:
        return tenant.create(manifest)
    except ApiError as error:  # the API server still enforces the fence
        print(error.message[:200])
        return None


def outcome(tenant):
    state = statuses(tenant.pod("linked"))[SIDECAR]["state"]
    if "running" in state:
        return "running"
    return state.get("waiting", {}).get("message", "")
