"""GPUs that today's pods have, and GPUs that they would need as shares.

Pods of known or given size are placed in creation order: on the first node with free
capacity, on the GPUs that the webhook's `place` chooses. Other pods keep whole GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from webhook.core.placement.fit import Denial, Need, place
from webhook.core.pod.gpus import Gpu, allocate
from webhook.core.pod.quantity import MIB
from webhook.core.policy.match import matches_any
from webhook.tools.simulate.gpu_requests import GpuRequest, RequestForm
from webhook.tools.simulate.node_gpus import Given, NodeGpus


@dataclass(frozen=True, slots=True, kw_only=True)
class TodayPod:
    """A pod that has GPUs or waits for them."""

    path: str
    request: GpuRequest
    node: str = ""
    """Name of the node; empty if the pod waits."""
    selector: tuple[tuple[str, str], ...] = ()
    """Labels that the pod's node must have."""
    created_s: float = 0.0
    workload: str = ""
    """Workload, written `namespace/name`."""


class GpuCounts(NamedTuple):
    """Numbers of nodes and GPUs."""

    nodes: int = 0
    gpus: int = 0
    held: int = 0
    """GPUs that pods have or wait for. Pods with parts of GPUs count as the fewest possible
    GPUs."""
    shares: int = 0
    """GPUs in use if pods of known size had shares."""


