"""Rules with conditions on users and labels, as far as the API server can evaluate them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.chart.admission_policies import is_denied_by
from tests.chart.fenced import Fenced
from tests.support.pods import a_pod, a_policy, a_request, a_rule
from webhook.core.admission.decide import decide, governing_rule
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.match import Match, add_name_label
from webhook.core.policy.model import Action

NAME = "vramwarden-second-line"
SEEDS = range(22, 34)
LABELS = {
    "interns-a": {"tier": "intern"},
    "interns-b": {"tier": "intern", "example.com/zone": ""},
    "staff": {"tier": "staff", "example.com/zone": "a.b_c"},
    "bare": {},
}
KNOWN = Cluster(namespaces={name: add_name_label(name, labels) for name, labels in LABELS.items()})
PODS = {
    "plain": a_pod("8Gi", serviceAccountName="default"),
    "trainer": a_pod("8Gi", labels={"app": "web"}, serviceAccountName="trainer"),
}
PLACES = [
    {},
    {"namespaces": ("interns-*",)},
    {"namespaces": ("staff", "bare")},
    {"namespace_labels": {"tier": "intern"}},
    {"namespace_labels": {"tier": "intern", "example.com/zone": ""}},
    {"namespace_labels": {"example.com/zone": "a.b_c"}},
    {"namespaces": ("*-a", "bare"), "namespace_labels": {"tier": "intern"}},
    {"namespace_labels": {"kubernetes.io/metadata.name": "bare"}},
]
MORE = [
    *[{}] * 6,
    {"service_accounts": ("trainer",)},
    {"pod_labels": {"app": "web"}},
]


def drawn(seed):
    """Draw a policy of four rules."""
    draw = random.Random(seed).choice  # noqa: S311 - the same in every run
    rules = []
    for number in range(4):
        criteria = {**draw(PLACES), **draw(MORE)}
        exception = {**draw(PLACES), **draw(MORE)} if draw([True, False]) else {}
        if exception:
            criteria["exception"] = Match(**exception)
        action = draw([Action.ENFORCE, Action.ENFORCE, Action.IGNORE])
        rules.append(a_rule(name=f"r{number}", match=Match(**criteria), action=action))
    return a_policy(*rules)


@pytest.fixture(scope="module")
def cluster(control_plane, helm):
    """Return a cluster with the second line and labelled namespaces."""
    found = Fenced(control_plane, helm, NAME)
    for name, labels in LABELS.items():
        found.namespace(name, labels)
        metadata = {"name": "trainer", "namespace": name}
        found.api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    yield found
    found.close()


def held_rule(policy, namespace):
    """Return the first line's rule for a namespace, or None if the rule has no message."""
    request = a_request(a_pod(), namespace=namespace)
    for rule in policy.rules:
        exception = rule.match.exception
        if exception and exception.depends_on_pod:
            exception = None
        place = replace(rule.match, service_accounts=(), pod_labels={}, exception=exception)
        if governing_rule(request, a_policy(a_rule(match=place)), KNOWN):
            in_sight = not rule.match.depends_on_pod
            return rule if in_sight and rule.action is Action.ENFORCE else None
    return None


@pytest.mark.parametrize("seed", SEEDS)
def test_the_api_server_holds_what_the_webhook_would_and_all_that_it_can_see(cluster, seed):
    policy = drawn(seed)
    cluster.under(policy)
    for namespace in LABELS:
        held = held_rule(policy, namespace)
        for kind, pod in PODS.items():
            case = (namespace, kind)
            request = a_request(pod, namespace=namespace)
            denied = is_denied_by(cluster.denies(pod, namespace), NAME)
            assert denied == (held is not None), case
            decision = decide(request, policy, KNOWN, Phase.MUTATE)
            if denied:
                assert decision.rule == held.name, case
            if decision.outcome is Outcome.MUTATED:
                assert cluster.denies(decision.obj, namespace) == "", case


def test_the_policies_drawn_have_rules_of_all_sorts():
    for namespace, labels in LABELS.items():
        held = [held_rule(drawn(seed), namespace) for seed in SEEDS]
        assert None in held
        assert any(held)
        assert not labels or any(rule and rule.match.namespace_labels for rule in held)
    found = [held_rule(drawn(seed), name) for seed in SEEDS for name in LABELS]
    exceptions = [rule.match.exception for rule in found if rule]
    assert any(exception and exception.namespace_labels for exception in exceptions)


def test_as_many_rules_as_the_parameter_takes_are_read_within_the_api_servers_budget(cluster):
    labels = {f"example.com/label-{number}": "x" * 63 for number in range(4)}
    match = Match(namespace_labels=labels, exception=Match(namespace_labels=labels))
    rules = [a_rule(name=f"r{number}", match=match) for number in range(400)]
    few = [a_rule(name=f"f{number}", namespaces=(f"a{number}",)) for number in range(400)]
    cluster.namespace("labelled", labels)
    cluster.under(a_policy(*rules))
    assert cluster.denies(a_pod("8Gi"), "labelled") == ""  # all rules are evaluated; none applies
    cluster.under(a_policy(*few, a_rule(name="rest")))
    assert is_denied_by(cluster.denies(a_pod("8Gi"), "labelled"), NAME)
