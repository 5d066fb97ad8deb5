"""Rules for people that the pods of their workloads get past."""

from __future__ import annotations

import pytest

from tests.support.pods import a_policy, a_rule
from webhook.core.admission.overlooked import overlooked
from webhook.core.policy.match import Match
from webhook.core.policy.values import Action

ACCOUNT = "system:serviceaccount:kube-system:job-controller"


@pytest.mark.parametrize(
    ("rule", "warned"),
    [
        ({}, False),
        ({"users": ("ada",)}, True),
        ({"groups": ("oidc:interns",)}, True),
        ({"users": ("ada",), "namespaces": ("team-*",)}, True),
        ({"users": ("ada",), "action": Action.WARN}, True),
        ({"users": ("ada",), "action": Action.AUDIT}, True),
        ({"users": ("ada",), "action": Action.IGNORE}, False),
        ({"users": ("*",)}, False),
        ({"users": ("ada", ACCOUNT)}, False),
        ({"groups": ("system:authenticated",)}, False),
        ({"users": (ACCOUNT,), "groups": ("oidc:interns",)}, True),
        ({"service_accounts": ("trainer",)}, False),
        ({"exception": Match(users=("ada",))}, False),
    ],
)
def test_a_rule_for_people_leaves_out_what_controllers_create(rule, warned):
    policy = a_policy(a_rule(name="first", where="a.yaml:7", **rule), a_rule(name="other"))
    found = list(overlooked(policy))
    assert len(found) == warned
    assert all(one.startswith("a.yaml:7: rule first: the pods of Deployments") for one in found)
