"""Pods without a demand only get warnings with rollout Observe, and no GPU is hidden."""

from __future__ import annotations

import pytest

from tests.core.admission.decisions import (
    VISIBLE,
    VRAM,
    a_bound_pod,
    a_debugger,
    a_full_pod,
    assert_unchanged,
    decide_debugging,
    decide_pod,
    decide_update,
    stored_pod,
    variable,
)
from tests.core.admission.faults import DEMAND_FAULTS, SPEC_FAULTS
from tests.support.pods import RULE, a_container, a_pod, a_policy, a_rule
from webhook.adapters.review_json import encode_review
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.policy.cluster import UNKNOWN_CLUSTER, Cluster
from webhook.core.policy.model import Action, Rollout, VisibleDevices

SEES = variable(VISIBLE, "all")
WITHOUT_DEMAND = [
    (a_pod(containers=[a_container(**SEES)]), "VisibleDevicesOverride"),
    (a_pod(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=all"}), "DeviceInjection"),
    (a_pod(labels={"vramwarden.io/managed": "true"}), "ReservedName"),
    (a_pod(containers=[a_container("vram-enforcer")]), "ReservedName"),
    (
        a_pod(containers=[a_container(resources={"limits": {"nvidia.com/gpu": "500m"}})]),
        "FractionalWholeGPU",
    ),
    (a_pod(containers=[a_container(**SEES)], tolerations=[{}] * 257), "TooComplex"),
]


OBSERVED = Cluster(Rollout.OBSERVE)


def judged(pod, rule=RULE, phase=Phase.MUTATE):
    return decide_pod(pod, rule, phase, cluster=OBSERVED)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(("pod", "reason"), WITHOUT_DEMAND)
def test_what_is_wrong_with_a_pod_without_a_demand_is_a_warning(pod, reason, phase):
    decision = judged(pod, phase=phase)
    assert decision.outcome is Outcome.WARNED
    assert decision.reasons == (reason,)
    assert (decision.patch, decision.obj) == ((), pod)
    assert decision.findings == decide_pod(pod, phase=phase).findings
    response = encode_review("u-1", decision, "")["response"]
    assert response["warnings"][0].startswith(f"{reason}: ")
    assert response["allowed"] is True


@pytest.mark.parametrize(
    ("action", "outcome"), [(Action.WARN, Outcome.WARNED), (Action.AUDIT, Outcome.AUDITED)]
)
def test_a_rule_that_never_denies_decides_as_ever(action, outcome):
    assert judged(WITHOUT_DEMAND[0][0], a_rule(action=action)).outcome is outcome


@pytest.mark.parametrize("phase", Phase)
def test_what_a_rule_would_void_is_warned_of_and_left(phase):
    pod = a_full_pod(None)
    pod["spec"]["containers"][0].update(SEES)
    decision = judged(pod, a_rule(visible_devices=VisibleDevices.VOID), phase)
    assert (decision.outcome, decision.patch, decision.obj) == (Outcome.WARNED, (), pod)
    assert decision.reasons == ("VisibleDevicesOverride",)


def test_what_a_rule_ignores_is_not_warned_of():
    assert_unchanged(judged(WITHOUT_DEMAND[0][0], a_rule(visible_devices=VisibleDevices.IGNORE)))


@pytest.mark.parametrize(
    "pod",
    [
        *(a_full_pod(memory, annotations=notes) for _, memory, notes, _ in DEMAND_FAULTS),
        *(a_full_pod(**fields) for _, fields, _ in SPEC_FAULTS),
        a_pod(containers=[a_container(resources={"limits": {VRAM: "x"}})]),
        a_pod("8Gi", tolerations=[{}] * 257),
    ],
)
def test_a_pod_with_a_demand_is_judged_as_ever(pod):
    assert judged(pod) == decide_pod(pod)
    assert judged(pod).outcome is Outcome.DENIED


def test_a_pod_with_a_demand_is_translated_as_ever_by_replicas_of_either_rollout():
    once = judged(a_full_pod())
    assert (once.outcome, once.obj) == (Outcome.MUTATED, decide_pod(a_full_pod()).obj)
    for cluster in (UNKNOWN_CLUSTER, OBSERVED):
        assert_unchanged(decide_pod(once.obj, phase=Phase.VALIDATE, cluster=cluster))


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("devices", [VisibleDevices.DENY, VisibleDevices.VOID])
@pytest.mark.parametrize(
    "fields", [SEES, {"name": "vram-enforcer"}], ids=["shows a GPU", "reserved name"]
)
def test_debugging_without_a_demand_is_only_warned_of(fields, devices, phase):
    policy = a_policy(a_rule(visible_devices=devices))
    decision = decide_debugging(
        a_pod(), {**a_debugger(), **fields}, policy=policy, cluster=OBSERVED, phase=phase
    )
    assert (decision.outcome, decision.patch) == (Outcome.WARNED, ())


FORGED = a_pod(labels={"vramwarden.io/managed": "true"})


@pytest.mark.parametrize(
    ("old", "fields", "phase", "outcome"),
    [
        (a_bound_pod(), SEES, Phase.VALIDATE, Outcome.DENIED),
        (a_bound_pod(), {}, Phase.MUTATE, Outcome.MUTATED),
        (FORGED, SEES, Phase.VALIDATE, Outcome.WARNED),
        (FORGED, {}, Phase.MUTATE, Outcome.ALLOWED),
    ],
    ids=["a demand, seeing", "a demand", "a label of ours alone, seeing", "a label of ours alone"],
)
def test_debugging_with_a_demand_is_judged_as_ever_whatever_label_there_is(
    old, fields, phase, outcome
):
    decision = decide_debugging(old, a_debugger(**fields), cluster=OBSERVED, phase=phase)
    assert decision.outcome is outcome


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    "metadata",
    [
        {"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=all"}},
        {"annotations": {"vramwarden.io/gpu": "GPU-1"}},
        {"labels": {"vramwarden.io/managed": "true"}},
    ],
    ids=str,
)
def test_an_update_without_a_demand_is_only_warned_of(metadata, phase):
    decision = decide_update(a_pod(), a_pod(**metadata), cluster=OBSERVED, phase=phase)
    assert (decision.outcome, decision.patch) == (Outcome.WARNED, ())


def test_an_update_that_brings_or_changes_a_demand_is_judged_as_ever():
    assert decide_update(a_pod(), a_pod("8Gi"), cluster=OBSERVED).outcome is Outcome.DENIED
    assert decide_update(a_pod("8Gi"), a_pod(), cluster=OBSERVED).outcome is Outcome.DENIED
    unmarked = stored_pod()
    del unmarked["metadata"]["labels"]
    assert decide_update(stored_pod(), unmarked, cluster=OBSERVED).outcome is Outcome.DENIED
