"""A driver of r615 enforces caps: programs get an error, and no process is stopped.

The stub simulates both ways in which such a driver limits cgroups.
"""

from __future__ import annotations

import json
import time

import pytest

from tests.e2e.asking import ask
from tests.e2e.node import NODE
from tests.e2e.nvidia_runtime import TREE
from tests.e2e.pods import GIB, HOLD, MIB, holding, is_ready, pod, statuses
from tests.e2e.programs import LINES, PROGRAM, GpuProgram, gpu_pod, python_pod, started
from tests.e2e.sentry import NAMESPACE, NodeSentry
from tests.e2e.team import Team
from tests.e2e.test_08_outage import GATE, remove_gate, scale
from tests.support.control_planes import wait_until

CAP_MIB, CONTEXT = 2048, 500 * 2**20
LABEL = "vramwarden.io/driver-limit"
FULL = 2  # CUDA_ERROR_OUT_OF_MEMORY
STARTS, AT_ONCE = 50, 5
AMOUNT = f"{CAP_MIB}Mi"
# First line of a program: the GPU's size that the program sees is its limit.
LIMITED_AT_FIRST = f'python3 -c "$0" {LINES} info "exit 0" | grep -q " {CAP_MIB * MIB}$"'
RULE = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {{name: limits}}
spec:
  rules:
  - name: requires
    match: {{namespaces: ["{namespace}"]}}
    enforcement: {{driverLimit: Require}}
"""


@pytest.fixture(scope="module", params=["misc", "dmem enabled=1"], ids=["misc", "dmem"])
def mode(request):
    """Return the driver's way of limiting cgroups."""
    return f"{request.param} context={CONTEXT}"


@pytest.fixture(scope="module")
def limited(mode, gpu_node, release, values, agent):
    """Install a driver with limits, and the limiter; yield the release's values.

    At the end, the driver has no limits, as later stories expect.
    """
    if not (TREE / "cgroup.controllers").exists():
        pytest.skip("needs cgroup v2: no driver limits others")
    gpu_node.driver.replace(mode)
    wanted = values | {"limiter": {"enabled": True, "dmem": "dmem" in mode}}
    began = time.monotonic()
    release.install(wanted)
    agent.replace()  # containers of agent and sentry have the older library
    NodeSentry(gpu_node, Team(gpu_node, NAMESPACE)).delete()
    Team(gpu_node, NAMESPACE).wait("the node labelled", lambda: agent.labels().get(LABEL) == "true")
    print(f"{mode}: labelled {time.monotonic() - began:.1f} s after the upgrade")
    yield wanted
    gpu_node.driver.limit_by("off")
    release.install(values)  # without a limiter, whose verification may be ten minutes old
    gone = "the label gone"
    Team(gpu_node, NAMESPACE).wait(gone, lambda: LABEL not in agent.labels(), timeout=400)


@pytest.fixture(scope="module")
def tenant(limited, make_team):
    return make_team()


def restarts(team, name):
    return sum(status["restartCount"] for status in statuses(team.pod(name)).values())


def test_a_program_over_its_cap_gets_an_error_and_lives(tenant, gpu_node):
    neighbour = started(tenant, gpu_pod("neighbour", AMOUNT))
    assert neighbour.step(CAP_MIB) == (0, CAP_MIB)
    greedy = started(tenant, gpu_pod("greedy", AMOUNT))
    assert greedy.step(1024) == (0, CAP_MIB)
    assert greedy.step(1536) == (FULL, CAP_MIB)
    assert greedy.step(1024) == (0, CAP_MIB)
    assert greedy.step(1) == (FULL, CAP_MIB)
    time.sleep(15)  # longer than sidecar and sentry need to stop an excess
    assert greedy.step(1) == (FULL, CAP_MIB)
    assert neighbour.step(1) == (FULL, CAP_MIB)
    assert restarts(tenant, "greedy") == restarts(tenant, "neighbour") == 0

    def held():
        found = json.loads(ask(gpu_node.kubeconfig, "top", "-n", tenant.namespace, "-o", "json"))
        kinds = {found_pod["name"]: found_pod.get("heldBy") for found_pod in found["pods"]}
        return kinds == {"greedy": "driver", "neighbour": "driver"}

    tenant.wait("top", held)
    print(ask(gpu_node.kubeconfig, "top", "pods", "-n", tenant.namespace))
    said = ask(gpu_node.kubeconfig, "explain", "greedy", "-n", tenant.namespace)
    print(said)
    assert "the driver" in said
    for name in ("greedy", "neighbour"):
        tenant.delete_pod(name)


