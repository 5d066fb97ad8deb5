"""Preferred node affinity by free memory, for pods placed at binding."""

from __future__ import annotations

import pytest

from tests.core.admission.decisions import (
    BY_SENTRY,
    RICH_RULE,
    WITHOUT_SIDECAR,
    another_policy,
    assert_unchanged,
    decide_pod,
    stored_pod,
)
from tests.support.pods import RULE, a_pod, a_policy, a_rule
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.policy.model import Placement

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
FREE = "vramwarden.io/gpu-memory-free-mib"


def advice(need_mib, label=FREE):
    expression = {"key": label, "operator": "Gt", "values": [str(need_mib - 1)]}
    return {"weight": 100, "preference": {"matchExpressions": [expression]}}


def zone(name, weight=7):
    expression = {"key": "zone", "operator": "In", "values": [name]}
    return {"weight": weight, "preference": {"matchExpressions": [expression]}}


def preferring(*terms):
    return {"nodeAffinity": {PREFERRED: list(terms)}}


def preferred(pod):
    return pod["spec"]["affinity"]["nodeAffinity"].get(PREFERRED)


def required_keys(pod):
    terms = pod["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    return {expression["key"] for term in terms for expression in term["matchExpressions"]}


@pytest.mark.parametrize("rule", [RULE, RICH_RULE, BY_SENTRY, WITHOUT_SIDECAR])
def test_a_pod_placed_at_binding_prefers_nodes_with_a_gpu_that_has_room(rule):
    pod = stored_pod(rule, a_pod("8Gi"))
    assert preferred(pod) == [advice(8192)]
    assert FREE not in required_keys(pod)


def test_a_pod_that_is_not_placed_prefers_nothing():
    pod = stored_pod(a_rule(placement=Placement.NONE), a_pod("8Gi"))
    assert preferred(pod) is None


@pytest.mark.parametrize(("count", "label"), [(1, FREE), (2, f"{FREE}.2"), (99, f"{FREE}.16")])
def test_a_pod_of_several_gpus_prefers_nodes_where_as_many_have_room(count, label):
    pod = stored_pod(pod=a_pod("8Gi", annotations={"vramwarden.io/gpu-count": str(count)}))
    assert preferred(pod) == [advice(8192, label)]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (None, [advice(8192)]),
        ({}, [advice(8192)]),
        ({"nodeAffinity": None}, [advice(8192)]),
        ({"nodeAffinity": {PREFERRED: None}}, [advice(8192)]),
        (preferring(), [advice(8192)]),
        (preferring(zone("a"), zone("b", 100)), [zone("a"), zone("b", 100), advice(8192)]),
        (preferring(advice(8192), zone("a")), [advice(8192), zone("a")]),
        (preferring(advice(4096)), [advice(4096), advice(8192)]),
    ],
)
def test_what_the_user_prefers_stays_and_ours_is_there_once(written, expected):
    pod = stored_pod(pod=a_pod("8Gi", affinity=written))
    assert preferred(pod) == expected
    assert_unchanged(decide_pod(pod))


def test_other_affinity_of_the_user_stays():
    pod = stored_pod(pod=a_pod("8Gi", affinity={"podAntiAffinity": {"a": 1}, **preferring()}))
    assert pod["spec"]["affinity"]["podAntiAffinity"] == {"a": 1}


CHANGES = {
    "without": lambda pod: pod["spec"]["affinity"]["nodeAffinity"].pop(PREFERRED),
    "emptied": lambda pod: preferred(pod).clear(),
    "lighter": lambda pod: preferred(pod)[0].update(weight=1),
    "crowded": lambda pod: preferred(pod).insert(0, zone("a")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("policy", [a_policy(), another_policy()], ids=["own", "other"])
def test_a_pod_whose_advice_somebody_changed_is_stored_all_the_same(policy, change):
    pod = stored_pod()
    change(pod)
    assert pod != stored_pod()
    assert_unchanged(decide_pod(pod, phase=Phase.VALIDATE, policy=policy))


@pytest.mark.parametrize("drop", [("affinity",), ("affinity", "nodeAffinity")])
def test_without_advice_and_condition_it_is_not(drop):
    pod = stored_pod()
    *parents, last = ("spec", *drop)
    holder = pod
    for key in parents:
        holder = holder[key]
    del holder[last]
    decision = decide_pod(pod, phase=Phase.VALIDATE)
    assert decision.reasons == ("Unmutated",)


@pytest.mark.parametrize("value", ["text", {"a": 1}, ["text"], 7])
@pytest.mark.parametrize("phase", Phase)
def test_advice_of_a_wrong_type_is_named(value, phase):
    pod = a_pod("8Gi", affinity={"nodeAffinity": {PREFERRED: value}})
    decision = decide_pod(pod, phase=phase)
    assert decision.outcome is Outcome.MALFORMED
    assert f"spec.affinity.nodeAffinity.{PREFERRED}" in decision.malformed
