"""How many GPUs today's pods hold, and how many they would need as shares.

Pods whose size is known or given are placed in the order in which they were created, on the GPUs
that remain; the others keep the whole GPUs that they have.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import add
from typing import TYPE_CHECKING, TypeVar

from webhook.core.placement.fit import Need
from webhook.core.pod.quantity import MIB
from webhook.tools.simulate.judge.asked import How
from webhook.tools.simulate.judge.offered import TodayNode
from webhook.tools.simulate.judge.packing import Scheduling, SizedPod, fewest_gpus, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from webhook.tools.simulate.judge.asked import GpuRequest
    from webhook.tools.simulate.judge.packing import Packing, Selector

    Watch = Callable[[Iterable[SizedPod], str], Iterable[SizedPod]]
    """Hands pods on, and counts them: at `{}` in a text for who waits."""

T = TypeVar("T")
Tallies = dict[str, tuple[int, ...]]
"""Pods by their kind, or the GPUs by product; in the order in which they are shown."""


class SizedBy(StrEnum):
    """How the size of a pod's share is known."""

    FILE = "given by --sizes"
    ITSELF = "the pods say it"
    HISTORY = "the largest peak of their history and 15 %"
    OPTION = "given by --size"
    REPLICA = "the part of a GPU that a replica is"
    WHOLE = "not known: they stay whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class TodayPod:
    """A pod that holds GPUs, or waits for them."""

    name: str
    asked: GpuRequest
    node: str = ""
    """Empty where it waits."""
    selector: Selector = ()
    created_s: float = 0.0
    workload: str = ""
    given_bytes: int | None = None
    """Per GPU, by a file; 0 where it is to stay whole."""
    history_bytes: int | None = None
    """What its workload's history advises."""
    otherwise_bytes: int | None = None
    """For a pod of one GPU of which nothing else is known."""


