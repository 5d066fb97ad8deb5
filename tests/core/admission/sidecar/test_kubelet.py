"""How the kubelet restarts all containers, pulls the sidecar's image, and shows it its GPUs."""

from __future__ import annotations

import copy

import pytest

from tests.core.admission.decisions import (
    VISIBLE,
    a_hardened_pod,
    a_plain_pod,
    another_policy,
    assert_fine,
    assert_left,
    container_of,
    decided,
    translated,
)
from tests.support.pods import RULE, a_pod, a_rule
from webhook.core.admission.decide import Outcome, Phase
from webhook.core.policy.values import EnforceBy, Placement, PodRestart
from webhook.names import ASSIGNED_LATE_EXIT_CODE, POD_RESTART_EXIT_CODE
from webhook.sidecar.program import DRIVER_CHANGED, SELF_TEST_FAILED

RESTARTING = a_rule(enforcement={"pod_restart": PodRestart.ALL_CONTAINERS})
CODES = {"operator": "NotIn", "values": [0, 70, 75, 76]}
OURS = [{"action": "RestartAllContainers", "exitCodes": CODES}]
A_POD_WITHOUT_A_USER = a_hardened_pod(restricted=True, users=(None, None))


def sidecar(pod, rule):
    return container_of(translated(pod, rule), "vram-enforcer")


@pytest.mark.parametrize("pod", [a_plain_pod(), A_POD_WITHOUT_A_USER], ids=["plain", "restricted"])
def test_a_sidecar_that_somebody_ended_restarts_the_pod_where_the_rule_says_so(pod):
    found = sidecar(pod, RESTARTING)
    assert found["restartPolicy"] == "Always"
    assert found["restartPolicyRules"] == OURS


def test_where_the_sidecar_ended_by_itself_it_alone_starts_again():
    assert CODES["values"] == [0, SELF_TEST_FAILED, DRIVER_CHANGED, ASSIGNED_LATE_EXIT_CODE]
    assert POD_RESTART_EXIT_CODE not in CODES["values"]


def test_the_rule_is_all_that_the_setting_changes_for_a_pod_that_can_be_stopped():
    found = sidecar(a_plain_pod(), RESTARTING)
    assert found.pop("restartPolicyRules")
    assert found == sidecar(a_plain_pod(), RULE)


def test_a_pod_that_is_translated_already_is_left_as_it_is():
    pod = translated(A_POD_WITHOUT_A_USER, RESTARTING)
    assert decided(pod, RESTARTING).patch == ()
    assert_fine(pod, RESTARTING)


@pytest.mark.parametrize(
    "rules",
    [
        None,
        [],
        [{"action": "Restart", "exitCodes": {"operator": "In", "values": [88]}}],
        [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}}],
        [{"action": "RestartAllContainers", "exitCodes": {**CODES, "values": [*range(255)]}}],
        [{"action": "Restart", "exitCodes": {"operator": "In", "values": [88]}}, *OURS],
    ],
    ids=["none", "empty", "other action", "88 alone", "other codes", "one before"],
)
def test_a_sidecar_without_the_rule_is_repaired_and_otherwise_not_stored(rules):
    wanted = translated(A_POD_WITHOUT_A_USER, RESTARTING)
    broken = copy.deepcopy(wanted)
    found = container_of(broken, "vram-enforcer")
    found["restartPolicyRules"] = rules
    if rules is None:
        del found["restartPolicyRules"]
    assert decided(broken, RESTARTING, Phase.VALIDATE).reasons == ("Unmutated",)
    assert decided(broken, RESTARTING).obj == wanted


def test_a_rule_that_nobody_asked_for_is_not_stored():
    decision = decided(translated(a_plain_pod(), RESTARTING), RULE, Phase.VALIDATE)
    assert decision.outcome is Outcome.DENIED


NAMED = a_rule(enforcement={"image_pull_secrets": ("registry", "mirror")})
REGISTRY, MIRROR, OWN = ({"name": name} for name in ("registry", "mirror", "own"))

CASES = {
    "none": (None, [REGISTRY, MIRROR]),
    "empty": ([], [REGISTRY, MIRROR]),
    "the user's": ([OWN], [OWN, REGISTRY, MIRROR]),
    "one of ours": ([MIRROR, OWN], [MIRROR, OWN, REGISTRY]),
    "all of ours": ([MIRROR, REGISTRY], [MIRROR, REGISTRY]),
    "the user's twice": ([OWN, OWN], [OWN, OWN, REGISTRY, MIRROR]),
    "one without a name": ([{}], [{}, REGISTRY, MIRROR]),
}


