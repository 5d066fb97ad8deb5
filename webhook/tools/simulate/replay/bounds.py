"""What a workload is measured by: how many GPUs it needs at least, and what fragmentation costs."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from webhook.core.placement.fit import best_fit
from webhook.tools.simulate.replay.cluster import Scheduling, SimulatedCluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from webhook.tools.simulate.replay.cluster import SimulatedNode, SimulatedPod


def stranded_bytes(pieces: Iterable[int], needs: Mapping[int, int]) -> int:
    """Return how much of the free memory on GPUs is of no use to a pod, on average over pods.

    It lies in pieces smaller than the pod needs; `needs` says how many pods need so many bytes on
    each of their GPUs. Rounded down. After Weng et al., "Beware of Fragmentation: Scheduling
    GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC 2023.
    """
    ascending = sorted(max(0, piece) for piece in pieces)
    sums = [0, *accumulate(ascending)]
    lost = sum(sums[bisect_left(ascending, need)] * pods for need, pods in needs.items())
    return lost // max(1, sum(needs.values()))


def lower_bound(nodes: Sequence[SimulatedNode], pods: Iterable[SimulatedPod]) -> int:
    """Return how many GPUs at least are in use at the same time, if no pod waits.

    The largest of: the fewest GPUs, large ones first, whose memory is the sum at its peak; at any
    moment the parts that are larger than half of the largest GPU, of which no two share one; the
    GPUs of one pod; and what `martello_toth` says of the sum's peak. Pods that an empty cluster
    could not run are left out; which nodes the others select is ignored. It may be more than
    there are.
    """
    sizes = sorted((gpu.memory_bytes for node in nodes for gpu in node.gpus), reverse=True)
    empty = SimulatedCluster(nodes, best_fit, Scheduling.SPREAD)
    possible = [pod for pod in pods if empty.choose(pod) is not None]
    if not possible:
        return 0
    total = most = large = most_large = until = 0
    moments = list(_moments(possible))
    for index, (arrives, number) in enumerate(moments, 1):
        pod, sign = possible[number], 1 if arrives else -1
        total += sign * pod.total_bytes
        large += sign * pod.need.gpu_count * (2 * pod.need.memory_bytes > sizes[0])
        most_large = max(most_large, large)
        if total > most:
            most, until = total, index
    running: set[int] = set()
    for arrives, number in moments[:until]:
        (running.add if arrives else running.discard)(number)
    needs = [possible[number].need for number in running]
    parts = [need.memory_bytes for need in needs for _ in range(need.gpu_count)]
    at_once = max(pod.need.gpu_count for pod in possible)
    return max(_fewest(sizes, most), most_large, at_once, martello_toth(parts, sizes[0]))


def martello_toth(parts: Iterable[int], size: int) -> int:
    """Return how many bins of a size the parts need at least: their bound L2.

    For any threshold up to half of the size: each part over half has a bin of its own; those that
    leave less than the threshold can take none of the small parts at or over the threshold, which
    fill up what the other large ones leave, and then further bins. Source: Martello and Toth,
    "Knapsack Problems", Wiley 1990, section 8.3.2.
    """
    ascending = sorted(parts)
    sums = [0, *accumulate(ascending)]
    half = bisect_left(ascending, size // 2 + 1)
    best = 0
    for threshold in {0, *ascending[:half]}:
        first = bisect_left(ascending, threshold)
        alone = bisect_left(ascending, size - threshold + 1)
        small, shared = sums[half] - sums[first], sums[max(half, alone)] - sums[half]
        left = (max(half, alone) - half) * size - shared
        best = max(best, len(ascending) - half + max(0, -(-(small - left) // size)))
    return best


def _moments(pods: Sequence[SimulatedPod]) -> Iterator[tuple[bool, int]]:
    """Yield arrivals and ends in their order; what ends at a moment ends before any arrival."""
    moments = []
    for number, pod in enumerate(pods):
        end_s = None if pod.duration_s is None else pod.arrival_s + pod.duration_s
        if end_s is None or end_s > pod.arrival_s:
            moments.append((pod.arrival_s, True, number))
        if end_s is not None and end_s > pod.arrival_s:
            moments.append((end_s, False, number))
    return ((arrives, number) for _, arrives, number in sorted(moments))


def _fewest(sizes: Sequence[int], total_bytes: int) -> int:
    """Return how many of the GPUs, large ones first, hold a sum; more as large where they do not.

    `sizes` are in descending order.
    """
    held = 0
    for count, size in enumerate(sizes):
        if held >= total_bytes:
            return count
        held += size
    return len(sizes) + max(0, -(-(total_bytes - held) // sizes[0]))
