"""Desired state of a node: capacity, labels, annotations and conditions.

Labels of other controllers are neither read nor written. These include the labels of NVIDIA's GPU
feature discovery and of its device plugin.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from typing import Final

from webhook.core.node.inventory import Inventory
from webhook.core.node.node_fields import write_gpus
from webhook.core.pod.fields import Json
from webhook.core.pod.gpus import MAX_COUNTED_GPUS, Allocation, Gpu, free_bytes, free_memory_label
from webhook.core.pod.quantity import MIB
from webhook.names import (
    MAX_LABEL_LENGTH,
    NODE_DEVICE_NAMES_LABEL,
    NODE_DRIVER_LABEL,
    NODE_DRIVER_LIMIT_LABEL,
    NODE_ENFORCEMENT_LABEL,
    NODE_GPU_COUNT_LABEL,
    NODE_GPU_LABEL,
    NODE_GPU_MEMORY_LABEL,
    NODE_GPU_PRODUCT_LABEL,
    NODE_GPUS_ANNOTATION,
    NODE_SENTRY_LABEL,
    NOT_ENFORCED,
    SENTRY_ACTING_CONDITION,
)

Conditions = Mapping[str, Json | None]
"""Conditions keyed by type, without the field `type`; None for a condition that must not exist."""
_NAMELESS: Final = "unknown"
_LARGEST_STEP_MIB: Final = 1024
_FEWEST_STEPS: Final = 16
FREE_LABELS: Final = tuple(map(free_memory_label, range(1, MAX_COUNTED_GPUS + 1)))

_ALL_LABELS: Final = (
    *FREE_LABELS,
    NODE_GPU_LABEL,
    NODE_GPU_MEMORY_LABEL,
    NODE_GPU_COUNT_LABEL,
    NODE_GPU_PRODUCT_LABEL,
    NODE_DRIVER_LABEL,
    NODE_ENFORCEMENT_LABEL,
    NODE_DEVICE_NAMES_LABEL,
    NODE_DRIVER_LIMIT_LABEL,
    NODE_SENTRY_LABEL,
)


@dataclass(frozen=True, slots=True)
class NodeState:
    """Desired fields of a node; fields that are missing here are left unchanged."""

    vram_bytes: int | None = None
    """Capacity in bytes; None to leave it unchanged."""
    labels: Mapping[str, str | None] = field(default_factory=dict)
    """Label values by key; None for a label that must not exist."""
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    conditions: Conditions = field(default_factory=dict)


def build_desired_state(
    inventory: Inventory,
    assignments: Mapping[str, Allocation] | None = None,
    *,
    driver_enforces_caps: bool | None = None,
    sentry_acts: bool | None = None,
    conditions: Conditions | None = None,
) -> NodeState:
    """Return the desired state of a node, given its assignments; None if they are unknown.

    | there are | capacity | `gpu`, `gpu-memory-mib` | others | `enforcement` | last three |
    | --- | --- | --- | --- | --- | --- |
    | GPUs | their sum | set | set | as probed | set or removed by arguments |
    | a fixed amount | that amount | set, for one GPU | removed | `none` | removed |
    | no GPUs, but were before | 0 | removed | removed | removed | removed |
    | no GPUs, never were | unchanged | unchanged | unchanged | unchanged | unchanged |

    The last three are the labels `driver-limit` and `sentry`, and the conditions.

    A fixed amount has no UUIDs, so pods with GPU assignment do not go there, and free memory is not
    shown. Unknown facts, such as the driver's version or the assignments, are left unchanged.
    """
    gpus = inventory.gpus
    if inventory.fixed_bytes is not None:
        removed: dict[str, str | None] = dict.fromkeys(_ALL_LABELS)
        set_to = _labels(inventory.fixed_bytes, {NODE_ENFORCEMENT_LABEL: NOT_ENFORCED})
        return replace(
            build_withdrawn_state(), vram_bytes=inventory.fixed_bytes, labels=removed | set_to
        )
    if gpus:
        largest = min(gpus, key=lambda gpu: (-gpu.memory_bytes, gpu.index, gpu.uuid))
        more = {
            NODE_GPU_COUNT_LABEL: str(len(gpus)),
            NODE_GPU_PRODUCT_LABEL: to_label_value(largest.product),
            NODE_DRIVER_LABEL: inventory.driver_version
            and to_label_value(inventory.driver_version),
            NODE_ENFORCEMENT_LABEL: inventory.enforcement,
            NODE_DEVICE_NAMES_LABEL: inventory.device_names,
        }
        return NodeState(
            inventory.vram_bytes,
            labels=_labels(largest.memory_bytes, more)
            | _free_labels(gpus, assignments)
            | _flag(NODE_DRIVER_LIMIT_LABEL, driver_enforces_caps)
            | _flag(NODE_SENTRY_LABEL, sentry_acts),
            annotations={NODE_GPUS_ANNOTATION: write_gpus(gpus)},
            conditions=conditions or {},
        )
    return build_withdrawn_state() if inventory.advertised else NodeState()


def build_withdrawn_state() -> NodeState:
    """Return the state of a node whose GPUs are not shared: all fields of the agent are removed."""
    return NodeState(
        0,
        labels=dict.fromkeys(_ALL_LABELS),
        annotations={NODE_GPUS_ANNOTATION: None},
        conditions={SENTRY_ACTING_CONDITION: None},
    )


def to_label_value(text: str) -> str:
    """Return a string from NVML as a label's value, as GPU feature discovery writes it.

    `NVIDIA A100-SXM4-80GB` becomes `NVIDIA-A100-SXM4-80GB`. Rules: k8s.io/apimachinery,
    validation.IsValidLabelValue.
    """
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "-", text)
    return safe.lstrip("-_.")[:MAX_LABEL_LENGTH].rstrip("-_.") or _NAMELESS


def _labels(largest_bytes: int, more: Mapping[str, str]) -> dict[str, str | None]:
    labels = {NODE_GPU_LABEL: "true", NODE_GPU_MEMORY_LABEL: str(largest_bytes // MIB), **more}
    return {key: value for key, value in labels.items() if value}


def _flag(label: str, holds: bool | None) -> dict[str, str | None]:
    """Return a label that is `true` or absent; an empty mapping if unknown."""
    return {} if holds is None else {label: "true" if holds else None}


def _free_labels(
    gpus: Collection[Gpu], assignments: Mapping[str, Allocation] | None
) -> dict[str, str | None]:
    """Return labels of the free memory that one GPU, two GPUs, and so on have at least.

    The result is empty if the assignments are unknown. Amounts are rounded (`_in_steps`). An
    unhealthy GPU counts as full. Pods that were bound without the webhook may be missing from the
    assignments. The labels are hints for the scheduler. The webhook counts those pods when it
    assigns GPUs.
    """
    if assignments is None:
        return {}
    taken = ((allocation.uuids, allocation.memory_bytes) for allocation in assignments.values())
    left = free_bytes(gpus, taken)
    free = (_in_steps(gpu, left[gpu.uuid]) if gpu.healthy else 0 for gpu in gpus)
    amounts = map(str, sorted(free, reverse=True))
    return dict(zip_longest(FREE_LABELS, islice(amounts, MAX_COUNTED_GPUS)))


def _in_steps(gpu: Gpu, left_bytes: int) -> int:
    """Return the free MiB that a GPU shows, rounded down, so that few pods change the Node.

    Each change is sent to every client that watches nodes. The step is a power of two, since most
    requests are multiples of one. It is at most 1 GiB, and small enough for 16 steps. An unused GPU
    shows all of its memory, for a pod that requests exactly that amount.
    """
    size_mib, left_mib = gpu.memory_bytes // MIB, max(0, left_bytes) // MIB
    if left_mib == size_mib:
        return size_mib
    power = max(1, size_mib // _FEWEST_STEPS).bit_length() - 1
    step_mib = min(_LARGEST_STEP_MIB, 1 << power)
    return left_mib // step_mib * step_mib
