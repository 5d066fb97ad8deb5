"""Free capacity for a pod on nodes, according to `place`, which the webhook uses at binding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from webhook.core.formatting import format_amount, format_count, format_exact
from webhook.core.kinds.nodes import STALE_S, GpuFigures, NodeFigures, PodFigures
from webhook.core.placement.fit import Denial, Need, place
from webhook.core.pod.gpus import Gpu
from webhook.names import GPU_COUNT_ANNOTATION, GPU_MEMORY_ANNOTATION
from webhook.tools.problems.eligibility import find_mismatch
from webhook.tools.problems.problem import Code, Problem, Severity
from webhook.tools.snapshot.node import ClusterNode
from webhook.tools.snapshot.pod import ClusterPod

_WITHOUT_ROOM: Final = (
    *(Code.GPUS_SPLIT, Code.NO_ROOM, Code.TOO_FEW_GPUS, Code.TOO_LARGE),
    *(Code.UNHEALTHY_GPUS, Code.GPUS_UNKNOWN),
)
"""Reasons that depend on the request. A pod with a smaller request may fit on the node.

The first of these codes that any node has is the code for all nodes together.
"""
_FIXES: Final = {
    Code.NO_DEVICE_NAMES: "the log of vramwarden's node agent there says what to change",
    Code.NO_ENFORCEMENT: "the log of vramwarden's node agent there says why",
    Code.NO_SENTRY: "ask your platform team to see to the sentry there (vramwarden check)",
    Code.NO_DRIVER_LIMIT: (
        "it selects nodes whose driver holds caps (driverLimit: Require): ask your platform "
        "team for one, with driver r615 and the limiter, or for driverLimit: Auto"
    ),
    Code.NOT_SHARED: "vramwarden check says why, to users who may read nodes",
    Code.DRAINING: "ask your platform team to do what the node says",
    Code.CORDONED: "wait for maintenance to end, or ask your platform team",
    Code.TAINT: "ask your platform team for a toleration in the rule, or another node",
    Code.NODE_SELECTOR: "change the pod's nodeSelector, affinity or gpu-class",
    Code.UNHEALTHY_GPUS: "the log of vramwarden's node agent there says why",
    Code.GPUS_UNKNOWN: "see whether vramwarden's sentry runs on those nodes (vramwarden check)",
    Code.TOO_FEW_GPUS: f"ask for fewer GPUs ({GPU_COUNT_ANNOTATION})",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFit:
    """Fit of a pod on one node."""

    name: str
    code: Code | None
    """Reason why the pod does not fit; None if it fits."""
    detail: str
    gpus: tuple[GpuFigures, ...] = ()
    largest_bytes: int = 0
    """Largest request per GPU that fits on the node now, in bytes; 0 if none fits."""
    age_s: float = 0.0
    """Age of the node's figures, in seconds."""

    @property
    def is_eligible(self) -> bool:
        """True if the pod could run on the node with a smaller request."""
        return self.code is None or self.code in _WITHOUT_ROOM


def find_fits(
    pod: ClusterPod,
    need: Need,
    nodes: Iterable[NodeFigures],
    shared: Mapping[str, ClusterNode] | None,
    now_s: float,
) -> tuple[NodeFit, ...]:
    """Return the fit of a pod on each node. `shared` is None if nodes are unreadable."""
    fits = []
    for node in sorted(nodes, key=lambda node: node.name):
        largest = 0
        code: Code | None
        if node.not_shared if shared is None else node.name not in shared:
            why = f": {node.not_shared}" if node.not_shared else ""
            code, detail = Code.NOT_SHARED, f"its GPUs are not shared{why}"
        elif found := find_mismatch(pod, node, shared[node.name] if shared else None, now_s):
            code, detail = found
        else:
            code, detail = _fit_code(need, node)
            largest = largest_fit(node, need.gpu_count)
        fits.append(
            NodeFit(
                name=node.name,
                code=code,
                detail=detail,
                gpus=node.gpus,
                largest_bytes=largest,
                age_s=max(0.0, now_s - node.observed_s),
            )
        )
    return tuple(fits)