def test_what_ends_by_itself_at_its_cap_is_explained(tenant, gpu_node):
    full = started(tenant, gpu_pod("full", AMOUNT, restartPolicy="Never"))
    assert full.step(CAP_MIB)[0] == 0
    time.sleep(20)
    assert full.step(64)[0] == FULL
    tenant.run("full", "sh", "-c", f"echo exit 1 >> {LINES}")
    tenant.wait_ended("full")
    said = ask(gpu_node.kubeconfig, "explain", "full", "-n", tenant.namespace, code=1)
    print(said)
    assert "2Gi" in said
    assert "vramwarden.io/gpu-memory" in said
    tenant.delete_pod("full")


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_the_limit_stands_before_the_first_instruction(busy, tenant, gpu_node):
    command = ["sh", "-c", LIMITED_AT_FIRST, PROGRAM]
    made = python_pod("x", AMOUNT, command, restartPolicy="Never")
    template = {"metadata": made["metadata"], "spec": made["spec"]}
    del template["metadata"]["name"]
    name = "busy" if busy else "idle"
    limits = {"backoffLimit": STARTS, "completions": STARTS, "parallelism": AT_ONCE}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {**limits, "template": template},
    }
    loops = ("sh", "-c", "while :; do :; done & while :; do :; done")
    began = time.monotonic()
    if busy:
        with gpu_node.running(*loops):
            status = done(tenant, job)
    else:
        status = done(tenant, job)
    print(f"{name}: {status.get('succeeded', 0)} of {STARTS} in {time.monotonic() - began:.0f} s")
    assert (status.get("succeeded"), status.get("failed", 0)) == (STARTS, 0)


def done(team, job):
    name = team.create(job)["metadata"]["name"]
    path = f"/apis/batch/v1/namespaces/{team.namespace}/jobs/{name}"

    def status():
        found = team.api.request("GET", path)["status"]
        return found if found.get("completionTime") or found.get("failed") else None

    found = team.wait("its end", status, timeout=1200)
    team.api.request("DELETE", path, propagationPolicy="Background")
    return found


def test_it_stays_through_restarts(tenant, gpu_node):
    kept = started(tenant, gpu_pod("kept", AMOUNT))
    assert kept.step(1024) == (0, CAP_MIB)
    limiter = Team(gpu_node, NAMESPACE)

    def found():
        pods = limiter.pods(labelSelector="app.kubernetes.io/component=limiter")
        staying = [
            found_pod for found_pod in pods if "deletionTimestamp" not in found_pod["metadata"]
        ]
        return staying[0] if len(pods) == len(staying) == 1 and is_ready(staying[0]) else None

    gpu_node.kill_container(statuses(found())["limiter"]["containerID"])
    assert kept.step(1536) == (FULL, CAP_MIB)
    before = limiter.wait("the limiter back", found)["metadata"]
    limiter.delete_pod(before["name"])
    limiter.wait("another limiter", lambda: (found() or {"metadata": before})["metadata"] != before)
    assert kept.step(1536) == (FULL, CAP_MIB)
    gpu_node.stop_kubelet()
    gpu_node.start_kubelet()
    where = ("--namespace", tenant.namespace, "exec", "kept", "-c", "main", "--", "true")
    wait_until("the kubelet", lambda: gpu_node.kubectl(*where).returncode == 0, timeout=120)
    assert kept.step(1536) == (FULL, CAP_MIB)
    gpu_node.kill_container(statuses(tenant.pod("kept"))["main"]["containerID"])

    def back():
        one = statuses(tenant.pod("kept"))["main"]
        return one["restartCount"] == 1 and "running" in one["state"]

    tenant.wait("its container back", back)
    again = GpuProgram(tenant, "kept")
    assert again.step(1536) == (0, CAP_MIB)
    assert again.step(1024) == (FULL, CAP_MIB)
    new = started(tenant, gpu_pod("new", AMOUNT))
    assert new.step(CAP_MIB + 1) == (FULL, CAP_MIB)
    for name in ("kept", "new"):
        tenant.delete_pod(name)


def test_a_pod_that_got_its_gpu_late_is_held_from_then_on(tenant, system):
    tenant.create(gpu_pod("late", AMOUNT, schedulingGates=GATE))
    scale(system, 0)
    try:
        remove_gate(tenant, "late")
        tenant.wait("it bound", lambda: tenant.pod("late")["spec"].get("nodeName"))
    finally:
        scale(system, 2)
    tenant.wait_ready("late")
    late = GpuProgram(tenant, "late")
    assert late.step(1024) == (0, CAP_MIB)
    assert late.step(1536) == (FULL, CAP_MIB)
    assert tenant.pod("late")["metadata"]["annotations"][LABEL] == "Auto"
    tenant.delete_pod("late")


