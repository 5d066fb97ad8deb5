"""Requests for lists of pods and GPUNodes: responses and failures."""

from __future__ import annotations

import pytest

from tests.support.api_server import ApiServer
from tests.support.clusters import GIB, NOW_S, a_cluster, a_node, a_pod, many_nodes, team_nodes
from tests.support.gpu_nodes import GPU_NODES_PATH
from webhook.adapters.kube import client
from webhook.adapters.kube.errors import KubeError
from webhook.core.kinds.workloads import Workload
from webhook.tools.simulate.fetch import TodayObjects, read_cluster
from webhook.tools.snapshot.cluster import (
    deduplicate,
    read_gpu_nodes,
    read_pods,
    read_unmanaged_pods,
)

PODS = "/api/v1/namespaces/team-a/pods"
NO_NODE = "0/3 nodes are available"
WAITS = {"conditions": [{"type": "PodScheduled", "status": "False", "message": NO_NODE}]}


@pytest.fixture
def api():
    return a_cluster(team_nodes()).stored_in(ApiServer())


def listed_facts(name, status, node, **other):
    """Return all facts that are stored about a pod of team-a."""
    facts = {"uid": name, "namespace": "team-a", "name": name, "status": status, "node": node}
    facts |= {"created_s": NOW_S - 540, "gpus": (), "requested_bytes": 8 * GIB}
    facts |= {"gpu_count": 1, "owner_uid": ""}
    facts |= {
        "waiting_reason": "",
        "scheduler_message": "",
        "managed": True,
        "workload": Workload("Pod", name),
    }
    return facts | other


def test_figures_of_all_nodes_come_from_the_cache_in_one_compressed_answer(api):
    assert read_gpu_nodes(api.kube()) == [team_node.figures for team_node in team_nodes()]
    (asked,) = api.asked
    assert (asked.path, asked.query) == (GPU_NODES_PATH, {"resourceVersion": "0"})
    assert asked.headers["Accept-Encoding"] == "gzip"


def test_an_object_that_shows_nothing_yet_is_left_out(api):
    api.put(f"{GPU_NODES_PATH}/n2", {})
    assert [node.name for node in read_gpu_nodes(api.kube())] == ["n1", "n3"]


def test_a_list_that_is_too_large_for_one_answer_is_read_in_pages(api, monkeypatch):
    monkeypatch.setattr(client, "MAX_SINGLE_ANSWER_BYTES", 1000)
    cluster = a_cluster(many_nodes(60, gpus=1, pods=1))
    api = cluster.stored_in(ApiServer())
    assert read_gpu_nodes(api.kube()) == list(cluster.figures)
    assert [request.query.get("resourceVersion") for request in api.asked] == ["0", None, None]
    assert ["continue" in request.query for request in api.asked] == [False, False, True]


@pytest.mark.parametrize("body", [b'{"items": [', b"\x1f\x8b not gzip", b"[]", b'{"items": [1]}'])
def test_an_answer_that_cannot_be_read_is_a_sentence(api, body):
    headers = {"Content-Encoding": "gzip"} if body.startswith(b"\x1f") else {}
    api.fails("gpunodes", (200, body, headers))
    with pytest.raises(KubeError, match="broke off"):
        read_gpu_nodes(api.kube())


def test_pods_are_rows_with_their_metadata_alone(api):
    llama = a_pod("llama", "16Gi", node="n1", gpus="GPU-a", labels={"app": "llama"})
    api.add(llama, a_pod("other", "8Gi", node="n1"), a_pod("done", "8Gi", status="Succeeded"))
    assert list(map(vars, read_pods(api.kube(), "team-a", selector="app=llama"))) == [
        listed_facts("llama", "Running", "n1", gpus=("GPU-a",), requested_bytes=16 * GIB)
    ]
    (asked,) = api.asked
    assert (asked.path, asked.query) == (
        PODS,
        {
            "includeObject": "Metadata",
            "labelSelector": "vramwarden.io/managed=true,app=llama",
            "fieldSelector": "status.phase!=Succeeded,status.phase!=Failed",
            "limit": "50",
        },
    )
    table = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"
    assert asked.headers["Accept"] == table


