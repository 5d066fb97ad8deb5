"""Containers for debugging that come later: what they may not do, and what they see."""

from __future__ import annotations

import copy

import pytest

from tests.core.admission.decisions import (
    VISIBLE,
    VRAM,
    a_bound_pod,
    a_debugger,
    debugged,
    found_in,
    stored_pod,
    updated,
    variable,
    with_debuggers,
)
from tests.core.admission.faults import DEBUGGER_FAULTS
from tests.support.pods import a_container, a_pod, a_policy, a_rule
from webhook.core.admission.decide import Outcome, Phase
from webhook.core.policy.values import Action


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(("fields", "path"), DEBUGGER_FAULTS, ids=str)
def test_a_debugging_container_that_defeats_the_cap_is_denied(fields, path, index, phase):
    debuggers = [a_debugger("harmless")] * index + [a_debugger(**fields)]
    decision = debugged(a_bound_pod(), *debuggers, phase=phase)
    assert found_in(decision) == [
        ("EphemeralContainer", f"spec.ephemeralContainers[{index}].{path}")
    ]
    assert decision.outcome is Outcome.DENIED
    (finding,) = decision.findings
    assert decision.message == f"EphemeralContainer: {finding.path}: {finding.detail}"


def test_the_default_profile_of_kubectl_debug_is_denied_with_one_that_works():
    debugger = a_debugger(securityContext={"capabilities": {"add": ["SYS_PTRACE"]}})
    assert debugged(a_bound_pod(), debugger).message == (
        "EphemeralContainer: "
        "spec.ephemeralContainers[0].securityContext.capabilities.add[0]: "
        'container "debug" adds the capability SYS_PTRACE, which defeats the VRAM cap; '
        "use kubectl debug --profile=baseline"
    )


def test_all_faults_of_a_debugging_container_are_reported_at_once():
    debugger = a_debugger(
        **variable(VISIBLE, "all"),
        securityContext={"privileged": True, "capabilities": {"add": ["SYS_PTRACE"]}},
        targetContainerName="vram-enforcer",
    )
    assert len(debugged(a_bound_pod(), debugger).findings) == 4


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"command": ["sh"], "stdin": True, "tty": True},
        {"targetContainerName": "main"},
        variable(VISIBLE, "void"),
        variable(VISIBLE, "none"),
        variable(VISIBLE, ""),
        variable("CUDA_VISIBLE_DEVICES", "0"),
        {"securityContext": {"capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}}},
        {"securityContext": {"runAsUser": 1000, "privileged": False}},
    ],
    ids=str,
)
def test_a_harmless_debugging_container_is_allowed(fields, phase):
    old = a_bound_pod()
    decision = debugged(old, a_debugger(**fields), phase=phase)
    assert (decision.allowed, decision.findings) == (True, ())
    expected = a_debugger(**fields)
    if phase is Phase.MUTATE:
        names = [entry["name"] for entry in expected.setdefault("env", [])]
        if VISIBLE not in names:
            expected["env"] = [*expected["env"], {"name": VISIBLE, "value": "void"}]
    assert decision.obj == with_debuggers(old, expected)


@pytest.mark.parametrize(("fields", "path"), DEBUGGER_FAULTS, ids=str)
def test_a_debugging_container_that_exists_is_not_judged_again(fields, path):
    old = with_debuggers(a_bound_pod(), a_debugger("old", **fields))
    assert debugged(old, a_debugger("new")).outcome is Outcome.ALLOWED
    decision = debugged(old, a_debugger("new", **fields))
    assert found_in(decision) == [("EphemeralContainer", f"spec.ephemeralContainers[1].{path}")]


@pytest.mark.parametrize("label", [None, "false", ""])
@pytest.mark.parametrize(("fields", "path"), DEBUGGER_FAULTS, ids=str)
def test_a_debugging_container_of_a_pod_without_a_demand_is_left_alone(fields, path, label):
    pod = a_pod(labels={} if label is None else {"vramwarden.io/managed": label})
    assert debugged(pod, a_debugger(**fields)).outcome is Outcome.ALLOWED


@pytest.mark.parametrize(
    "pod",
    [
        a_pod("8Gi"),
        a_pod("8GB"),
        a_pod(containers=[a_container(resources={"limits": {VRAM: "8Gi"}})]),
        a_pod(labels={"vramwarden.io/managed": "true"}),
    ],
    ids=["asks", "asks unreadably", "asks by resource", "is marked"],
)
def test_a_pod_that_asks_for_vram_is_guarded_though_it_lacks_a_mark(pod):
    decision = debugged(pod, a_debugger(**variable(VISIBLE, "all")))
    assert decision.reasons == ("EphemeralContainer",)


def test_a_debugging_container_is_judged_by_the_rule_of_its_pod():
    policy = a_policy(a_rule(action=Action.WARN))
    decision = debugged(a_bound_pod(), a_debugger(**variable(VISIBLE, "all")), policy=policy)
    assert decision.outcome is Outcome.WARNED


# --- what cannot be seen at admission


def debugged_with(phase, **fields):
    old = stored_pod()
    new = copy.deepcopy(old)
    new["spec"]["ephemeralContainers"] = [a_container("debugger", **fields)]
    return updated(old, new, subresource="ephemeralcontainers", phase=phase)


def test_a_debugging_container_gets_no_view_of_gpus_whatever_its_image_says():
    decision = debugged_with(Phase.MUTATE)
    assert decision.outcome is Outcome.MUTATED
    void = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    assert decision.obj["spec"]["ephemeralContainers"][0]["env"] == [void]
    again = updated(stored_pod(), decision.obj, subresource="ephemeralcontainers")
    assert again.patch == ()


def test_variables_from_elsewhere_are_overridden_or_else_denied():
    elsewhere = [{"configMapRef": {"name": "x"}}]
    assert debugged_with(Phase.MUTATE, envFrom=elsewhere).outcome is Outcome.MUTATED
    denied = debugged_with(Phase.VALIDATE, envFrom=elsewhere)
    assert denied.reasons == ("EphemeralContainer",)
    assert denied.findings[0].path == "spec.ephemeralContainers[0].envFrom"
    void = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert debugged_with(Phase.VALIDATE, envFrom=elsewhere, env=void).outcome is Outcome.ALLOWED
