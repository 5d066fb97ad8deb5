"""The decision on a new pod includes the requested amount, for advice on it."""

from __future__ import annotations

import pytest

from tests.core.admission.decisions import decide_pod
from tests.support.pods import a_pod, a_policy, a_request, a_rule
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Phase
from webhook.core.policy.cluster import UNKNOWN_CLUSTER, Cluster
from webhook.core.policy.model import Action, Rollout

GIB = 2**30
MUTATE, VALIDATE = Phase.MUTATE, Phase.VALIDATE


@pytest.mark.parametrize(
    ("pod", "rule", "phase", "asked"),
    [
        (a_pod("8Gi"), {}, MUTATE, 8 * GIB),
        (a_pod("8Gi", annotations={"vramwarden.io/gpu-count": "2"}), {}, MUTATE, 8 * GIB),
        (a_pod("8Gi"), {"action": Action.WARN}, MUTATE, 8 * GIB),
        (a_pod("8Gi"), {"action": Action.AUDIT}, MUTATE, None),
        (a_pod("8Gi"), {"action": Action.IGNORE}, MUTATE, None),
        (a_pod("8Gi"), {}, VALIDATE, None),
        (a_pod("8GB"), {}, MUTATE, None),
        (a_pod("8Gi", hostPID=True), {"action": Action.WARN}, MUTATE, None),
        (a_pod(), {}, MUTATE, None),
    ],
)
def test_a_new_pod_that_is_as_it_should_be_is_advised_on_once(pod, rule, phase, asked):
    decision = decide_pod(pod, a_rule(**rule), phase)
    assert decision.advice_bytes == asked


def test_a_rollout_that_observes_advises_as_well():
    observed = Cluster(Rollout.OBSERVE)
    assert decide_pod(a_pod("8Gi"), phase=MUTATE, cluster=observed).advice_bytes == 8 * GIB


def test_an_update_is_no_new_pod():
    pod = a_pod("8Gi")
    request = a_request(pod, operation="UPDATE", old=pod)
    assert decide(request, a_policy(), UNKNOWN_CLUSTER, MUTATE).advice_bytes is None
