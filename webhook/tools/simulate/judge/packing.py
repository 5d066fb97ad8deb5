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
_NONE: Final = -1  # less than any amount


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
    """Give each pod its GPUs, in the order of the list; one without room holds nobody up.

    A pod takes steps like the logarithm of the nodes, whether it finds room or not.
    """
    cluster, blocked = _Cluster(nodes, scheduling), Counter[BlockedBy]()
    examples: dict[BlockedBy, tuple[str, str]] = {}
    used: dict[tuple[int, str], UsedGpu] = {}
    for pod in pods:
        bound = cluster.bind(pod)
        if bound is None:
            cause = cluster.why_not(pod)
            blocked[cause] += 1
            if cause not in examples:
                sentence = cluster.denial(pod) if cause is BlockedBy.GPUS_SPLIT else ""
                examples[cause] = (pod.name, sentence)
            continue
        index, uuids = bound
        for uuid in uuids:
            gpu = used.setdefault((index, uuid), UsedGpu(nodes[index].name, []))
            gpu.pods.append((pod.name, pod.need.memory_bytes))
    return Packing(list(used.values()), blocked, examples)


class _Order:
    """Numbers from 0 in their order, some with an amount; finds the first that has enough.

    A binary tree over all numbers of so many bits, in which each place knows the largest amount
    below it: 1 is the root, and below n are 2n and 2n + 1.
    """

    def __init__(self, bits: int) -> None:
        self._first = 1 << bits
        self._most: dict[int, int] = {}

    def put(self, number: int, amount: int) -> None:
        """Give a number an amount, in place of the one that it had; `_NONE` for none."""
        place = self._first + number
        while place and self._most.get(place, _NONE) != amount:
            if amount == _NONE:
                del self._most[place]
            else:
                self._most[place] = amount
            amount = max(amount, self._most.get(place ^ 1, _NONE))
            place >>= 1

    def first(self, amount: int) -> int | None:
        """Return the lowest number with at least this amount."""
        place, most = 1, self._most
        if most.get(place, _NONE) < amount:
            return None
        while place < self._first:
            place *= 2
            if most.get(place, _NONE) < amount:
                place += 1
        return place - self._first


class _Node:
    """A node, and what is free on its GPUs."""

    def __init__(self, node: TodayNode, scheduling: Scheduling) -> None:
        self.node = node
        self.free = {gpu.uuid: gpu.memory_bytes for gpu in node.gpus}
        self._spreads = scheduling is Scheduling.SPREAD
        self._total_bytes = max(1, sum(self.free.values()))
        self.count()
        self.sizes = self.rooms
        """Of its GPUs while they are empty, the largest first."""
        self.largest_bytes = max(self.sizes, default=_NONE)

    def count(self) -> None:
        """Count again what is free, by GPU and in all, and how the scheduler ranks the node."""
        # As the agent's labels say: at a number, what so many GPUs and one more have free at least.
        self.rooms = sorted(self.free.values(), reverse=True)
        self.free_bytes = sum(self.rooms)
        part = self.free_bytes * _PARTS // self._total_bytes
        self.rank = _PARTS - part if self._spreads else part  # the lowest is taken first


class _Pool:
    """Nodes that pods with some selectors may run on, by their indexes.

    In one order for each number of GPUs the scheduler's first node with room is found; in another,
    by their largest GPUs, whether one has enough free in all.
    """

    def __init__(self, nodes: Sequence[_Node], indexes: Sequence[int]) -> None:
        self.indexes = indexes
        self.free_bytes = sum(nodes[index].free_bytes for index in indexes)
        self._nodes = nodes
        self._bits = len(nodes).bit_length()
        self._sizes: dict[int, int] = {}
        self._by_rank: dict[int, _Order] = {}
        self._by_size = sorted(indexes, key=lambda index: -nodes[index].largest_bytes)
        self._number_by_size = {index: number for number, index in enumerate(self._by_size)}
        self._sums = _Order(self._bits)
        for number, index in enumerate(self._by_size):
            self._sums.put(number, nodes[index].free_bytes)

    def best(self, need: Need) -> int | None:
        """Return the node with room that the scheduler takes: of equals, the first."""
        order = self._by_rank.get(need.gpu_count)
        if order is None:
            if self.largest(need.gpu_count) == _NONE:
                return None
            order = self._by_rank[need.gpu_count] = _Order(_PARTS.bit_length() + self._bits)
            for index in self.indexes:
                self._put(order, index, need.gpu_count)
        number = order.first(need.memory_bytes)
        return None if number is None else number & (1 << self._bits) - 1

    def largest(self, gpus: int) -> int:
        """Return what so many GPUs of one node have at least while they are empty, of the best."""
        if gpus not in self._sizes:
            sizes = (self._nodes[index].sizes for index in self.indexes)
            most = max((one[gpus - 1] for one in sizes if len(one) >= gpus), default=_NONE)
            self._sizes[gpus] = most
        return self._sizes[gpus]

    def has_sum(self, pod: SizedPod) -> bool:
        """Return whether a node has enough free in all, and a GPU that would be large enough."""
        number = self._sums.first(pod.total_bytes)
        if number is None:
            return False
        return self._nodes[self._by_size[number]].largest_bytes >= pod.need.memory_bytes

    def update(self, index: int, rank: int, spent_bytes: int) -> None:
        """Note what a node has free now, which had another rank and so much more."""
        self.free_bytes -= spent_bytes
        self._sums.put(self._number_by_size[index], self._nodes[index].free_bytes)
        for gpus, order in self._by_rank.items():
            order.put(rank << self._bits | index, _NONE)
            self._put(order, index, gpus)

    def _put(self, order: _Order, index: int, gpus: int) -> None:
        node = self._nodes[index]
        if len(node.rooms) >= gpus:
            order.put(node.rank << self._bits | index, node.rooms[gpus - 1])


