"""A pod that stops its sidecar and exceeds its cap is stopped from outside; others are not."""

from __future__ import annotations

import contextlib
import time
from datetime import datetime

import pytest

from tests.e2e.images import busybox_image
from tests.e2e.node import NODE
from tests.e2e.pods import GIB, HOLD, container, holding, pod, statuses
from tests.support.control_planes import ApiError, wait_until
from webhook.core.formatting import format_amount

CAP, OVER = 2 * GIB, 6 * GIB
UNPROMISED = 3 * GIB
ATTACKS = holding(f"wait_for attack; hold {OVER}; forever")
# Program that stops the sidecar: a root shell in the workload's container. The program skips its
# own processes.
STOPS = """
cd /proc
for pid in [0-9]*; do
  if grep -q '[w]ebhook.sidecar' $pid/cmdline; then kill -STOP $pid && echo /proc/$pid; fi
done
"""
SIDECAR = "vram-enforcer"
# The maximum number of volumes, without those of the sidecar.
LARGE = [{"name": f"v{number}", "emptyDir": {}} for number in range(1021)]
SWAPPED = "localhost/swapped:1"
PYTHON3 = f"#!/bin/sh\n{HOLD.replace('$$', '$')}hold {70 * GIB}; forever\n"
DENIES = (
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
    "ValidatingAdmissionPolicyBinding",
)
HELD = "vramwarden.io/CapHeld"
EXCEEDED = "VRAMCapExceeded"
SOON_S = 15.0
"""Time to stop an excess if the sentry knows the pod's settings, in seconds."""
NOISE_S = 15.0
"""Allowance for the tests' requests on a busy machine, in seconds."""


@pytest.fixture(scope="module")
def intruder(gpu_node, sentry, make_team):
    """Return a pod without an assignment that uses memory throughout this file.

    The rollout is Observe, which only warns about the pod's environment variable.
    """
    found = make_team()
    shows = container(
        holding(f"hold {UNPROMISED}; forever"),
        env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
    )
    found.create(pod("intruder", None, [], containers=[shows]))
    yield found.wait_ready("intruder"), found
    found.delete_pod("intruder")


@pytest.fixture(scope="module")
def tenant(make_team, intruder):
    """Return a team after the intruder's memory use was reported, which takes a minute."""
    return make_team()


def told(pod):
    """Return the sentry's entry in the pod's status."""
    return [condition for condition in pod["status"]["conditions"] if condition["type"] == HELD]


@pytest.fixture(scope="module")
def attack(tenant, sentry):
    """Stop the sidecar from the workload's container, then use three times the cap."""
    tenant.create(pod("attacker", "2Gi", ATTACKS))
    before = tenant.wait_ready("attacker")
    process = tenant.run("attacker", "sh", "-c", STOPS).strip()
    state = ["sh", "-c", f"grep State: {process}/status"]
    assert "T (stopped)" in tenant.run("attacker", *state)
    tenant.run("attacker", "touch", "/scene/attack")
    began = time.monotonic()
    ended = tenant.wait_ended("attacker")
    print(f"over the cap for {time.monotonic() - began:.1f} s")
    assert time.monotonic() - began < SOON_S + NOISE_S
    yield before, ended, tenant.pod("attacker")
    tenant.delete_pod("attacker")


def test_who_stops_the_sidecar_is_stopped_from_outside(attack):
    _, ended, _ = attack
    assert ended["exitCode"] == 137
    assert ended["reason"] == "Error"  # not killed by the kernel for lack of memory


def test_the_sidecar_and_the_sandbox_were_not_touched(attack):
    before, _, after = attack
    seen = [statuses(found)[SIDECAR] for found in (before, after)]
    for field in ("containerID", "restartCount"):
        assert seen[0][field] == seen[1][field]
    assert before["status"]["podIP"] == after["status"]["podIP"]


def test_its_owner_reads_why_in_the_pod_in_an_event_and_in_the_log(attack, tenant, sentry):
    uid = attack[0]["metadata"]["uid"]
    (condition,) = tenant.wait("a condition", lambda: told(tenant.pod("attacker")))
    assert (condition["status"], condition["reason"]) == ("False", EXCEEDED)
    about = {"name": "attacker", "uid": uid}
    event, *more = tenant.wait("an Event", lambda: sentry.events(**about))
    assert {item["reason"] for item in (event, *more)} == {EXCEEDED}
    assert event["message"].startswith(condition["message"][:200])
    print(event["message"])
    for figure in (format_amount(OVER), format_amount(CAP)):
        assert figure in event["message"]
    assert [line for line in sentry.log() if uid in str(line)]


def swap(tenant):
    """Try to change the image of a sidecar; return the denial, or ""."""
    change = {"spec": {"initContainers": [{"name": SIDECAR, "image": SWAPPED}]}}
    path = f"/api/v1/namespaces/{tenant.namespace}/pods/large"
    kind = "application/strategic-merge-patch+json"
    try:
        tenant.api.request("PATCH", path, change, content_type=kind)
    except ApiError as error:
        return error.message
    return ""


