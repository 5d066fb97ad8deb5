"""Placement's requests to the API server."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests.support.api_server import ApiServer
from webhook.adapters.kube import placement
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.placement import GpuNode, PlacementApi, Question, StoredList
from webhook.core.nvidia.variables import DeviceNames
from webhook.core.placement.assignment_codec import (
    WholeGpuPods,
    write_assignments,
    write_whole_gpu_pods,
)
from webhook.core.placement.assignments import Assignment
from webhook.core.placement.cap_terms import CapTerms
from webhook.core.placement.fit import Need
from webhook.core.pod.gpus import Gpu
from webhook.core.pod.quantity import MIB
from webhook.names import NODE_SHARING_ANNOTATION as SHARING

GPUS = '[{"uuid":"GPU-a","memory":10485760,"product":"X","index":0}]'
NODE = GpuNode(name="n1", gpus=(Gpu(uuid="GPU-a", memory_bytes=10 * MIB, product="X", index=0),))
HOLD = CapTerms(cap_bytes=5 * MIB, tolerance_bytes=0, delay_s=6.5, enforce=True)
ENTRY = {
    "p1": Assignment(
        pod="team/train", uuids=("GPU-a",), memory_bytes=5 * MIB, since_s=7, terms=HOLD
    )
}
ANSWER = WholeGpuPods("1764000000", 1, ("team/whole",))
LISTS = "/api/v1/namespaces/sys/configmaps"
LIST = f"{LISTS}/gpu-assignments-n1"
PODS = "/api/v1/namespaces/team/pods"
POD = {
    "metadata": {
        "uid": "p1",
        "labels": {"vramwarden.io/managed": "true"},
        "annotations": {"vramwarden.io/gpu-memory": "5Mi"},
    },
    "spec": {
        "nodeName": "n1",
        "containers": [{"name": "main", "resources": {"requests": {"vramwarden.io/vram": "5Mi"}}}],
    },
}


@pytest.fixture
def server():
    """Return an API server with a managed pod and another pod."""
    found = ApiServer()
    found.put(f"{PODS}/train", POD)
    found.put(f"{PODS}/plain", {"spec": {"nodeName": "n1"}})
    return found


@pytest.fixture
def api(server):
    return PlacementApi(server.kube(), "sys")


def version(server, path):
    return server.objects[path]["metadata"]["resourceVersion"]


def urls(server):
    return [f"{request.method} {request.url}".removesuffix("?") for request in server.asked]


def test_a_node_s_list_is_read_with_its_version(api, server):
    stored = api.write_list("n1", ENTRY, "", ANSWER)
    assert stored == StoredList("n1", ENTRY, True, version(server, LIST), ANSWER)
    assert api.read_list("n1") == stored
    assert urls(server)[1:] == [f"GET {LIST}"]


def test_a_list_that_does_not_exist_is_not_whole(api):
    assert api.read_list("n1") == StoredList("n1", {}, whole=False, version="")


@pytest.mark.parametrize("data", [None, {}, {"assignments": "{"}, {"other": "x"}])
def test_a_list_that_cannot_be_read_is_not_whole(api, server, data):
    metadata = {"annotations": {"vramwarden.io/node": "n1"}}
    server.put(LIST, {"metadata": metadata, "data": data})
    assert api.read_list("n1") == StoredList("n1", {}, False, version(server, LIST))


def test_the_first_entry_makes_the_list_which_nobody_owns(api, server):
    api.write_list("n1", ENTRY, "")
    ((method, path, body),) = server.sent()
    assert (method, path) == ("POST", LISTS)
    assert body["metadata"] == {
        "name": "gpu-assignments-n1",
        "labels": {"vramwarden.io/gpu-assignments": "true"},
        "annotations": {"vramwarden.io/node": "n1"},
    }
    assert body["data"] == write_assignments(ENTRY)


def test_later_ones_replace_the_version_that_was_read_and_keep_the_answer(api, server):
    found = api.write_list("n1", ENTRY, "", ANSWER)
    written = api.write_list("n1", {}, found.version, found.answer)
    assert written == StoredList("n1", {}, True, version(server, LIST), ANSWER)
    method, path, body = server.sent()[-1]
    assert (method, path, body["metadata"]["resourceVersion"]) == ("PUT", LIST, found.version)
    assert body["data"] == {"assignments": "", **write_whole_gpu_pods(ANSWER)}


def test_a_lost_race_is_a_conflict(api):
    found = api.write_list("n1", ENTRY, "")
    api.write_list("n1", {}, found.version)
    for act in (lambda: api.write_list("n1", ENTRY, found.version), lambda: api.delete_list(found)):
        with pytest.raises(KubeError) as caught:
            act()
        assert (caught.value.conflict, caught.value.retryable) == (True, False)


def test_a_list_is_deleted_only_as_it_was_read(api, server):
    found = api.write_list("n1", {}, "")
    api.delete_list(found)
    body = {"preconditions": {"resourceVersion": found.version}}
    assert server.sent()[1:] == [("DELETE", LIST, body)]
    assert LIST not in server.objects


def test_a_pod_is_annotated_by_its_status_and_only_as_it_was_read(api, server):
    found = api.read_stored_pod("team/train")
    annotations = {"vramwarden.io/gpu": "GPU-a", "vramwarden.io/gpu-waits": None}
    before = {"uid": "p1", "resourceVersion": version(server, f"{PODS}/train")}
    api.annotate(found, annotations)
    body = {"metadata": before | {"annotations": annotations}}
    assert server.sent() == [("PATCH", f"{PODS}/train/status", body)]
    assert server.asked[-1].headers["Content-Type"] == "application/merge-patch+json"
    assert api.pod("team", "train").uuids == ("GPU-a",)
    for act in (lambda: api.annotate(found, annotations), lambda: api.delete_pod(found)):
        with pytest.raises(KubeError) as caught:  # another client changed it
            act()
        assert caught.value.conflict


def test_a_pod_is_deleted_only_as_it_was_read(api, server):
    found = api.read_stored_pod("team/train")
    wanted = {"uid": "p1", "resourceVersion": version(server, f"{PODS}/train")}
    api.delete_pod(found)
    assert server.sent() == [("DELETE", f"{PODS}/train", {"preconditions": wanted})]
    assert api.read_stored_pod("team/train") is None


@pytest.mark.parametrize("denied", [set(), {("patch", "pods")}], ids=["we may", "we may not"])
def test_our_rights_are_asked_for(api, server, denied):
    server.denied = denied
    assert api.is_allowed("patch", "pods", "status") is not bool(denied)
    ((method, path, body),) = server.sent()
    access = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    wanted = {"verb": "patch", "resource": "pods", "subresource": "status"}
    assert (method, path, body["spec"]) == ("POST", access, {"resourceAttributes": wanted})


def test_a_right_of_which_nothing_is_said_is_none(api, server):
    server.fails("POST", lambda _: (201, {"status": {}}))
    assert api.is_allowed("patch", "pods", "status") is False


def test_time_is_the_api_servers(api, server):
    assert abs(api.now_s() - time.time()) < 60
    server.now_s = lambda: 1956625445
    api.list_all()
    assert 0 <= api.now_s() - 1956625445 < 60


def test_all_lists_are_found_by_their_label(api, server):
    stored = api.write_list("n1", ENTRY, "")
    server.put(f"{LISTS}/other", {})
    assert api.list_all() == [stored]
    wanted = f"GET {LISTS}?labelSelector=vramwarden.io%2Fgpu-assignments%3Dtrue&limit=50"
    assert urls(server)[1:] == [wanted]


@pytest.mark.parametrize("is_old", [False, True], ids=["the same version", "an older one"])
def test_of_a_list_that_is_as_it_was_read_before_nothing_is_read_again(api, monkeypatch, is_old):
    read = []
    real = placement.read_assignments
    monkeypatch.setattr(placement, "read_assignments", lambda data: read.append(1) or real(data))
    stored = api.write_list("n1", ENTRY, "")
    before = replace(stored, assignments={"p9": ENTRY["p1"]})
    known = replace(before, version="6") if is_old else before
    assert api.list_all({"n1": known}.get) == [stored if is_old else before]
    assert bool(read) == is_old


def test_pods_are_listed_as_they_are_now(api, server):
    ((pod,), since) = api.pods.read()
    assert (pod.uid, pod.name, pod.need) == ("p1", "team/train", Need(5 * MIB))
    assert int(since) >= int(version(server, f"{PODS}/train"))
    labels = "labelSelector=vramwarden.io%2Fmanaged%3Dtrue"
    assert urls(server) == [f"GET /api/v1/pods?{labels}&limit=50"]


def test_the_pods_of_a_node_are_read_as_they_are_now(api, server):
    server.put(f"{PODS}/elsewhere", {**POD, "spec": {**POD["spec"], "nodeName": "n2"}})
    assert [pod.name for pod in api.list_pods_on("n1")] == ["team/train"]
    (url,) = urls(server)
    assert url.endswith("&fieldSelector=spec.nodeName%3Dn1&limit=50")
    assert "resourceVersion" not in url


def test_a_pod_or_a_node_that_is_gone_is_none(api, server):
    assert (api.pod("team", "a/b"), api.node("n1")) == (None, None)
    assert urls(server)[0] == "GET /api/v1/namespaces/team/pods/a%2Fb"


@pytest.mark.parametrize(
    ("labels", "annotations", "found"),
    [
        (None, {}, {}),
        ({"vramwarden.io/gpu": "true"}, {}, {}),
        (
            {"vramwarden.io/device-names": "runtime.nvidia.com"},
            {},
            {"device_names": DeviceNames.RUNTIME},
        ),
        ({"vramwarden.io/device-names": "none"}, {}, {"device_names": DeviceNames.NONE}),
        ({"vramwarden.io/device-names": "example.com"}, {}, {"device_names": None}),
        (None, {SHARING: "Shared: x"}, {}),
        (None, {SHARING: "Draining: " + "x" * 999}, {"closed_reason": "x" * 256}),
        (None, {SHARING: ""}, {"closed_reason": f"its annotation {SHARING} cannot be read"}),
    ],
    ids=[
        "no labels",
        "another label",
        "names of its runtime",
        "no name works",
        "names of the future",
        "shared",
        "draining, at length",
        "of a verdict that cannot be read",
    ],
)
def test_a_node_is_read_with_its_gpus_their_names_and_why_it_is_held(
    api, server, labels, annotations, found
):
    shown = {"vramwarden.io/gpus": GPUS, **annotations}
    server.put("/api/v1/nodes/n1", {"metadata": {"labels": labels, "annotations": shown}})
    assert api.node("n1") == replace(NODE, **found)


def test_the_nodes_that_ask_are_found_by_their_label(api, server):
    labels = {"vramwarden.io/whole-gpu-pods": "1764000000"}
    server.put("/api/v1/nodes/n1", {"metadata": {"labels": labels}})
    server.put("/api/v1/nodes/n2", {})
    assert api.questions.read()[0] == [Question("n1", "1764000000")]
    wanted = "GET /api/v1/nodes?labelSelector=vramwarden.io%2Fwhole-gpu-pods&limit=50"
    assert urls(server) == [wanted]


CLAIMS = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims"


BOUND = {"conditions": [{"type": "PodScheduled", "status": "True"}]}


def put_on_node(server, name, *claims, status=BOUND, **limits):
    spec = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
    spec |= {"nodeName": "n1", "resourceClaims": [{"resourceClaimName": claim} for claim in claims]}
    server.put(f"{PODS}/{name}", {"spec": spec, "status": status})


def test_the_pods_with_whole_gpus_of_a_node_are_named(api, server):
    devices = {"results": [{"driver": "gpu.nvidia.com"}]}
    server.put(f"{CLAIMS}/gpu", {"status": {"allocation": {"devices": devices}}})
    server.fails("GET .*/resourceclaims/denied", 403)
    put_on_node(server, "z", **{"nvidia.com/gpu": "1"})
    put_on_node(server, "a", "gone", "gpu")
    put_on_node(server, "b", "denied")
    put_on_node(server, "d", "gone")
    put_on_node(server, "named", "gpu", status={"phase": "Pending"}, **{"nvidia.com/gpu": "1"})
    assert api.list_whole_gpu_pods("n1") == ["team/a", "team/z"]
    on_node = "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn1&resourceVersion=0"
    claims = [f"GET {CLAIMS}/{name}" for name in ("gone", "gpu", "denied", "gone")]
    assert urls(server) == [on_node, *claims]


def test_of_many_claims_some_are_read_and_none_counts_that_is_not_allocated(api, server):
    names = [f"c{number:02}" for number in range(20)]
    put_on_node(server, "many", *names)
    assert api.list_whole_gpu_pods("n1") == []
    assert urls(server)[1:] == [f"GET {CLAIMS}/{name}" for name in names[:16]]
    devices = {"results": [{"driver": "nic.example"}]}
    for name in names[:15]:
        server.put(f"{CLAIMS}/{name}", {"status": {"allocation": {"devices": devices}}})
    server.put(f"{CLAIMS}/{names[15]}", {})
    assert api.list_whole_gpu_pods("n1") == []
    server.put(f"{CLAIMS}/{names[15]}", {"status": {"allocation": {"devices": devices}}})
    assert api.list_whole_gpu_pods("n1") == ["team/many"]  # the others are unknown
    put_on_node(server, "many", *names[:16])
    assert api.list_whole_gpu_pods("n1") == []


def test_claims_that_cannot_be_read_for_now_are_no_answer(api, server):
    put_on_node(server, "a", "c")
    server.fails("GET .*/resourceclaims/", 500)
    with pytest.raises(KubeError):
        api.list_whole_gpu_pods("n1")


def test_a_watch_reports_what_changed_and_from_where_to_go_on(api, server):
    _, since = api.pods.read()
    server.put(f"{PODS}/other", POD)
    (kind, pod), bookmark = api.pods.watch(since, 60)
    now = version(server, f"{PODS}/other")
    assert (kind, pod["metadata"]["resourceVersion"]) == ("ADDED", now)
    assert api.pods.project(pod).name == "team/other"
    assert bookmark == ("BOOKMARK", {"metadata": {"resourceVersion": now}})
    assert f"resourceVersion={since}" in urls(server)[-1]
    assert "allowWatchBookmarks=true" in urls(server)[-1]
