"""What placement asks of the API server, request by request."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests.support.agents import ApiServer
from webhook.adapters.kube import placement
from webhook.adapters.kube.client import KubeError, connect
from webhook.adapters.kube.placement import GpuNode, PlacementApi, Question, StoredList
from webhook.core.nvidia.device_names import DeviceNames
from webhook.core.placement.assignments import (
    Assignment,
    PodState,
    Whole,
    write_assignments,
    write_whole,
)
from webhook.core.placement.fit import Need
from webhook.core.pod.gpus import Gpu
from webhook.core.pod.quantity import MIB

GPUS = '[{"uuid":"GPU-a","memory":10485760,"product":"X","index":0}]'
NODE = GpuNode("n1", (Gpu(uuid="GPU-a", memory_bytes=10 * MIB, product="X", index=0),))
ENTRY = {"p1": Assignment(pod="team/train", uuids=("GPU-a",), memory_bytes=5 * MIB, since_s=7)}
ANSWER = Whole("1764000000", 1, ("team/whole",))
LISTS = "/api/v1/namespaces/sys/configmaps"
POD = {
    "metadata": {
        "uid": "p1",
        "namespace": "team",
        "name": "train",
        "annotations": {"vramwarden.io/gpu-memory": "5Mi"},
    },
    "spec": {
        "containers": [{"name": "main", "resources": {"requests": {"vramwarden.io/vram": "5Mi"}}}]
    },
}


def stored_pod():
    return POD | {"metadata": POD["metadata"] | {"resourceVersion": "6"}}


@pytest.fixture
def server(tmp_path):
    with ApiServer(tmp_path) as running:
        yield running


@pytest.fixture
def api(server):
    return PlacementApi(connect(server.kubeconfig, tries=1), "sys")


def asked(server):
    return [(method, path.split("?")[0]) for method, path, _, _ in server.asked]


def a_list(version="7", **data):
    metadata = {
        "name": "gpu-assignments-n1",
        "resourceVersion": version,
        "annotations": {"vramwarden.io/node": "n1"},
    }
    return {"metadata": metadata, "data": write_assignments(ENTRY), **data}


def test_a_node_s_list_is_read_with_its_version(api, server):
    server.answers = [(200, a_list())]
    assert api.assignments("n1") == StoredList("n1", ENTRY, whole=True, version="7")
    assert asked(server) == [("GET", f"{LISTS}/gpu-assignments-n1")]


def test_a_list_that_does_not_exist_is_not_whole(api, server):
    server.answers = [(404, {"message": "not found"})]
    assert api.assignments("n1") == StoredList("n1", {}, whole=False, version="")


@pytest.mark.parametrize("data", [None, {}, {"assignments": "{"}, {"other": "x"}])
def test_a_list_that_cannot_be_read_is_not_whole(api, server, data):
    server.answers = [(200, a_list(data=data))]
    found = api.assignments("n1")
    assert (found.assignments, found.whole, found.version) == ({}, False, "7")


def test_the_first_entry_makes_the_list_which_nobody_owns(api, server):
    server.answers = [(201, a_list(version="8"))]
    assert api.store("n1", ENTRY, "") == StoredList("n1", ENTRY, whole=True, version="8")
    ((method, path, _, body),) = server.asked
    assert (method, path.split("?")[0]) == ("POST", LISTS)
    assert body["metadata"] == {
        "name": "gpu-assignments-n1",
        "labels": {"vramwarden.io/gpu-assignments": "true"},
        "annotations": {"vramwarden.io/node": "n1"},
    }
    assert body["data"] == write_assignments(ENTRY)


def test_every_write_keeps_the_answer_that_is_there(api, server):
    server.answers = [(200, a_list(data={**write_assignments(ENTRY), **write_whole(ANSWER)}))]
    found = api.assignments("n1")
    assert found == StoredList("n1", ENTRY, True, "7", ANSWER)
    server.answers = [(200, a_list(version="8"))]
    assert api.store("n1", {}, "7", found.answer) == StoredList("n1", {}, True, "8", ANSWER)
    assert server.asked[-1][3]["data"] == {"assignments": "", **write_whole(ANSWER)}


def test_a_list_is_deleted_only_as_it_was_read(api, server):
    server.answers = [(200, {})]
    api.remove(StoredList("n1", {}, whole=True, version="7"))
    ((method, path, _, body),) = server.asked
    assert (method, path.split("?")[0]) == ("DELETE", f"{LISTS}/gpu-assignments-n1")
    assert body == {"preconditions": {"resourceVersion": "7"}}


def test_a_pod_is_annotated_by_its_status_and_only_as_it_was_read(api, server):
    server.answers = [(200, stored_pod())]
    found = api.stored_pod("team/train")
    api.annotate(found, {"vramwarden.io/gpu": "GPU-a", "vramwarden.io/gpu-waits": None})
    method, path, headers, body = server.asked[-1]
    assert (method, path.split("?")[0]) == ("PATCH", "/api/v1/namespaces/team/pods/train/status")
    assert headers["Content-Type"] == "application/merge-patch+json"
    annotations = {"vramwarden.io/gpu": "GPU-a", "vramwarden.io/gpu-waits": None}
    assert body == {"metadata": {"uid": "p1", "resourceVersion": "6", "annotations": annotations}}


def test_a_pod_is_deleted_only_as_it_was_read(api, server):
    server.answers = [(200, stored_pod())]
    api.delete_pod(api.stored_pod("team/train"))
    method, path, _, body = server.asked[-1]
    assert (method, path.split("?")[0]) == ("DELETE", "/api/v1/namespaces/team/pods/train")
    assert body == {"preconditions": {"uid": "p1", "resourceVersion": "6"}}


def test_a_pod_that_is_gone_is_not_there_to_be_changed(api, server):
    server.answers = [(404, {})]
    assert api.stored_pod("team/train") is None


@pytest.mark.parametrize(("status", "may"), [({"allowed": True}, True), ({}, False)])
def test_our_rights_are_asked_for(api, server, status, may):
    server.answers = [(201, {"status": status})]
    assert api.may("patch", "pods", "status") is may
    ((method, path, _, body),) = server.asked
    access = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert (method, path.split("?")[0]) == ("POST", access)
    wanted = {"verb": "patch", "resource": "pods", "subresource": "status"}
    assert body["spec"] == {"resourceAttributes": wanted}


def test_an_event_of_a_pod_says_which_and_why(api, server):
    api.warn_of(PodState(uid="p1", name="team/train", need=None), "BoundWithoutGPU", "because")
    ((method, path, _, body),) = server.asked
    assert (method, path.split("?")[0]) == (
        "POST",
        "/apis/events.k8s.io/v1/namespaces/team/events",
    )
    assert body["metadata"] == {"generateName": "train-", "namespace": "team"}
    assert body["regarding"]["uid"] == "p1"
    said = {"type": "Warning", "reason": "BoundWithoutGPU", "note": "because"}
    said["reportingController"] = "vramwarden.io/webhook"
    assert said.items() <= body.items()


def test_time_is_the_api_servers(api, server):
    def answer(handler):
        handler.send_response_only(200)
        handler.send_header("Date", "Fri, 02 Jan 2032 03:04:05 GMT")
        handler.send_header("Content-Length", "13")
        handler.end_headers()
        handler.wfile.write(b'{"items": []}')

    assert abs(api.now_s() - time.time()) < 60
    server.answers = [answer]
    api.all_assignments()
    assert 0 <= api.now_s() - 1956625445 < 60


def test_later_ones_replace_the_version_that_was_read(api, server):
    server.answers = [(200, a_list(version="9"))]
    assert api.store("n1", ENTRY, "7").version == "9"
    ((method, path, _, body),) = server.asked
    assert (method, path.split("?")[0]) == ("PUT", f"{LISTS}/gpu-assignments-n1")
    assert body["metadata"]["resourceVersion"] == "7"


def test_a_lost_race_is_a_conflict(api, server):
    server.answers = [(409, {"message": "the object has been modified"})]
    with pytest.raises(KubeError) as caught:
        api.store("n1", ENTRY, "7")
    assert caught.value.conflict
    assert not caught.value.retryable


def test_all_lists_are_found_by_their_label(api, server):
    server.answers = [(200, {"items": [a_list()]})]
    assert [found.node for found in api.all_assignments()] == ["n1"]
    assert (
        server.asked[0][1]
        == f"{LISTS}?labelSelector=vramwarden.io%2Fgpu-assignments%3Dtrue&limit=50"
    )


@pytest.mark.parametrize(("version", "is_read"), [("7", False), ("6", True)])
def test_of_a_list_that_is_as_it_was_read_before_nothing_is_read_again(
    api, server, monkeypatch, version, is_read
):
    read = []
    real = placement.read_assignments
    monkeypatch.setattr(placement, "read_assignments", lambda data: read.append(1) or real(data))
    server.answers = [(200, {"items": [a_list(version="7")]})]
    before = StoredList("n1", {"p9": ENTRY["p1"]}, whole=True, version=version)
    (found,) = api.all_assignments({"n1": before}.get)
    assert found == (StoredList("n1", ENTRY, whole=True, version="7") if is_read else before)
    assert bool(read) == is_read


def test_pods_are_listed_as_they_are_now(api, server):
    server.answers = [(200, {"metadata": {"resourceVersion": "5"}, "items": [POD]})]
    ((pod,), version) = api.pods.read()
    assert (pod.uid, pod.name, pod.need, version) == ("p1", "team/train", Need(5 * MIB), "5")
    asked_for = "/api/v1/pods?labelSelector=vramwarden.io%2Fmanaged%3Dtrue&limit=50"
    assert server.asked[0][1] == asked_for


def test_the_pods_of_a_node_are_read_as_they_are_now(api, server):
    server.answers = [(200, {"items": [POD]})]
    assert [pod.uid for pod in api.pods_on("n1")] == ["p1"]
    assert server.asked[0][1].endswith("&fieldSelector=spec.nodeName%3Dn1&limit=50")
    assert "resourceVersion" not in server.asked[0][1]


def test_a_pod_or_a_node_that_is_gone_is_none(api, server):
    server.answers = [(404, {})]
    assert (api.pod("team", "a/b"), api.node("n1")) == (None, None)
    assert asked(server)[0] == ("GET", "/api/v1/namespaces/team/pods/a%2Fb")


def test_a_node_is_read_with_its_gpus(api, server):
    metadata = {"name": "n1", "uid": "uid-n1", "annotations": {"vramwarden.io/gpus": GPUS}}
    server.answers = [(200, {"metadata": metadata})]
    assert api.node("n1") == NODE


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (None, DeviceNames.UUID),
        ({"vramwarden.io/gpu": "true"}, DeviceNames.UUID),
        ({"vramwarden.io/device-names": "runtime.nvidia.com"}, DeviceNames.RUNTIME),
        ({"vramwarden.io/device-names": "none"}, DeviceNames.NONE),
        ({"vramwarden.io/device-names": "example.com"}, None),
    ],
)
def test_a_node_is_read_with_the_names_of_its_gpus(api, server, labels, names):
    annotations = {"vramwarden.io/gpus": GPUS}
    metadata = {"name": "n1", "labels": labels, "annotations": annotations}
    server.answers = [(200, {"metadata": metadata})]
    assert api.node("n1") == replace(NODE, device_names=names)


@pytest.mark.parametrize(
    ("annotations", "held"),
    [
        (None, ""),
        ({"vramwarden.io/held": "x" * 999}, "x" * 512),
        ({"vramwarden.io/held": ""}, "annotation vramwarden.io/held"),
    ],
)
def test_a_node_is_read_with_why_it_is_held(api, server, annotations, held):
    server.answers = [(200, {"metadata": {"name": "n1", "annotations": annotations}})]
    assert api.node("n1").held == held


def test_the_nodes_that_ask_are_found_by_their_label(api, server):
    metadata = {"name": "n1", "labels": {"vramwarden.io/whole-gpu-pods": "1764000000"}}
    server.answers = [
        (200, {"metadata": {"resourceVersion": "5"}, "items": [{"metadata": metadata}]})
    ]
    assert api.questions.read() == ([Question("n1", "1764000000")], "5")
    asked_for = "/api/v1/nodes?labelSelector=vramwarden.io%2Fwhole-gpu-pods&limit=50"
    assert server.asked[0][1] == asked_for


def on_node(name, claims=0, **limits):
    spec = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
    spec["resourceClaims"] = [{"resourceClaimName": f"c{number}"} for number in range(claims)]
    return {"metadata": {"namespace": "team", "name": name}, "spec": spec}


def test_the_pods_with_whole_gpus_of_a_node_are_named(api, server):
    others = [on_node("z", **{"nvidia.com/gpu": "1"}), on_node("plain"), on_node("a", claims=2)]
    others += [on_node("b", claims=1), on_node("many", claims=17), on_node("d", claims=1)]
    results = [{"driver": "gpu.nvidia.com"}]
    claim = {"status": {"allocation": {"devices": {"results": results}}}}
    none = (404, {"message": "the server could not find the requested resource"})
    server.answers = [(200, {"items": others}), none, (200, claim), (403, {}), none]
    assert api.whole_gpu_pods("n1") == ["team/a", "team/many", "team/z"]
    method, path, _, _ = server.asked[0]
    assert (method, path) == (
        "GET",
        "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&resourceVersion=0",
    )
    claims = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims"
    assert asked(server)[1:] == [("GET", f"{claims}/{name}") for name in ("c0", "c1", "c0", "c0")]


def test_claims_that_cannot_be_read_for_now_are_no_answer(api, server):
    server.answers = [(200, {"items": [on_node("a", claims=1)]}), (500, {})]
    with pytest.raises(KubeError):
        api.whole_gpu_pods("n1")


def test_a_watch_reports_what_changed_and_from_where_to_go_on(api, server):
    lines = (
        '{"type":"ADDED","object":{"metadata":{"uid":"p1","namespace":"team","name":"train",'
        '"resourceVersion":"6"}}}\n'
        '{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}\n'
    )

    def answer(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(lines)))
        handler.end_headers()
        handler.wfile.write(lines.encode())

    server.answers = [answer]
    (kind, pod), bookmark = api.pods.watch("5", 60)
    assert (kind, pod["metadata"]["resourceVersion"]) == ("ADDED", "6")
    assert api.pods.keep(pod).name == "team/train"
    assert bookmark == ("BOOKMARK", {"metadata": {"resourceVersion": "9"}})
    query = server.asked[0][1]
    assert "resourceVersion=5" in query
    assert "allowWatchBookmarks=true" in query
