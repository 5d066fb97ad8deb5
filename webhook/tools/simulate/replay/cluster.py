"""A cluster in which only the clock of a simulation runs: nodes, pods on them, what is free.

The GPUs of a pod are chosen by the same `place` that the webhook calls; its node, by a model of the
stock scheduler: of the nodes that the pod may run on, those where the agent's labels say there is
room come first (the preference that the webhook adds), and of these the one with most (`spread`) or
least (`pack`) of its memory free; ties go to the first in the list. CPU, memory, taints, affinity,
priority and preemption are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from webhook.core.placement.fit import Denial, place
from webhook.core.pod.gpus import free_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from webhook.core.placement.fit import Need, Order
    from webhook.core.pod.gpus import Gpu

Selector = tuple[tuple[str, str], ...]
"""Labels that a node must have."""

_MOST_SELECTORS: Final = 1024
"""Whose nodes are remembered: each pod of a cluster may have its own, and many nodes meet it."""
_SHARES: Final = 10**6  # free shares of nodes are compared in millionths


class Scheduling(StrEnum):
    """How the scheduler chooses among nodes that have room."""

    SPREAD = "spread"
    PACK = "pack"


class Cause(StrEnum):
    """Why a pod cannot start when it arrives; the first that holds."""

    NODE_SELECTOR = "NodeSelector"
    """No node has the labels that it selects."""
    TOO_LARGE = "TooLarge"
    """No GPU of these nodes is as large."""
    TOO_FEW_GPUS = "TooFewGPUs"
    """None of these nodes has as many GPUs as large."""
    GPUS_SPLIT = "GPUsSplit"
    """A node has as much free, but not as it is needed: fragmentation within the node. The stock
    scheduler alone would start the pod there."""
    NODES_SPLIT = "NodesSplit"
    """Only several of these nodes together have as much free: fragmentation among nodes."""
    NO_ROOM = "NoRoom"
    """All of these nodes together have less free."""


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """A node with GPUs."""

    name: str
    gpus: tuple[Gpu, ...]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SimulatedPod:
    """A pod with a demand."""

    name: str
    need: Need
    arrival_s: float = 0.0
    duration_s: float | None = None
    """From its start; None where it runs on."""
    selector: Selector = ()

    @property
    def total_bytes(self) -> int:
        """What the scheduler counts."""
        return self.need.memory_bytes * self.need.gpu_count


class SimulatedCluster:
    """Nodes, who is on them, and what is free; nodes and pods go by their numbers."""

    def __init__(
        self, nodes: Sequence[SimulatedNode], order: Order, scheduling: Scheduling
    ) -> None:
        self.nodes = nodes
        self.taken_bytes = 0
        self.used_gpus = self.used_bytes = 0
        """GPUs that somebody has, and all of their memory."""
        self.free: list[dict[str, int]] = [{} for _ in nodes]
        """By node and UUID; a node's is replaced, never changed."""
        self._order = order
        self._sign = 1 if scheduling is Scheduling.SPREAD else -1
        self._taken: list[dict[int, tuple[tuple[str, ...], int]]] = [{} for _ in nodes]
        self._totals = [sum(gpu.memory_bytes for gpu in node.gpus) for node in nodes]
        self._used = [(0, 0)] * len(nodes)
        self._scores = [0] * len(nodes)
        most = max((len(node.gpus) for node in nodes), default=0)
        # As in the agent's labels: by how many GPUs, then by node, what each has free at least.
        self._rooms = [[-1] * len(nodes) for _ in range(most + 1)]
        self._matching: dict[Selector, list[int]] = {}
        for index in range(len(nodes)):
            self._recount(index)

    def matches(self, index: int, selector: Selector) -> bool:
        """Say whether a node has these labels."""
        labels = self.nodes[index].labels
        return all(labels.get(key) == value for key, value in selector)

    def has_room(self, index: int, need: Need) -> bool:
        """Say whether a node's labels promise room."""
        rooms = self._rooms
        return need.gpu_count < len(rooms) and rooms[need.gpu_count][index] >= need.memory_bytes

    def choose(self, pod: SimulatedPod) -> int | None:
        """Return the node with room that the scheduler scores highest."""
        if pod.need.gpu_count >= len(self._rooms):
            return None
        rooms, amount_bytes = self._rooms[pod.need.gpu_count], pod.need.memory_bytes
        found = [index for index in self._match(pod.selector) if rooms[index] >= amount_bytes]
        return max(found, key=self._scores.__getitem__) if found else None

    def bind(self, uid: int, pod: SimulatedPod, index: int) -> Denial | None:
        """Place a pod on a node as the webhook does, or return why not."""
        node = self.nodes[index]
        uuids = place(node.name, node.gpus, self.free[index], pod.need, self._order)
        if isinstance(uuids, Denial):
            return uuids
        self._taken[index][uid] = uuids, pod.need.memory_bytes
        self.taken_bytes += pod.total_bytes
        self._recount(index)
        return None

    def release(self, uid: int, pod: SimulatedPod, index: int) -> None:
        """Remove a pod that finished."""
        del self._taken[index][uid]
        self.taken_bytes -= pod.total_bytes
        self._recount(index)

    def why_not(self, pod: SimulatedPod) -> tuple[Cause, str]:
        """Return why no node has room, and the sentence of a binding that would be denied."""
        need, matching = pod.need, self._match(pod.selector)
        if not matching:
            return Cause.NODE_SELECTOR, ""
        as_large = [
            sum(gpu.memory_bytes >= need.memory_bytes for gpu in self.nodes[index].gpus)
            for index in matching
        ]
        if not any(as_large):
            return Cause.TOO_LARGE, ""
        if max(as_large) < need.gpu_count:
            return Cause.TOO_FEW_GPUS, ""
        sums = [sum(self.free[index].values()) for index in matching]
        tried = [
            index
            for index, has, free in zip(matching, as_large, sums, strict=True)
            if has and free >= pod.total_bytes
        ]
        if tried:
            index = max(tried, key=self._scores.__getitem__)
            node = self.nodes[index]
            denial = place(node.name, node.gpus, self.free[index], need, self._order)
            return Cause.GPUS_SPLIT, denial.sentence if isinstance(denial, Denial) else ""
        return (Cause.NODES_SPLIT if sum(sums) >= pod.total_bytes else Cause.NO_ROOM), ""

    def _match(self, selector: Selector) -> list[int]:
        if selector not in self._matching:
            if len(self._matching) >= _MOST_SELECTORS:
                self._matching.clear()
            indices = range(len(self.nodes))
            self._matching[selector] = [one for one in indices if self.matches(one, selector)]
        return self._matching[selector]

    def _recount(self, index: int) -> None:
        gpus = self.nodes[index].gpus
        free = free_bytes(gpus, self._taken[index].values())
        used = [gpu.memory_bytes for gpu in gpus if free[gpu.uuid] < gpu.memory_bytes]
        before_gpus, before_bytes = self._used[index]
        self._used[index] = len(used), sum(used)
        self.used_gpus += len(used) - before_gpus
        self.used_bytes += sum(used) - before_bytes
        self.free[index] = free
        for count, amount_bytes in enumerate(sorted(free.values(), reverse=True), 1):
            self._rooms[count][index] = amount_bytes
        share = sum(free.values()) * _SHARES // max(1, self._totals[index])
        self._scores[index] = self._sign * share
