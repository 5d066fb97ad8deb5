"""A small cluster as people see it: three nodes with GPUs, and the pods of a team."""

from __future__ import annotations

from webhook.core.seeing.nodes import GpuFigures, NodeFigures, PodFigures, UnmanagedFigures
from webhook.core.seeing.pods import SeenPod

GIB = 2**30
AT_S = 1_800_000_000.0
"""Now."""


def gib(amount):
    return round(amount * GIB)


def a_gpu(index, usable, used, pods=(), unmanaged=(), **other):
    """Return a GPU with pods as (uid, cap, used, peak, stops), in GiB."""
    figures = tuple(
        PodFigures(uid, gib(cap), *(None if one is None else gib(one) for one in held), stops)
        for uid, cap, *held, stops in pods
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
        "unmanaged": tuple(UnmanagedFigures(uid, gib(held)) for uid, held in unmanaged),
    }
    return GpuFigures(**(values | other))


def a_node(name, *gpus, age_s=14):
    return NodeFigures(name, AT_S - age_s, "580.95.05", "sidecar", tuple(gpus))


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
        return SeenPod(uid, "team-a", name, node=node, gpus=gpus, **values)

    return [
        pod("llama", "llama-7c9f-x2kq4", "n1", "GPU-n1-0"),
        pod("embed", "embed-29411-8tq5w", "n2", "GPU-n2-0"),
        pod("train-0", "train-0", "n1", "GPU-n1-0", "GPU-n1-1"),
        pod("train-1", "train-1", "n3", "GPU-n3-1"),
        pod("eval-4", "eval-4", "", created_s=AT_S - 540, asked_bytes=gib(80)),
    ]
