"""Inventory of a node's GPUs, and how scans change it.

A node's capacity is a promise to its running pods: a kubelet that restarts admits them again, and
fails pods that no longer fit (kubernetes/kubernetes issue 73948). Uncertain facts therefore leave
the inventory unchanged, and certain ones change it at once. `core.node.state` derives the state of
the node from the inventory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from webhook.core.bounds import MAX_STRING_LENGTH
from webhook.core.formatting import join_names_within
from webhook.core.node.node_fields import SharingCode, node_labels, read_gpus, read_verdict
from webhook.core.nvidia.drivers import COMPUTE_MODES, RECOVERIES, Fault, ScannedGpu
from webhook.core.nvidia.variables import DeviceNames
from webhook.core.pod.gpus import FAULT_LOST, FAULT_SILENT, MAX_FAULT_LENGTH, Gpu
from webhook.core.pod.quantity import MIB
from webhook.names import (
    ENFORCED_BY_SIDECAR,
    NODE_DEVICE_NAMES_LABEL,
    NODE_DRIVER_LABEL,
    NODE_ENFORCEMENT_LABEL,
    NODE_ENFORCEMENTS,
    NODE_SHARE_LABEL,
    NOT_ENFORCED,
)

GRACE_S: Final = 300.0
"""Time for which a GPU may be lost before it leaves the inventory, in seconds.

A reset of the GPU and a reload of the driver take less. Kubernetes gives an unreachable node the
same time (the default toleration of `node.kubernetes.io/unreachable`).
"""
RESIZED: Final = "reports another size"

MODE_FAULT: Final = "compute mode "
"""Prefix of the fault of a GPU whose compute mode is not Default, before the command that fixes
it."""

NO_MEMORY: Final = "the driver reports no memory of its own, as with unified memory"
"""Reason why a GPU such as GB10 is not shared."""
_UNLESS_OTHERS: Final = f"if there is no other GPU, label the node {NODE_SHARE_LABEL}=false"

AVAILABILITY_FAULTS: Final = frozenset({FAULT_LOST, FAULT_SILENT, RESIZED})
"""Faults of a GPU that is not as advertised although its driver reports no fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """NVML's facts at one moment."""

    gpus: tuple[ScannedGpu, ...] = ()
    driver_version: str = ""
    """Driver version; empty if no driver responded."""
    unsure: frozenset[str] = frozenset()
    """UUIDs of GPUs that exist but did not respond; an empty string for a GPU without a UUID."""
    cannot_measure: str = ""
    """Reason why a sidecar could not measure here; empty if it could."""
    never_measures: bool = False
    """True if `cannot_measure` is permanent, since driver or kernel cause it."""
    failed: str = ""
    """Reason why the scan is incomplete, or has no GPUs if `fault` is set; empty if it is
    complete."""
    fault: Fault | None = None
    """Fault of the driver as a whole, so the scan is ignored; None if the driver responded."""
    driver_loaded: bool = False
    """True if the kernel has a driver although none responded here."""


@dataclass(frozen=True, slots=True)
class TrackedGpu:
    """An advertised GPU."""

    gpu: Gpu
    doubted_since_s: float | None = None
    """Time since which the GPU is lost or reports another size; None while it is as advertised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Facts about a node's GPUs; most are stored in the node's annotation for the next start."""

    tracked: tuple[TrackedGpu, ...] = ()
    driver_version: str = ""
    enforcement: str = ""
    device_names: str = ""
    doubted_since_s: float | None = None
    """Time since which a sidecar cannot measure although the node advertises that it can; None
    if it can."""
    advertised: bool = False
    """True if GPUs were advertised before, so that their absence must be shown."""
    fixed_bytes: int | None = None
    """Amount that an option sets instead of the driver's report, in bytes; None without the
    option."""
    unshared: str = ""
    """Sentence about GPUs without memory of their own; empty if there are none."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Advertised GPUs in the driver's order."""
        return tuple(
            sorted((entry.gpu for entry in self.tracked), key=lambda gpu: (gpu.index, gpu.uuid))
        )

    @property
    def vram_bytes(self) -> int:
        """Shared memory of all GPUs, in bytes."""
        total = sum(entry.gpu.memory_bytes for entry in self.tracked)
        return total if self.fixed_bytes is None else self.fixed_bytes


