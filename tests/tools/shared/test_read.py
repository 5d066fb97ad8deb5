"""What `top` asks of an API server, how it is answered, and what becomes of failures."""

from __future__ import annotations

import gzip
import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.seen_cluster import GIB, a_listed_pod, nodes
from webhook.adapters.kube import client
from webhook.adapters.kube.client import KubeError
from webhook.core.kinds.nodes import write_gpu_node
from webhook.tools.shared.read import (
    GPU_NODES_PATH,
    once,
    read_each_pod,
    read_gpu_nodes,
    read_pods,
    read_unmanaged_pods,
    why_no_figures,
    why_no_pods,
)
from webhook.tools.simulate.judge.cluster import TodayObjects
from webhook.tools.simulate.read import list_pods_and_nodes

COLUMNS = ["Name", "Ready", "Status", "Restarts", "Age", "IP", "Node"]


def gpu_nodes(figures, **metadata):
    items = [write_gpu_node(node) for node in figures]
    return {"kind": "GPUNodeList", "metadata": metadata, "items": items}


def metadata(name, **annotations):
    return {
        "uid": f"uid-{name}",
        "namespace": "team-a",
        "name": name,
        "annotations": {f"vramwarden.io/{key}": text for key, text in annotations.items()},
        "labels": {"vramwarden.io/managed": "true"},
    }


