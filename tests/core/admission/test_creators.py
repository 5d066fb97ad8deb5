"""Workloads under rules that ask who creates a pod: it is a controller, and not who made them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.admission.test_templates import a_review
from tests.support.pods import a_pod, a_policy, a_rule
from webhook.core.admission.decide import Outcome
from webhook.core.admission.templates import advise, creation_of, decide_both
from webhook.core.pod.templates import is_own_kind
from webhook.core.policy.cluster import UNKNOWN, Cluster
from webhook.core.policy.match import (
    ANYONE,
    CONTROLLERS,
    Creator,
    NamespaceUnknownError,
    controllers_of,
)
from webhook.core.policy.values import Action, Bounds

SMALL = Bounds(max_bytes=2**30)
ACCOUNTS = a_rule(name="accounts", users=("system:serviceaccount:kube-system:*",), memory=SMALL)
MANAGER = a_rule(name="manager", users=("system:kube-controller-manager",), memory=SMALL)
INTERNS = a_rule(name="interns", groups=("oidc:interns",), memory=SMALL)
AUTHENTICATED = a_rule(name="both", groups=("system:authenticated",), memory=SMALL)
EVERYBODY = a_rule(name="everybody")


@pytest.mark.parametrize("kind", CONTROLLERS)
def test_a_workload_has_a_controller_with_an_account_or_without(kind):
    own, shared = controllers_of(kind)
    assert own.user.startswith("system:serviceaccount:kube-system:")
    assert own.user.endswith("-controller")
    assert "system:serviceaccounts:kube-system" in own.groups
    assert shared.user == "system:kube-controller-manager"
    assert is_own_kind(kind, "")


@pytest.mark.parametrize("kind", ["Pod", "PodTemplate", "Workflow", "PyTorchJob"])
def test_of_what_others_create_no_controller_is_known(kind):
    assert controllers_of(kind) == ()


@pytest.mark.parametrize(
    ("rules", "rule"),
    [
        ([INTERNS, EVERYBODY], "everybody"),
        ([AUTHENTICATED, EVERYBODY], "both"),
        ([ACCOUNTS, MANAGER, EVERYBODY], None),
        ([ACCOUNTS, EVERYBODY], None),
        ([MANAGER, EVERYBODY], None),
        ([a_rule(name="first"), ACCOUNTS], "first"),
    ],
)
def test_what_holds_for_one_kind_of_controller_alone_is_not_said(rules, rule):
    review = replace(a_review(a_pod("8Gi")), user="oidc:ida", groups=("oidc:interns",))
    advice = advise(review, a_policy(*rules), UNKNOWN)
    assert advice.rule == (rule or "")
    assert bool(advice.warnings) is (rule == "both")


def test_where_that_is_not_foreseen_what_stands_at_the_wrong_level_is_still_said():
    metadata = {"annotations": {"vramwarden.io/gpu-memory": "8Gi"}}
    advice = advise(a_review(a_pod(), **metadata), a_policy(ACCOUNTS, EVERYBODY), UNKNOWN)
    (warning,) = advice.warnings
    assert "on the Deployment itself has no effect" in warning
    assert (advice.outcome, advice.rule) == (Outcome.WARNED, "")


def test_a_workload_is_judged_by_the_labels_of_its_namespace():
    labelled = a_rule(name="labelled", namespace_labels={"tier": "intern"}, memory=SMALL)
    policy = a_policy(labelled, EVERYBODY)
    review = a_review(a_pod("8Gi"))
    for labels, rule in (({"tier": "intern"}, "labelled"), ({}, "everybody")):
        assert advise(review, policy, Cluster(namespaces={"team-a": labels})).rule == rule
    with pytest.raises(NamespaceUnknownError):
        advise(review, policy, UNKNOWN)


@pytest.mark.parametrize(
    ("creator", "rule"),
    [
        (ANYONE, "everybody"),
        (Creator("oidc:ida"), "ida"),
        (Creator(groups=("oidc:interns",)), "interns"),
        (Creator(namespace_labels={"tier": "intern"}), "labelled"),
    ],
)
def test_a_pod_offline_is_judged_by_who_is_given(creator, rule):
    policy = a_policy(
        a_rule(name="ida", users=("oidc:ida",)),
        INTERNS,
        a_rule(name="labelled", namespace_labels={"tier": "intern"}),
        a_rule(name="everybody", action=Action.WARN),
    )
    cluster = Cluster(namespaces={"team-a": creator.namespace_labels})
    creation = creation_of(a_pod("1Gi"), "team-a", creator)
    assert [one.rule for one in decide_both(creation, policy, cluster)] == [rule, rule]
