"""What is warned of: rules that workloads get past, and caps that nobody holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.pods import A100, a_policy, a_rule
from webhook.core.admission.policy_warnings import policy_warnings
from webhook.core.policy.match import Match
from webhook.core.policy.values import Accounting, Action, EnforceBy

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
    found = [one for one in map(str, policy_warnings(policy)) if "governs no pod:" not in one]
    assert len(found) == warned
    assert all(
        one.startswith('a.yaml:7: rule "first" governs no pods of Deployments') for one in found
    )


@pytest.mark.parametrize(
    ("rule", "of_class", "warned"),
    [
        (Accounting.CAP_ONLY, None, True),
        (Accounting.VRAM, Accounting.CAP_ONLY, True),
        (Accounting.VRAM, None, False),
        (Accounting.MIG, None, False),
    ],
)
def test_a_cap_that_nobody_holds_is_doubtful(rule, of_class, warned):
    def said(**changes):
        first = a_rule(name="first", where="a.yaml:7", accounting=rule, **changes)
        gpu_class = replace(A100, accounting=of_class)
        return [str(one) for one in policy_warnings(a_policy(first, classes={"a100": gpu_class}))]

    found = said(enforcement={"by": EnforceBy.NONE})
    assert len(found) == warned
    assert all(one.startswith('a.yaml:7: rule "first" holds nobody to') for one in found)
    assert not said()
    assert not said(enforcement={"by": EnforceBy.NONE}, action=Action.IGNORE)
