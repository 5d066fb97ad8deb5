"""With enforcement by Sentry, only the node's sentry enforces caps, even with older drivers.

The node has each driver version in turn, and its own again at the end.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time

import pytest

from tests.e2e.asking import ask, diagnose
from tests.e2e.node import NODE_MANIFEST
from tests.e2e.pods import GIB, container, holding, pod, processes_of, statuses
from tests.e2e.sentry import NAMESPACE, NodeSentry
from tests.e2e.team import Team
from tests.e2e.test_05_pod_security import RESTRICTED_CONTAINER, RESTRICTED_POD
from tests.e2e.test_08_outage import GATE, MERGE, at_gate, gpu_of, remove_gate, scale
from tests.support.control_planes import wait_until

DRIVERS = ("535.288.01", "550.163.01", "580.65.06")
NEWEST = DRIVERS[-1]
DAEMON_SET = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/vramwarden-sentry"
LABEL, ENFORCEMENT = "vramwarden.io/sentry", "vramwarden.io/enforcement"
CONDITION = "vramwarden.io/SentryActing"
POLICY = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: by-sentry}
spec:
  rules:
  - name: by-sentry
    match: {namespaceLabels: {by: sentry}}
    enforcement: {by: Sentry, grace: 3s}
"""
OVER = 6 * GIB
TIMES, AT_ONCE = 20, 5
ENDS = {
    "as it is": ("", 137),
    "with a handler": ("trap 'exit 3' TERM; ", 3),
    "that ignores SIGTERM": ("trap : TERM; ", 137),
}
"""Reactions of a container's PID 1 to SIGTERM, with its exit code (137 for SIGKILL)."""


@pytest.fixture(scope="module")
def rule(gpu_node, release, values):
    """Install the rule; restore policy and driver at the end."""
    files = {"policies": {"files": {"05-by-sentry.yaml": POLICY}}}
    release.install(values | files)
    yield
    gpu_node.driver.play()
    release.install(values)


@pytest.fixture(scope="module", params=DRIVERS)
def driver(request, rule, gpu_node, agent):
    """Give the node, including its agent and sentry, a driver of this version."""
    gpu_node.driver.play(request.param)
    began = time.monotonic()
    agent.replace()
    sentry = NodeSentry(gpu_node, Team(gpu_node, NAMESPACE))
    sentry.delete()
    wait_until("the label", lambda: agent.labels().get(LABEL) == "true", timeout=150)
    print(f"{request.param}: labelled {time.monotonic() - began:.1f} s later")
    return request.param


@pytest.fixture(scope="module")
def tenant(driver, make_team):
    """Return a team whose pods are enforced by Sentry, when the replicas know the rule."""
    found = make_team(by="sentry")
    found.wait("the rule in force", lambda: not sidecars(asked(found)))
    return found


@pytest.fixture(scope="module")
def newest(driver):
    if driver != NEWEST:
        pytest.skip("the same with every driver")


def asked(team, **spec):
    """Return a pod as it would be stored."""
    manifest = pod("asked", "2Gi", ["true"], **spec)
    manifest["metadata"]["namespace"] = team.namespace
    path = f"/api/v1/namespaces/{team.namespace}/pods"
    return team.api.request("POST", path, manifest, dryRun="All")


def sidecars(found):
    return found["spec"].get("initContainers", [])


def held_since_s(node, uid):
    """Return the time at which a pod's process reported that it uses memory, or None before."""
    for written in (node.state / "scenes").glob("*/pod"):
        if uid in written.read_text():
            times = [path.stat().st_mtime for path in (written.parent / "pids").glob("[0-9]*")]
            return min(times, default=None)
    return None


def test_the_nodes_labels_say_what_it_can(driver, tenant, agent):
    labels = agent.labels()
    assert labels["vramwarden.io/driver-version"] == driver
    assert labels[ENFORCEMENT] == ("sidecar" if driver == NEWEST else "none")


def test_nothing_is_added_but_the_gate(newest, tenant):
    made = asked(tenant)
    print(f"{len(json.dumps(made))} bytes stored")
    assert not sidecars(made)
    assert "shareProcessNamespace" not in made["spec"]
    gates = [volume for volume in made["spec"]["volumes"] if volume["name"] == "vram-gate"]
    assert len(gates) == 1


