"""Reviews of workloads through the router: they get warnings or none, and never a denial."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.support import router_client
from tests.support.pods import a_pod, a_policy
from tests.support.recorded_log import RecordedLog
from webhook.core.admission import workload_review
from webhook.server.metrics import Metrics
from webhook.server.reviews import SMALL_BODY_BYTES, TemplateReviews


class WorkloadReviews:
    """A router, and the reviews of workloads that it logged."""

    def __init__(self, **options):
        self.log, self.metrics = RecordedLog(), Metrics()
        templates = TemplateReviews(a_policy, self.metrics, self.log, **options)
        self.router = router_client.a_router(self.log, self.metrics, templates=templates)

    def post(self, body: bytes, path: str = "/advise"):
        status, _, answer, _ = asyncio.run(router_client.post(self.router, path, body))
        return status, answer

    def advised(self, pod, **metadata):
        status, answer = self.post(a_review(pod, **metadata))
        assert status == 200
        return json.loads(answer)["response"]


def a_review(pod, **metadata) -> bytes:
    spec = {"template": {key: pod[key] for key in ("metadata", "spec")}}
    request = {
        "uid": "u-1",
        "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
        "operation": "CREATE",
        "namespace": "team-a",
        "name": "infer",
        "object": {"kind": "Deployment", "metadata": {"name": "infer", **metadata}, "spec": spec},
    }
    review = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    return json.dumps(review, separators=(",", ":")).encode()


@pytest.fixture
def asked():
    return WorkloadReviews()


def test_a_workload_is_allowed_with_warnings(asked):
    answer = asked.advised(a_pod("8GB"))
    assert (answer["uid"], answer["allowed"]) == ("u-1", True)
    assert not {"patch", "patchType", "status"} & answer.keys()
    (warning,) = answer["warnings"]
    assert warning.startswith("its pods would be denied: InvalidQuantity: spec.template.metadata.")
    ((_, _, line),) = asked.log.lines
    assert (line["webhook"], line["kind"], line["name"]) == ("advise", "apps/Deployment", "infer")
    assert (line["decision"], line["reasons"]) == ("warned", ("InvalidQuantity",))
    counted = 'vramwarden_admission_requests_total{decision="warned",operation="CREATE"'
    assert f'{counted},reason="InvalidQuantity",webhook="advise"}} 1.0' in (
        asked.metrics.exposition().decode()
    )


def test_a_good_workload_is_allowed_without_warnings(asked):
    assert "warnings" not in asked.advised(a_pod("8Gi"))


def test_warnings_are_limited(asked):
    keys = {f"vramwarden.io/gpu-mem{n}{'y' * 5000}": "8Gi" for n in range(300)}
    shown = asked.advised(a_pod(annotations=keys), annotations=keys)["warnings"]
    assert 0 < len(shown) <= 30
    assert max(map(len, shown)) <= 256
    assert sum(map(len, shown)) <= 4096


def test_further_advice_is_returned():
    asked = WorkloadReviews(
        more=lambda review, _pod, asked: f"{review.namespace} holds 1Gi of {asked}"
    )
    path = "spec.template.metadata.annotations[vramwarden.io/gpu-memory]"
    warnings = [f"{path}: team-a holds 1Gi of {8 * 2**30}"]
    assert asked.advised(a_pod("8Gi"))["warnings"] == warnings


def test_a_workload_is_allowed_in_spite_of_a_bug(monkeypatch, asked):
    monkeypatch.setattr(workload_review, "decide", None)
    answer = asked.advised(a_pod("8GB"))
    assert (answer["uid"], answer["allowed"]) == ("u-1", True)
    assert not {"warnings", "status"} & answer.keys()
    assert asked.log.messages == ["review failed"]


def test_a_large_workload_waits_for_the_thread(asked):
    answer = asked.advised(a_pod("8GB", annotations={"note": "x" * SMALL_BODY_BYTES}))
    assert len(answer["warnings"]) == 1


@pytest.mark.parametrize(
    "filler", [b" " * (8 * 2**20 + 1), b",".join([b"[]"] * 2**18)], ids=["large", "dense"]
)
def test_a_workload_that_is_too_large_is_allowed_without_warnings(asked, filler):
    begun = a_review(a_pod("8GB"))[:-2] + b',"options":[' + filler + b"]}}"
    status, answer = asked.post(begun)
    response = json.loads(answer)["response"]
    assert (status, response["uid"], response["allowed"]) == (200, "u-1", True)
    assert "warnings" not in response
    status, answer = asked.post(b'{"a":' + b"[" + filler + b"]}")
    assert status == 413
    assert answer.startswith(b"the body ")


def test_a_body_that_is_no_review_is_rejected(asked):
    assert asked.post(b"{}")[0] == 400


def test_a_server_without_workload_reviews_has_no_such_path(asked):
    asked.router = router_client.a_router(asked.log, asked.metrics)
    assert asked.post(a_review(a_pod()))[0] == 404
