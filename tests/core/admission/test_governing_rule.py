"""The governing rule depends on the ServiceAccount and, for updates, on the stored pod."""

from __future__ import annotations

import pytest

from tests.support.pods import a_pod, a_policy, a_request, a_rule
from webhook.core.admission.decide import decide, governing_rule
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.policy.cluster import UNKNOWN_CLUSTER


def rule(request, policy):
    found = governing_rule(request, policy, UNKNOWN_CLUSTER)
    return found.name if found else ""


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ({"serviceAccountName": "trainer"}, "trainers"),
        ({"serviceAccount": "trainer"}, "trainers"),
        ({"serviceAccountName": "trainer", "serviceAccount": "default"}, "trainers"),
        ({"serviceAccountName": ""}, "defaults"),
        ({}, "defaults"),
        ({"serviceAccountName": "other"}, ""),
    ],
)
def test_a_pod_without_a_service_account_has_the_default_one(spec, name):
    rules = [a_rule(name=f"{name}s", service_accounts=(name,)) for name in ("trainer", "default")]
    assert rule(a_request(a_pod("8Gi", **spec)), a_policy(*rules)) == name


def test_a_service_account_that_is_no_text_is_malformed():
    request = a_request(a_pod("8Gi", serviceAccountName=1))
    policy = a_policy(a_rule(service_accounts=("trainer",)))
    assert decide(request, policy, UNKNOWN_CLUSTER, Phase.MUTATE).outcome is Outcome.MALFORMED


def test_labels_that_an_update_adds_or_removes_choose_no_other_rule():
    policy = a_policy(a_rule(name="gold", pod_labels={"tier": "gold"}), a_rule(name="everybody"))
    gold, plain = a_pod("8Gi", labels={"tier": "gold"}), a_pod("8Gi")
    for old, new, name in ((gold, plain, "gold"), (plain, gold, "everybody")):
        assert rule(a_request(new, operation="UPDATE", old=old), policy) == name
