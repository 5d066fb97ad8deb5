"""Where a pod would have room now, by the same `place` that the webhook calls at its binding."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from webhook.core.kinds.nodes import STALE_S
from webhook.core.placement.fit import Denial, Need, place
from webhook.core.pod.gpus import Gpu
from webhook.core.words import amount, counted, exactly
from webhook.tools.explain.judge.eligible import Mismatch, why_not

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from webhook.core.kinds.nodes import GpuFigures, NodeFigures
    from webhook.tools.snapshot.node import ClusterNode
    from webhook.tools.snapshot.pod import ClusterPod


class Blocker(StrEnum):
    """Why a pod has no room, on a node or anywhere; the first that holds."""

    TOO_LARGE = "TooLarge"
    """No GPU is as large, whatever is free on it."""
    TOO_FEW_GPUS = "TooFewGPUs"
    """No node has as many GPUs as large."""
    GPUS_SPLIT = "GPUsSplit"
    """A node has as much free, but in pieces: the scheduler tries it, and its binding is denied."""
    NODES_SPLIT = "NodesSplit"
    """Only several nodes together have as much free."""
    NO_ROOM = "NoRoom"
    """All nodes together have less free."""
    UNHEALTHY = "UnhealthyGPUs"
    """None of a node's GPUs may be chosen now."""
    GPUS_UNKNOWN = "GPUsUnknown"
    """Nobody says which GPUs there are, or what is free on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoom:
    """What one node has for a pod."""

    name: str
    fits: bool
    reason: Blocker | Mismatch | None
    """Why not."""
    detail: str
    gpus: tuple[GpuFigures, ...] = ()
    largest_bytes: int = 0
    """The most that a pod of as many GPUs may ask for, to be placed there now; 0 for nothing."""
    age_s: float = 0.0
    """Of its figures."""

    @property
    def matches(self) -> bool:
        """Whether the pod may run there at all, if it asks for little enough."""
        return not isinstance(self.reason, Mismatch)


@dataclass(frozen=True, slots=True)
class Room:
    """What all nodes have for a pod."""

    nodes: tuple[NodeRoom, ...]
    cause: Blocker | Mismatch | None
    """Why it cannot start; None where a node has room."""
    start_now: NodeRoom | None
    """The node with the most for such a pod; None where none has anything."""
    together_bytes: int
    """Free on all GPUs of nodes on which it may run, and that are large enough."""


def find_room(
    pod: ClusterPod,
    need: Need,
    nodes: Iterable[NodeFigures],
    seen: Mapping[str, ClusterNode] | None,
    now_s: float,
) -> Room:
    """Judge all nodes for a pod; `seen` are those that are shared, None where they cannot be read.

    Old figures are believed where no others have anything: `start_now` is by the newest.

    | of the nodes | cause |
    | --- | --- |
    | none is known | GPUsUnknown |
    | none matches what the pod selects | that of the first |
    | one fits | none |
    | matching: none tells what is free | GPUsUnknown |
    | matching: none of those has a healthy GPU | UnhealthyGPUs |
    | matching: none has a GPU as large | TooLarge |
    | matching: none has as many as large | TooFewGPUs |
    | matching: one has as much free | GPUsSplit |
    | matching: together they have as much free | NodesSplit |
    | otherwise | NoRoom |
    """
    judged = tuple(
        _judge(pod, need, node, seen, now_s) for node in sorted(nodes, key=lambda one: one.name)
    )
    matching = [node for node in judged if node.matches]
    small = {Blocker.TOO_LARGE, Blocker.TOO_FEW_GPUS}
    together = sum(_free(node.gpus) for node in matching if node.reason not in small)
    some = [node for node in matching if node.largest_bytes]
    start_now = max(
        some, key=lambda node: (node.age_s <= STALE_S, node.largest_bytes), default=None
    )
    return Room(judged, _cause(judged, matching, need, together), start_now, together)


def _cause(
    judged: Sequence[NodeRoom], matching: Sequence[NodeRoom], need: Need, together: int
) -> Blocker | Mismatch | None:
    if not matching:
        return judged[0].reason if judged else Blocker.GPUS_UNKNOWN
    if any(node.fits for node in matching):
        return None
    reasons = {node.reason for node in matching}
    known = reasons - {Blocker.GPUS_UNKNOWN}
    if not known:
        return Blocker.GPUS_UNKNOWN
    if known == {Blocker.UNHEALTHY}:
        return Blocker.UNHEALTHY
    for reason in (Blocker.TOO_LARGE, Blocker.TOO_FEW_GPUS):
        if known - {Blocker.UNHEALTHY} <= {Blocker.TOO_LARGE, reason}:
            return reason
    if Blocker.GPUS_SPLIT in reasons:
        return Blocker.GPUS_SPLIT
    enough = together >= need.memory_bytes * need.gpu_count
    return Blocker.NODES_SPLIT if enough else Blocker.NO_ROOM


def _judge(
    pod: ClusterPod,
    need: Need,
    node: NodeFigures,
    seen: Mapping[str, ClusterNode] | None,
    now_s: float,
) -> NodeRoom:
    reason: Mismatch | Blocker | None
    largest = 0
    if node.not_shared if seen is None else node.name not in seen:
        fits, reason, detail = False, Mismatch.NOT_SHARED, "its GPUs are not shared"
    elif found := why_not(pod, node, seen[node.name] if seen is not None else None, now_s):
        fits, (reason, detail) = False, found
    else:
        fits, reason, detail = _fits(need, node)
        largest = _largest(node, need.gpu_count)
    return NodeRoom(
        name=node.name,
        fits=fits,
        reason=reason,
        detail=detail,
        gpus=node.gpus,
        largest_bytes=largest,
        age_s=max(0.0, now_s - node.observed_s),
    )


def _fits(need: Need, node: NodeFigures) -> tuple[bool, Blocker | None, str]:
    gpus, free = advertised(node)
    if not node.gpus or len(free) < len(node.gpus):
        return False, Blocker.GPUS_UNKNOWN, "what is free on its GPUs is not known"
    if not isinstance(place(node.name, gpus, free, need), Denial):
        return True, None, ""
    if not any(gpu.healthy for gpu in gpus):
        return False, Blocker.UNHEALTHY, "none of its GPUs is healthy now"
    large = sum(gpu.memory_bytes >= need.memory_bytes for gpu in gpus)
    most = max(gpu.memory_bytes for gpu in gpus)
    if not large:
        whose = "its GPU has" if len(gpus) == 1 else "its GPUs have"
        return False, Blocker.TOO_LARGE, f"{whose} {amount(most, down=True)}"
    if large < need.gpu_count:
        has = f"has {counted(large, 'GPU')} of {exactly(need.memory_bytes)} or more"
        return False, Blocker.TOO_FEW_GPUS, f"{has}, the pod needs {need.gpu_count}"
    room = _free(node.gpus)
    if room >= need.memory_bytes * need.gpu_count:
        return False, Blocker.GPUS_SPLIT, f"{amount(room, down=True)} are free there, in pieces"
    return False, Blocker.NO_ROOM, f"{amount(room, down=True)} are free there"


def advertised(node: NodeFigures) -> tuple[list[Gpu], dict[str, int]]:
    """Return a node's GPUs and what is free on each, as `place` takes them.

    Without those of which nobody knows what is free.
    """
    known = [gpu for gpu in node.gpus if gpu.free_bytes is not None]
    gpus = [
        Gpu(
            uuid=one.uuid,
            memory_bytes=one.usable_bytes,
            product=one.product,
            index=one.index,
            total_bytes=one.total_bytes,
            healthy=one.healthy,
        )
        for one in known
    ]
    return gpus, {one.uuid: one.free_bytes for one in known if one.free_bytes is not None}


def _largest(node: NodeFigures, gpu_count: int) -> int:
    """Return the largest amount that `place` accepts on each of so many GPUs; 0 for none."""
    gpus, free = advertised(node)
    amounts = sorted((free[gpu.uuid] for gpu in gpus if gpu.healthy), reverse=True)
    largest = amounts[gpu_count - 1] if gpu_count <= len(amounts) else 0
    if largest <= 0 or isinstance(place(node.name, gpus, free, Need(largest, gpu_count)), Denial):
        return 0
    return largest


def _free(gpus: Iterable[GpuFigures]) -> int:
    return sum(max(0, gpu.free_bytes or 0) for gpu in gpus if gpu.healthy)


@dataclass(frozen=True, slots=True)
class Making:
    """A pod that would make room by ending."""

    node: str
    uid: str
    cap_bytes: int
    gpus: tuple[int, ...]
    """Indices of those on which it is."""


def would_make_room(need: Need, nodes: Iterable[NodeFigures], room: Room) -> Iterator[Making]:
    """Yield the pods of which each, by ending alone, would make room; those that free least first.

    The figures show no promise that does not end, so pods that see all GPUs of a node count too.
    """
    may = {node.name for node in room.nodes if node.matches and not node.fits}
    found = []
    for node in nodes:
        gpus, free = advertised(node)
        if node.name not in may or len(free) < len(node.gpus):
            continue
        held: dict[str, dict[str, int]] = {}
        for gpu in node.gpus:
            for pod in gpu.pods:
                held.setdefault(pod.uid, {})[gpu.uuid] = pod.cap_bytes
        indices = {gpu.uuid: gpu.index for gpu in node.gpus}
        for uid, amounts in held.items():
            left = {uuid: free[uuid] + amounts.get(uuid, 0) for uuid in free}
            if not isinstance(place(node.name, gpus, left, need), Denial):
                on = tuple(sorted(indices[uuid] for uuid in amounts))
                found.append(Making(node.name, uid, max(amounts.values()), on))
    yield from sorted(found, key=lambda one: (one.cap_bytes * len(one.gpus), one.node, one.uid))
