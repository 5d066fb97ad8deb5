"""What pictures of a replay need: its course, and who was where at its fullest moment.

It takes memory as large as the workload, so it is kept only where it is asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from webhook.core.pod.gpus import Gpu
    from webhook.tools.simulate.replay.cluster import SimulatedNode, SimulatedPod

MOST_MOMENTS: Final = 256
"""Of a course; a longer one is thinned."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The state after what happened at a moment; of a thinned course, the fullest of several."""

    at_s: float
    taken_bytes: int
    stranded_bytes: int
    """Of the free memory, what is of no use to a pod of the workload, on average."""
    waiting: int
    """Pods; of a thinned course, the most of several moments."""


@dataclass(frozen=True, slots=True)
class FilledGpu:
    """A GPU, and the pods on it by the names and bytes, in the order in which they started."""

    node: str
    gpu: Gpu
    pods: tuple[tuple[str, int], ...]

    @property
    def taken_bytes(self) -> int:
        """What its pods have."""
        return sum(amount for _, amount in self.pods)

    @property
    def free_bytes(self) -> int:
        """What no pod has."""
        return self.gpu.memory_bytes - self.taken_bytes


@dataclass(frozen=True, slots=True)
class Course:
    """What happened in a replay."""

    moments: tuple[Moment, ...]
    """At most twice `MOST_MOMENTS`."""
    fullest_s: float
    """The first moment at which most was taken."""
    fullest: tuple[FilledGpu, ...]
    """All GPUs then, as the nodes are listed."""
    smallest_bytes: int
    """Less than this on a GPU was of no use then: what the smallest pod needs of those that waited
    for room, or where none did, of all."""
    somebody_waited: bool
    """Whether it is that of a pod that waited."""
    waits_s: tuple[float, ...]
    """Of the pods that started later, ascending."""


class Recorder:
    """Notes what happens; pods go by their numbers, nodes by theirs."""

    def __init__(self, nodes: Sequence[SimulatedNode], pods: Sequence[SimulatedPod]) -> None:
        self._nodes = nodes
        self._pods = pods
        sizes = [gpu.memory_bytes for node in nodes for gpu in node.gpus]
        self._largest = max(sizes, default=0)
        amounts = sorted(pod.need.memory_bytes for pod in pods)
        counts = dict.fromkeys(amounts, 0)
        for amount in amounts:
            counts[amount] += 1
        self._needs = list(counts)
        self._as_small = [0, *accumulate(counts.values())]
        self._log: list[tuple[int, int, tuple[str, ...]]] = []
        """Who started, where; without GPUs: who ended."""
        self._moments: list[Moment] = []
        self._stride = 1
        """How many moments become one, once there were too many."""
        self._merged = 0
        """Of how many the last one is made."""
        self._most_bytes = self._until = 0
        """How much of the log there was when most was taken."""
        self._fullest_s = 0.0
        self._smallest: int | None = None
        self._lost = sum(map(self._lost_of, sizes))

    def moved(
        self, number: int, index: int, before: Mapping[str, int], after: Mapping[str, int]
    ) -> None:
        """Note that a pod started or ended on a node, given what was free on its GPUs and is."""
        changed = [uuid for uuid, amount in after.items() if amount != before[uuid]]
        for uuid in changed:
            self._lost += self._lost_of(after[uuid]) - self._lost_of(before[uuid])
        started = changed and after[changed[0]] < before[changed[0]]
        self._log.append((number, index, tuple(changed) if started else ()))

    def settled(
        self, now_s: float, taken_bytes: int, waiting: int, waiting_bytes: Iterable[int]
    ) -> None:
        """Note the state after a pod arrived, started or ended.

        `waiting_bytes` are what the waiting pods need on each of their GPUs.
        """
        if taken_bytes > self._most_bytes:
            self._most_bytes, self._until = taken_bytes, len(self._log)
            # One that is larger than any GPU waits for no room.
            for_room = (one for one in waiting_bytes if one <= self._largest)
            self._fullest_s, self._smallest = now_s, min(for_room, default=None)
        stranded = self._lost // max(1, len(self._pods))
        moment = Moment(now_s, taken_bytes, stranded, waiting)
        if self._moments and self._moments[-1].at_s == now_s and self._stride == 1:
            self._moments[-1] = moment
        elif 0 < self._merged < self._stride:
            self._moments[-1] = _fuller(self._moments[-1], moment)
            self._merged += 1
        else:
            self._moments.append(moment)
            self._merged = 1
        if len(self._moments) > 2 * MOST_MOMENTS:
            pairs = zip(self._moments[::2], self._moments[1::2], strict=False)
            self._moments = [*(_fuller(*pair) for pair in pairs), self._moments[-1]]
            self._stride *= 2
            self._merged = 1

    def course(self, waits_s: Sequence[float]) -> Course:
        """Return what was noted."""
        on: dict[int, tuple[int, tuple[str, ...]]] = {}
        for number, index, uuids in self._log[: self._until]:
            if uuids:
                on[number] = index, uuids
            else:
                on.pop(number, None)
        pods: dict[tuple[int, str], list[tuple[str, int]]] = {}
        for number, (index, uuids) in on.items():
            pod = self._pods[number]
            for uuid in uuids:
                pods.setdefault((index, uuid), []).append((pod.name, pod.need.memory_bytes))
        fullest = tuple(
            FilledGpu(node.name, gpu, tuple(pods.get((index, gpu.uuid), ())))
            for index, node in enumerate(self._nodes)
            for gpu in node.gpus
        )
        return Course(
            tuple(self._moments),
            self._fullest_s,
            fullest,
            self._smallest or min(self._needs, default=0),
            self._smallest is not None,
            tuple(sorted(waits_s)),
        )

    def _lost_of(self, piece_bytes: int) -> int:
        """Return a free piece as often as there are pods that need a larger one."""
        larger = len(self._pods) - self._as_small[bisect_right(self._needs, piece_bytes)]
        return max(0, piece_bytes) * larger


def _fuller(first: Moment, second: Moment) -> Moment:
    """Return one moment for two: when the first was, and the state of the fuller one."""
    fuller = max(first, second, key=lambda one: one.taken_bytes)
    waiting = max(first.waiting, second.waiting)
    return Moment(first.at_s, fuller.taken_bytes, fuller.stranded_bytes, waiting)
