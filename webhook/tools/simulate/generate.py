"""Generated workloads, the same for the same seed, for `vramwarden simulate --generate`."""

from __future__ import annotations

import random
from typing import Final

from webhook.core.placement.fit import Need
from webhook.core.pod.gpus import Gpu
from webhook.tools.simulate.replay.cluster import SimulatedNode, SimulatedPod

_GIB: Final = 2**30
_DAY_S: Final = 86_400
_GPUS: Final = ((24, 4), (40, 1), (48, 2), (80, 3))
"""GiB of a node's GPUs, and how often."""
_GPU_COUNTS: Final = ((1, 2), (2, 3), (4, 3), (8, 2))
_PODS: Final = (
    *((2, 8), (4, 14), (6, 10), (8, 16), (10, 10), (12, 10)),
    *((16, 10), (20, 8), (30, 6), (40, 5), (70, 3)),
)
"""GiB that a pod needs on each GPU, and how often."""
_POD_GPU_COUNTS: Final = ((1, 92), (2, 6), (4, 2))
_SHORTEST_S, _LONGEST_S = 600, 8 * 3600
_RUNNING_ON: Final = 3
"""How many of four pods run on; the others are jobs."""


def generate(pods: int, nodes: int, seed: int) -> tuple[list[SimulatedNode], list[SimulatedPod]]:
    """Return nodes of different GPUs, and pods that arrive over a day.

    Ten pods a node take about three quarters of the memory.
    """
    drawn = random.Random(seed)  # noqa: S311 - a workload, not a secret
    made_nodes = []
    for number in range(nodes):
        size, count = _draw(drawn, _GPUS), _draw(drawn, _GPU_COUNTS)
        gpus = (
            Gpu(f"GPU-{number}-{index}", size * _GIB, f"{size}Gi", index) for index in range(count)
        )
        made_nodes.append(SimulatedNode(f"node-{number}", tuple(gpus)))
    made_pods = []
    for number in range(pods):
        need = Need(_draw(drawn, _PODS) * _GIB, _draw(drawn, _POD_GPU_COUNTS))
        arrival_s = float(drawn.randrange(_DAY_S))
        runs_on = drawn.randrange(4) < _RUNNING_ON
        duration_s = None if runs_on else float(drawn.randrange(_SHORTEST_S, _LONGEST_S))
        made_pods.append(SimulatedPod(f"pod-{number}", need, arrival_s, duration_s))
    return made_nodes, made_pods


def _draw(drawn: random.Random, choices: tuple[tuple[int, int], ...]) -> int:
    values, weights = zip(*choices, strict=True)
    (value,) = drawn.choices(values, weights)
    return int(value)