def read_inventory(node: Mapping[str, Any]) -> Inventory:
    """Return the inventory that an agent stored in a node; malformed parts are left out.

    So an agent that starts while the driver is down keeps the advertised GPUs.
    """
    labels = node_labels(node)
    tracked = tuple(map(TrackedGpu, read_gpus(node)[0]))
    enforcement = labels.get(NODE_ENFORCEMENT_LABEL, "")
    device_names = labels.get(NODE_DEVICE_NAMES_LABEL, "")
    verdict = read_verdict(node)
    return Inventory(
        tracked=tracked,
        driver_version=labels.get(NODE_DRIVER_LABEL, ""),
        enforcement=enforcement if enforcement in NODE_ENFORCEMENTS else "",
        device_names=device_names if device_names in tuple(DeviceNames) else "",
        advertised=bool(tracked),
        unshared=verdict.sentence if verdict and verdict.code is SharingCode.SOME_UNFIT else "",
    )


def apply_scan(
    inventory: Inventory, scan: Scan, now_s: float, grace_s: float = GRACE_S
) -> Inventory:
    """Return the inventory after a scan.

    | the driver | an advertised GPU | then | healthy |
    | --- | --- | --- | --- |
    | does not respond | - | stays unchanged, and every grace period restarts | unchanged |
    | responds | responds as advertised | stays | by its state (`_judge_health`) |
    | responds | responds with another size | stays, and has the other size after the grace | then |
    | responds | responds in MIG mode | leaves at once: no pod uses it, or MIG would be off | - |
    | responds | exists, but fails in another way than being lost | stays | no |
    | responds | is lost, or missing | stays, and leaves after the grace | no |

    A new GPU joins at once. Capacity falls only after the grace period, or for MIG. An unhealthy
    GPU is assigned to no further pod, since that pod would be bound to it and never start.
    """
    if inventory.fixed_bytes is not None:
        return inventory
    if scan.failed:
        tracked = tuple(TrackedGpu(entry.gpu) for entry in inventory.tracked)
        return replace(inventory, tracked=tracked, doubted_since_s=None)
    seen = {gpu.uuid: gpu for gpu in scan.gpus}
    judged = (
        _judge(entry, seen.get(entry.gpu.uuid), scan, now_s, grace_s) for entry in inventory.tracked
    )
    old = {entry.gpu.uuid for entry in inventory.tracked}
    new = ((to_advertised_gpu(gpu), gpu) for gpu in seen.values() if gpu.uuid not in old)
    joined = (TrackedGpu(_judge_health(gpu, by)) for gpu, by in new if gpu is not None)
    tracked = (*filter(None, judged), *joined)
    enforcement, doubted_since_s = _judge_enforcement(inventory, scan, now_s, grace_s)
    return replace(
        inventory,
        tracked=tracked,
        driver_version=scan.driver_version or inventory.driver_version,
        enforcement=enforcement,
        doubted_since_s=doubted_since_s,
        advertised=inventory.advertised or bool(tracked),
        unshared=_explain_unshared(scan, tracked) or (inventory.unshared if scan.unsure else ""),
    )


def _explain_unshared(scan: Scan, tracked: Iterable[TrackedGpu]) -> str:
    advertised, reasons = {entry.gpu.uuid for entry in tracked}, find_skip_reasons(scan)
    names = [
        f"GPU {gpu.index} ({gpu.product})"
        for gpu in scan.gpus
        if reasons.get(gpu.uuid) == NO_MEMORY and gpu.uuid not in advertised
    ]
    then = f" cannot be shared by memory: {NO_MEMORY}; {_UNLESS_OTHERS}"
    return join_names_within(names, MAX_STRING_LENGTH - len(then)) + then if names else ""


