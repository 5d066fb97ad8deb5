"""Verification of a patch, which the server does for a sample of patches."""

from __future__ import annotations

import copy
from dataclasses import replace

import jsonpatch
import pytest
from hypothesis import given

from tests.core.admission.test_laws import RULES
from tests.support.pods import a_container, a_pod, a_policy, a_request, a_rule
from tests.support.strategies import asking_pods
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.admission.workload_review import verify_patch
from webhook.core.pod.patch import PatchError, condense
from webhook.core.policy.cluster import UNKNOWN_CLUSTER
from webhook.core.policy.model import VisibleDevices


@given(asking_pods(), RULES)
def test_the_patch_of_every_pod_with_a_demand_holds(pod, rule):
    request, policy = a_request(pod), a_policy(rule)
    decision = decide(request, policy, UNKNOWN_CLUSTER, Phase.MUTATE)
    assert decision.outcome is Outcome.MUTATED
    verify_patch(request, decision.patch, policy, UNKNOWN_CLUSTER)


@given(asking_pods(), RULES, RULES)
def test_a_condensed_patch_says_the_same(pod, rule, other):
    again = decide(a_request(pod), a_policy(other), UNKNOWN_CLUSTER, Phase.MUTATE).obj
    for comes in (pod, again):
        untouched = copy.deepcopy(comes)
        decision = decide(a_request(comes), a_policy(rule), UNKNOWN_CLUSTER, Phase.MUTATE)
        patch = condense(comes, decision.patch, "spec")
        assert jsonpatch.apply_patch(comes, patch) == decision.obj
        assert comes == untouched
        inside = [one for one in decision.patch if one["path"].startswith("/spec/")]
        assert len(patch) <= len(decision.patch) - (len(inside) - 1) * (len(inside) > 3)


def test_a_patch_of_a_few_operations_stays_as_it_is():
    patch = [{"op": "add", "path": f"/spec/{key}", "value": 1} for key in "abc"]
    assert condense({"spec": {}}, patch, "spec") == patch


def test_the_patch_of_a_pod_whose_gpus_are_hidden_holds():
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    request = a_request(a_pod(containers=[a_container(env=env)]))
    policy = a_policy(a_rule(visible_devices=VisibleDevices.VOID))
    decision = decide(request, policy, UNKNOWN_CLUSTER, Phase.MUTATE)
    assert decision.outcome is Outcome.MUTATED
    verify_patch(request, decision.patch, policy, UNKNOWN_CLUSTER)


def decided(**changes):
    request, policy = a_request(a_pod("8Gi")), a_policy()
    return (
        request,
        replace(decide(request, policy, UNKNOWN_CLUSTER, Phase.MUTATE), **changes),
        policy,
    )


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        ([{"op": "remove", "path": "/spec/nothing"}], "does not apply"),
        ([{"op": "add", "path": "/spec/nothing/in", "value": 1}], "does not apply"),
        ([{"op": "add", "path": "/spec/x", "value": 1}], "not as wanted"),
        ([{"op": "add", "path": "/spec/hostPID", "value": True}], "HostPID"),
        ([{"op": "add", "path": "/spec/tolerations", "value": "x"}], "spec.tolerations"),
    ],
)
def test_a_patch_that_does_not_hold_is_found(patch, why):
    request, decision, policy = decided(patch=tuple(patch))
    with pytest.raises(PatchError, match=why):
        verify_patch(request, decision.patch, policy, UNKNOWN_CLUSTER)


def test_a_patch_that_lacks_any_operation_is_found():
    request, decision, policy = decided()
    for index in range(len(decision.patch)):
        rest = (*decision.patch[:index], *decision.patch[index + 1 :])
        with pytest.raises(PatchError):
            verify_patch(request, rest, policy, UNKNOWN_CLUSTER)