def test_pods_without_a_node_are_read_whole_and_no_others(api):
    memory = {"annotations": {"vramwarden.io/gpu-memory": None}}
    bound, waits = (
        a_pod("bound", "8Gi", node="n1", status=WAITS, **memory),
        a_pod("waits", "30Gi", status=WAITS, **memory),
    )
    api.add(bound, waits)
    assert list(map(vars, read_pods(api.kube(), "team-a"))) == [
        listed_facts("bound", "Running", "n1", requested_bytes=None),
        listed_facts("waits", "Pending", "", requested_bytes=30 * GIB, scheduler_message=NO_NODE),
    ]
    _, asked = api.asked
    assert asked.query["fieldSelector"] == (
        "spec.nodeName=,status.phase!=Succeeded,status.phase!=Failed"
    )
    assert asked.headers["Accept"] == "application/json"


def test_of_many_pods_without_a_node_all_are_read_whole(api):
    pod = a_pod("p", "8Gi", status=WAITS)
    own = [{"name": f"p{number:03}", "uid": f"{number}"} for number in range(200)]
    api.add(*(pod | {"metadata": pod["metadata"] | metadata} for metadata in own))
    pods = read_pods(api.kube(), "")
    assert [pod.name for pod in pods] == [metadata["name"] for metadata in own]
    assert [pod.scheduler_message for pod in pods] == [NO_NODE] * 200
    assert {request.path for request in api.asked} == {"/api/v1/pods"}


def test_a_server_that_makes_no_tables_is_understood_as_well(api):
    api.fails("pods", (200, {"items": [a_pod("a", "8Gi", node="n1", status=WAITS)]}))
    assert list(map(vars, read_pods(api.kube(), "team-a"))) == [
        listed_facts("a", "Running", "n1", scheduler_message=NO_NODE)
    ]


@pytest.mark.parametrize(
    "row", [{"cells": 1, "object": {}}, {"object": {"metadata": {"name": "a"}}}, 1, {}]
)
def test_a_table_that_is_none_is_a_sentence(api, row):
    columns = [{"name": "Status"}, {"name": "Node"}]
    api.fails("pods", (200, {"kind": "Table", "columnDefinitions": columns, "rows": [row]}))
    with pytest.raises(KubeError, match="broke off"):
        read_pods(api.kube(), "team-a")


def test_pods_that_asked_for_nothing_are_read_for_one_node(api):
    api.add(a_pod("shell", node="n2"), a_pod("else", node="n1"), a_pod("ours", "8Gi", node="n2"))
    assert list(map(vars, read_unmanaged_pods(api.kube(), "team-a", "n2"))) == [
        listed_facts("shell", "Running", "n2", requested_bytes=None, managed=False)
    ]


def test_an_object_is_taken_once_by_its_uid_or_else_its_name():
    taken = []
    keep = deduplicate(taken.append)
    named = {"metadata": {"namespace": "a", "name": "x"}}
    other = {"metadata": {"namespace": "b", "name": "x"}}
    known = {"metadata": {"namespace": "a", "name": "x", "uid": "1"}}
    for found in (named, known, named, other, known):
        keep(found)
    assert taken == [named, known, other]


def test_what_reads_pods_and_nodes_takes_each_once_though_a_page_expires(api):
    claims = {"resourceClaims": [{"name": "gpu"}]}
    api.add(*(a_pod(f"p-{number}", node="n1", **claims) for number in range(60)))
    api.add(*(a_node(f"cpu-{number}").stored for number in range(60)))
    found = TodayObjects()
    for kind in ("pods", "nodes"):
        api.fails(f"{kind}.*continue=", 410)  # so the list is read again
    read_cluster(found, api.kube())
    (claiming,) = found.left_out.values()
    assert (len(claiming), found.others) == (60, 60)