def sum_counts(*counts: GpuCounts) -> GpuCounts:
    """Return the sum of each count."""
    return GpuCounts(*map(sum, zip(*counts, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Result of the simulation."""

    products: Mapping[str, GpuCounts]
    """Counts of nodes, keyed by the product that shares them."""
    elsewhere: GpuCounts
    """Counts for waiting pods and for pods on unknown nodes."""
    pods: int
    whole: Counter[str]
    """Number of GPUs kept whole, keyed by workload."""
    sliced: list[str]
    """Pods with MIG slices, which are in no other count."""
    blocked: list[tuple[TodayPod, Need]]
    """Pods that would not fit."""


class _FreeGpus:
    def __init__(self, node: NodeGpus, gpus: Sequence[Gpu]) -> None:
        self.node, self.gpus = node, gpus
        self.free = {gpu.uuid: gpu.memory_bytes for gpu in gpus}
        self.most_free = sorted(self.free.values(), reverse=True)
        self.used: set[str] = set()

    def allocate(self, uuids: Iterable[str], memory_bytes: int) -> None:
        self.used.update(uuids)
        allocate(self.free, uuids, memory_bytes)
        self.most_free = sorted(self.free.values(), reverse=True)


def _place_all(
    rooms: Sequence[_FreeGpus], pods: Iterable[tuple[TodayPod, Need]]
) -> list[tuple[TodayPod, Need]]:
    """Place each pod on the first node with free capacity; return the pods that do not fit."""
    blocked = []
    without_room: set[object] = set()  # no pod ends, so later pods find no more free capacity
    for pod, need in pods:
        key = need, pod.selector
        if key in without_room or not _place(rooms, need, dict(pod.selector)):
            without_room.add(key)
            blocked.append((pod, need))
    return blocked


def _place(rooms: Sequence[_FreeGpus], need: Need, selector: Mapping[str, str]) -> bool:
    last = need.gpu_count - 1
    for room in rooms:
        has_room = len(room.most_free) > last and room.most_free[last] >= need.memory_bytes
        if has_room and selector.items() <= room.node.labels.items():
            uuids = place(room.node.name, room.gpus, room.free, need)
            if not isinstance(uuids, Denial):
                room.allocate(uuids, need.memory_bytes)
                return True
    return False


def compare(
    nodes: Sequence[NodeGpus], pods: Sequence[TodayPod], sizes: Sequence[Given] = ()
) -> Comparison:
    """Compare the GPUs that pods have now with the GPUs that they would need as shares."""
    by_name = {node.name: node for node in nodes}
    with_gpus = [node for node in nodes if node.gpus]
    largest = max(with_gpus, key=lambda node: node.memory_bytes, default=None)
    # Unless every node has replicas, a waiting pod may get a whole GPU.
    replicas = min((node.replicas for node in with_gpus), default=1)
    elsewhere = NodeGpus("", largest.gpus if largest else (), replicas=replicas)
    on_nodes: dict[str, list[TodayPod]] = {node.name: [] for node in (elsewhere, *with_gpus)}
    shares, sliced, whole, kept = [], [], Counter[str](), Counter[str]()
    for pod in sorted(pods, key=lambda pod: (pod.created_s, pod.path)):
        node = by_name.get(pod.node, elsewhere)
        if _form(pod, node) is RequestForm.SLICE:
            sliced.append(pod.path)
            continue
        on_nodes[node.name].append(pod)
        if need := _share(pod, node, sizes):
            shares.append((pod, need))
        else:
            whole[pod.workload] += pod.request.gpus
            kept[node.name] += pod.request.gpus
    rooms = [_FreeGpus(node, node.gpus[kept[node.name] :]) for node in with_gpus]
    blocked = _place_all(rooms, shares)
    products: dict[str, GpuCounts] = {}
    for room in rooms:
        node, gpus = room.node, len(room.node.gpus)
        held = min(_held(node, on_nodes[node.name]), gpus)
        counts = GpuCounts(1, gpus, held, len(room.used) + min(kept[node.name], gpus))
        product = node.gpus[0].product or "unknown"
        products[product] = sum_counts(products.get(product, GpuCounts()), counts)
    return Comparison(
        products=dict(sorted(products.items())),
        elsewhere=GpuCounts(held=_held(elsewhere, on_nodes[""]), shares=kept[""]),
        pods=sum(map(len, on_nodes.values())),
        whole=whole,
        sliced=sliced,
        blocked=blocked,
    )


def _form(pod: TodayPod, node: NodeGpus) -> RequestForm:
    """Return the request form of a pod; for `nvidia.com/gpu` it depends on the node."""
    if node.name and not node.gpus:
        return RequestForm.SLICE
    form = pod.request.form
    return RequestForm.REPLICA if form is RequestForm.WHOLE and node.replicas > 1 else form


def _share(pod: TodayPod, node: NodeGpus, sizes: Sequence[Given]) -> Need | None:
    """Return the share that a pod would request, or None if it keeps whole GPUs.

    | the pod | share |
    | --- | --- |
    | has a workload that --size names | that size; none if it is `whole` |
    | requests memory | that amount, or part of its GPU, or of the largest GPU if it waits |
    | requests one GPU or replicas, and a --size has no name | that size |
    | has replicas | the replicas' part of one GPU |
    | any other | none |
    """
    request, is_replica = pod.request, _form(pod, node) is RequestForm.REPLICA
    gpus = 1 if is_replica else request.gpus
    memory = node.memory_bytes
    given = next((size for size in sizes if matches_any(pod.workload, (size.names,))), None)
    if not given and request.form is RequestForm.SHARE:
        total = max((gpu.total_bytes or 0 for gpu in node.gpus), default=0) or memory
        part = int(-(-request.part * total // MIB) * MIB)
        # All memory of a GPU means all usable memory.
        return Need(request.memory_bytes + min(part, memory), gpus)
    if not given and gpus == 1:
        given = next((size for size in sizes if not size.names), None)
    if given:
        return Need(given.memory_bytes, given.gpus or gpus) if given.memory_bytes else None
    if is_replica and node.replicas > 1:
        part = memory * min(request.gpus, node.replicas) // node.replicas
        return Need(max(MIB, part // MIB * MIB))
    return None


def _held(node: NodeGpus, pods: Sequence[TodayPod]) -> int:
    """Return the smallest number of GPUs that can hold the pods of a node.

    Replicas and shares are packed onto as few GPUs as possible. The GPUs of one pod differ.
    """
    memory = node.memory_bytes or 1
    number, shared_bytes, widest = Counter[RequestForm](), 0, 0
    for pod in pods:
        request, form = pod.request, _form(pod, node)
        number[form] += request.gpus
        if form is RequestForm.SHARE:
            amount = request.memory_bytes + int(request.part * memory)
            shared_bytes += min(amount, memory) * request.gpus
            widest = max(widest, request.gpus)
    replicas = -(-number[RequestForm.REPLICA] // node.replicas)
    return number[RequestForm.WHOLE] + replicas + max(widest, -(-shared_bytes // memory))