def test_a_containers_own_limit_becomes_its_pods(tenant, gpu_node):
    one = started(tenant, gpu_pod("image", AMOUNT))
    uid = tenant.pod("image")["metadata"]["uid"]
    gpu = tenant.pod("image")["metadata"]["annotations"]["vramwarden.io/gpu"]
    pid, _ = gpu_node.process_of(statuses(tenant.pod("image"))["main"]["containerID"])
    gpu_node.driver.set_limit(gpu_node.run, pid, gpu, 16 * GIB)
    assert one.step(1024)[0] == 0

    def told():
        events = gpu_node.api.list("/api/v1/events", fieldSelector=f"involvedObject.uid={uid}")
        return [found for found in events if found["reason"] == "VRAMLimitReset"]

    event, *_ = tenant.wait("an Event", told)
    print(event["message"])
    assert one.step(CAP_MIB - 1023)[0] == FULL
    assert one.step(1024) == (0, CAP_MIB)
    tenant.delete_pod("image")


def test_memory_that_the_driver_does_not_count_is_held_by_the_sidecar(tenant):
    """This is memory shared by IPC, and memory of a child whose creator has ended."""
    one = started(tenant, gpu_pod("uncounted", AMOUNT))
    assert one.step(CAP_MIB) == (0, CAP_MIB)
    time.sleep(5)  # longer than the interval between two lists: the other process grew last then
    script = f"{HOLD.replace('$$', '$')}hold {GIB}; sleep 60"
    where = ("--namespace", tenant.namespace, "exec", "uncounted", "-c", "main")
    done = tenant.cluster.kubectl(*where, "--", "sh", "-c", script)
    assert done.returncode == 143, (done.returncode, done.stdout, done.stderr)
    assert one.step(1) == (FULL, CAP_MIB)
    assert restarts(tenant, "uncounted") == 0
    tenant.delete_pod("uncounted")


def test_who_requires_it_waits_for_a_node_that_can(
    limited, mode, gpu_node, release, make_team, agent
):
    team = make_team()
    release.install(
        limited | {"policies": {"files": {"10-limits.yaml": RULE.format(namespace=team.namespace)}}}
    )
    selects = {"vramwarden.io/driver-limit": "true"}

    def translated():
        made = team.create(gpu_pod("asks", AMOUNT), dry_run=True)
        return made["spec"]["nodeSelector"].items() >= selects.items()

    for _ in range(6):
        team.wait("the rule in force", translated)
    one = started(team, gpu_pod("requires", AMOUNT))
    assert one.step(CAP_MIB + 1) == (FULL, CAP_MIB)
    assert team.pod("requires")["spec"]["nodeName"] == NODE
    gpu_node.driver.limit_by("off")
    team.wait("the label gone", lambda: LABEL not in agent.labels())
    assert one.step(1024)[0] == 0  # the program continues, with its cap enforced by its sidecar
    team.create(gpu_pod("waits", AMOUNT))
    team.wait("why", lambda: [line for line in team.events("waits") if "FailedScheduling" in line])
    said = ask(gpu_node.kubeconfig, "explain", "waits", "-n", team.namespace, code=1)
    print(said)
    assert "the driver takes no limit" in said
    gpu_node.driver.limit_by(mode)
    team.wait_ready("waits")
    for name in ("requires", "waits"):
        team.delete_pod(name)
    release.install(limited)


def test_a_driver_that_goes_and_comes_back_holds_who_is_there(tenant, gpu_node, agent):
    one = started(tenant, gpu_pod("through", AMOUNT))
    assert one.step(1024) == (0, CAP_MIB)
    began = time.monotonic()
    gpu_node.driver.unload()
    try:
        tenant.wait("the label gone", lambda: LABEL not in agent.labels(), timeout=400)
        print(f"label gone {time.monotonic() - began:.0f} s after the driver")
    finally:
        gpu_node.driver.load()
    began = time.monotonic()
    tenant.wait("its limit again", lambda: one.step(0)[1] == CAP_MIB)
    print(f"limited again after {time.monotonic() - began:.0f} s")
    tenant.wait("the label back", lambda: agent.labels().get(LABEL) == "true")
    print(f"label back after {time.monotonic() - began:.0f} s")
    new = started(tenant, gpu_pod("after", AMOUNT))
    assert new.step(CAP_MIB + 1) == (FULL, CAP_MIB)
    assert one.step(CAP_MIB)[0] == FULL
    assert statuses(tenant.pod("through"))["main"]["restartCount"] == 0
    for name in ("through", "after"):
        tenant.delete_pod(name)


def test_a_pod_without_gpus_of_ours_is_left_as_it_was(tenant):
    tenant.create(pod("plain", None, holding("forever")))
    assert tenant.wait_ready("plain")["spec"].get("initContainers") is None
    tenant.delete_pod("plain")
