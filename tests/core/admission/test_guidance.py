"""A rule's `message` is the end of its denials."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.support.pods import a_container, a_pod, a_policy, a_request, a_rule
from webhook.adapters.review_json import write_review
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.admission.workload_review import advise
from webhook.core.pod.findings import MAX_FINDINGS
from webhook.core.policy.cluster import UNKNOWN_CLUSTER, Cluster
from webhook.core.policy.model import Action, Rollout

MESSAGE = "ask in #gpu-help"
SAID = "Your platform team says: ask in #gpu-help"
MALFORMED = "spec.containers[0].env: must be a list, not an object"


def decided(pod, phase=Phase.MUTATE, **rule):
    return decide(a_request(pod), a_policy(a_rule(message=MESSAGE, **rule)), UNKNOWN_CLUSTER, phase)


@pytest.mark.parametrize("phase", Phase)
def test_a_rules_message_stands_once_behind_all_findings_of_a_denial(phase):
    decision = decided(a_pod("8GB", hostPID=True), phase)
    first, second = map(str, decision.findings)
    assert decision.message == f"{first}\n; {second}. {SAID}"


def test_no_single_cause_has_the_message():
    status = json.loads(write_review("u-1", decided(a_pod("8GB")), ()))["response"]["status"]
    assert status["message"].endswith(f". {SAID}")
    assert [SAID in cause["message"] for cause in status["details"]["causes"]] == [False]


def test_the_message_stands_behind_findings_too_many_to_be_shown():
    containers = [a_container(f"c{n}", securityContext={"privileged": True}) for n in range(200)]
    decision = decided(a_pod("8Gi", containers=containers))
    assert 100 < len(decision.findings) < MAX_FINDINGS
    more = len(decision.findings) - 100
    assert decision.message.endswith(f"\n; and {more} more findings. {SAID}")


def test_a_pod_that_cannot_be_read_or_judged_brings_the_message_too():
    malformed = decided(a_pod("8Gi", containers=[a_container(env={})]))
    assert malformed.outcome is Outcome.MALFORMED
    assert malformed.message == f"{MALFORMED}. {SAID}"
    large = decided(a_pod("8Gi", containers=[a_container(f"c{n}") for n in range(300)]))
    assert large.reasons == ("TooComplex",)
    assert large.message.endswith(f". {SAID}")


def test_warnings_end_with_the_message():
    decision = decided(a_pod("8GB"), action=Action.WARN)
    assert decision.warnings == (str(decision.findings[0]), SAID)


def test_a_rollout_that_observes_warns_with_the_message():
    pod = a_pod(containers=[a_container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])])
    policy = a_policy(a_rule(message=MESSAGE))
    decision = decide(a_request(pod), policy, Cluster(Rollout.OBSERVE), Phase.MUTATE)
    assert decision.outcome is Outcome.WARNED
    assert decision.warnings == (str(decision.findings[0]), SAID)


@pytest.mark.parametrize(
    ("pod", "rule"),
    [(a_pod("8Gi"), {}), (a_pod(), {}), (a_pod("8GB"), {"action": Action.AUDIT})],
)
def test_who_is_not_denied_reads_no_message(pod, rule):
    decision = decided(pod, **rule)
    assert (decision.allowed, decision.warnings, decision.guidance) == (True, (), "")


def test_the_authors_of_a_workload_read_the_message_once():
    pod = a_pod("8GB", hostPID=True)
    owner = {"metadata": {"name": "train"}, "spec": {"template": pod}}
    request = replace(a_request(owner), kind="apps/Deployment")
    warnings = advise(request, a_policy(a_rule(message=MESSAGE)), UNKNOWN_CLUSTER).warnings
    assert [SAID in warning for warning in warnings] == [False, False, True]
    assert warnings[2] == SAID
