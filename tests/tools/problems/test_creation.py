"""Denials of pods: which webhook denied the pod, and which of its lines."""

from __future__ import annotations

import pytest

from tests.support.pods import a_container, a_pod
from webhook.core.pod.findings import Reason
from webhook.tools.problems.creation import parse_denial, unreachable_cause
from webhook.tools.problems.problem import Code, Severity
from webhook.tools.snapshot.pod import ClusterPod

OURS = 'admission webhook "mutate.vramwarden.io" denied the request: '
CALLED = 'Internal error occurred: failed calling webhook "{}": failed to call webhook: Post "x": '


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("x509: certificate signed by unknown authority", "does not trust its certificate"),
        ("x509: certificate has expired or is not yet valid", "its certificate has expired"),
        ('no endpoints available for service "x"', "no replica is ready"),
        ("dial tcp 10.0.0.7:443: connect: connection refused", "nothing listens"),
        ("context deadline exceeded", "does not answer in time"),
        ('service "x" not found', "its Service is gone"),
        ("something new", "the API server does not reach it"),
    ],
)
def test_why_the_api_server_cannot_call_a_webhook(end, why):
    name, found = unreachable_cause(CALLED.format("mutate.vramwarden.io") + end)
    assert name == "mutate.vramwarden.io"
    assert why in found


@pytest.mark.parametrize(
    ("webhook", "whose", "fix"),
    [
        ("mutate.vramwarden.io", "vramwarden's webhook (", " (vramwarden check)"),
        ("inject.mesh.example", "webhook inject.mesh.example of another product (", ""),
        ("vramwarden.io.evil.example", "webhook vramwarden.io.evil.example of another", ""),
    ],
)
def test_a_webhook_that_cannot_be_called_is_no_fault_of_the_pod(webhook, whose, fix):
    text = CALLED.format(webhook) + "context deadline exceeded"
    (problem,) = parse_denial(text)
    assert (problem.code, problem.severity) == (Code.WEBHOOK_UNREACHABLE, Severity.ERROR)
    assert f"cannot call {whose}" in problem.message
    assert text in problem.message
    assert problem.fix == f"nothing is wrong with the pod: ask your platform team{fix}"
    assert unreachable_cause(f"{OURS}TooLarge: x: y") is None


def test_each_finding_of_ours_is_a_problem_and_the_platform_teams_words_are_a_note():
    text = f"{OURS}TooLarge: x: y\n; InvalidCount: a: b\n; new: c. Your platform team says: ask us"
    assert [
        (problem.code, problem.severity, problem.message) for problem in parse_denial(text)
    ] == [
        (Reason.TOO_LARGE, Severity.ERROR, "x: y"),
        (Reason.INVALID_COUNT, Severity.ERROR, "a: b"),
        (Code.CREATION_DENIED, Severity.ERROR, "new: c"),
        (Code.CREATION_DENIED, Severity.INFO, "Your platform team says: ask us"),
    ]


WHOLE = {"limits": {"nvidia.com/gpu": "1"}}


@pytest.mark.parametrize(
    ("template", "path", "is_named"),
    [
        (a_pod("8Gi"), "spec.containers[0].resources.limits[nvidia.com/gpu]", True),
        (a_pod("8Gi"), "spec.containers[7].resources.limits[nvidia.com/gpu]", True),
        (a_pod("8Gi"), "spec.initContainers[0].resources.requests[nvidia.com/gpu]", True),
        (a_pod("8Gi"), "metadata.annotations[vramwarden.io/gpu-memory]", False),
        (a_pod("8Gi", containers=[a_container(resources=WHOLE)]),
         "spec.containers[0].resources.limits[nvidia.com/gpu]", False),
        (a_pod("8Gi", containers=[a_container(resources={"requests": WHOLE["limits"]})]),
         "spec.containers[0].resources.limits[nvidia.com/gpu]", False),
        (None, "spec.containers[0].resources.limits[nvidia.com/gpu]", False),
    ],
)  # fmt: skip
def test_a_resource_that_the_template_lacks_was_written_by_another(template, path, is_named):
    text = f"{OURS}WholeGPUAndShare: {path}: remove it"
    (problem,) = parse_denial(text, template and ClusterPod(template))
    fix = "the template has no nvidia.com/gpu: a LimitRange or another webhook wrote it"
    assert problem.fix == (fix if is_named else "")
