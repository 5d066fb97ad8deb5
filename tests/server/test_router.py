"""Hostile input on the HTTP port of the real server."""

from __future__ import annotations

import contextlib
import json

import pytest

from tests.support.pods import a_container, a_pod, a_review


@pytest.fixture(autouse=True)
def still_serving(server):
    """After each test, check that the server still answers and has logged no exception."""
    yield
    assert server.review(a_review(a_pod()))["allowed"] is True
    assert [line for line in server.log() if line["msg"] == "review failed"] == []


def test_a_review_is_answered_with_its_uid_and_a_patch(server):
    answer = server.review(a_review(a_pod("8Gi"), uid="here-and-back"))
    assert answer["uid"] == "here-and-back"
    assert answer["allowed"] is True
    assert answer["patchType"] == "JSONPatch"
    assert answer["auditAnnotations"]["decision"] == "mutated"


def test_an_unchanged_pod_gets_neither_patch_nor_patch_type(server):
    answer = server.review(a_review(a_pod()))
    assert "patch" not in answer
    assert "patchType" not in answer


def test_a_denial_has_code_reason_message_and_causes(server):
    answer = server.review(a_review(a_pod("8GB", hostPID=True)))
    status = answer["status"]
    assert (status["code"], status["reason"]) == (403, "Forbidden")
    assert status["message"].startswith(
        "InvalidQuantity: metadata.annotations[vramwarden.io/gpu-memory]: 8GB is not"
    )
    assert "; HostPID: spec.hostPID: " in status["message"]
    causes = status["details"]["causes"]
    assert [cause["reason"] for cause in causes] == ["InvalidQuantity", "HostPID"]


def test_warnings_are_short_and_few(server):
    containers = [
        a_container(f"c{i}", securityContext={"privileged": True}, command=["x" * 300])
        for i in range(60)
    ]
    answer = server.review(a_review(a_pod("8Gi", containers=containers), namespace="watched"))
    assert answer["allowed"] is True
    assert answer["auditAnnotations"]["reasons"] == "PrivilegedContainer"
    assert 0 < sum(map(len, answer["warnings"])) <= 4096
    assert max(map(len, answer["warnings"])) <= 256


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("", 415),
        ("text/plain", 415),
        ("application/jsonx", 415),
        ("application/xml", 415),
        ("application/json; charset=utf-8", 200),
    ],
)
def test_a_review_has_the_content_type_of_json(server, content_type, status):
    found, body = server.post(a_review(a_pod()), **{"Content-Type": content_type})
    assert found == status
    assert status == 200 or body == b"the content type must be application/json\n"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", b"empty"),
        (b"{", b"not JSON"),
        (b"\xff\xfe", b"not JSON"),
        (b"[]", b"the body must be a JSON object"),
        (b"null", b"the body must be a JSON object"),
        (b'"review"', b"the body must be a JSON object"),
        (b"NaN", b"not JSON"),
        (b'{"a":"\\ud800"}', b"not JSON"),
        (b"[" * 100_000, b"not JSON"),
        (b'{"a":' * 100_000, b"not JSON"),
        (b"{}", b"must be an AdmissionReview of admission.k8s.io/v1"),
        (
            b'{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{}}',
            b"must be an AdmissionReview of admission.k8s.io/v1",
        ),
        (b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}', b"request must be"),
    ],
    ids=lambda value: repr(value[:40]),  # pytest passes it to programs in an environment variable
)
def test_a_body_that_is_no_review_is_400(server, body, says):
    status, answer = server.post(body)
    assert status == 400
    assert says in answer
    assert answer.count(b"\n") == 1


@pytest.mark.parametrize(
    "change",
    [
        {"uid": ""},
        {"uid": None},
        {"uid": 1},
        {"object": None},
        {"object": []},
        {"operation": ["CREATE"]},
        {"kind": "Pod"},
        {"namespace": 1},
        {"userInfo": "dev"},
    ],
)
def test_a_review_with_a_broken_envelope_is_400(server, change):
    assert server.post(a_review(a_pod(), **change))[0] == 400


@pytest.mark.parametrize("mebibytes", [9, 16])
def test_a_client_that_sends_too_much_can_read_the_rejection(server, mebibytes):
    beginning = (
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u",'
    )
    status, body = server.post(beginning + b" " * (mebibytes * 2**20))
    assert status == 200
    answer = json.loads(body)["response"]
    assert (answer["uid"], answer["allowed"]) == ("u", False)
    assert answer["status"]["details"]["causes"][0]["reason"] == "TooComplex"


def test_a_pod_of_3_mb_is_decided(server):
    pod = a_pod("8Gi", annotations={"note": "é" * 1_500_000})
    assert server.review(a_review(pod))["allowed"] is True


def test_500_containers_are_decided(server):
    names = [f"c{i}" for i in range(500)]
    amounts = ",".join(f"{name}=64Mi" for name in names)
    pod = a_pod(amounts, containers=[a_container(name) for name in names])
    answer = server.review(a_review(pod))
    assert answer["allowed"] is True or answer["status"]["code"] == 403


def test_text_that_is_not_ascii_is_unchanged(server):
    answer = server.review(a_review(a_pod("acht Gigabyte, bitte 🙏")))
    assert "🙏" in answer["status"]["message"]


def test_the_last_of_duplicate_keys_counts_as_in_the_api_server(server):
    body = json.dumps(a_review(a_pod("8GB"))).replace(
        '"vramwarden.io/gpu-memory": "8GB"',
        '"vramwarden.io/gpu-memory": "8Gi", "vramwarden.io/gpu-memory": "8GB"',
    )
    assert json.loads(server.post(body.encode())[1])["response"]["allowed"] is False


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_another_method_is_rejected(server, method):
    with contextlib.closing(server.client()) as client:
        client.request(method, "/mutate")
        answer = client.getresponse()
        assert (answer.status, answer.headers["Allow"]) == (405, "POST")


@pytest.mark.parametrize(
    "path", ["/", "/mutate/", "/metrics", "/livez", "/mutate%00", "/../mutate"]
)
def test_another_path_is_404_or_rejected(server, path):
    assert server.post(a_review(a_pod()), path)[0] in {400, 404}


def test_the_timeout_parameter_of_the_api_server_is_no_other_path(server):
    assert server.post(a_review(a_pod()), "/mutate?timeout=5s")[0] == 200


def test_a_pod_of_the_wrong_shape_is_denied_with_its_path(server):
    answer = server.review(a_review(a_pod("8Gi", containers="none")))
    assert answer["status"]["code"] == 400
    assert answer["status"]["message"] == "spec.containers: must be a list, not a string"
