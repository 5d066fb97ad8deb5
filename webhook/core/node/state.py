"""What a node carries of its GPUs: read, desired, and the smallest patches between the two.

`read_inventory` reads what was advertised before, `desired` says how an inventory is shown
on the node, and `patches` what is missing for that. Labels of others, such as those of NVIDIA's GPU
feature discovery and device plugin, are neither read nor written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import islice, zip_longest
from typing import Any, Final

from webhook.core.formatting import MOST_GPU_BYTES, replace_unprintable
from webhook.core.node.inventory import Inventory, TrackedGpu
from webhook.core.node.verdict import SharingCode, read_sharing
from webhook.core.nvidia.variables import DeviceNames
from webhook.core.pod.fields import Json, as_object, as_objects
from webhook.core.pod.gpus import (
    LONGEST_FAULT,
    LONGEST_PRODUCT,
    MOST_COUNTED,
    MOST_GPUS,
    Allocation,
    Gpu,
    free_bytes,
    free_label,
    names_gpu,
)
from webhook.core.pod.quantity import MIB, amount_or, format_bytes
from webhook.names import (
    LONGEST_LABEL,
    NODE_DEVICE_NAMES_LABEL,
    NODE_DRIVER_LABEL,
    NODE_DRIVER_LIMIT_LABEL,
    NODE_ENFORCEMENT_LABEL,
    NODE_ENFORCEMENTS,
    NODE_GPU_COUNT_LABEL,
    NODE_GPU_LABEL,
    NODE_GPU_MEMORY_LABEL,
    NODE_GPU_PRODUCT_LABEL,
    NODE_GPUS_ANNOTATION,
    NODE_SENTRY_LABEL,
    NOT_ENFORCED,
    SENTRY_ACTING_CONDITION,
    VRAM_RESOURCE,
)

Conditions = Mapping[str, Json | None]
"""Conditions by type, each without its type; None if there must be none."""

_NAMELESS: Final = "unknown"
_LARGEST_STEP_MIB: Final = 1024
_FEWEST_STEPS: Final = 16
_FREE_LABELS: Final = tuple(map(free_label, range(1, MOST_COUNTED + 1)))
_ALL_LABELS: Final = (
    *_FREE_LABELS,
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
_CONDITION: Final = ("status", "reason", "message")


@dataclass(frozen=True, slots=True)
class NodeState:
    """What a node should carry; what is not named here is left alone."""

    vram_bytes: int | None = None
    labels: Mapping[str, str | None] = field(default_factory=dict)
    """None for a label that must not exist."""
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    conditions: Conditions = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Patches:
    """Patches of a node; None where nothing is to change."""

    metadata: Json | None = None
    """For the node, as a JSON merge patch (RFC 7386)."""
    status: Json | None = None
    """For its subresource `status`; a strategic merge patch if it has conditions, else either."""

    def __bool__(self) -> bool:
        return self.metadata is not None or self.status is not None

    def in_order(self) -> Iterator[tuple[Json, bool]]:
        """Return each patch, and whether it is for `status`, in the order in which to send them.

        Labels before capacity, so that no unlabelled node has any. Where capacity goes it goes
        first: without the label the DaemonSet may take the agent away before it is done.
        """
        parts = [(self.metadata, False), (self.status, True)]
        if self.status and self.status["status"].get("capacity", {}).get(VRAM_RESOURCE) == "0":
            parts.reverse()
        return ((patch, is_status) for patch, is_status in parts if patch is not None)


def labels_of(node: Mapping[str, Any]) -> Json:
    """Return the labels of a node."""
    return as_object(as_object(node.get("metadata")).get("labels"))


def annotations_of(node: Mapping[str, Any]) -> Json:
    """Return the annotations of a node."""
    return as_object(as_object(node.get("metadata")).get("annotations"))


def read_inventory(node: Mapping[str, Any]) -> Inventory:
    """Read from a node what an agent advertised before; what cannot be read was not advertised.

    So a restart of the agent while the driver is down forgets nothing.
    """
    labels = labels_of(node)
    known = tuple(map(TrackedGpu, read_gpus(node)[0]))
    enforcement = labels.get(NODE_ENFORCEMENT_LABEL, "")
    device_names = labels.get(NODE_DEVICE_NAMES_LABEL, "")
    verdict = read_sharing(node)
    return Inventory(
        known=known,
        driver_version=labels.get(NODE_DRIVER_LABEL, ""),
        enforcement=enforcement if enforcement in NODE_ENFORCEMENTS else "",
        device_names=device_names if device_names in tuple(DeviceNames) else "",
        advertised=bool(known),
        unshared=verdict.sentence if verdict and verdict.code is SharingCode.SOME_UNFIT else "",
    )


def desired(
    inventory: Inventory,
    assignments: Mapping[str, Allocation] | None = None,
    *,
    driver_holds: bool | None = None,
    sentry_acts: bool | None = None,
    conditions: Conditions | None = None,
) -> NodeState:
    """Return what the node should carry, given who has its GPUs; None where that is not known.

    | there are | capacity | `gpu`, `gpu-memory-mib` | others | `enforcement` | last three |
    | --- | --- | --- | --- | --- | --- |
    | GPUs | their sum | set | set | as probed | set or removed, as the arguments say |
    | a fixed amount | that | set, as of one GPU | removed | `none` | removed |
    | no GPUs any longer | 0 | removed | removed | removed | removed |
    | no GPUs, as ever | left alone | left alone | left alone | left alone | left alone |

    The last three are the labels `driver-limit` and `sentry`, and the conditions.

    A fixed amount has no UUIDs, so pods placed at binding do not go there; of what is free nothing
    is said. What is not known yet, such as the driver's version, or who has GPUs, is left alone.
    """
    gpus = inventory.gpus
    if inventory.fixed_bytes is not None:
        removed: dict[str, str | None] = dict.fromkeys(_ALL_LABELS)
        set_to = _labels(inventory.fixed_bytes, {NODE_ENFORCEMENT_LABEL: NOT_ENFORCED})
        return replace(withdrawn(), vram_bytes=inventory.fixed_bytes, labels=removed | set_to)
    if gpus:
        largest = min(gpus, key=lambda gpu: (-gpu.memory_bytes, gpu.index, gpu.uuid))
        more = {
            NODE_GPU_COUNT_LABEL: str(len(gpus)),
            NODE_GPU_PRODUCT_LABEL: label_safe(largest.product),
            NODE_DRIVER_LABEL: inventory.driver_version and label_safe(inventory.driver_version),
            NODE_ENFORCEMENT_LABEL: inventory.enforcement,
            NODE_DEVICE_NAMES_LABEL: inventory.device_names,
        }
        return NodeState(
            inventory.vram_bytes,
            labels=_labels(largest.memory_bytes, more)
            | _free_labels(gpus, assignments)
            | _flag(NODE_DRIVER_LIMIT_LABEL, driver_holds)
            | _flag(NODE_SENTRY_LABEL, sentry_acts),
            annotations={NODE_GPUS_ANNOTATION: _write_gpus(gpus)},
            conditions=conditions or {},
        )
    return withdrawn() if inventory.advertised else NodeState()


def withdrawn() -> NodeState:
    """Return what a node should carry of whose GPUs nothing is shared: nothing of ours."""
    return NodeState(
        0,
        labels=dict.fromkeys(_ALL_LABELS),
        annotations={NODE_GPUS_ANNOTATION: None},
        conditions={SENTRY_ACTING_CONDITION: None},
    )


def patches(node: Mapping[str, Any], state: NodeState) -> Patches:
    """Return what turns the node into the state, and nothing that it has already.

    Allocatable is set along with capacity: the kubelet derives one from the other (setters.go,
    MachineInfo), but only every 10 s, and until then scheduler and kubelet go by the old amount.
    """
    parts = (
        ("labels", state.labels, labels_of(node)),
        ("annotations", state.annotations, annotations_of(node)),
    )
    differing = {
        part: {key: value for key, value in wanted.items() if carried.get(key) != value}
        for part, wanted, carried in parts
    }
    differing = {part: values for part, values in differing.items() if values}
    return Patches({"metadata": differing} if differing else None, _status_patch(node, state))


def changes(node: Mapping[str, Any], made: Patches) -> Iterator[str]:
    """Say each change of the patches, for a log: `labels[vramwarden.io/gpu]: absent -> true`."""
    for top in (made.metadata or {}, made.status or {}):
        for section, parts in top.items():
            for part, values in parts.items():
                before = _by_key((node.get(section) or {}).get(part))
                for key, value in _by_key(values).items():
                    old, new = (_shown(one) for one in (before.get(key), value))
                    yield f"{part}[{key}]: {old} -> {new}"


def is_free_alone(made: Patches) -> bool:
    """Say whether nothing but free memory changes, as with each pod: too little for a log."""
    parts = (made.metadata or {}).get("metadata", {})
    labels_alone = made.status is None and set(parts) <= {"labels"}
    return labels_alone and set(parts.get("labels", ())) <= set(_FREE_LABELS)


def label_safe(text: str) -> str:
    """Turn what NVML reports into a label's value, as GPU feature discovery writes it.

    `NVIDIA A100-SXM4-80GB` becomes `NVIDIA-A100-SXM4-80GB`. Rules: k8s.io/apimachinery,
    validation.IsValidLabelValue.
    """
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "-", text)
    return safe.lstrip("-_.")[:LONGEST_LABEL].rstrip("-_.") or _NAMELESS


def _labels(largest_bytes: int, more: Mapping[str, str]) -> dict[str, str | None]:
    labels = {NODE_GPU_LABEL: "true", NODE_GPU_MEMORY_LABEL: str(largest_bytes // MIB), **more}
    return {key: value for key, value in labels.items() if value}


def _flag(label: str, holds: bool | None) -> dict[str, str | None]:
    """Return a label that is `true` or absent; nothing if it is not known which."""
    return {} if holds is None else {label: "true" if holds else None}


def _free_labels(
    gpus: Collection[Gpu], assignments: Mapping[str, Allocation] | None
) -> dict[str, str | None]:
    """Return what one GPU, two, and so on have free, each at least; nothing where nobody knows.

    In steps (`_in_steps`); a GPU that is not healthy has nothing to give.
    Pods that came past the webhook may not be among the assignments: this is advice for the
    scheduler, and the webhook counts them when it decides.
    """
    if assignments is None:
        return {}
    taken = ((one.uuids, one.memory_bytes) for one in assignments.values())
    left = free_bytes(gpus, taken)
    free = (_in_steps(gpu, left[gpu.uuid]) if gpu.healthy else 0 for gpu in gpus)
    shown = map(str, sorted(free, reverse=True))
    return dict(zip_longest(_FREE_LABELS, islice(shown, MOST_COUNTED)))


def _in_steps(gpu: Gpu, left_bytes: int) -> int:
    """Return the MiB that a GPU shows as free, rounded down, so that few pods change a Node.

    Each change wakes everybody who watches nodes. The step is a power of two, as most demands are
    multiples of one: at most 1 GiB, and on small GPUs so little that there are 16 steps or more. A
    GPU that nobody uses shows all that it has, for a pod that wants exactly that.
    """
    size_mib, left_mib = gpu.memory_bytes // MIB, max(0, left_bytes) // MIB
    if left_mib == size_mib:
        return size_mib
    power = max(1, size_mib // _FEWEST_STEPS).bit_length() - 1
    step_mib = min(_LARGEST_STEP_MIB, 1 << power)
    return left_mib // step_mib * step_mib


def _shown(value: object) -> str:
    return "absent" if value is None else str(value)


def _by_key(part: Any) -> Json:
    """Return a part of a node by key; of conditions the status with its reason by type."""
    if not isinstance(part, list):
        return as_object(part)
    return {
        one["type"]: one.get("status") and f"{one['status']}, {one.get('reason')}" for one in part
    }


def _status_patch(node: Mapping[str, Any], state: NodeState) -> Json | None:
    status, differing = node.get("status") or {}, Json()
    if state.vram_bytes or (state.vram_bytes == 0 and _amount(status, "capacity")):
        amount = format_bytes(state.vram_bytes)
        for part in ("capacity", "allocatable"):
            if _amount(status, part) != state.vram_bytes:
                differing[part] = {VRAM_RESOURCE: amount}
    if conditions := list(_condition_patches(status, state.conditions)):
        differing["conditions"] = conditions
    return {"status": differing} if differing else None


def _condition_patches(status: Mapping[str, Any], wanted: Conditions) -> Iterator[Json]:
    """Yield the conditions that differ, as a strategic merge patch has them.

    The time of the transition is left alone if the status stays.
    """
    carried = {one.get("type"): one for one in as_objects(status.get("conditions"))}
    for kind, condition in wanted.items():
        before = carried.get(kind)
        if condition is None:
            if before is not None:
                yield {"type": kind, "$patch": "delete"}
        elif before is None or before.get("status") != condition["status"]:
            yield {"type": kind, **condition}
        elif any(before.get(key) != condition[key] for key in _CONDITION):
            yield {"type": kind, **{key: condition[key] for key in _CONDITION}}


def shown_vram(node: Mapping[str, Any]) -> int:
    """Return the capacity that a node shows, in bytes; 0 for none that could be counted."""
    return int(_amount(node.get("status") or {}, "capacity") or 0)


def _amount(status: Mapping[str, Any], part: str) -> Fraction | None:
    """Return the bytes that a node shows; None for nothing, or nothing that could be counted."""
    return amount_or((status.get(part) or {}).get(VRAM_RESOURCE, ""), None)


def _write_gpus(gpus: Iterable[Gpu]) -> str:
    return json.dumps([_written(gpu) for gpu in gpus], separators=(",", ":"))


def _written(gpu: Gpu) -> Json:
    total = {} if gpu.total_bytes is None else {"total": gpu.total_bytes}
    named = {"product": gpu.product, "index": gpu.index}
    health: Json = {} if gpu.healthy else {"healthy": False}
    health |= {"fault": gpu.fault} if gpu.fault else {}
    return {"uuid": gpu.uuid, "memory": gpu.memory_bytes, **total, **named, **health}


def read_gpus(node: Mapping[str, Any]) -> tuple[tuple[Gpu, ...], int]:
    """Return the GPUs that a node lists, and how many of its entries are none.

    An agent's token can write anything there, and its UUIDs reach pods, lists and messages. So an
    entry that is malformed, or beyond the first `MOST_GPUS`, is no GPU, and its texts are printable
    and bounded. A list that cannot be read at all counts as one such entry.
    """
    written = annotations_of(node).get(NODE_GPUS_ANNOTATION)
    if written is None:
        return (), 0
    try:
        listed = json.loads(written)
    except (ValueError, TypeError, RecursionError):
        listed = None
    entries = listed if isinstance(listed, list) else [None]
    gpus = [gpu for gpu in map(_read_gpu, entries[:MOST_GPUS]) if gpu is not None]
    unread = len(entries) - len(gpus)
    gpus.sort(key=lambda gpu: (gpu.index, gpu.uuid))
    return tuple({gpu.uuid: gpu for gpu in gpus}.values()), unread


def _read_gpu(entry: Any) -> Gpu | None:
    match entry:
        case {"uuid": str(uuid), "memory": int(memory), "product": str(name), "index": int(index)}:
            amount_bytes = memory // MIB * MIB
            if names_gpu(uuid, index) and MIB <= amount_bytes <= MOST_GPU_BYTES:
                healthy = entry.get("healthy") is not False
                return Gpu(
                    uuid=uuid,
                    memory_bytes=amount_bytes,
                    product=replace_unprintable(name, LONGEST_PRODUCT),
                    index=index,
                    total_bytes=_total(entry, amount_bytes),
                    healthy=healthy,
                    fault="" if healthy else _fault(entry.get("fault")),
                )
    return None


def _fault(fault: object) -> str:
    return replace_unprintable(fault, LONGEST_FAULT) if isinstance(fault, str) else ""


def _total(entry: Mapping[str, Any], usable_bytes: int) -> int | None:
    """Return a GPU's total memory, or None if it is missing or out of range."""
    total = entry.get("total")
    return total if isinstance(total, int) and usable_bytes <= total <= MOST_GPU_BYTES else None
