"""The RuntimeClass of a pod with a demand depends on the rule and the cluster."""

from __future__ import annotations

import itertools

import pytest

from tests.core.admission.decisions import a_plain_pod, assert_unchanged
from tests.support.pods import a_pod, a_policy, a_request, a_rule
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Phase
from webhook.core.policy.cluster import Cluster

CLUSTERS = {
    "not known": frozenset(),
    "others": frozenset({"runc", "nvidia-cdi"}),
    "nvidia": frozenset({"runc", "nvidia"}),
}
HAS_NVIDIA = CLUSTERS["nvidia"]

# The rule's RuntimeClass, then the pod's in a cluster without and with RuntimeClass `nvidia`.
TABLE = {
    "Auto": (None, "nvidia"),
    None: (None, None),
    "nvidia": ("nvidia", "nvidia"),
    "own": ("own", "own"),
}


def under(name, classes, **changes):
    policy = a_policy(a_rule(runtime_class_name=name), **changes)
    return policy, Cluster(runtime_classes=classes)


def mutated(pod, known):
    decision = decide(a_request(pod), *known, Phase.MUTATE)
    assert decision.allowed, decision.message
    return decision.obj


@pytest.mark.parametrize(("rule", "wanted"), TABLE.items(), ids=map(str, TABLE))
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_pod_that_names_none_gets_what_the_rule_and_the_cluster_say(rule, wanted, cluster):
    classes = CLUSTERS[cluster]
    pod = mutated(a_plain_pod(), under(rule, classes))
    assert pod["spec"].get("runtimeClassName") == wanted["nvidia" in classes]


@pytest.mark.parametrize("rule", TABLE)
def test_a_pod_that_names_one_keeps_it(rule):
    pod = mutated(a_pod("8Gi", runtimeClassName="kata"), under(rule, HAS_NVIDIA))
    assert pod["spec"]["runtimeClassName"] == "kata"


def test_a_pod_without_a_demand_gets_none():
    assert_unchanged(decide(a_request(a_pod()), *under("Auto", HAS_NVIDIA), Phase.MUTATE))


PAIRS = list(itertools.product(CLUSTERS, repeat=2))


@pytest.mark.parametrize("digest", ["0123456789abcdef", "fedcba9876543210"], ids=["own", "other"])
@pytest.mark.parametrize(("then", "now"), PAIRS, ids=map(" then ".join, PAIRS))
def test_under_auto_a_pod_is_stored_whatever_became_of_the_class_meanwhile(then, now, digest):
    pod = mutated(a_plain_pod(), under("Auto", CLUSTERS[then]))
    known = under("Auto", CLUSTERS[now], digest=digest)
    assert_unchanged(decide(a_request(pod), *known, Phase.VALIDATE))


def test_a_name_of_the_rule_is_missed_in_a_pod_whatever_the_cluster_has():
    known = under("nvidia", HAS_NVIDIA)
    pod = mutated(a_plain_pod(), known)
    del pod["spec"]["runtimeClassName"]
    decision = decide(a_request(pod), *known, Phase.VALIDATE)
    assert decision.reasons == ("Unmutated",)
    assert decision.findings[0].path == "spec.runtimeClassName"
