"""The Secrets by which the kubelet pulls the sidecar's image in a user's namespace."""

from __future__ import annotations

import pytest

from tests.core.admission.decisions import assert_fine, decided, translated
from tests.support.pods import a_pod, a_policy, a_request, a_rule
from webhook.core.admission.decide import Outcome, Phase, decide
from webhook.core.policy.cluster import UNKNOWN
from webhook.core.policy.values import EnforceBy, Style

NAMED = a_rule(enforcement={"image_pull_secrets": ("registry", "mirror")})
REGISTRY, MIRROR, OWN = ({"name": name} for name in ("registry", "mirror", "own"))

CASES = {
    "none": (None, [REGISTRY, MIRROR]),
    "empty": ([], [REGISTRY, MIRROR]),
    "the user's": ([OWN], [OWN, REGISTRY, MIRROR]),
    "one of ours": ([MIRROR, OWN], [MIRROR, OWN, REGISTRY]),
    "all of ours": ([MIRROR, REGISTRY], [MIRROR, REGISTRY]),
    "the user's twice": ([OWN, OWN], [OWN, OWN, REGISTRY, MIRROR]),
    "one without a name": ([{}], [{}, REGISTRY, MIRROR]),
}


@pytest.mark.parametrize(("before", "after"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("style", Style)
def test_names_are_added_once_after_the_users(before, after, style):
    rule = a_rule(
        enforcement={"image_pull_secrets": ("registry", "mirror"), "style": style},
    )
    pod = translated(a_pod("8Gi", imagePullSecrets=before), rule)
    assert pod["spec"]["imagePullSecrets"] == after
    assert_fine(pod, rule)
    assert decided(pod, rule).patch == ()


def test_a_rule_that_names_none_adds_none():
    assert "imagePullSecrets" not in translated(a_pod("8Gi"))["spec"]
    pod = translated(a_pod("8Gi", imagePullSecrets=[OWN]))
    assert pod["spec"]["imagePullSecrets"] == [OWN]


def test_where_there_is_no_sidecar_nothing_is_pulled():
    enforcement = {"image_pull_secrets": ("registry",), "by": EnforceBy.NONE}
    assert (
        "imagePullSecrets" not in translated(a_pod("8Gi"), a_rule(enforcement=enforcement))["spec"]
    )


def test_a_pod_without_a_demand_gets_none():
    assert decided(a_pod(), NAMED).patch == ()


def test_a_pod_that_lacks_one_is_not_stored_but_under_another_policy_it_is():
    pod = translated(a_pod("8Gi"), NAMED)
    pod["spec"]["imagePullSecrets"].pop()
    decision = decided(pod, NAMED, Phase.VALIDATE)
    assert decision.reasons == ("Unmutated",)
    assert decision.findings[0].path == "spec.imagePullSecrets[1]"
    other = decide(
        a_request(pod), a_policy(NAMED, digest="fedcba9876543210"), UNKNOWN, Phase.VALIDATE
    )
    assert other.outcome is Outcome.ALLOWED, other.message


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("value", ["registry", {"name": "x"}, ["registry"], [None]], ids=str)
def test_a_list_of_a_wrong_type_is_a_malformed_object(value, phase):
    decision = decided(a_pod("8Gi", imagePullSecrets=value), NAMED, phase)
    assert decision.outcome is Outcome.MALFORMED
    assert decision.malformed.startswith("spec.imagePullSecrets")
