"""The sidecar's restart rules, image pull and GPUs."""

from __future__ import annotations

import copy

import pytest

from tests.core.admission.decisions import (
    VISIBLE,
    a_hardened_pod,
    a_plain_pod,
    assert_admitted,
    decide_pod,
    find_container,
    translate,
)
from tests.support.pods import RULE, a_rule
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.policy.model import Placement, PodRestart
from webhook.names import POD_RESTART_EXIT_CODE
from webhook.sidecar.program import DRIVER_CHANGED, SELF_TEST_FAILED

RESTARTING = a_rule(enforcement={"pod_restart": PodRestart.ALL_CONTAINERS})
CODES = {"operator": "NotIn", "values": [0, 70, 75]}
OURS = [{"action": "RestartAllContainers", "exitCodes": CODES}]
A_POD_WITHOUT_A_USER = a_hardened_pod(restricted=True, users=(None, None))


def sidecar(pod, rule):
    return find_container(translate(pod, rule), "vram-enforcer")


@pytest.mark.parametrize("pod", [a_plain_pod(), A_POD_WITHOUT_A_USER], ids=["plain", "restricted"])
def test_a_sidecar_that_somebody_ended_restarts_the_pod_where_the_rule_says_so(pod):
    found = sidecar(pod, RESTARTING)
    assert found["restartPolicy"] == "Always"
    assert found["restartPolicyRules"] == OURS


def test_where_the_sidecar_ended_by_itself_it_alone_starts_again():
    assert CODES["values"] == [0, SELF_TEST_FAILED, DRIVER_CHANGED]
    assert POD_RESTART_EXIT_CODE not in CODES["values"]


def test_the_rule_is_all_that_the_setting_changes_for_a_pod_that_can_be_stopped():
    found = sidecar(a_plain_pod(), RESTARTING)
    assert found.pop("restartPolicyRules")
    assert found == sidecar(a_plain_pod(), RULE)


def test_a_pod_that_is_translated_already_is_left_as_it_is():
    pod = translate(A_POD_WITHOUT_A_USER, RESTARTING)
    assert decide_pod(pod, RESTARTING).patch == ()
    assert_admitted(pod, RESTARTING)


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
    wanted = translate(A_POD_WITHOUT_A_USER, RESTARTING)
    broken = copy.deepcopy(wanted)
    found = find_container(broken, "vram-enforcer")
    found["restartPolicyRules"] = rules
    if rules is None:
        del found["restartPolicyRules"]
    assert decide_pod(broken, RESTARTING, Phase.VALIDATE).reasons == ("Unmutated",)
    assert decide_pod(broken, RESTARTING).obj == wanted


def test_a_rule_that_nobody_asked_for_is_not_stored():
    decision = decide_pod(translate(a_plain_pod(), RESTARTING), RULE, Phase.VALIDATE)
    assert decision.outcome is Outcome.DENIED


GPUS = {"apiVersion": "v1", "fieldPath": "metadata.annotations['vramwarden.io/gpu']"}
SEEN = {"apiVersion": "v1", "fieldPath": "metadata.annotations['vramwarden.io/visible-devices']"}
CHOSEN = {"valueFrom": {"fieldRef": SEEN}}


@pytest.mark.parametrize(
    ("placement", "gpus", "seen"),
    [
        (Placement.BINDING, [{"valueFrom": {"fieldRef": GPUS}}], CHOSEN),
        # The annotation is never written, so a sidecar with this variable would fail its self-test.
        (Placement.NONE, [], {"value": "all"}),
    ],
)
def test_the_sidecar_knows_its_gpus_only_if_they_are_chosen(placement, gpus, seen):
    pod = translate(a_plain_pod(), a_rule(placement=placement))
    enforcer = find_container(pod, "vram-enforcer")
    assert [
        {key: value for key, value in entry.items() if key != "name"}
        for entry in enforcer["env"]
        if entry["name"] == "VRAM_GPUS"
    ] == gpus
    for container in (enforcer, find_container(pod, "main")):
        assert {"name": VISIBLE, **seen} in container["env"]


def test_no_probe_ends_a_sidecar_that_waits():
    probe = find_container(translate(a_plain_pod()), "vram-enforcer")["startupProbe"]
    assert probe["failureThreshold"] == 2**31 - 1  # the API's maximum
