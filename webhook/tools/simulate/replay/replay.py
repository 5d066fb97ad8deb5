"""What becomes of a workload on a cluster: pods arrive, are placed as at binding, wait and finish.

A pod that fits nowhere waits, blocks no other, and is retried wherever a pod finishes, as the
stock scheduler does; `webhook.tools.simulate.replay.cluster` says what else of it is modelled.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from webhook.core.placement.fit import best_fit, first_fit, worst_fit
from webhook.tools.simulate.replay.bounds import stranded_bytes
from webhook.tools.simulate.replay.cluster import Cause, Scheduling, SimulatedCluster
from webhook.tools.simulate.replay.course import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from webhook.core.placement.fit import Need, Order
    from webhook.tools.simulate.replay.cluster import Selector, SimulatedNode, SimulatedPod
    from webhook.tools.simulate.replay.course import Course

ORDERS: Final[Mapping[str, Order]] = {
    "best fit": best_fit,
    "first fit": first_fit,
    "worst fit": worst_fit,
}


@dataclass(frozen=True, slots=True)
class Replay:
    """What became of a workload in a replay."""

    at_once: int
    """Pods that started when they arrived."""
    waited: int
    """Pods that started later."""
    never: int
    """Pods that did not start at all."""
    blocked: Mapping[Cause, int]
    """Pods that did not start when they arrived, by cause."""
    examples: Mapping[Cause, tuple[str, str]]
    """Of each cause the first pod, and the sentence of a binding that is denied, or nothing."""
    longest_wait_s: float
    """Of those that started later."""
    gpus_used: int
    """GPUs in use at the same time, at most."""
    used_bytes: int
    """The memory of all GPUs in use at the same time, at most."""
    taken_bytes: int
    """Memory taken at the same time, at most."""
    free_bytes: int
    """What is free on all GPUs at the first such moment."""
    stranded_bytes: int
    """Of this, what is of no use to a pod of the workload, on average: fragmentation."""
    course: Course | None = None
    """Where it was recorded."""


def replay(
    nodes: Sequence[SimulatedNode],
    pods: Iterable[SimulatedPod],
    order: Order = best_fit,
    scheduling: Scheduling = Scheduling.SPREAD,
    *,
    record: bool = False,
) -> Replay:
    """Let pods arrive, in the order of their arrival and then of the list.

    What ends at a moment has ended before anything arrives at it. `record` keeps the course, which
    pictures are drawn from.
    """
    in_order = sorted(pods, key=lambda pod: pod.arrival_s)
    recorder = Recorder(nodes, in_order) if record else None
    return _Run(SimulatedCluster(nodes, order, scheduling), in_order, recorder).run()


@dataclass(slots=True)
class _Run:
    """One run through a workload; pods go by their numbers in the order of arrival."""

    cluster: SimulatedCluster
    pods: Sequence[SimulatedPod]
    recorder: Recorder | None = None
    at_once: int = 0
    waits_s: list[float] = field(default_factory=list)
    blocked: Counter[Cause] = field(default_factory=Counter)
    examples: dict[Cause, tuple[str, str]] = field(default_factory=dict)
    gpus_used: int = 0
    used_bytes: int = 0
    taken_bytes: int = 0
    free: list[dict[str, int]] = field(default_factory=list)
    """What was free when most was taken."""
    ends: list[tuple[float, int, int]] = field(default_factory=list)
    """When, which pod, on which node; a heap."""
    waiting: dict[tuple[Need, Selector], deque[int]] = field(default_factory=dict)
    """Pods with the same need, by arrival: where the first has no room, none has."""

    def run(self) -> Replay:
        self.free = list(self.cluster.free)
        for number, pod in enumerate(self.pods):
            while self.ends and self.ends[0][0] <= pod.arrival_s:
                self._end()
            self._arrive(number, pod)
        while self.ends:
            self._end()
        pieces = [amount for free in self.free for amount in free.values()]
        needs = Counter(pod.need.memory_bytes for pod in self.pods)
        return Replay(
            at_once=self.at_once,
            waited=len(self.waits_s),
            never=sum(map(len, self.waiting.values())),
            blocked=dict(self.blocked),
            examples=self.examples,
            longest_wait_s=max(self.waits_s, default=0.0),
            gpus_used=self.gpus_used,
            used_bytes=self.used_bytes,
            taken_bytes=self.taken_bytes,
            free_bytes=sum(pieces),
            stranded_bytes=stranded_bytes(pieces, needs),
            course=self.recorder.course(self.waits_s) if self.recorder else None,
        )

    def _arrive(self, number: int, pod: SimulatedPod) -> None:
        index = self.cluster.choose(pod)
        if index is not None and self._start(number, index, pod.arrival_s):
            self.at_once += 1
        else:
            cause, sentence = self.cluster.why_not(pod)
            self.blocked[cause] += 1
            self.examples.setdefault(cause, (pod.name, sentence))
            self.waiting.setdefault((pod.need, pod.selector), deque()).append(number)
        self._record(pod.arrival_s)

    def _end(self) -> None:
        """Let the next pod finish, and retry those that wait on its node; no other has changed."""
        now_s, number, index = heappop(self.ends)
        before = self.cluster.free[index]
        self.cluster.release(number, self.pods[number], index)
        if self.recorder:
            self.recorder.moved(number, index, before, self.cluster.free[index])
        self._record(now_s)
        while (first := self._first_with_room(index)) is not None:
            if not self._start(first, index, now_s):
                return
            alike = self.pods[first].need, self.pods[first].selector
            self.waiting[alike].popleft()
            if not self.waiting[alike]:
                del self.waiting[alike]
            self.waits_s.append(now_s - self.pods[first].arrival_s)
            self._record(now_s)

    def _first_with_room(self, index: int) -> int | None:
        return min(
            (
                numbers[0]
                for (need, selector), numbers in self.waiting.items()
                if self.cluster.has_room(index, need) and self.cluster.matches(index, selector)
            ),
            default=None,
        )

    def _start(self, number: int, index: int, now_s: float) -> bool:
        pod, before = self.pods[number], self.cluster.free[index]
        if self.cluster.bind(number, pod, index):
            return False
        if self.recorder:
            self.recorder.moved(number, index, before, self.cluster.free[index])
        if pod.duration_s is not None:
            heappush(self.ends, (now_s + pod.duration_s, number, index))
        self.gpus_used = max(self.gpus_used, self.cluster.used_gpus)
        self.used_bytes = max(self.used_bytes, self.cluster.used_bytes)
        if self.cluster.taken_bytes > self.taken_bytes:
            self.taken_bytes, self.free = self.cluster.taken_bytes, list(self.cluster.free)
        return True

    def _record(self, now_s: float) -> None:
        if self.recorder:
            waiting = self.blocked.total() - len(self.waits_s)
            needs = (need.memory_bytes for need, _ in self.waiting)
            self.recorder.settled(now_s, self.cluster.taken_bytes, waiting, needs)
