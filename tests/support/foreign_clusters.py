"""A cluster without vramwarden: nodes and pods as other products write them."""

from __future__ import annotations

import json

from tests.support import clusters
from tests.support.pods import a_container

A100 = "NVIDIA-A100-SXM4-80GB"


def gfd_node(name, count=8, memory="81920", product=A100, replicas=1, **labels):
    """Return a node with the labels of GPU feature discovery."""
    found = {
        "nvidia.com/gpu.count": str(count),
        "nvidia.com/gpu.product": product + ("-SHARED" if replicas > 1 else ""),
        "nvidia.com/gpu.replicas": str(replicas),
        **labels,
    }
    if memory:
        found["nvidia.com/gpu.memory"] = memory
    return a_node(name, found, **{"nvidia.com/gpu": count * replicas})


def a_node(name, labels=None, annotations=None, **amounts):
    return clusters.a_node(name, labels=labels, annotations=annotations, amounts=amounts).stored


def a_pod(name, node="", namespace="team", annotations=None, labels=None, **limits):
    texts = {key: str(value) for key, value in limits.items()}
    container = a_container(resources={"limits": texts})
    place = {"node": node, "namespace": namespace, "metadata": {"labels": labels or {}}}
    return clusters.a_pod(name, annotations=annotations, containers=[container], **place)


def whole(name, node="", gpus=1, **more):
    return a_pod(name, node, **more, **{"nvidia.com/gpu": gpus})


def hami(name, node="", memory=4096, **more):
    return a_pod(name, node, **more, **{"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory})


def kai(name, node="", **annotations):
    return a_pod(name, node, annotations=annotations)


def listed(*items):
    return json.dumps({"apiVersion": "v1", "items": items, "kind": "List"})


def mixed_cluster():
    """Return the objects of a cluster with every kind of GPU use, counted by hand below.

    | node | GPUs | pods | held |
    | --- | --- | --- | --- |
    | big-0 | 8 of 80 GiB | 6 with 1 GPU, 1 with 2 | 8 |
    | big-1 | 8 of 80 GiB | 3 with 1 GPU | 3 |
    | sliced-0 | 2 of 24 GiB, each 4 replicas | 5 with 1 replica | 2 |
    | hami-0 | 4 of 48 GiB | 3 with 8 GiB | 1 |
    | kai-0 | 4 of 48 GiB | 3 with half of a GPU, 1 with 10 GiB | 2 |
    | mig-0 | - | 1 with a slice | - |
    | - | - | 1 that waits for 1 GPU | 1 |
    """
    registered = [
        {"id": f"GPU-h{index}", "index": index, "count": 10, "devmem": 49140, "type": "A40"}
        for index in range(4)
    ]
    return [
        gfd_node("big-0"),
        gfd_node("big-1"),
        gfd_node("sliced-0", 2, "24576", "NVIDIA-A10", replicas=4),
        a_node(
            "hami-0",
            None,
            {"hami.io/node-nvidia-register": json.dumps(registered)},
            **{"nvidia.com/gpu": 40},
        ),
        gfd_node("kai-0", 4, "49140", "NVIDIA-L40"),
        a_node(
            "mig-0",
            {"nvidia.com/gpu.count": "1", "nvidia.com/mig-1g.10gb.count": "7"},
            **{"nvidia.com/mig-1g.10gb": 7},
        ),
        a_node("plain"),
        *(whole(f"one-{index}", "big-0") for index in range(6)),
        whole("two", "big-0", 2),
        *(whole(f"one-{index}", "big-1") for index in range(6, 9)),
        *(whole(f"replica-{index}", "sliced-0") for index in range(5)),
        hami("hami-a", "hami-0", 8192),
        hami("hami-b", "hami-0", 8192),
        hami("hami-c", "hami-0", 8192),
        kai("kai-a", "kai-0", **{"gpu-fraction": "0.5"}),
        kai("kai-b", "kai-0", **{"gpu-fraction": "0.5"}),
        kai("kai-c", "kai-0", **{"gpu-fraction": "0.5"}),
        kai("kai-d", "kai-0", **{"gpu-memory": "10240"}),
        whole("gpu-reservation-1", "kai-0", namespace="kai-resource-reservation"),
        a_pod("slice", "mig-0", **{"nvidia.com/mig-1g.10gb": 1}),
        whole("waits"),
        a_pod("web"),
    ]
