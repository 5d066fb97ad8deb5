"""A small cluster as people see it: three nodes with GPUs, and the pods of a team."""

from __future__ import annotations

import random
import uuid

from webhook.core.kinds.nodes import (
    GpuFigures,
    NodeFigures,
    PodFigures,
)
from webhook.core.kinds.workloads import Workload
from webhook.tools.shared.node import ClusterNode
from webhook.tools.shared.pod import ClusterPod

GIB = 2**30
AT_S = 1_800_000_000.0
"""Now."""


def gib(amount):
    """Return an amount in bytes, in whole MiB as a node's object says it."""
    return round(amount * 1024) * 2**20


def a_gpu(index, usable, used, pods=(), unmanaged=(), **other):
    """Return a GPU with pods as (uid, cap, used, peak, stops), in GiB."""
    figures = tuple(
        PodFigures(
            uid=uid,
            cap_bytes=gib(cap),
            used_bytes=used and gib(used),
            peak_bytes=peak and gib(peak),
            stops=stops,
        )
        for uid, cap, used, peak, stops in pods
    )
    promised = sum(pod.cap_bytes for pod in figures)
    values = {
        "uuid": f"GPU-{index}",
        "index": index,
        "product": "NVIDIA-H100-80GB-HBM3",
        "total_bytes": gib(usable + 1),
        "usable_bytes": gib(usable),
        "promised_bytes": promised,
        "used_bytes": None if used is None else gib(used),
        "free_bytes": gib(usable) - promised,
        "unattributed_bytes": gib(0.25),
        "pods": figures,
        "unmanaged": {uid: gib(held) for uid, held in unmanaged},
    }
    return GpuFigures(**(values | other))


def a_node(name, *gpus, age_s=14):
    return NodeFigures(
        name=name,
        observed_s=AT_S - age_s,
        driver_version="580.95.05",
        enforcement="sidecar",
        gpus=tuple(gpus),
    )


def a_listed_pod(uid, namespace, name, status="", node="", *, kind="", workload="", **facts):
    """Return a pod as a list's row tells it, with these facts and no others."""
    told = {"uid": uid, "namespace": namespace, "name": name, "status": status, "node": node}
    told |= {"created_s": None, "gpus": (), "asked_bytes": None, "gpu_count": 1, "waits": ""}
    told |= {"unscheduled": "", "managed": True, "workload": Workload(kind, workload)} | facts
    return ClusterPod({}, **told).keep(*told)


def a_read_node(name, labels, taints=(), *, unschedulable=False):
    """Return a node as who may read nodes sees it."""
    return ClusterNode({}, name=name, labels=labels, taints=taints, unschedulable=unschedulable)


def nodes():
    """Return the figures: on n2 somebody holds what nobody promised, and n3 reports no more."""
    a10 = {"product": "NVIDIA-A10"}
    return [
        a_node(
            "n1",
            a_gpu(
                0,
                79,
                31,
                [("llama", 16, 6, 6.1, 0), ("train-0", 40, 25, 38.2, 0)],
                uuid="GPU-n1-0",
            ),
            a_gpu(
                1,
                79,
                44,
                [("train-0", 40, 25, 38.2, 0), ("other-3", 39, 19, 20, None)],
                uuid="GPU-n1-1",
            ),
        ),
        a_node(
            "n2",
            a_gpu(
                0,
                22,
                9.7,
                [("embed", 8, 7.8, 7.9, 0), ("other-4", 8, 1.5, 2, 0)],
                uuid="GPU-n2-0",
                **a10,
            ),
            a_gpu(1, 22, 5.1, [("other-5", 8, 2, 2, 0)], [("rogue", 3.1)], uuid="GPU-n2-1", **a10),
        ),
        a_node(
            "n3",
            a_gpu(0, 79, 41, [("train-0b", 64, 41, 42, 0)], uuid="GPU-n3-0"),
            a_gpu(1, 79, 58.7, [("train-1", 60, 58.7, 61.3, 1)], uuid="GPU-n3-1"),
            age_s=245,
        ),
    ]


def pods():
    """Return the pods of team-a."""

    def pod(uid, name, node, *gpus, **other):
        values = {"status": "Running" if node else "Pending", "created_s": AT_S - 11_520}
        values |= {"asked_bytes": gib(8)} | other
        return a_listed_pod(uid, "team-a", name, node=node, gpus=gpus, **values)

    return [
        pod("llama", "llama-7c9f-x2kq4", "n1", "GPU-n1-0"),
        pod("embed", "embed-29411-8tq5w", "n2", "GPU-n2-0"),
        pod("train-0", "train-0", "n1", "GPU-n1-0", "GPU-n1-1"),
        pod("train-1", "train-1", "n3", "GPU-n3-1"),
        pod("eval-4", "eval-4", "", created_s=AT_S - 540, asked_bytes=gib(80)),
    ]


def many_nodes(number, gpus=8, pods=4):
    """Return the figures of a large cluster, of which no two names or amounts are alike."""
    drawn = random.Random(number)  # noqa: S311 - the same ones in each run

    def a_uid():
        return str(uuid.UUID(int=drawn.getrandbits(128)))

    def one(index):
        held = []
        for _ in range(pods):
            cap = drawn.randint(4, 19)
            used = round(cap * drawn.random(), 3)
            held.append((a_uid(), cap, used, used, 0))
        used = round(sum(pod[2] for pod in held) + 0.5, 3)
        return a_gpu(index, 79, used, held, uuid=f"GPU-{a_uid()}")

    return [
        a_node(f"gpu-node-{node:04d}", *(one(index) for index in range(gpus)))
        for node in range(number)
    ]