@dataclass(frozen=True, slots=True)
class TodayCluster:
    """What of a pod depends on where it is."""

    nodes: Mapping[str, TodayNode]
    elsewhere: TodayNode
    """Stands for the node of a pod that waits, or that runs where no GPU is known."""
    largest_bytes: int

    @classmethod
    def of(cls, nodes: Sequence[TodayNode]) -> TodayCluster:
        """Return a cluster of these nodes."""
        with_gpus = [node for node in nodes if node.gpus]
        # Where some nodes have replicas and some whole GPUs, who waits for one may get either.
        replicas = min((node.replicas for node in with_gpus), default=1)
        largest = max((gpu.memory_bytes for node in with_gpus for gpu in node.gpus), default=0)
        by_name = {node.name: node for node in nodes}
        return cls(by_name, TodayNode("", (), replicas=replicas), largest)

    def node_of(self, pod: TodayPod) -> TodayNode:
        """Return the pod's node, or what stands for it."""
        return self.nodes.get(pod.node, self.elsewhere)

    def how(self, pod: TodayPod) -> How:
        """Return by which product a pod asks: of `nvidia.com/gpu` its node decides."""
        how, node = pod.asked.how, self.node_of(pod)
        if how not in (How.WHOLE, How.REPLICA):
            return how
        if node.is_sliced and not node.gpus:
            return How.SLICE
        return How.REPLICA if node.replicas > 1 else how

    def share_of(self, pod: TodayPod) -> tuple[Need | None, SizedBy]:
        """Return what a pod would ask for as a share, None where it stays whole; and by whom.

        | the pod | then |
        | --- | --- |
        | has a size by a file | that; or it stays whole, if the file says so |
        | says itself how much | that; a part is one of its GPU, of the largest where it waits |
        | has a history | what that advises |
        | asks for one GPU or replica, and --size is given | that |
        | has replicas | as much of one GPU as these replicas are |
        | any other | it stays whole |
        """
        asked, node, replicated = pod.asked, self.node_of(pod), self.how(pod) is How.REPLICA
        gpus = 1 if replicated else asked.gpus
        memory = max((gpu.memory_bytes for gpu in node.gpus), default=self.largest_bytes)
        if pod.given_bytes == 0:
            return None, SizedBy.WHOLE
        if pod.given_bytes is not None:
            return Need(pod.given_bytes, gpus), SizedBy.FILE
        if asked.has_size:
            total = max((gpu.total_bytes or 0 for gpu in node.gpus), default=0) or memory
            part = -(-asked.part * total // MIB) * MIB
            # All memory of a GPU is what is usable of it.
            return Need(asked.memory_bytes + min(int(part), memory), gpus), SizedBy.ITSELF
        if pod.history_bytes is not None:
            return Need(pod.history_bytes, gpus), SizedBy.HISTORY
        if pod.otherwise_bytes is not None and gpus == 1:
            return Need(pod.otherwise_bytes, gpus), SizedBy.OPTION
        if replicated and node.replicas > 1:
            part = memory * min(asked.gpus, node.replicas) // node.replicas
            return Need(max(MIB, part // MIB * MIB), 1), SizedBy.REPLICA
        return None, SizedBy.WHOLE

    def held(self, pods: Sequence[TodayPod]) -> Counter[str]:
        """Return how many GPUs pods have at least, by node; under "" what waiting ones ask for.

        | pods | GPUs |
        | --- | --- |
        | with whole GPUs | as many |
        | that say which ones they have | these, each once |
        | with replicas | as few as these replicas fit on |
        | with parts, which do not say where | as few as the sum fits on; a pod's all differ |
        """
        by_node: dict[str, list[TodayPod]] = {}
        for pod in pods:
            by_node.setdefault(self.node_of(pod).name, []).append(pod)
        return Counter({name: self._held(name, some) for name, some in by_node.items()})

    def _held(self, name: str, pods: Sequence[TodayPod]) -> int:
        node = self.nodes.get(name, self.elsewhere)
        memory = max((gpu.memory_bytes for gpu in node.gpus), default=self.largest_bytes) or 1
        whole = replicas = parts_bytes = widest = 0
        cards: set[str] = set()
        for pod in pods:
            how = self.how(pod)
            if how is How.WHOLE:
                whole += pod.asked.gpus
            elif how is How.REPLICA:
                replicas += pod.asked.gpus
            elif pod.asked.cards:
                cards.update(pod.asked.cards)
            else:
                part = pod.asked.memory_bytes + int(pod.asked.part * memory)
                parts_bytes += min(part, memory) * pod.asked.gpus
                widest = max(widest, pod.asked.gpus)
        parts = max(widest, -(-parts_bytes // memory))
        found = whole + len(cards) - (-replicas // node.replicas) + parts
        return min(found, len(node.gpus)) if node.gpus else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The answer."""

    nodes: int
    gpus: int
    memory_bytes: int
    """Usable."""
    pods: int
    """That have GPUs or wait for them, and are counted."""
    held: int
    """GPUs that pods have now; at least, where they do not say which."""
    wanted: int
    """GPUs that waiting pods ask for; at least."""
    kept: int
    """GPUs of pods that stay whole, on either side."""
    packed: Packing
    """The shares, where the scheduler fills one node before the next."""
    spread: Packing
    """The same, where it takes the emptiest."""
    fewest: int
    """GPUs that the shares need at least, whatever the order."""
    products: Tallies
    """Nodes, GPUs, held now, in use as shares and whole."""
    hows: Tallies
    """By product that pods use today: pods, those that would be shares."""
    sizes: Mapping[SizedBy, int]
    """Pods."""
    unsized: Tallies
    """Workloads whose pods stay whole: pods, GPUs; those with most GPUs first."""
    slices: int
    """Pods on MIG slices, which are not counted."""
    free_nodes: tuple[str, ...]
    """Those that have pods now and would have none."""
    free_gpus: int
    """Of these nodes."""

    @property
    def has_replicas(self) -> bool:
        """Whether pods have replicas."""
        return How.REPLICA.value in self.hows

    @property
    def whole_today(self) -> int:
        """Whole GPUs today."""
        return self.held + self.wanted

    @property
    def shares(self) -> int:
        """GPUs as shares, with those that stay whole."""
        return len(self.packed.gpus) + self.kept


def compare(
    nodes: Sequence[TodayNode],
    pods: Sequence[TodayPod],
    watch: Watch = lambda pods, _: pods,
) -> Comparison:
    """Compare the GPUs that pods have now with those that they would need as shares.

    They are placed in three ways: filling one node before the next, spread, and in no order.
    """
    cluster = TodayCluster.of(nodes)
    found = [pod for pod in pods if cluster.how(pod) is not How.SLICE]
    found.sort(key=lambda pod: (pod.created_s, pod.name))
    sized = [(pod, *cluster.share_of(pod)) for pod in found]
    shares = [SizedPod(pod.name, need, pod.selector) for pod, need, _ in sized if need]
    whole = [pod for pod, need, _ in sized if need is None]
    kept = Counter[str]()
    for pod in whole:
        kept[cluster.node_of(pod).name] += pod.asked.gpus
    unkept = (replace(node, gpus=node.gpus[kept[node.name] :]) for node in nodes)
    rest = [node for node in unkept if node.gpus]

    def watched(way: int) -> Iterable[SizedPod]:
        return watch(shares, f"placed {{}} of {len(shares):,} pods, {way} of 3 ways")

    packed = pack(rest, watched(1), Scheduling.PACK)
    held, used = cluster.held(found), Counter(gpu.node for gpu in packed.gpus)
    free = [one for one in nodes if held[one.name] and not used[one.name] + kept[one.name]]
    hows = _summed((cluster.how(pod), (1, int(need is not None))) for pod, need, _ in sized)
    sizes = Counter(by for _, _, by in sized)
    return Comparison(
        nodes=sum(1 for node in nodes if node.gpus),
        gpus=sum(len(node.gpus) for node in nodes),
        memory_bytes=sum(gpu.memory_bytes for node in nodes for gpu in node.gpus),
        pods=len(found),
        held=held.total() - held[""],
        wanted=held[""],
        kept=kept.total(),
        packed=packed,
        spread=pack(rest, watched(2), Scheduling.SPREAD),
        fewest=fewest_gpus(rest, watched(3)),
        products=_products(nodes, held, used, kept),
        hows={how.value: hows[how] for how in How if how in hows},
        sizes={by: sizes[by] for by in SizedBy if by in sizes},
        unsized=_unsized(whole),
        slices=len(pods) - len(found),
        free_nodes=tuple(node.name for node in free),
        free_gpus=sum(len(node.gpus) for node in free),
    )


def _products(
    nodes: Sequence[TodayNode], held: Counter[str], used: Counter[str], kept: Counter[str]
) -> Tallies:
    rows = (
        (
            node.gpus[0].product or "not said",
            (1, gpus, held[node.name], used[node.name] + min(kept[node.name], gpus)),
        )
        for node in nodes
        if (gpus := len(node.gpus))
    )
    return dict(sorted(_summed(rows).items()))


def _unsized(pods: Sequence[TodayPod]) -> Tallies:
    rows = _summed((pod.workload or pod.name, (1, pod.asked.gpus)) for pod in pods)
    return dict(sorted(rows.items(), key=lambda row: (-row[1][1], row[0])))


def _summed(rows: Iterable[tuple[T, tuple[int, ...]]]) -> dict[T, tuple[int, ...]]:
    """Add up the counts of rows with the same name."""
    sums: dict[T, tuple[int, ...]] = {}
    for name, counts in rows:
        before = sums.get(name, (0,) * len(counts))
        sums[name] = tuple(map(add, before, counts))
    return sums