def _fit_code(need: Need, node: NodeFigures) -> tuple[Code | None, str]:
    gpus, free = placeable(node)
    if not node.gpus or len(free) < len(node.gpus):
        return Code.GPUS_UNKNOWN, "what is free on its GPUs is not known"
    if not isinstance(place(node.name, gpus, free, need), Denial):
        return None, ""
    if not any(gpu.healthy for gpu in gpus):
        return Code.UNHEALTHY_GPUS, "none of its GPUs is healthy now"
    large = sum(gpu.memory_bytes >= need.memory_bytes for gpu in gpus)
    if not large:
        most = format_amount(max(gpu.memory_bytes for gpu in gpus), down=True)
        return Code.TOO_LARGE, f"its GPU{' has' if len(gpus) == 1 else 's have'} {most}"
    if large < need.gpu_count:
        has = f"has {format_count(large, 'GPU')} of {format_exact(need.memory_bytes)} or more"
        return Code.TOO_FEW_GPUS, f"{has}, the pod needs {need.gpu_count}"
    room = _free_bytes(node.gpus)
    if room >= need.memory_bytes * need.gpu_count:
        return Code.GPUS_SPLIT, f"{format_amount(room, down=True)} are free there, in pieces"
    return Code.NO_ROOM, f"{format_amount(room, down=True)} are free there"


def placeable(node: NodeFigures) -> tuple[list[Gpu], dict[str, int]]:
    """Return the GPUs whose free memory is known, and this memory by UUID, for `place`."""
    known = [gpu for gpu in node.gpus if gpu.free_bytes is not None]
    gpus = [
        Gpu(
            uuid=gpu.uuid,
            memory_bytes=gpu.usable_bytes,
            product=gpu.product,
            index=gpu.index,
            total_bytes=gpu.total_bytes,
            healthy=gpu.healthy,
            fault=gpu.fault,
        )
        for gpu in known
    ]
    return gpus, {gpu.uuid: gpu.free_bytes for gpu in known if gpu.free_bytes is not None}


def largest_fit(node: NodeFigures, gpu_count: int) -> int:
    """Return the largest request per GPU that fits on `gpu_count` GPUs of the node, or 0."""
    gpus, free = placeable(node)
    amounts = sorted((free[gpu.uuid] for gpu in gpus if gpu.healthy), reverse=True)
    return max(0, amounts[gpu_count - 1]) if gpu_count <= len(amounts) else 0


def _free_bytes(gpus: Iterable[GpuFigures]) -> int:
    return sum(max(0, gpu.free_bytes or 0) for gpu in gpus if gpu.healthy)


def find_best_fit(fits: Iterable[NodeFit]) -> NodeFit | None:
    """Return the node with the most free capacity, preferably one with fresh figures."""
    some = [node for node in fits if node.largest_bytes]
    return max(some, key=lambda fit: (fit.age_s <= STALE_S, fit.largest_bytes), default=None)


def no_room_code(need: Need, fits: Sequence[NodeFit]) -> Code | None:
    """Return the code of the reason why no node has free capacity, or None if one has.

    | nodes | code |
    | --- | --- |
    | none is known | GPUsUnknown |
    | none is eligible | that of the first node |
    | the pod fits on one | none |
    | an eligible one has enough free memory, on several GPUs | GPUsSplit |
    | the eligible ones have enough free memory only together | NodesSplit |
    | the eligible ones have less free memory, even together | NoRoom |
    | the eligible ones have too few GPUs that are large enough | TooFewGPUs |
    | the eligible ones have no GPU that is large enough | TooLarge |
    | the eligible ones have no healthy GPU | UnhealthyGPUs |
    | the eligible ones do not report free memory | GPUsUnknown |
    """
    codes = {node.code for node in fits if node.is_eligible}
    if not codes:
        return fits[0].code if fits else Code.GPUS_UNKNOWN
    if None in codes:
        return None
    code = next(code for code in _WITHOUT_ROOM if code in codes)
    enough = total_free_bytes(fits) >= need.memory_bytes * need.gpu_count
    return Code.NODES_SPLIT if code is Code.NO_ROOM and enough else code


