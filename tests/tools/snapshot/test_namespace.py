"""Facts are read once, within limits, with the user's permissions. Failures are independent."""

from __future__ import annotations

import pytest

from tests.support.api_server import ApiServer
from tests.support.clusters import a_node, a_pod, ago
from webhook.adapters.kube.errors import KubeError
from webhook.tools.snapshot.namespace import NamespaceSnapshot
from webhook.tools.snapshot.objects import FactUnavailable
from webhook.tools.snapshot.pod import ClusterPod

PODS = "/api/v1/namespaces/team-a/pods"
LOG = f"{PODS}/p/log"
FORBIDDEN = 'pods is forbidden: User "v" cannot create resource "pods"'


@pytest.fixture
def api():
    return ApiServer()


def snapshot(api, *stored):
    return NamespaceSnapshot(api.add(*stored).kube(), "team-a")


def queries(api, path, method="GET"):
    return [
        request.query for request in api.asked if (request.method, request.path) == (method, path)
    ]


def with_sidecar(how="running", restarts=0):
    state = {how: {"startedAt": ago(60)}}
    sidecar = {"name": "vram-enforcer", "state": state, "restartCount": restarts}
    return ClusterPod(a_pod("p", "8Gi", status={"initContainerStatuses": [sidecar]}))


def test_a_fact_is_read_when_it_is_asked_for_and_once(api):
    cluster = snapshot(api, a_node("cpu").stored, a_pod("p", "8Gi"))
    assert api.asked == []
    assert [[pod.name for pod in cluster.pods] for _ in range(2)] == [["p"], ["p"]]
    assert {request.path for request in api.asked} == {PODS}
    api.asked.clear()
    assert [pod.name for pod in cluster.pods] == ["p"]
    assert api.asked == []


def test_what_may_not_be_read_is_named_and_the_rest_is_read(api):
    api.denied.add(("list", "gpunodes"))
    cluster = snapshot(api, a_pod("p", "8Gi"))
    for _ in range(2):
        assert cluster.attempt(lambda: cluster.gpu_nodes, "figures") is None
    assert cluster.left_out == {
        "figures": "needs the right to list gpunodes (chart value gpuNodes.readableBy)"
    }
    assert len(queries(api, "/apis/vramwarden.io/v1alpha1/gpunodes")) == 1
    assert len(cluster.pods) == 1


def test_an_error_of_the_server_is_said_and_no_answer_ends_the_command(api):
    api.fails(f"GET {PODS}/p", 500, 0)
    with pytest.raises(FactUnavailable, match=r"^get pods: http://in-memory answers 500: "):
        snapshot(api).find_pod("p")
    with pytest.raises(KubeError) as raised:
        snapshot(api).find_pod("p")
    assert not isinstance(raised.value, FactUnavailable)


def test_the_newest_lines_of_the_log_are_read_after_those_before_a_restart(api):
    api.fails(f"{LOG}.*previous=true", (200, "before"))
    api.texts[LOG] = "one\ntwo\n"
    assert snapshot(api).read_enforcer_log(with_sidecar()) == ["one", "two"]
    assert queries(api, LOG) == [{"container": "vram-enforcer", "tailLines": "500"}]
    assert snapshot(api).read_enforcer_log(with_sidecar(restarts=1)) == ["before", "one", "two"]


def test_a_log_is_read_in_bounded_memory(api):
    api.texts[LOG] = "ä" * 2**20
    (read,) = snapshot(api).read_enforcer_log(with_sidecar())
    assert 2**18 < len(read) < 2**20


def test_a_previous_log_that_is_gone_hides_no_line_of_the_current_one(api):
    api.fails(f"{LOG}.*previous=true", 400)
    api.texts[LOG] = "now"
    assert snapshot(api).read_enforcer_log(with_sidecar(restarts=1)) == ["now"]


@pytest.mark.parametrize(
    ("code", "why"), [(403, "^needs the right to get pods/log$"), (404, "^get pods/log: http")]
)
def test_a_log_that_cannot_be_read_is_unavailable(api, code, why):
    api.fails(LOG, code)
    with pytest.raises(FactUnavailable, match=why):
        snapshot(api).read_enforcer_log(with_sidecar())


@pytest.mark.parametrize("pod", [with_sidecar("waiting"), ClusterPod(a_pod("p", "8Gi"))])
def test_of_a_sidecar_that_never_ran_no_log_is_read(api, pod):
    assert snapshot(api).read_enforcer_log(pod) == []
    assert api.asked == []


def test_a_dry_run_is_sent_as_the_user_and_stored_nowhere(api):
    stored = a_pod("p", "8Gi", rule=None, node="n1", ephemeralContainers=[{"name": "debug"}])
    pod = ClusterPod(stored)
    before = dict(api.objects)
    made = snapshot(api).dry_run_create("team-a", "train" * 20, pod.as_created())
    assert made.pod.annotations == pod.annotations
    ((_, _, body),) = api.sent()
    assert list(body["spec"]) == ["containers"]
    assert body["metadata"] == {
        "annotations": stored["metadata"]["annotations"],
        "labels": stored["metadata"].get("labels", {}),
        "generateName": "train" * 10 + "-",
    }
    assert [query["dryRun"] for query in queries(api, PODS, "POST")] == ["All"]
    assert api.objects == before


def test_a_dry_run_is_answered_by_a_pod_with_warnings_or_by_a_denial(api):
    warned = {"Warning": '299 - "TooLarge: x: \\"80Gi\\""'}
    api.fails("POST", (201, a_pod("p", "8Gi"), warned), (422, {"message": "no name"}))
    made, denied = (snapshot(api).dry_run_create("team-a", "p", {}) for _ in range(2))
    assert (made.pod.managed, made.denial, made.warnings) == (True, "", ('TooLarge: x: "80Gi"',))
    assert denied == (None, "no name", ())


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((403, {"code": 403, "message": FORBIDDEN}), "^needs the right to create pods in team-a$"),
        ((503, {"code": 503, "message": "away"}), "answers 503: away$"),
    ],
)
def test_an_answer_that_is_not_about_the_pod_is_no_denial(api, answer, why):
    api.fails("POST", answer)
    with pytest.raises(FactUnavailable, match=why):
        snapshot(api).dry_run_create("team-a", "p", {})
