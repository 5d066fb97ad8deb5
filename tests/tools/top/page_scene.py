"""Clusters to draw: some figures of nodes, and pods of a user."""

from __future__ import annotations

import random

from tests.support.seen_cluster import a_listed_pod
from webhook.core.kinds.nodes import GpuFigures, NodeFigures, PodFigures
from webhook.tools.top.judge import join

GIB = 2**30
NOW_S = 1_795_000_000.0


def a_gpu(index, gib, *pods, used=None, unmanaged=(), healthy=True, product="NVIDIA H100 80GB"):
    """Return a GPU of so many GiB, with pods (uid, cap, used, peak) in GiB."""
    held = tuple(
        PodFigures(
            uid=uid,
            cap_bytes=round(cap * GIB),
            used_bytes=None if now is None else round(now * GIB),
            peak_bytes=None if peak is None else round(peak * GIB),
            stops=0,
        )
        for uid, cap, now, peak in pods
    )
    strangers = {uid: round(amount * GIB) for uid, amount in unmanaged}
    promised = sum(one.cap_bytes for one in held)
    total = sum(one.used_bytes or 0 for one in held) + sum(strangers.values())
    return GpuFigures(
        uuid=f"GPU-{index}",
        index=index,
        product=product,
        total_bytes=gib * GIB,
        usable_bytes=gib * GIB,
        promised_bytes=promised,
        used_bytes=total if used is None else round(used * GIB),
        free_bytes=gib * GIB - promised,
        unattributed_bytes=0,
        healthy=healthy,
        pods=held,
        unmanaged=strangers,
    )


def a_node(name, *gpus, age_s=14.0, enforcement="sidecar"):
    return NodeFigures(
        name=name,
        observed_s=NOW_S - age_s,
        driver_version="580.95.05",
        enforcement=enforcement,
        gpus=gpus,
    )


def a_pod(uid, name, node="", gib=8, status="Running", namespace="team-a", **other):
    facts = {"created_s": NOW_S - 540, "asked_bytes": gib * GIB} | other
    return a_listed_pod(uid, namespace, name, status, node, **facts)


def small():
    """Return two GPUs: own pods, one of others, memory without a promise, one that waits."""
    gpus = (
        a_gpu(0, 79, ("1", 16, 6.1, 6.2), ("2", 40, 25, 38.2), ("x", 12, 1.4, 3)),
        a_gpu(1, 79, ("2", 40, 25, 38.2), ("3", 8, 7.8, 7.9), unmanaged=(("91ab", 3.1),)),
    )
    pods = [
        a_pod("1", "llama-7c9f-x2kq4", "n1", 16),
        a_pod("2", "train-0", "n1", 40, gpu_count=2),
        a_pod("3", "embed-29411-8tq5w", "n1", 8),
        a_pod("4", "eval-4", gib=60, status="Pending"),
    ]
    return join([a_node("n1", *gpus)], pods, NOW_S, namespace="team-a")


def large(nodes=125, per_node=8, seed=0):
    """Return a cluster with some own pods, and all that can be wrong somewhere."""
    drawn = random.Random(seed)  # noqa: S311 - a scene
    figures, pods = [], []
    for number in range(nodes):
        name, gpus = f"gpu-pool-{number}.eu-central-1", []
        size = drawn.choice([24, 48, 79, 79])
        for index in range(per_node):
            held, left = [], size
            while left > 2 and drawn.random() < 0.85:
                cap = min(left, drawn.choice([2, 4, 8, 12, 16, 24, 40]))
                used = None if drawn.random() < 0.05 else round(cap * drawn.random(), 1)
                uid = f"{number}-{index}-{len(held)}"
                held.append((uid, cap, used, used))
                left -= cap
                if drawn.random() < 0.1:
                    pods.append(a_pod(uid, f"train-{uid}", name, cap))
            strangers = (("91ab", left / 2),) if left > 4 and drawn.random() < 0.05 else ()
            lost = drawn.random() < 0.01
            gpus.append(a_gpu(index, size, *held, unmanaged=strangers, healthy=not lost))
        figures.append(a_node(name, *gpus, age_s=900 if drawn.random() < 0.05 else 20))
    pods += [a_pod(f"w{n}", f"eval-{n}", gib=100, status="Pending") for n in range(5)]
    return join(figures, pods, NOW_S)