def total_free_bytes(fits: Iterable[NodeFit]) -> int:
    """Return the free memory of all eligible nodes whose GPUs are large enough."""
    return sum(
        _free_bytes(fit.gpus) for fit in fits if fit.code in {None, Code.GPUS_SPLIT, Code.NO_ROOM}
    )


def find_no_room(need: Need, fits: Sequence[NodeFit], summed_gpus: int = 0) -> Problem | None:
    """Return the reason why the pod fits on no node, or None if it fits on one.

    `summed_gpus` is the number of requested GPUs if `need` is their sum and the nodes come from
    `nodes_as_single_gpus`, else 0.
    """
    unit, parts = ("node", summed_gpus) if summed_gpus else ("GPU", 1)
    code = no_room_code(need, fits)
    if code is None:
        return None
    wants, eligible = format_exact(need.memory_bytes), [node for node in fits if node.is_eligible]
    fix = _FIXES.get(code, "")
    if code not in {*_WITHOUT_ROOM, Code.NODES_SPLIT}:
        many = f"none of {format_count(len(fits), 'node')} with GPUs"
        detail = "the pod may not run on the one GPU node"
        detail = f"the pod may run on {many}" if len(fits) != 1 else detail
    elif code is Code.GPUS_UNKNOWN:
        detail = "what is free on the GPUs is not known"
    elif code is Code.UNHEALTHY_GPUS:
        detail = "no GPU is healthy now"
    elif code is Code.TOO_FEW_GPUS:
        detail = f"no node has {need.gpu_count} GPUs with {wants} or more, so it will never start"
    elif code is Code.TOO_LARGE:
        sizes = (gpu.usable_bytes for node in eligible for gpu in node.gpus)
        largest = max(sizes)
        has = format_amount(largest, down=True)
        detail = f"no {unit} has {wants}: the largest has {has}, so this pod will never start"
        fix = (
            f"ask for {format_amount(largest // parts, down=True)} or less "
            f"({GPU_MEMORY_ANNOTATION})"
        )
    else:
        detail = f"no {unit} has {wants} free now"
        if need.gpu_count > 1:
            detail = f"no node has {need.gpu_count} GPUs with {wants} free each now"
        shared = [fit for fit in fits if fit.code is not Code.NOT_SHARED]
        large = sum(fit.code in {Code.GPUS_SPLIT, Code.NO_ROOM} for fit in shared)
        if summed_gpus:
            most = max(eligible, key=lambda fit: _free_bytes(fit.gpus))
            has = format_amount(most.gpus[0].usable_bytes, down=True)
            detail += (
                f"; {most.name} has {format_amount(_free_bytes(most.gpus), down=True)} of {has}"
            )
        else:
            how = "in all" if code is Code.NO_ROOM else "in pieces"
            detail += f"; {format_amount(total_free_bytes(fits), down=True)} are free {how}"
            if len(shared) > 1:
                detail += f", on the {large:,} of {len(shared):,} nodes with large enough GPUs"
        found = find_best_fit(fits)
        less = found.largest_bytes // parts if found else 0
        fix = f"ask for {format_amount(less, down=True)} or less, or " if less else ""
        fix += "wait until a pod ends"
    return Problem(code, Severity.ERROR, detail, fix)


@dataclass(frozen=True, slots=True)
class PodToFree:
    """A pod that frees enough memory for another pod when it ends."""

    node: str
    uid: str
    cap_bytes: int
    gpus: tuple[int, ...]
    """Indices of the pod's GPUs."""


