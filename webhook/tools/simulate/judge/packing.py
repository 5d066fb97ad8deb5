"""How many GPUs pods need as shares that come one after the other and all stay.

The GPUs of a pod are chosen by the same `place` that the webhook calls; its node, by a model of the
stock scheduler: of the nodes that the pod may run on, those where the agent's labels say there is
room come first (the preference that the webhook adds), and of these the one with most (`spread`) or
least (`pack`) of its memory free; ties go to the first in the list. CPU, memory, taints, affinity,
priority and preemption are left out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from webhook.core.placement.fit import Denial, Need, place
from webhook.tools.shared.bounds import MOST_SELECTORS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from webhook.tools.simulate.judge.offered import TodayNode

Selector = tuple[tuple[str, str], ...]
"""Labels that a node must have."""

_PARTS: Final = 10**6  # what of a node is free is compared in millionths


class Scheduling(StrEnum):
    """How the scheduler chooses among nodes that have room."""

    SPREAD = "spread"
    PACK = "pack"


class BlockedBy(StrEnum):
    """Why a pod has no room; the first that holds."""

    NODE_SELECTOR = "no node has the labels they select"
    TOO_LARGE = "larger than any GPU"
    TOO_FEW_GPUS = "more GPUs than a node has"
    GPUS_SPLIT = "fits the sum of a node, not its GPUs"
    """Fragmentation within the node: the stock scheduler alone would start the pod there."""
    NODES_SPLIT = "fits the sum of all nodes, and none"
    """Fragmentation among nodes."""
    NO_ROOM = "no room at all"


class SizedPod(NamedTuple):
    """A pod that needs a share."""

    name: str
    need: Need
    selector: Selector = ()

    @property
    def total_bytes(self) -> int:
        """What the scheduler counts."""
        return self.need.memory_bytes * self.need.gpu_count


class UsedGpu(NamedTuple):
    """A GPU with pods, by their names and bytes."""

    node: str
    pods: list[tuple[str, int]]


class Packing(NamedTuple):
    """What became of pods."""

    gpus: list[UsedGpu]
    blocked: Counter[BlockedBy]
    """Pods that have no room."""
    examples: dict[BlockedBy, tuple[str, str]]
    """The first of them, and the sentence of a binding that is denied, or nothing."""


def pack(nodes: Sequence[TodayNode], pods: Iterable[SizedPod], scheduling: Scheduling) -> Packing:
    """Give each pod its GPUs, in the order of the list; one without room holds nobody up."""
    cluster, blocked = _Cluster(nodes, scheduling), Counter[BlockedBy]()
    examples: dict[BlockedBy, tuple[str, str]] = {}
    used: dict[tuple[int, str], UsedGpu] = {}
    for pod in pods:
        bound = cluster.bind(pod)
        if bound is None:
            cause, sentence = cluster.why_not(pod)
            blocked[cause] += 1
            examples.setdefault(cause, (pod.name, sentence))
            continue
        index, uuids = bound
        for uuid in uuids:
            gpu = used.setdefault((index, uuid), UsedGpu(nodes[index].name, []))
            gpu.pods.append((pod.name, pod.need.memory_bytes))
    return Packing(list(used.values()), blocked, examples)


class _Cluster:
    """Nodes, and what is free there; nodes go by their numbers."""

    def __init__(self, nodes: Sequence[TodayNode], scheduling: Scheduling) -> None:
        self._nodes = nodes
        self._free = [{gpu.uuid: gpu.memory_bytes for gpu in node.gpus} for node in nodes]
        self._sign = 1 if scheduling is Scheduling.SPREAD else -1
        self._totals = [sum(free.values()) for free in self._free]
        self._scores = [0] * len(nodes)
        most = max((len(node.gpus) for node in nodes), default=0)
        # As in the agent's labels: by how many GPUs, then by node, what each has free at least.
        self._rooms = [[-1] * len(nodes) for _ in range(most + 1)]
        self._matching: dict[Selector, list[int]] = {}
        for index in range(len(nodes)):
            self._recount(index)

    def choose(self, pod: SizedPod) -> int | None:
        """Return the node with room that the scheduler scores highest."""
        if pod.need.gpu_count >= len(self._rooms):
            return None
        rooms, amount_bytes = self._rooms[pod.need.gpu_count], pod.need.memory_bytes
        found = [index for index in self._match(pod.selector) if rooms[index] >= amount_bytes]
        return max(found, key=self._scores.__getitem__) if found else None

    def bind(self, pod: SizedPod) -> tuple[int, tuple[str, ...]] | None:
        """Place a pod as the scheduler and the webhook do; None where it has no room."""
        index = self.choose(pod)
        if index is None:
            return None
        uuids = self._placed(pod, index)
        if isinstance(uuids, Denial):
            return None
        for uuid in uuids:
            self._free[index][uuid] -= pod.need.memory_bytes
        self._recount(index)
        return index, uuids

    def why_not(self, pod: SizedPod) -> tuple[BlockedBy, str]:
        """Return why no node has room, and the sentence of a binding that would be denied."""
        need, matching = pod.need, self._match(pod.selector)
        if not matching:
            return BlockedBy.NODE_SELECTOR, ""
        as_large = [
            sum(gpu.memory_bytes >= need.memory_bytes for gpu in self._nodes[index].gpus)
            for index in matching
        ]
        if not any(as_large):
            return BlockedBy.TOO_LARGE, ""
        if max(as_large) < need.gpu_count:
            return BlockedBy.TOO_FEW_GPUS, ""
        sums = [sum(self._free[index].values()) for index in matching]
        tried = [
            index
            for index, has, free in zip(matching, as_large, sums, strict=True)
            if has and free >= pod.total_bytes
        ]
        if tried:
            denial = self._placed(pod, max(tried, key=self._scores.__getitem__))
            return BlockedBy.GPUS_SPLIT, denial.sentence if isinstance(denial, Denial) else ""
        fits_sum = sum(sums) >= pod.total_bytes
        return (BlockedBy.NODES_SPLIT if fits_sum else BlockedBy.NO_ROOM), ""

    def _placed(self, pod: SizedPod, index: int) -> tuple[str, ...] | Denial:
        node = self._nodes[index]
        return place(node.name, node.gpus, self._free[index], pod.need)

    def _match(self, selector: Selector) -> list[int]:
        if selector not in self._matching:
            if len(self._matching) >= MOST_SELECTORS:
                self._matching.clear()
            self._matching[selector] = [
                index
                for index, node in enumerate(self._nodes)
                if all(node.labels.get(key) == value for key, value in selector)
            ]
        return self._matching[selector]

    def _recount(self, index: int) -> None:
        free = sorted(self._free[index].values(), reverse=True)
        for count, amount_bytes in enumerate(free, 1):
            self._rooms[count][index] = amount_bytes
        self._scores[index] = self._sign * (sum(free) * _PARTS // max(1, self._totals[index]))


def fewest_gpus(nodes: Sequence[TodayNode], pods: Iterable[SizedPod]) -> int:
    """Return how many GPUs at least the pods need, whatever their order.

    The largest of: the fewest GPUs, large ones first, whose memory is their sum; the GPUs of one
    pod; and what `martello_toth` says of their parts. Pods that an empty cluster could not run are
    left out; which nodes the others select is ignored. It may be more than there are.
    """
    sizes = sorted((gpu.memory_bytes for node in nodes for gpu in node.gpus), reverse=True)
    empty = _Cluster(nodes, Scheduling.SPREAD)
    needs = [pod.need for pod in pods if empty.choose(pod) is not None]
    if not needs:
        return 0
    parts = [need.memory_bytes for need in needs for _ in range(need.gpu_count)]
    held, needed = [0, *accumulate(sizes)], sum(parts)
    by_sum = bisect_left(held, needed)
    if needed > held[-1]:
        by_sum = len(sizes) - (held[-1] - needed) // sizes[0]
    return max(by_sum, *(need.gpu_count for need in needs), martello_toth(parts, sizes[0]))


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
