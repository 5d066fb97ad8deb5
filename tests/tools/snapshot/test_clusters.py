"""The clusters of these tests: what they say of themselves is what the product reads of them."""

from __future__ import annotations

import pytest

from tests.support.api_server import ApiServer
from tests.support.clusters import (
    GIB,
    NOW_S,
    a_cluster,
    a_gpu,
    a_node,
    a_pod,
    many_nodes,
    team_nodes,
    team_pods,
)
from webhook.tools.snapshot.node import ClusterNode
from webhook.tools.snapshot.pod import ClusterPod
from webhook.tools.snapshot.reading import read_gpu_nodes


def test_a_cluster_is_read_from_an_api_server_as_it_is_handed_to_judges():
    quota = {"apiVersion": "v1", "kind": "ResourceQuota"}
    quota["metadata"] = {"namespace": "team-a", "name": "q"}
    cluster = a_cluster([*team_nodes(), a_node("cpu")], team_pods(), quota)
    kube = cluster.stored_in(ApiServer()).kube()
    assert read_gpu_nodes(kube) == list(cluster.figures)
    assert abs(kube.now_s() - NOW_S) < 60
    pods = kube.list_all("/api/v1/namespaces/team-a/pods", ClusterPod)[0]
    assert sorted((one.name, one.node, one.gpu_count) for one in pods) == sorted(
        (one.name, one.node, one.gpu_count) for one in cluster.read_pods
    )
    assert {one.uid: one.asked_bytes for one in cluster.listed_pods} == {
        "embed": 8 * GIB,
        "llama": 16 * GIB,
        "train-0": 40 * GIB,
        "train-1": 60 * GIB,
        "eval-4": 80 * GIB,
    }
    nodes = {one.name: one for one in kube.list_all("/api/v1/nodes", ClusterNode)[0]}
    assert {name: one.labels for name, one in nodes.items()} == {
        name: one.labels for name, one in cluster.read_nodes.items()
    }
    assert [gpu.uuid for gpu in nodes["n1"].gpus] == ["GPU-n1-0", "GPU-n1-1"]
    assert not nodes["cpu"].shows_gpus


def test_words_about_a_node_and_a_pod_come_after_what_the_product_wrote():
    node = a_node(
        "n1", a_gpu(79), labels={"vramwarden.io/gpu": None, "zone": "a"}, amounts={"x": 2}
    )
    labels = node.read.labels
    assert (labels["zone"], labels.get("vramwarden.io/gpu")) == ("a", None)
    assert labels["vramwarden.io/enforcement"] == "sidecar"
    assert node.stored["status"]["allocatable"] == {"vramwarden.io/vram": "79Gi", "x": "2"}
    assert a_pod("p", "8Gi")["metadata"]["annotations"]["vramwarden.io/admitted"] != "x"
    pod = a_pod("p", "8Gi", annotations={"vramwarden.io/admitted": "x"}, owner="Deployment/llama")
    assert pod["metadata"]["annotations"]["vramwarden.io/admitted"] == "x"
    (read,) = a_cluster([], [pod]).read_pods
    assert (str(read.workload), read.managed) == ("Deployment/llama", True)
    assert not a_cluster([], [a_pod("p", "8Gi", rule=None)]).read_pods[0].managed


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (a_node("n", said=16), True),
        (a_node("n", a_gpu(16)), False),
        (a_node("n"), False),
        (a_node("n", amounts={"vramwarden.io/vram": 16 * GIB}), False),
    ],
    ids=["said", "measured", "no GPU", "of somebody else"],
)
def test_an_amount_is_said_where_the_agent_advertises_it_and_no_gpu(node, said):
    assert node.read.said == said


def test_no_two_of_many_nodes_have_a_gpu_of_one_name():
    gpus = [gpu.uuid for node in many_nodes(20) for gpu in node.figures.gpus]
    assert len(set(gpus)) == len(gpus) == 160
