"""What other GPU-sharing projects say in answers, and by settings decide, asked of ours."""

from __future__ import annotations

import json
import re

import pytest

from tests.core.admission.decisions import decided
from tests.core.admission.survey import CLASS, counted, row
from tests.support.pods import RULE, a_container, a_pod, a_policy, a_request, a_review, a_rule
from webhook.adapters.review_json import read_review, write_review
from webhook.core.admission.decide import Outcome, Phase, decide
from webhook.core.pod.review import BadReviewError
from webhook.core.policy.cluster import UNKNOWN
from webhook.core.policy.values import Action, Bounds, Policy


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


INVALID = a_pod("8GB", hostPID=True)


OFF = [
    row(18, "KAI", "sharing is off", a_pod("8Gi"), a_policy(a_rule(action=Action.IGNORE))),
    row(64, "Koordinator", "the gate is off", INVALID, a_policy(a_rule(action=Action.IGNORE))),
    row(64, "Koordinator", "the gate only records", INVALID, a_policy(a_rule(action=Action.AUDIT))),
    row(66, "Koordinator", "no policy", INVALID, Policy()),
    row(66, "Koordinator", "a policy without rules", INVALID, Policy(digest="ab" * 32)),
    row(
        66,
        "Koordinator",
        "a namespace that is left alone",
        INVALID,
        a_policy(a_rule(namespaces=("team-*",), action=Action.IGNORE), RULE),
    ),
    row(
        66,
        "Koordinator",
        "a namespace that no rule names",
        INVALID,
        a_policy(a_rule(namespaces=("research-*", "team"))),
    ),
    row(
        66,
        "Koordinator",
        "a label that skips",
        a_pod("8GB", labels={"skip": "yes"}),
        a_policy(a_rule(pod_labels={"skip": "yes"}, action=Action.IGNORE), RULE),
    ),
]


@pytest.mark.parametrize(("pod", "policy"), OFF)
@pytest.mark.parametrize("phase", Phase)
def test_a_policy_that_says_nothing_of_a_pod_leaves_it_alone(pod, policy, phase):
    decision = decide(a_request(pod), policy, UNKNOWN, phase)
    assert (decision.allowed, decision.patch) == (True, ())


@pytest.mark.parametrize("operation", [row(66, "Koordinator", "a deletion", "DELETE")])
def test_another_operation_is_left_alone(operation):
    review = a_review(None, operation=operation, oldObject=INVALID)
    request = read_review(json.dumps(review).encode())
    assert decide(request, a_policy(), UNKNOWN, Phase.VALIDATE).outcome is Outcome.SKIPPED


@pytest.mark.parametrize(
    ("namespace", "request_namespace", "allowed"),
    [
        row(35, "KAI", "another namespace in the object", "kube-system", "team-a", False),
        row(35, "KAI", "no namespace in the object", None, "team-a", False),
        row(35, "KAI", "the namespace of the request", "team-a", "kube-system", True),
    ],
)
def test_the_namespace_of_the_request_counts(namespace, request_namespace, allowed):
    pod = a_pod("8GB")
    pod["metadata"]["namespace"] = namespace
    policy = a_policy(a_rule(namespaces=("kube-*",), action=Action.IGNORE), RULE)
    request = a_request(pod, namespace=request_namespace)
    assert decide(request, policy, UNKNOWN, Phase.MUTATE).allowed is allowed


@pytest.mark.parametrize(
    "names", [row(67, "Koordinator", "the first of several rules", ("strict", "lenient"))]
)
def test_the_first_rule_decides_and_is_named(names):
    strict, lenient = names
    policy = a_policy(a_rule(name=strict, memory=Bounds(max_bytes=2**30)), a_rule(name=lenient))
    decision = decide(a_request(a_pod("8Gi")), policy, UNKNOWN, Phase.MUTATE)
    assert (decision.rule, decision.reasons) == (strict, ("TooLarge",))
    assert f'rule "{strict}"' in decision.message
