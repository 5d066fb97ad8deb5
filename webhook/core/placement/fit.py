"""Choice of a node's GPUs for a pod, and the denials if none can be chosen.

The stock scheduler counts VRAM per node. On a node with several GPUs the sum may suffice although
no single GPU has enough free memory. So the GPUs are chosen here, at binding, and a pod that does
not fit is denied. `webhook.core.placement.assignments` computes the free memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from webhook.core.nvidia.variables import DeviceNames
from webhook.core.pod.gpus import Gpu
from webhook.core.pod.quantity import format_bytes
from webhook.names import (
    NODE_DEVICE_NAMES_LABEL,
    NODE_DRIVER_LIMIT_LABEL,
    NODE_GPUS_ANNOTATION,
    NODE_SENTRY_LABEL,
    SENTRY_ACTING_CONDITION,
)

Order = Callable[[Gpu, int], tuple[int, ...]]
"""Function that returns a GPU's sort key, given its free bytes. Smallest keys are chosen first."""


RETRIES: Final = "; the scheduler retries, also on other nodes"
"""End of a denial that another node or a later attempt may avoid. Left out for a bound pod."""


@dataclass(frozen=True, slots=True)
class Need:
    """A pod's need for GPUs of a node."""

    memory_bytes: int
    """Bytes on each of the pod's GPUs."""
    gpu_count: int = 1


@dataclass(frozen=True, slots=True)
class Denial:
    """Reason why a pod cannot be bound to a node, for users (`kubectl describe pod`)."""

    sentence: str


def best_fit(gpu: Gpu, free_bytes: int) -> tuple[int, ...]:
    """Return a key that prefers the GPU with the least free memory, to keep large gaps free.

    tests/bench/orders.py compares this order with others.
    """
    return free_bytes, gpu.index


def place(
    node: str, gpus: Sequence[Gpu], free: Mapping[str, int], need: Need, order: Order = best_fit
) -> tuple[str, ...] | Denial:
    """Choose GPUs by free memory; return their UUIDs in the driver's order, or a denial.

    | healthy GPUs with enough free memory | then |
    | --- | --- |
    | at least as many as needed | the first ones by `order`; ties: the lowest index |
    | fewer | denied, with the need, the largest free amount and how many are unhealthy |
    | none of the node's GPUs is healthy | denied |
    | the node shows no GPUs | denied |
    """
    if not gpus:
        return deny_unknown_gpus(node)
    healthy = [gpu for gpu in gpus if gpu.healthy]
    if not healthy:
        return Denial(
            f"node {node} has no GPU that is healthy now, so none can be chosen for this pod; "
            f"vramwarden's node agent there logs why{RETRIES}"
        )
    fitting = [gpu for gpu in healthy if free[gpu.uuid] >= need.memory_bytes]
    if len(fitting) < need.gpu_count:
        return _too_full(node, gpus, free, need, len(fitting))
    fitting.sort(key=lambda gpu: (*order(gpu, free[gpu.uuid]), gpu.index, gpu.uuid))
    chosen = sorted(fitting[: need.gpu_count], key=lambda gpu: (gpu.index, gpu.uuid))
    return tuple(gpu.uuid for gpu in chosen)


def deny_unknown_gpus(node: str) -> Denial:
    """Return the denial for a node that advertises no GPUs."""
    return Denial(
        f"node {node} does not show its GPUs (annotation {NODE_GPUS_ANNOTATION}), so none can be "
        "chosen for this pod; see whether vramwarden's node agent runs there"
    )


def deny_unnamed_gpus(node: str, names: DeviceNames | None) -> Denial:
    """Return the denial for a node whose container runtime resolves no known device name.

    `names` is the value of the node's label: `DeviceNames.NONE`, or None for an unknown value.
    """
    if names is DeviceNames.NONE:
        return Denial(
            f"the container runtime of node {node} resolves no name of its GPUs (label "
            f"{NODE_DEVICE_NAMES_LABEL} is {names.value}), so none can be chosen for this pod; the "
            f"log of vramwarden's node agent there says what to change{RETRIES}"
        )
    return Denial(
        f"node {node} names its GPUs in a way that this webhook does not know (label "
        f"{NODE_DEVICE_NAMES_LABEL}), so none can be chosen for this pod; see that label and the "
        "log of vramwarden's node agent there, and let agent and webhook be of one release"
        f"{RETRIES}"
    )


def deny_without_driver_limit(node: str) -> Denial:
    """Return the denial for a pod that requires the driver's limit, on a node without it."""
    return Denial(
        "this pod requires a node whose driver holds caps (driverLimit: Require), and node "
        f"{node} has no label {NODE_DRIVER_LIMIT_LABEL}: its limiter does not run, or could not "
        f"prove it; GPUNode {node} says why{RETRIES}"
    )


def deny_without_sentry(node: str, cap_bytes: int) -> Denial:
    """Return the denial for a pod that only the sentry can stop, on a node whose sentry cannot."""
    return Denial(
        f"this pod needs a node whose sentry holds it to {format_bytes(cap_bytes)}, and node "
        f"{node} has no label {NODE_SENTRY_LABEL}: its condition {SENTRY_ACTING_CONDITION} says why"
        f"{RETRIES}"
    )


def deny_closed_node(node: str, why: str) -> Denial:
    """Return the denial for a node that accepts no further pods."""
    return Denial(f"node {node} gives no GPU to further pods now: {why}{RETRIES}")


def _too_full(
    node: str, gpus: Sequence[Gpu], free: Mapping[str, int], need: Need, fitting: int
) -> Denial:
    healthy = [gpu for gpu in gpus if gpu.healthy]
    largest = min(healthy, key=lambda gpu: (-free[gpu.uuid], gpu.index))
    amount = format_bytes(need.memory_bytes)
    left = format_bytes(max(0, free[largest.uuid]))
    if need.gpu_count == 1:
        lacks = f"no GPU of node {node} has {amount} free, which this pod needs"
    elif need.gpu_count > len(gpus):
        have = "1 GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"
        lacks = f"node {node} has {have}, and this pod needs {need.gpu_count} with {amount} each"
    else:
        have = "1 GPU" if fitting == 1 else f"{fitting or 'no'} GPUs"
        lacks = f"node {node} has {have} with {amount} free, and this pod needs {need.gpu_count}"
    ill = len(gpus) - len(healthy)
    verb = "is" if ill == 1 else "are"
    unhealthy = f"; {ill} of its {len(gpus)} GPUs {verb} unhealthy now" if ill else ""
    return Denial(
        f"{lacks}; the largest free amount is {left}, on GPU {largest.index} ({largest.uuid})"
        f"{unhealthy}{RETRIES}"
    )