def test_an_honest_program_runs_and_has_a_neighbour_that_is_stopped(tenant, gpu_node):
    tenant.create(pod("honest", "2Gi", holding(f"hold {GIB}; forever")))
    grows = holding(f"sleep 2; hold {OVER}; forever")
    tenant.create(pod("grows", "2Gi", grows, restartPolicy="Never"))
    tenant.wait_ready("honest")
    assert tenant.wait_ended("grows")["exitCode"] == 137
    (condition,) = tenant.wait(
        "a condition",
        lambda: [
            condition
            for condition in tenant.pod("grows")["status"]["conditions"]
            if condition["type"] == "vramwarden.io/CapHeld"
        ],
    )
    print(condition["message"])
    assert (condition["status"], condition["reason"]) == ("False", "VRAMCapExceeded")
    assert "sidecar" not in condition["message"]
    said = diagnose(gpu_node.kubeconfig, "grows", tenant.namespace)
    assert "by the node's sentry: " in said
    assert {status["restartCount"] for status in statuses(tenant.pod("honest")).values()} == {0}
    for name in ("honest", "grows"):
        tenant.delete_pod(name)


@pytest.mark.parametrize("shared", [None, False, True], ids=lambda value: f"shared {value}")
@pytest.mark.parametrize("how", ENDS)
def test_number_1_is_stopped(tenant, how, shared):
    trap, code = ENDS[how]
    spec = {} if shared is None else {"shareProcessNamespace": shared}
    name = f"first-{how}-{shared}".replace(" ", "-").lower()
    script = holding(f"{trap}sleep 2; hold {OVER}; forever")
    made = tenant.create(pod(name, "2Gi", script, restartPolicy="Never", **spec))
    assert tenant.wait_ended(name)["exitCode"] == code
    wait_until("its processes gone", lambda: not processes_of(made["metadata"]["uid"], b"hold"))
    tenant.delete_pod(name)


def test_seconds_from_excess_to_memory_given_back(newest, tenant, gpu_node):
    took = []
    for first in range(0, TIMES, AT_ONCE):
        names = [f"timed-{first + number}" for number in range(AT_ONCE)]
        waiting = {}
        for number, name in enumerate(names):
            script = holding(f"sleep {2 + 2 * number}; hold {OVER}; forever")
            made = tenant.create(pod(name, "2Gi", script, restartPolicy="Never"))
            waiting[made["metadata"]["uid"]] = None
        deadline_s = time.monotonic() + 120
        while waiting and time.monotonic() < deadline_s:
            for uid in list(waiting):
                waiting[uid] = waiting[uid] or held_since_s(gpu_node, uid)
                if waiting[uid] and not processes_of(uid, b"hold"):
                    took.append(time.time() - waiting.pop(uid))
            time.sleep(0.05)
        assert not waiting
        for name in names:
            tenant.delete_pod(name)
    print(f"excess to memory given back: median {statistics.median(took):.2f} s, "
          f"worst of {len(took)} {max(took):.2f} s")  # fmt: skip


@contextlib.contextmanager
def busy(node):
    """Keep every core busy until the block ends."""
    with contextlib.ExitStack() as ending:
        for _ in range(4):
            ending.enter_context(node.running("sh", "-c", "while :; do :; done"))
        yield


@pytest.mark.parametrize("load", ["idle", "busy"])
def test_seconds_until_a_program_starts(newest, tenant, team, gpu_node, load):
    """Measured from the creation of the pod to that of the program's container."""
    began = {"sentry": [], "sidecar": []}
    with busy(gpu_node) if load == "busy" else contextlib.nullcontext():
        for number in range(5):
            for by, whose in (("sentry", tenant), ("sidecar", team)):
                name = f"starts-{load}-{number}"
                at_s = time.time()
                whose.create(pod(name, "1Gi", holding("forever")))
                found = statuses(whose.wait_ready(name))["main"]
                began[by].append(gpu_node.created_s(found["containerID"]) - at_s)
                whose.delete_pod(name)
    medians = {by: round(statistics.median(times), 2) for by, times in began.items()}
    print(f"{load}: seconds until the program's container: {medians}")


def test_in_restricted_nothing_more_is_asked_of_the_namespace(newest, make_team):
    team = make_team(**{"by": "sentry", "pod-security.kubernetes.io/enforce": "restricted"})
    script = holding(f"sleep 2; hold {OVER}; forever")
    hardened = container(script, securityContext=RESTRICTED_CONTAINER)
    security = {"securityContext": RESTRICTED_POD, "restartPolicy": "Never"}
    team.create(pod("grows", "2Gi", [], containers=[hardened], **security))
    assert team.wait_ended("grows")["exitCode"] == 137
    team.delete_pod("grows")


