"""Benefit of best fit, compared with other orders of a node's GPUs for one workload."""

from __future__ import annotations

import random
from heapq import heappop, heappush
from typing import NamedTuple

from webhook.core.placement.fit import Denial, Need, best_fit, place
from webhook.core.pod.gpus import Gpu

GIB = 2**30
PODS, NODES = 1000, 100
ORDERS = {
    "best fit": best_fit,
    "first fit": lambda gpu, _free: (gpu.index,),
    "worst fit": lambda gpu, free: (-free, gpu.index),
}
DAY_S = 86_400
# Values and their relative frequencies.
GPU_GIB = {24: 4, 40: 1, 48: 2, 80: 3}
GPU_COUNTS = {1: 2, 2: 3, 4: 3, 8: 2}
POD_GIB = {2: 8, 4: 14, 6: 10, 8: 16, 10: 10, 12: 10, 16: 10, 20: 8, 30: 6, 40: 5, 70: 3}
POD_GPU_COUNTS = {1: 92, 2: 6, 4: 2}


class Outcome(NamedTuple):
    """Results of placing the pods; figures are maxima over time."""

    at_once: int
    later: int
    never: int
    gpus: int
    gpu_bytes: int
    """Total memory of the GPUs in use."""


def bench_orders():
    nodes, pods = generate(PODS, NODES)
    print(f"{PODS:,} generated pods, {NODES} nodes    at once    later    never  GPUs in use")
    for name, order in ORDERS.items():
        found = replay(nodes, pods, order)
        counts = "".join(f"{number:>9}" for number in found[:4])
        print(f"{name:<30}{counts} ({found.gpu_bytes / 2**40:.1f}Ti)")


def generate(pods, nodes, seed=0):
    """Return the GPUs of the nodes, and a day's pods by arrival: (when, need, until).

    Ten pods per node use about three quarters of the memory. Three of four keep running.
    """
    drawn = random.Random(seed)
    made = [
        [
            Gpu(
                uuid=f"GPU-{node}-{index}",
                memory_bytes=size * GIB,
                product=f"{size}Gi",
                index=index,
            )
            for size in [_draw(drawn, GPU_GIB)]
            for index in range(_draw(drawn, GPU_COUNTS))
        ]
        for node in range(nodes)
    ]
    arriving = []
    for _ in range(pods):
        need = Need(_draw(drawn, POD_GIB) * GIB, _draw(drawn, POD_GPU_COUNTS))
        lasts_s = drawn.randrange(600, 8 * 3600) if drawn.randrange(4) == 3 else None
        arriving.append((drawn.randrange(DAY_S), need, lasts_s))
    return made, sorted(arriving, key=lambda pod: pod[0])


def _draw(drawn, choices):
    return drawn.choices([*choices], [*choices.values()])[0]


def replay(nodes, pods, order):
    """Simulate arrival, waiting and end of pods. The scheduler chooses the emptiest node."""
    free = [{gpu.uuid: gpu.memory_bytes for gpu in gpus} for gpus in nodes]
    sizes = {gpu.uuid: gpu.memory_bytes for gpus in nodes for gpu in gpus}
    totals = [sum(pieces.values()) for pieces in free]
    used, ends, waiting = {}, [], []  # used: number of pods by GPU
    at_once = later = most = most_bytes = 0

    def start(now_s, need, lasts_s, among):
        nonlocal most, most_bytes
        for node in sorted(among, key=lambda item: -sum(free[item].values()) / totals[item]):
            uuids = place("", nodes[node], free[node], need, order)
            if not isinstance(uuids, Denial):
                break
        else:
            return False
        for uuid in uuids:
            free[node][uuid] -= need.memory_bytes
            used[uuid] = used.get(uuid, 0) + 1
        busy = [uuid for uuid, number in used.items() if number]
        most = max(most, len(busy))
        most_bytes = max(most_bytes, sum(map(sizes.get, busy)))
        if lasts_s is not None:
            heappush(ends, (now_s + lasts_s, node, uuids, need.memory_bytes))
        return True

    for arrives_s, need, lasts_s in [*pods, (float("inf"), None, None)]:
        while ends and ends[0][0] <= arrives_s:
            now_s, node, uuids, amount = heappop(ends)
            for uuid in uuids:
                free[node][uuid] += amount
                used[uuid] -= 1
            left = [pod for pod in waiting if not start(now_s, *pod, [node])]
            later += len(waiting) - len(left)
            waiting = left
        if need and start(arrives_s, need, lasts_s, range(len(nodes))):
            at_once += 1
        elif need:
            waiting.append((need, lasts_s))
    return Outcome(at_once, later, len(waiting), most, most_bytes)