def find_pods_to_free(
    need: Need, nodes: Iterable[NodeFigures], fits: Iterable[NodeFit]
) -> list[PodToFree]:
    """Return the pods that each free enough memory when they end, the smallest first.

    Pods that see all GPUs of a node are included.
    """
    names = {fit.name for fit in fits if fit.is_eligible and fit.code}
    found = []
    for node in nodes:
        gpus, free = placeable(node)
        if node.name not in names or len(free) < len(node.gpus):
            continue
        indices = {gpu.uuid: gpu.index for gpu in node.gpus}
        amounts_by_pod: dict[str, dict[str, int]] = defaultdict(dict)
        for gpu in node.gpus:
            for pod in gpu.pods:
                amounts_by_pod[pod.uid][gpu.uuid] = pod.cap_bytes
        for uid, amounts in amounts_by_pod.items():
            left = {uuid: free[uuid] + amounts.get(uuid, 0) for uuid in free}
            if not isinstance(place(node.name, gpus, left, need), Denial):
                on = tuple(sorted(indices[uuid] for uuid in amounts))
                found.append(PodToFree(node.name, uid, max(amounts.values()), on))
    return sorted(found, key=lambda pod: (pod.cap_bytes * len(pod.gpus), pod.node, pod.uid))


def add_newer_pods(
    nodes: Iterable[NodeFigures], pods: Iterable[ClusterPod]
) -> tuple[NodeFigures, ...]:
    """Return the figures with the allocations of pods that were bound later.

    A sentry writes figures once a minute. A pod that has a GPU but is in no figures was bound after
    that, so its memory is no longer free.
    """
    known = {pod.uid for node in nodes for gpu in node.gpus for pod in gpu.pods}
    newer: dict[str, list[PodFigures]] = defaultdict(list)
    for pod in pods:
        if pod.node and pod.requested_bytes is not None and pod.uid not in known:
            for uuid in pod.gpus:
                newer[uuid].append(PodFigures(uid=pod.uid, cap_bytes=pod.requested_bytes))
    if not newer:
        return tuple(nodes)
    return tuple(
        replace(node, gpus=tuple(_allocate(gpu, newer.get(gpu.uuid, ())) for gpu in node.gpus))
        for node in nodes
    )


def _allocate(gpu: GpuFigures, pods: Iterable[PodFigures]) -> GpuFigures:
    for pod in pods:
        free, promised = gpu.free_bytes, gpu.promised_bytes
        gpu = replace(
            gpu,
            pods=(*gpu.pods, pod),
            free_bytes=None if free is None else free - pod.cap_bytes,
            promised_bytes=None if promised is None else promised + pod.cap_bytes,
        )
    return gpu


def nodes_as_single_gpus(
    shared: Mapping[str, ClusterNode], pods: Sequence[ClusterPod], now_s: float
) -> list[NodeFigures] | None:
    """Return each node as a single GPU with all memory, as for pods with `placement: None`.

    For such a pod, the scheduler compares the request with the node's memory minus the requests of
    its pods. Return None if the request of one of `pods` is unknown.
    """
    pods_by_node: dict[str, list[PodFigures]] = defaultdict(list)
    for pod in pods:
        if pod.node in shared:
            if pod.requested_bytes is None:
                return None
            cap = pod.requested_bytes * pod.gpu_count
            pods_by_node[pod.node].append(PodFigures(uid=pod.uid, cap_bytes=cap))
    return [
        NodeFigures(
            name=name,
            observed_s=now_s,
            driver_version="",
            enforcement=node.enforcement,
            gpus=(
                GpuFigures(
                    uuid=name,
                    index=0,
                    product="",
                    total_bytes=node.vram_bytes,
                    usable_bytes=node.vram_bytes,
                    free_bytes=node.vram_bytes
                    - sum(figures.cap_bytes for figures in pods_by_node[name]),
                    pods=tuple(pods_by_node[name]),
                ),
            ),
        )
        for name, node in shared.items()
    ]
