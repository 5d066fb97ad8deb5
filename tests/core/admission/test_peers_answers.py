"""What other GPU-sharing projects say in their answers, asked of ours."""

from __future__ import annotations

import json
import re

import pytest

from tests.core.admission.decisions import decided
from tests.core.admission.survey import CLASS, counted, row
from tests.support.pods import a_container, a_pod, a_policy, a_review
from webhook.adapters.review_json import read_review, write_review
from webhook.core.admission.decide import Phase, decide
from webhook.core.pod.review import BadReviewError
from webhook.core.policy.cluster import UNKNOWN


@pytest.mark.parametrize(
    ("pod", "quotes"),
    [
        row(63, "Koordinator", "a count of 2.5", counted("2.5", "8Gi"), '"2.5"'),
        row(63, "Koordinator", "a size of 101 percent", a_pod("101%"), '"101%"'),
        row(63, "Koordinator", "a class of 200", a_pod("8Gi", annotations={CLASS: "200"}), '"200"'),
    ],
)
def test_the_message_quotes_the_value(pod, quotes):
    assert quotes in decided(pod).message


@pytest.mark.parametrize(
    "body",
    [
        row(69, "DRA", "no body", b""),
        row(69, "DRA", "an empty object", b"{}"),
        row(69, "DRA", "a review of nothing", b'{"kind": "AdmissionReview"}'),
        row(
            69,
            "DRA",
            "an empty review",
            b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {}}',
        ),
        row(
            69,
            "DRA",
            "a review without a request",
            b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}',
        ),
    ],
)
def test_an_empty_review_is_rejected_in_one_sentence(body):
    with pytest.raises(BadReviewError) as caught:
        read_review(body)
    assert re.fullmatch(r"[^\n]+", str(caught.value))


@pytest.mark.parametrize(
    "faults", [row(70, "DRA", "two faults in one object", {"hostPID": True, "nodeName": "n"})]
)
def test_one_answer_lists_every_fault_with_its_path(faults):
    request = read_review(json.dumps(a_review(a_pod("8Gi", **faults))).encode())
    decision = decide(request, a_policy(), UNKNOWN, Phase.MUTATE)
    response = json.loads(write_review(request.uid, decision))["response"]
    assert (response["uid"], response["allowed"]) == (request.uid, False)
    status = response["status"]
    assert (status["code"], status["reason"]) == (403, "Forbidden")
    causes = status["details"]["causes"]
    assert {cause["field"] for cause in causes} == {"spec.hostPID", "spec.nodeName"}
    for cause in causes:
        assert f"{cause['reason']}: {cause['field']}: {cause['message']}" in status["message"]


@pytest.mark.parametrize(
    "context",
    [
        row(
            71,
            "DRA",
            "the key of the policy",
            {
                "allowPrivilegeEscalation": False,
                "runAsNonRoot": True,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        )
    ],
)
def test_a_denial_that_the_policy_could_lift_names_its_key(context):
    decision = decided(a_pod("8Gi", containers=[a_container(securityContext=context)]))
    assert decision.reasons == ("EnforcementImpossible",)
    assert "enforcement.runAs: Root" in decision.message
