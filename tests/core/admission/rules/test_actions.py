"""What the rule's action makes of a fault, and that all faults are reported at once."""

from __future__ import annotations

import pytest

from tests.core.admission.decisions import (
    EVERYWHERE,
    GI,
    VISIBLE,
    a_full_pod,
    decided,
    findings_of,
    limits,
    put_in,
    variable,
)
from tests.support.pods import a_container, a_pod, a_rule
from webhook.core.admission.decide import Outcome, Phase
from webhook.core.policy.values import Action, Bounds


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("memory", [None, "main=8Gi"])
@pytest.mark.parametrize(
    ("action", "outcome", "allowed"),
    [
        (Action.ENFORCE, Outcome.DENIED, False),
        (Action.WARN, Outcome.WARNED, True),
        (Action.AUDIT, Outcome.AUDITED, True),
    ],
)
def test_the_action_decides_and_an_allowed_fault_is_not_mutated(
    action, outcome, allowed, memory, phase
):
    pod = a_full_pod(memory)
    put_in(pod, "second", variable(VISIBLE, "all"))
    decision = decided(pod, a_rule(action=action), phase)
    assert (decision.outcome, decision.allowed) == (outcome, allowed)
    assert decision.reasons == ("VisibleDevicesOverride",)
    assert decision.patch == ()
    assert decision.obj == pod


@pytest.mark.parametrize("phase", Phase)
def test_a_rule_that_ignores_judges_nothing(phase):
    pod = a_full_pod("8GB", hostPID=True)
    decision = decided(pod, a_rule(action=Action.IGNORE), phase)
    assert (decision.outcome, decision.reasons) == (Outcome.SKIPPED, ("RuleIgnores",))
    assert (decision.allowed, decision.patch, decision.findings) == (True, (), ())


@pytest.mark.parametrize("action", [Action.WARN, Action.AUDIT])
def test_a_pod_without_fault_is_mutated_whatever_the_action(action):
    assert decided(a_full_pod(), a_rule(action=action)).outcome is Outcome.MUTATED


@pytest.mark.parametrize("action", [Action.WARN, Action.AUDIT])
def test_a_pod_that_was_allowed_in_spite_of_a_fault_is_stored(action):
    rule = a_rule(action=action)
    pod = a_full_pod(hostPID=True)
    assert decided(decided(pod, rule).obj, rule, Phase.VALIDATE).allowed


# --- all at once


def test_six_faults_are_reported_at_once():
    pod = a_full_pod(
        "main=80Gi",
        annotations={"vramwarden.io/gpu-class": "h100"},
        hostPID=True,
        nodeName="node-1",
    )
    put_in(pod, "init", {"securityContext": {"privileged": True}})
    put_in(pod, "second", variable(VISIBLE, "all"))
    rule = a_rule(memory=Bounds(max_bytes=40 * GI))
    decision = decided(pod, rule)
    assert sorted(decision.reasons) == [
        "HostPID",
        "NodeNamePreset",
        "PrivilegedContainer",
        "TooLarge",
        "UnknownClass",
        "VisibleDevicesOverride",
    ]
    assert decision.message == "; ".join(
        f"{found.reason}: {found.path}: {found.detail}" for found in decision.findings
    )


def test_the_same_fault_in_every_container_is_reported_for_each():
    pod = a_full_pod()
    paths = [put_in(pod, name, variable(VISIBLE, "all")) + ".env[0]" for name in EVERYWHERE]
    assert findings_of(pod) == [("VisibleDevicesOverride", path) for path in paths]


def test_faults_beside_a_demand_that_cannot_be_read_are_reported_with_it():
    pod = a_full_pod("8GB", hostPID=True, nodeName="node-1")
    put_in(pod, "init", limits("nvidia.com/gpu", "500m"))
    assert sorted({reason for reason, _ in findings_of(pod)}) == [
        "FractionalWholeGPU",
        "HostPID",
        "InvalidQuantity",
        "NodeNamePreset",
        "WholeGPUAndShare",
    ]


@pytest.mark.parametrize(
    ("reason", "more"),
    [
        ("UnknownClass", {"annotations": {"vramwarden.io/gpu-class": "h100"}}),
        ("NodeSelectorConflict", {"nodeSelector": {"vramwarden.io/gpu": "false"}}),
        ("ReservedName", {"containers": [a_container(), a_container("vram-enforcer")]}),
    ],
)
def test_what_does_not_depend_on_the_amount_is_reported_beside_a_wrong_one(reason, more):
    decision = decided(a_pod("8GB", **more))
    assert set(decision.reasons) == {"InvalidQuantity", reason}
