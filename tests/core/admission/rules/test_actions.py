"""A rule's action determines the effect of a fault. All faults are reported at once."""

from __future__ import annotations

import pytest

from tests.core.admission.decisions import (
    EVERYWHERE,
    GI,
    VISIBLE,
    a_full_pod,
    assert_unchanged,
    decide_pod,
    decide_reasons,
    limits,
    merge_into_container,
    variable,
)
from tests.support.pods import a_container, a_pod, a_rule
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.bounds import MAX_SENTENCE_LENGTH
from webhook.core.placement.pod_state import read_pod_state
from webhook.core.policy.model import Action, MemoryBounds, VisibleDevices

AUDIT = a_rule(action=Action.AUDIT)


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
    merge_into_container(pod, "second", variable(VISIBLE, "all"))
    decision = decide_pod(pod, a_rule(action=action), phase)
    assert (decision.outcome, decision.allowed) == (outcome, allowed)
    assert decision.reasons == ("VisibleDevicesOverride",)
    assert decision.patch == ()
    assert decision.obj == pod


@pytest.mark.parametrize("phase", Phase)
def test_a_rule_that_ignores_judges_nothing(phase):
    pod = a_full_pod("8GB", hostPID=True)
    decision = decide_pod(pod, a_rule(action=Action.IGNORE), phase)
    assert (decision.outcome, decision.reasons) == (Outcome.SKIPPED, ("RuleIgnores",))
    assert (decision.allowed, decision.patch, decision.findings) == (True, (), ())


def test_a_pod_without_fault_is_mutated_where_its_user_would_be_warned():
    assert decide_pod(a_full_pod(), a_rule(action=Action.WARN)).outcome is Outcome.MUTATED


@pytest.mark.parametrize("action", [Action.WARN, Action.AUDIT])
def test_a_pod_that_was_allowed_in_spite_of_a_fault_is_stored(action):
    rule = a_rule(action=action)
    pod = a_full_pod(hostPID=True)
    assert decide_pod(decide_pod(pod, rule).obj, rule, Phase.VALIDATE).allowed


# --- Audit judges and changes nothing


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    "pod",
    [
        a_pod("8Gi"),
        a_pod("main=8Gi", labels={"vramwarden.io/managed": "true"}),
        a_pod(containers=[a_container(resources={"limits": {"vramwarden.io/vram": "8Gi"}})]),
        a_pod(annotations={"vramwarden.io/gpu-mem": "8Gi"}),
    ],
)
def test_audit_changes_no_pod_and_says_nothing_to_who_creates_it(pod, phase):
    decision = decide_pod(pod, AUDIT, phase)
    assert_unchanged(decision)
    assert (decision.warnings, decision.advice_bytes) == ((), None)
    assert decision.obj == pod


@pytest.mark.parametrize("phase", Phase)
def test_audit_finds_a_variable_that_would_be_voided_and_leaves_it(phase):
    pod = a_full_pod(None)
    merge_into_container(pod, "main", variable(VISIBLE, "all"))
    decision = decide_pod(
        pod, a_rule(action=Action.AUDIT, visible_devices=VisibleDevices.VOID), phase
    )
    assert (decision.outcome, decision.reasons) == (Outcome.AUDITED, ("VisibleDevicesOverride",))
    assert (decision.patch, decision.warnings) == ((), ())


def test_a_pod_that_audit_left_alone_takes_no_gpu_of_a_node_at_binding():
    resources = {"limits": {"vramwarden.io/vram": "8Gi"}}
    pod = decide_pod(a_pod("8Gi", containers=[a_container("main", resources=resources)]), AUDIT).obj
    pod["metadata"]["uid"] = "uid"
    state = read_pod_state(pod)
    assert not state.needs_placement


@pytest.mark.parametrize("action", sorted([Action.ENFORCE, Action.WARN, Action.AUDIT]))
def test_the_sentence_stands_in_our_log_and_in_the_audit_log(action):
    decision = decide_pod(a_full_pod("8GB"), a_rule(action=action))
    assert "8GB is not a Kubernetes quantity; use 8G or 8Gi" in decision.log_fields["why"]
    assert decision.audit_annotations["message"] == decision.log_fields["why"]


def test_the_sentence_that_is_logged_is_cut():
    pod = a_full_pod(hostPID=True)
    for name in EVERYWHERE:
        merge_into_container(pod, name, limits("nvidia.com/gpu-" + "x" * 240, "500m"))
    pod["spec"]["containers"] += [
        a_container(f"c{number}", securityContext={"privileged": True}) for number in range(60)
    ]
    decision = decide_pod(pod)
    assert len(decision.message) > MAX_SENTENCE_LENGTH
    assert len(decision.audit_annotations["message"]) == MAX_SENTENCE_LENGTH
    assert decision.audit_annotations["message"].endswith("…")


def test_where_nothing_is_wrong_there_is_no_sentence():
    decision = decide_pod(a_full_pod())
    assert "message" not in decision.audit_annotations
    assert "why" not in decision.log_fields


# --- all at once


def test_six_faults_are_reported_at_once():
    pod = a_full_pod(
        "main=80Gi",
        annotations={"vramwarden.io/gpu-class": "h100"},
        hostPID=True,
        nodeName="node-1",
    )
    merge_into_container(pod, "init", {"securityContext": {"privileged": True}})
    merge_into_container(pod, "second", variable(VISIBLE, "all"))
    rule = a_rule(memory=MemoryBounds(max_bytes=40 * GI))
    decision = decide_pod(pod, rule)
    assert sorted(decision.reasons) == [
        "HostPID",
        "NodeNamePreset",
        "PrivilegedContainer",
        "TooLarge",
        "UnknownClass",
        "VisibleDevicesOverride",
    ]
    assert decision.message == "\n; ".join(
        f"{found.reason}: {found.path}: {found.detail}" for found in decision.findings
    )


def test_the_same_fault_in_every_container_is_reported_for_each():
    pod = a_full_pod()
    paths = [
        merge_into_container(pod, name, variable(VISIBLE, "all")) + ".env[0]" for name in EVERYWHERE
    ]
    assert decide_reasons(pod) == [("VisibleDevicesOverride", path) for path in paths]


def test_faults_beside_a_demand_that_cannot_be_read_are_reported_with_it():
    pod = a_full_pod("8GB", hostPID=True, nodeName="node-1")
    merge_into_container(pod, "init", limits("nvidia.com/gpu", "500m"))
    assert sorted({reason for reason, _ in decide_reasons(pod)}) == [
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
    decision = decide_pod(a_pod("8GB", **more))
    assert set(decision.reasons) == {"InvalidQuantity", reason}
