"""POST /bind over real TLS: responses to Bindings and to other requests."""

from __future__ import annotations

import json

import pytest

from tests.server.placement.binding_reviews import review
from tests.support.api_server import write_kubeconfig
from tests.support.cluster_programs import free_port
from tests.support.paths import REVIEWS
from tests.support.server_process import running

pytestmark = pytest.mark.process


def audited(decision, reason):
    """Return the audit annotations, which do not name a rule."""
    return {"decision": decision, "reasons": reason, "rule": "", "policy": ""}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Run a server without placement."""
    with running(tmp_path_factory.mktemp("alone")) as server:
        yield server


@pytest.fixture
def cut_off(tmp_path):
    """Run a server that places pods but reaches no API server."""
    address = f"http://127.0.0.1:{free_port()}"
    env = {
        "KUBECONFIG": str(write_kubeconfig(tmp_path / "kubeconfig", address)),
        "VRAMWARDEN_PLACEMENT_NAMESPACE": "vramwarden-system",
    }
    with running(tmp_path, ready=False, **env) as server:
        yield server, address


def test_without_the_api_server_a_pod_that_is_not_known_to_be_ours_is_let_through(cut_off):
    server, address = cut_off
    server.wait_for("life", lambda: any(line["msg"] == "serving" for line in server.log()))
    answer = server.review(review(), server.bind_path)
    assert (answer["uid"], answer["allowed"], "patch" in answer) == ("5350b18d", True, False)
    assert answer["auditAnnotations"] == audited("untouched", "APIServerAway")
    (line,) = [line for line in server.log() if line.get("webhook") == "bind"]
    assert line["why"].startswith(
        f"whether this pod needs a GPU of node node1 is not known now: {address} does not answer"
    )
    assert server.get("/readyz")[0] == 503
    words = f"pods and nodes not read yet: {address} does not answer: "
    server.wait_for("a reason", lambda: server.get("/readyz")[1].startswith(words))
    watch_failed = 'vramwarden_placement_watch_failed{resource="pods"} 1.0'
    server.wait_for("word of it", lambda: watch_failed in server.get("/metrics")[1])


def test_a_server_that_does_not_place_lets_bindings_through_and_says_so(alone):
    answer = alone.review(review(), alone.bind_path)
    assert (answer["allowed"], "patch" in answer) == (True, False)
    assert answer["auditAnnotations"] == audited("untouched", "NotConfigured")
    assert "was started without --placement-namespace" in alone.log()[-1]["why"]


@pytest.mark.parametrize(
    "request_",
    [
        {"operation": "DELETE", "object": None},
        {"kind": {"group": "", "version": "v1", "kind": "Pod"}},
        {"kind": {"group": "other.io", "version": "v1", "kind": "Binding"}},
    ],
    ids=["a deletion", "a pod", "another group's Binding"],
)
def test_what_is_no_new_binding_is_allowed_untouched(alone, request_):
    answer = alone.review(review(**request_), alone.bind_path)
    assert (answer["allowed"], "patch" in answer) == (True, False)
    assert answer["auditAnnotations"] == audited("untouched", "NotABinding")


def test_a_binding_without_the_pod_s_uid_reserves_nothing_and_goes_on(alone):
    marks = {"vramwarden.io/gpu": "GPU-x"}
    metadata = {"name": "train", "namespace": "team", "annotations": marks}
    target = {"kind": "Node", "name": "node1"}
    answer = alone.review(review(object={"metadata": metadata, "target": target}), alone.bind_path)
    assert answer["allowed"]
    assert answer["auditAnnotations"] == audited("untouched", "NoUID")
    assert "patch" in answer  # removes the forged annotation


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        ({"metadata": {"name": "train"}}, "target.name: must be a name, not null"),
        ({"metadata": [], "target": {"name": "n"}}, "metadata: must be an object, not a list"),
        ({"target": {"name": 7}}, "target.name: must be a string, not a number"),
        (
            {"metadata": {"name": "p", "annotations": {"x": 1}}, "target": {"name": "n"}},
            "metadata.annotations[x]: must be a string, not a number",
        ),
    ],
)
def test_a_malformed_binding_is_denied_with_the_field(alone, obj, message):
    status = alone.review(review(object=obj), alone.bind_path)["status"]
    assert (status["code"], status["reason"], status["message"]) == (400, "BadRequest", message)


def test_what_is_no_review_is_a_bad_request(alone):
    code, body = alone.post(b"{}", alone.bind_path)
    assert code == 400
    assert b"must be an AdmissionReview" in body


def test_bindings_are_counted_and_logged(alone):
    alone.review(review(dryRun=True), alone.bind_path)
    metrics = alone.get("/metrics")[1]
    labels = 'decision="untouched",operation="CREATE",reason="NotConfigured",webhook="bind"'
    assert f"vramwarden_admission_requests_total{{{labels}}}" in metrics
    (line,) = [line for line in alone.log() if line.get("dryRun")]
    said = {"webhook": "bind", "namespace": "team", "name": "train", "node": "node1"}
    assert said.items() <= line.items()


def test_the_recorded_binding_is_read(alone):
    path = REVIEWS / "mutate-binding.json"
    recorded = json.loads(path.read_text())
    assert alone.review(recorded, alone.bind_path)["uid"] == recorded["request"]["uid"]
    assert alone.log()[-1]["node"] == recorded["request"]["object"]["target"]["name"]