def test_host_pids_are_denied(newest, tenant):
    said = tenant.denial(pod("host", "2Gi", ["true"], hostPID=True))
    print(said)
    assert "HostPID: spec.hostPID" in said


def test_a_pod_bound_without_a_replica_waits_at_the_gate(newest, tenant, system, gpu_node):
    tenant.create(pod("late", "2Gi", holding("forever"), schedulingGates=GATE))
    scale(system, 0)
    try:
        remove_gate(tenant, "late")
        tenant.wait("it waits at the gate", lambda: at_gate(tenant, "late"))
        assert gpu_of(tenant, "late") == ""
        print(ask(gpu_node.kubeconfig, "explain", "late", "-n", tenant.namespace, code=1))
    finally:
        scale(system, 2)
    began = time.monotonic()
    tenant.wait_ready("late")
    print(f"it runs {time.monotonic() - began:.1f} s after the replicas")
    assert gpu_of(tenant, "late")
    tenant.delete_pod("late")


def select_nodes(node, labels):
    change = {"spec": {"template": {"spec": {"nodeSelector": labels}}}}
    node.api.request("PATCH", DAEMON_SET, change, content_type=MERGE)


def acting(node):
    """Return the node's condition about its sentry."""
    conditions = node.api.get(NODE_MANIFEST)["status"]["conditions"]
    return next((condition for condition in conditions if condition["type"] == CONDITION), None)


def test_an_update_of_the_sentry_withdraws_nothing(newest, tenant, agent, gpu_node):
    sentry = NodeSentry(gpu_node, Team(gpu_node, NAMESPACE))
    sentry.delete()
    assert agent.labels().get(LABEL) == "true"
    assert acting(gpu_node)["status"] == "True"


def test_a_node_without_a_sentry_says_so_and_gets_no_such_pod(newest, tenant, agent, gpu_node):
    over = holding(f"wait_for grow; hold {OVER}; forever")
    tenant.create(pod("runs", "2Gi", over))
    tenant.wait_ready("runs")
    own = Team(gpu_node, NAMESPACE)
    select_nodes(gpu_node, {"kubernetes.io/os": "none"})
    began = time.monotonic()
    try:
        own.wait("no sentry", lambda: not own.pods())
        tenant.run("runs", "touch", "/scene/grow")
        wait_until("the label gone", lambda: LABEL not in agent.labels(), timeout=180)
        print(f"the label is gone after {time.monotonic() - began:.0f} s")
        wait_until("the condition", lambda: acting(gpu_node)["status"] == "False", timeout=60)
        print(acting(gpu_node)["message"])
        assert time.monotonic() - began < 180
        assert {status["restartCount"] for status in statuses(tenant.pod("runs")).values()} == {0}
        tenant.create(pod("next", "2Gi", holding("forever")))

        def unscheduled():
            conditions = tenant.pod("next")["status"].get("conditions", ())
            return [
                condition for condition in conditions if condition.get("reason") == "Unschedulable"
            ]

        print(tenant.wait("it waits for a node", unscheduled)[0]["message"])
        said = ask(gpu_node.kubeconfig, "explain", "runs", "-n", tenant.namespace)
        print(said)
        assert "nothing holds it to its cap now" in said
    finally:
        select_nodes(gpu_node, None)
    began = time.monotonic()
    tenant.wait("the excess stopped", lambda: statuses(tenant.pod("runs"))["main"]["restartCount"])
    print(f"stopped {time.monotonic() - began:.1f} s after the sentry's return")
    wait_until("the label back", lambda: agent.labels().get(LABEL) == "true", timeout=150)
    tenant.wait_ready("next")
    assert acting(gpu_node)["status"] == "True"
    for name in ("runs", "next"):
        tenant.delete_pod(name)


def test_a_sentry_that_restarts_leaves_seconds_without_a_cap(newest, tenant, gpu_node):
    sentry = NodeSentry(gpu_node, Team(gpu_node, NAMESPACE))
    for how in (sentry.crash, sentry.delete):
        script = holding(f"wait_for grow; hold {OVER}; forever")
        tenant.create(pod("over", "2Gi", script, restartPolicy="Never"))
        tenant.wait_ready("over")
        tenant.run("over", "touch", "/scene/grow")
        began = time.monotonic()
        how()
        tenant.wait_ended("over")
        print(f"{how.__name__}: over the cap for {time.monotonic() - began:.1f} s at most")
        tenant.delete_pod("over")