class _Cluster:
    """Nodes, and what is free there; nodes go by their indexes."""

    def __init__(self, nodes: Sequence[TodayNode], scheduling: Scheduling) -> None:
        self._nodes = [_Node(node, scheduling) for node in nodes]
        self._labelled: dict[tuple[str, str], list[int]] = {}
        for index, node in enumerate(nodes):
            for label in node.labels.items():
                self._labelled.setdefault(label, []).append(index)
        self._pools: dict[Selector, _Pool] = {}
        self._pool_of_nodes: dict[tuple[int, ...], _Pool] = {}
        self._pools_of: list[list[_Pool]] = [[] for _ in nodes]

    def choose(self, pod: SizedPod) -> int | None:
        """Return the node with room that the scheduler scores highest."""
        return self._pool(pod.selector).best(pod.need)

    def bind(self, pod: SizedPod) -> tuple[int, tuple[str, ...]] | None:
        """Place a pod as the scheduler and the webhook do; None where it has no room."""
        index = self.choose(pod)
        if index is None:
            return None
        uuids = self._placed(pod, index)
        if isinstance(uuids, Denial):
            return None
        node = self._nodes[index]
        rank = node.rank
        for uuid in uuids:
            node.free[uuid] -= pod.need.memory_bytes
        node.count()
        for pool in self._pools_of[index]:
            pool.update(index, rank, pod.total_bytes)
        return index, uuids

    def why_not(self, pod: SizedPod) -> BlockedBy:
        """Return why no node has room."""
        need, pool = pod.need, self._pool(pod.selector)
        if not pool.indexes:
            return BlockedBy.NODE_SELECTOR
        if pool.largest(1) < need.memory_bytes:
            return BlockedBy.TOO_LARGE
        if pool.largest(need.gpu_count) < need.memory_bytes:
            return BlockedBy.TOO_FEW_GPUS
        if pool.has_sum(pod):
            return BlockedBy.GPUS_SPLIT
        fits_sum = pool.free_bytes >= pod.total_bytes
        return BlockedBy.NODES_SPLIT if fits_sum else BlockedBy.NO_ROOM

    def denial(self, pod: SizedPod) -> str:
        """Return the sentence of the binding that would be denied, of a pod with GPUS_SPLIT."""
        tried = [
            (self._nodes[index].rank, index)
            for index in self._pool(pod.selector).indexes
            if self._nodes[index].largest_bytes >= pod.need.memory_bytes
            and self._nodes[index].free_bytes >= pod.total_bytes
        ]
        denial = self._placed(pod, min(tried)[1])
        return denial.sentence if isinstance(denial, Denial) else ""

    def _placed(self, pod: SizedPod, index: int) -> tuple[str, ...] | Denial:
        one = self._nodes[index]
        return place(one.node.name, one.node.gpus, one.free, pod.need)

    def _pool(self, selector: Selector) -> _Pool:
        pool = self._pools.get(selector)
        if pool is None:
            if len(self._pools) >= MOST_SELECTORS:
                self._pools.clear()
                self._pool_of_nodes.clear()
                for pools in self._pools_of:
                    pools.clear()
            pool = self._pools[selector] = self._shared_pool(self._match(selector))
        return pool

    def _shared_pool(self, indexes: tuple[int, ...]) -> _Pool:
        """Return the pool of these nodes, which many selectors may have in common."""
        pool = self._pool_of_nodes.get(indexes)
        if pool is None:
            pool = self._pool_of_nodes[indexes] = _Pool(self._nodes, indexes)
            for index in indexes:
                self._pools_of[index].append(pool)
        return pool

    def _match(self, selector: Selector) -> tuple[int, ...]:
        if not selector:
            return tuple(range(len(self._nodes)))
        fewest = min((self._labelled.get(label, []) for label in selector), key=len)
        labels = ((index, self._nodes[index].node.labels) for index in fewest)
        return tuple(i for i, has in labels if all(has.get(k) == value for k, value in selector))


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