def table(*rows, **page):
    """Return a table of pods as (metadata, status, node)."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": "7", **page},
        "columnDefinitions": [{"name": name, "type": "string"} for name in COLUMNS],
        "rows": [
            {
                "cells": [about["name"], "1/1", status, "0", "5m", "10.0.0.1", node],
                "object": {"kind": "PartialObjectMetadata", "metadata": about},
            }
            for about, status, node in rows
        ],
    }


def asked(server):
    return [
        (urlsplit(path).path, parse_qs(urlsplit(path).query), headers)
        for _, path, headers, _ in server.asked
    ]


def seen(name, status, node, **other):
    other |= {"kind": "Pod", "workload": name}
    return vars(a_listed_pod(f"uid-{name}", "team-a", name, status, node, **other))


def test_figures_of_all_nodes_come_from_the_cache_in_one_compressed_answer(kube, api_server):
    packed = gzip.compress(json.dumps(gpu_nodes(nodes())).encode())
    api_server.answers = [(200, packed, {"Content-Encoding": "gzip"})]
    assert read_gpu_nodes(kube) == nodes()
    ((path, query, headers),) = asked(api_server)
    assert (path, query) == (GPU_NODES_PATH, {"resourceVersion": ["0"]})
    assert headers["Accept-Encoding"] == "gzip"


def test_an_object_that_shows_nothing_yet_is_left_out(kube, api_server):
    listed = gpu_nodes(nodes())
    del listed["items"][1]["status"]
    api_server.answers = [(200, listed)]
    assert [node.name for node in read_gpu_nodes(kube)] == ["n1", "n3"]


def test_a_list_that_is_too_large_for_one_answer_is_read_in_pages(kube, api_server, monkeypatch):
    first, second = gpu_nodes(nodes()[:2], **{"continue": "c"}), gpu_nodes(nodes()[2:])
    monkeypatch.setattr(client, "MOST_AT_ONCE_BYTES", 1000)
    api_server.answers = [(200, gpu_nodes(nodes())), (200, first), (200, second)]
    assert read_gpu_nodes(kube) == nodes()
    assert [query.get("continue") for _, query, _ in asked(api_server)] == [None, None, ["c"]]
    assert [query.get("resourceVersion") for _, query, _ in asked(api_server)] == [
        ["0"],
        None,
        None,
    ]


@pytest.mark.parametrize("body", [b'{"items": [', b"\x1f\x8b not gzip", b"[]", b'{"items": [1]}'])
def test_an_answer_that_cannot_be_read_is_a_sentence(kube, api_server, body):
    headers = {"Content-Encoding": "gzip"} if body.startswith(b"\x1f") else {}
    api_server.answers = [(200, body, headers)]
    with pytest.raises(KubeError, match="broke off"):
        read_gpu_nodes(kube)


def test_pods_are_rows_with_their_metadata_alone(kube, api_server):
    llama = metadata("llama", **{"gpu-memory": "16Gi", "gpu": "GPU-a"})
    api_server.answers = [(200, table((llama, "Running", "n1")))]
    assert list(map(vars, read_pods(kube, "team-a", selector="app=llama"))) == [
        seen("llama", "Running", "n1", gpus=("GPU-a",), asked_bytes=16 * GIB)
    ]
    ((path, query, headers),) = asked(api_server)
    assert path == "/api/v1/namespaces/team-a/pods"
    assert query == {
        "includeObject": ["Metadata"],
        "labelSelector": ["vramwarden.io/managed=true,app=llama"],
        "fieldSelector": ["status.phase!=Succeeded,status.phase!=Failed"],
        "limit": ["50"],
    }
    assert headers["Accept"] == "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"


def test_rows_come_in_pages(kube, api_server):
    api_server.answers = [
        (200, table((metadata("a"), "Running", "n1"), **{"continue": "c"})),
        (200, table((metadata("b"), "Running", "n2"))),
    ]
    assert [pod.name for pod in read_pods(kube, "")] == ["a", "b"]
    assert [path for path, _, _ in asked(api_server)] == ["/api/v1/pods"] * 2


def whole(name, amount="30Gi", node="", phase="Pending"):
    said = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    resources = {"limits": {"vramwarden.io/vram": amount}}
    return {
        "metadata": metadata(name),
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": resources}]},
        "status": {"phase": phase, "conditions": [said]},
    }


def test_pods_without_a_node_are_read_whole_and_no_others(kube, api_server):
    rows = table((metadata("a"), "Running", "n1"), (metadata("b"), "Pending", "<none>"))
    api_server.answers = [(200, rows), (200, {"items": [whole("b"), whole("c")]})]
    assert list(map(vars, read_pods(kube, "team-a"))) == [
        seen("a", "Running", "n1"),
        seen("b", "Pending", "", asked_bytes=30 * GIB, unscheduled="0/3 nodes are available"),
    ]
    _, (path, query, headers) = asked(api_server)
    assert path == "/api/v1/namespaces/team-a/pods"
    assert query["fieldSelector"] == ["spec.nodeName=,status.phase!=Succeeded,status.phase!=Failed"]
    assert headers["Accept"] == "application/json"


def test_of_many_pods_without_a_node_a_hundred_are_read_whole(kube, api_server):
    def page(first, last, token):
        items = [whole(f"p{number}") for number in range(first, last)]
        return 200, {"metadata": {"continue": token}, "items": items}

    rows = table(*((metadata(f"p{number}"), "Pending", "<none>") for number in range(200)))
    api_server.answers = [(200, rows), page(0, 50, "a"), page(50, 120, "b")]
    pods = read_pods(kube, "team-a")
    assert [pod.asked_bytes is not None for pod in pods] == [True] * 100 + [False] * 100
    assert len(api_server.asked) == 3


def test_a_server_that_makes_no_tables_is_understood_as_well(kube, api_server):
    api_server.answers = [(200, {"items": [whole("a", "8Gi", "n1", "Running")]})]
    assert list(map(vars, read_pods(kube, "team-a"))) == [
        seen("a", "Running", "n1", asked_bytes=8 * GIB, unscheduled="0/3 nodes are available")
    ]


@pytest.mark.parametrize(
    "row", [{"cells": 1, "object": {}}, {"object": {"metadata": metadata("a")}}, 1, {}]
)
def test_a_table_that_is_none_is_a_sentence(kube, api_server, row):
    api_server.answers = [(200, table() | {"rows": [row]})]
    with pytest.raises(KubeError, match="broke off"):
        read_pods(kube, "team-a")


def test_pods_that_asked_for_nothing_are_read_for_one_node(kube, api_server):
    stranger = metadata("shell") | {"labels": {}}
    api_server.answers = [(200, table((stranger, "Running", "n2")))]
    assert list(map(vars, read_unmanaged_pods(kube, "team-a", "n2"))) == [
        seen("shell", "Running", "n2", managed=False)
    ]
    ((_, query, _),) = asked(api_server)
    assert query["labelSelector"] == ["vramwarden.io/managed!=true"]
    assert query["fieldSelector"] == ["spec.nodeName=n2"]


@pytest.mark.parametrize(
    ("code", "figures", "of_one", "of_all"),
    [
        (404, "does not know GPUNode.*crds.install", "answers 404", "answers 404"),
        (
            403,
            "may not list gpunodes.*gpuNodes.readableBy",
            "may not list pods in namespace team-a.*-n",
            "may not list pods in all namespaces.*-n",
        ),
        (500, "answers 500", "answers 500", "answers 500"),
    ],
)
def test_each_failure_says_what_is_missing_and_what_to_do(
    kube, api_server, code, figures, of_one, of_all
):
    api_server.answers = [(code, {"message": "no"})]
    with pytest.raises(KubeError) as failed:
        read_gpu_nodes(kube)
    with pytest.raises(KubeError):
        read_pods(kube, "")
    assert re.search(f"^no figures of GPUs: .*{figures}", why_no_figures(failed.value))
    assert re.search(f"^no pods: .*{of_one}", why_no_pods(failed.value, "team-a"))
    assert re.search(f"^no pods: .*{of_all}", why_no_pods(failed.value, ""))


def test_an_object_is_taken_once_by_its_uid_or_else_its_name():
    taken = []
    keep = once(taken.append)
    named = {"metadata": {"namespace": "a", "name": "x"}}
    other = {"metadata": {"namespace": "b", "name": "x"}}
    known = {"metadata": {"namespace": "a", "name": "x", "uid": "1"}}
    for found in (named, known, named, other, known):
        keep(found)
    assert taken == [named, known, other]


def test_what_reads_pods_and_nodes_takes_each_once():
    class Kube:
        def list_all(self, _path, keep, **_query):
            for _ in range(2):  # as for a page that was too large
                keep({"metadata": {"name": "x", "uid": "1"}, "spec": {"resourceClaims": [{}]}})

    taken, found = [], TodayObjects()
    read_each_pod(Kube(), "", taken.append)
    list_pods_and_nodes(Kube(), found)
    assert (len(taken), found.left_out.total(), found.others) == (1, 1, 1)