@contextlib.contextmanager
def without_denials(api):
    """Remove all vramwarden objects that deny requests, until the block ends."""
    group = "admissionregistration.k8s.io/v1"
    taken = [
        {"apiVersion": group, "kind": kind, **found}
        for kind in DENIES
        for found in api.list(f"/apis/{group}/{kind.lower()}s")
        if "vramwarden" in found["metadata"]["name"]
    ]
    for item in taken:
        api.delete(item)
    try:
        yield
    finally:
        for item in taken:
            del item["metadata"]["resourceVersion"], item["metadata"]["managedFields"]
            api.create(item)


def test_a_large_pods_sidecar_keeps_its_image_and_if_not_holds_no_memory(
    tenant, sentry, gpu_node, tmp_path
):
    gpu_node.import_image(busybox_image(tmp_path, SWAPPED, python3=PYTHON3))
    tenant.create(pod("large", "8Gi", holding("forever"), volumes=LARGE))
    before = statuses(tenant.wait_ready("large"))[SIDECAR]
    denial = swap(tenant)
    print(denial)
    assert SIDECAR in denial
    with without_denials(tenant.api):
        tenant.wait("the sidecar swapped", lambda: not swap(tenant))

    def stopped():
        status = statuses(tenant.pod("large"))[SIDECAR]
        found = [status[when].get("terminated") for when in ("state", "lastState")]
        return [item for item in found if item and item["containerID"] != before["containerID"]]

    ended, *_ = tenant.wait("the swapped one stopped", stopped)
    times = [datetime.fromisoformat(ended[key]) for key in ("startedAt", "finishedAt")]
    held_s = (times[1] - times[0]).total_seconds()
    print(f"held 70Gi of 8Gi for {held_s:.0f} s")
    assert (ended["exitCode"], held_s < SOON_S + NOISE_S) == (137, True)
    (condition,) = tenant.wait("a condition", lambda: told(tenant.pod("large")))
    assert (condition["status"], condition["reason"]) == ("False", EXCEEDED)
    tenant.delete_pod("large")


def test_an_honest_pod_is_stopped_by_its_sidecar_and_the_sentry_says_nothing(tenant, sentry):
    grows = holding(f"hold {GIB}; wait_for grow; hold {OVER}; forever")
    tenant.create(pod("honest", "2Gi", grows))
    found = tenant.wait_ready("honest")
    tenant.run("honest", "touch", "/scene/grow")
    assert tenant.wait_ended("honest")["exitCode"] == 143
    assert told(tenant.pod("honest")) == []
    uid = found["metadata"]["uid"]
    assert sentry.events(uid=uid) == []
    assert [line for line in sentry.log() if uid in str(line)] == []
    tenant.delete_pod("honest")


def test_memory_that_nobody_was_promised_is_told_of_and_left_alone(intruder, sentry, tenant):
    found, team = intruder
    uid = found["metadata"]["uid"]
    said = format_amount(UNPROMISED)

    def told_of():
        events = sentry.events(kind="Node", name=NODE)
        return [event for event in events if uid in event["message"] and said in event["message"]]

    event, *_ = tenant.wait("an Event of the node", told_of)
    print(event["message"])
    assert event["reason"] == "VRAMUnmanaged"
    assert sentry.unmanaged() == {uid: UNPROMISED}
    (status,) = statuses(team.wait_ready("intruder")).values()
    assert status["restartCount"] == 0


class Seen:
    def __init__(self, *pods):
        self._pods = pods

    def now(self):
        return [
            {name: status["restartCount"] for name, status in statuses(team.pod(pod)).items()}
            for team, pod in self._pods
        ]


@pytest.fixture(scope="module")
def bystanders(intruder, quiet, team):
    team.wait_ready(quiet)
    return Seen((team, quiet), (intruder[1], "intruder"))


def test_without_an_api_server_it_shows_no_figure_rather_than_0(
    bystanders, intruder, sentry, gpu_node, tenant
):
    before = bystanders.now()
    address = sentry.pod()["status"]["podIP"]
    assert sentry.unmanaged(address) == {intruder[0]["metadata"]["uid"]: UNPROMISED}
    with gpu_node.without_api_server():
        wait_until("no figure", lambda: sentry.unmanaged(address) == {}, timeout=60)
    assert sentry.pod()["status"]["podIP"] == address
    assert bystanders.now() == before


def test_a_sentry_that_comes_back_stops_nobody_and_finds_what_it_knew(
    bystanders, intruder, sentry, tenant
):
    before = bystanders.now()
    for away in (sentry.delete, sentry.crash):
        away()
        # The sentry does not report pods that it has seen for less than a minute.
        assert sentry.unmanaged() == {}
    tenant.wait("the figure again", sentry.unmanaged)
    assert sentry.unmanaged() == {intruder[0]["metadata"]["uid"]: UNPROMISED}
    assert bystanders.now() == before