@pytest.mark.parametrize(("before", "after"), CASES.values(), ids=CASES)
def test_names_are_added_once_after_the_users(before, after):
    pod = translated(a_pod("8Gi", imagePullSecrets=before), NAMED)
    assert pod["spec"]["imagePullSecrets"] == after
    assert_fine(pod, NAMED)
    assert decided(pod, NAMED).patch == ()


NO_SIDECAR = a_rule(enforcement={"image_pull_secrets": ("registry",), "by": EnforceBy.NONE})


@pytest.mark.parametrize(
    ("pod", "rule", "after"),
    [
        (a_pod("8Gi"), RULE, None),
        (a_pod("8Gi", imagePullSecrets=[OWN]), RULE, [OWN]),
        (a_pod("8Gi"), NO_SIDECAR, None),
        (a_pod(), NAMED, None),
    ],
    ids=["a rule that names none", "the user's alone", "no sidecar", "no demand"],
)
def test_where_nothing_is_pulled_by_a_name_none_is_added(pod, rule, after):
    assert decided(pod, rule).obj["spec"].get("imagePullSecrets") == after


def test_a_pod_that_lacks_one_is_not_stored_but_under_another_policy_it_is():
    pod = translated(a_pod("8Gi"), NAMED)
    pod["spec"]["imagePullSecrets"].pop()
    decision = decided(pod, NAMED, Phase.VALIDATE)
    assert decision.reasons == ("Unmutated",)
    assert decision.findings[0].path == "spec.imagePullSecrets[1]"
    assert_left(decided(pod, phase=Phase.VALIDATE, policy=another_policy(NAMED)))


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("value", ["registry", {"name": "x"}, ["registry"], [None]], ids=str)
def test_a_list_of_a_wrong_type_is_a_malformed_object(value, phase):
    decision = decided(a_pod("8Gi", imagePullSecrets=value), NAMED, phase)
    assert decision.outcome is Outcome.MALFORMED
    assert decision.malformed.startswith("spec.imagePullSecrets")


GPUS = {"apiVersion": "v1", "fieldPath": "metadata.annotations['vramwarden.io/gpu']"}
WAITS = {"apiVersion": "v1", "fieldPath": "metadata.annotations['vramwarden.io/gpu-waits']"}
SEEN = {"apiVersion": "v1", "fieldPath": "metadata.annotations['vramwarden.io/visible-devices']"}
FILES = [{"path": "gpu", "fieldRef": GPUS}, {"path": "gpu-waits", "fieldRef": WAITS}]
VOLUME = {
    "name": "vram-enforcer-gpu",
    "downwardAPI": {"items": FILES, "defaultMode": 0o644},
}
MOUNT = {"name": "vram-enforcer-gpu", "mountPath": "/run/vram-enforcer-gpu", "readOnly": True}
CHOSEN = {"valueFrom": {"fieldRef": SEEN}}


@pytest.mark.parametrize(
    ("placement", "gpus", "seen", "waits"),
    [
        (Placement.BINDING, [{"valueFrom": {"fieldRef": GPUS}}], CHOSEN, True),
        # No annotation will ever come: a sidecar with that variable would wait forever.
        (Placement.NONE, [], {"value": "all"}, False),
    ],
)
def test_the_sidecar_waits_only_if_a_gpu_may_come(placement, gpus, seen, waits):
    pod = translated(a_plain_pod(), a_rule(placement=placement))
    enforcer = container_of(pod, "vram-enforcer")
    assert [
        {key: value for key, value in entry.items() if key != "name"}
        for entry in enforcer["env"]
        if entry["name"] == "VRAM_GPUS"
    ] == gpus
    for container in (enforcer, container_of(pod, "main")):
        assert {"name": VISIBLE, **seen} in container["env"]
    assert enforcer["volumeMounts"][2:] == ([MOUNT] if waits else [])
    assert pod["spec"]["volumes"][2:] == ([VOLUME] if waits else [])


def test_no_probe_ends_a_sidecar_that_waits():
    probe = container_of(translated(a_plain_pod()), "vram-enforcer")["startupProbe"]
    assert probe["failureThreshold"] == 2**31 - 1  # the most that the API takes
