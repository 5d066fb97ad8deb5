"""How many GPUs today's pods hold, and how many they would need as shares.

Pods whose size is known or given are placed in the order in which they were created, on the GPUs
that remain; the others keep the whole GPUs that they have.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from webhook.tools.simulate.judge.asked import How
from webhook.tools.simulate.judge.packing import Scheduling, SizedPod, fewest_gpus, pack
from webhook.tools.simulate.judge.shares import SizedBy, TodayCluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from webhook.tools.simulate.judge.offered import TodayNode
    from webhook.tools.simulate.judge.packing import Packing
    from webhook.tools.simulate.judge.shares import TodayPod


@dataclass(frozen=True, slots=True)
class Tally:
    """Pods of one kind, or the GPUs of one product."""

    name: str
    counts: tuple[int, ...]


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
    products: tuple[Tally, ...]
    """Nodes, GPUs, held now, in use as shares and whole."""
    hows: tuple[Tally, ...]
    """By product that pods use today: pods, those that would be shares."""
    sizes: Mapping[SizedBy, int]
    """Pods."""
    unsized: tuple[Tally, ...]
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
        return any(row.name == How.REPLICA for row in self.hows)

    @property
    def whole_today(self) -> int:
        """Whole GPUs today."""
        return self.held + self.wanted

    @property
    def shares(self) -> int:
        """GPUs as shares, with those that stay whole."""
        return len(self.packed.gpus) + self.kept


def compare(nodes: Sequence[TodayNode], pods: Sequence[TodayPod]) -> Comparison:
    """Compare the GPUs that pods have now with those that they would need as shares."""
    cluster = TodayCluster.of(nodes)
    found = [pod for pod in pods if cluster.how(pod) is not How.SLICE]
    found.sort(key=lambda pod: (pod.created_s, pod.name))
    sized = [(pod, *cluster.share_of(pod)) for pod in found]
    shares = [SizedPod(pod.name, need, pod.selector) for pod, need, _ in sized if need]
    whole = [pod for pod, need, _ in sized if need is None]
    kept = Counter[str]()
    for pod in whole:
        kept[cluster.node_of(pod).name] += pod.asked.gpus
    rest = _remaining(nodes, kept)
    packed = pack(rest, shares, Scheduling.PACK)
    held, used = cluster.held(found), Counter(gpu.node for gpu in packed.gpus)
    free = [one for one in nodes if held[one.name] and not used[one.name] + kept[one.name]]
    return Comparison(
        nodes=sum(1 for node in nodes if node.gpus),
        gpus=sum(len(node.gpus) for node in nodes),
        memory_bytes=sum(gpu.memory_bytes for node in nodes for gpu in node.gpus),
        pods=len(found),
        held=held.total() - held[""],
        wanted=held[""],
        kept=kept.total(),
        packed=packed,
        spread=pack(rest, shares, Scheduling.SPREAD),
        fewest=fewest_gpus(rest, shares),
        products=_products(nodes, held, used, kept),
        hows=_hows((cluster.how(pod), need is not None) for pod, need, _ in sized),
        sizes=_in_order(by for _, _, by in sized),
        unsized=_unsized(whole),
        slices=len(pods) - len(found),
        free_nodes=tuple(node.name for node in free),
        free_gpus=sum(len(node.gpus) for node in free),
    )


def _remaining(nodes: Sequence[TodayNode], kept: Mapping[str, int]) -> list[TodayNode]:
    """Return the nodes with the GPUs that no pod keeps whole."""
    rest = (replace(node, gpus=node.gpus[kept.get(node.name, 0) :]) for node in nodes)
    return [node for node in rest if node.gpus]


def _products(
    nodes: Sequence[TodayNode],
    held: Mapping[str, int],
    used: Mapping[str, int],
    kept: Mapping[str, int],
) -> tuple[Tally, ...]:
    rows: dict[str, list[int]] = {}
    for node in nodes:
        if not node.gpus:
            continue
        counts = rows.setdefault(node.gpus[0].product or "not said", [0, 0, 0, 0])
        whole = min(kept.get(node.name, 0), len(node.gpus))
        found = (1, len(node.gpus), held.get(node.name, 0), used.get(node.name, 0) + whole)
        for index, number in enumerate(found):
            counts[index] += number
    return tuple(Tally(name, tuple(counts)) for name, counts in sorted(rows.items()))


def _hows(pods: Iterable[tuple[How, bool]]) -> tuple[Tally, ...]:
    rows: dict[How, list[int]] = {}
    for how, is_share in pods:
        counts = rows.setdefault(how, [0, 0])
        counts[0] += 1
        counts[1] += is_share
    return tuple(Tally(how.value, tuple(rows[how])) for how in How if how in rows)


def _in_order(found: Iterable[SizedBy]) -> dict[SizedBy, int]:
    counts = Counter(found)
    return {by: counts[by] for by in SizedBy if by in counts}


def _unsized(pods: Sequence[TodayPod]) -> tuple[Tally, ...]:
    rows: dict[str, list[int]] = {}
    for pod in pods:
        counts = rows.setdefault(pod.workload or pod.name, [0, 0])
        counts[0] += 1
        counts[1] += pod.asked.gpus
    ranked = sorted(rows.items(), key=lambda row: (-row[1][1], row[0]))
    return tuple(Tally(name, tuple(counts)) for name, counts in ranked)