def find_skip_reasons(scan: Scan) -> dict[str, str]:
    """Return the reason why a responding GPU is not advertised, keyed by UUID."""
    reasons = {}
    for gpu in scan.gpus:
        if gpu.mig:
            reasons[gpu.uuid] = "it is in MIG mode, in which memory is divided by the driver"
        elif gpu.usable_bytes is None:
            reasons[gpu.uuid] = NO_MEMORY
        elif gpu.usable_bytes < MIB:
            reasons[gpu.uuid] = "it has less than 1 MiB of usable memory"
    return reasons


def _judge(
    tracked: TrackedGpu, seen: ScannedGpu | None, scan: Scan, now_s: float, grace_s: float
) -> TrackedGpu | None:
    """Return an advertised GPU after a scan, or None if it leaves; see `apply_scan`."""
    now = to_advertised_gpu(seen) if seen else None
    if seen and seen.mig:
        return None
    if seen and now:
        now = _judge_health(now, seen, tracked.gpu.fault)
        if now.memory_bytes == tracked.gpu.memory_bytes:
            return TrackedGpu(now)
    if not now and (seen or {tracked.gpu.uuid, ""} & scan.unsure):
        return TrackedGpu(_mark_unhealthy(tracked.gpu, RESIZED if seen else FAULT_SILENT))
    since_s = now_s if tracked.doubted_since_s is None else tracked.doubted_since_s
    if now_s - since_s < grace_s:
        return TrackedGpu(_mark_unhealthy(tracked.gpu, RESIZED if seen else FAULT_LOST), since_s)
    return TrackedGpu(now) if now else None


def _judge_health(gpu: Gpu, seen: ScannedGpu, before: str = "") -> Gpu:
    """Return the GPU with the health that its driver reports; `before` is its last fault.

    A GPU is unhealthy while the driver requests a recovery, after remapping a bad row failed, or in
    a compute mode other than Default. A state that the driver does not report makes no GPU
    unhealthy. A recovery also resets the compute mode, so only one of the two faults is named.
    """
    needs = RECOVERIES.get(seen.recovery or 0)
    faults = ("row remapping failed" * seen.remap_failed, needs and f"needs {needs}")
    fault = "; ".join(filter(None, faults)) or _mode_fault(seen, before)
    return _mark_unhealthy(gpu, fault) if fault else gpu


def _mode_fault(seen: ScannedGpu, before: str) -> str:
    """Return the fault of a compute mode other than Default; the previous fault if unknown."""
    if seen.compute_mode is None:
        return before if before.startswith(MODE_FAULT) else ""
    mode = COMPUTE_MODES.get(seen.compute_mode, seen.compute_mode)
    return f"{MODE_FAULT}{mode}: run nvidia-smi -i {seen.uuid} -c DEFAULT" if mode else ""


def _mark_unhealthy(gpu: Gpu, fault: str) -> Gpu:
    return replace(gpu, healthy=False, fault=fault[:MAX_FAULT_LENGTH])


def _judge_enforcement(
    inventory: Inventory, scan: Scan, now_s: float, grace_s: float
) -> tuple[str, float | None]:
    """Return the value of the label `enforcement`, and the time since which it is in doubt."""
    if not scan.cannot_measure:
        return ENFORCED_BY_SIDECAR, None
    if scan.never_measures or inventory.enforcement != ENFORCED_BY_SIDECAR:
        return NOT_ENFORCED, None
    since_s = now_s if inventory.doubted_since_s is None else inventory.doubted_since_s
    return (ENFORCED_BY_SIDECAR, since_s) if now_s - since_s < grace_s else (NOT_ENFORCED, None)


def to_advertised_gpu(gpu: ScannedGpu) -> Gpu | None:
    """Return the advertised form of a GPU; None if it is skipped."""
    usable_bytes = advertised_bytes(gpu)
    if not usable_bytes:
        return None
    return Gpu(
        uuid=gpu.uuid,
        memory_bytes=usable_bytes,
        product=gpu.product,
        index=gpu.index,
        total_bytes=gpu.total_bytes,
    )


def advertised_bytes(gpu: ScannedGpu) -> int:
    """Return the advertised bytes of a GPU in whole MiB; 0 if it is skipped."""
    return 0 if gpu.mig else max(0, gpu.usable_bytes or 0) // MIB * MIB
