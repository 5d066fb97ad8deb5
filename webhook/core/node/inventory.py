"""The inventory of a node's GPUs, and how a scan changes it.

A node's capacity is a promise to the pods that run there: when the kubelet restarts it admits them
again, and fails those that no longer fit (kubernetes/kubernetes issue 73948). So what is doubtful
stays as it was, and what is certain changes at once. `webhook.core.node.state` puts it on the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from webhook.core.bounds import LONGEST_STORED
from webhook.core.formatting import join_names_within
from webhook.core.node.node_fields import SharingCode, node_labels, read_gpus, read_verdict
from webhook.core.nvidia.drivers import COMPUTE_MODES, RECOVERIES, Fault, ScannedGpu
from webhook.core.nvidia.variables import DeviceNames
from webhook.core.pod.gpus import (
    FAULT_LOST,
    FAULT_SILENT,
    MAX_FAULT_LENGTH,
    Gpu,
)
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
"""How long a GPU may be lost before it leaves the list: longer than a reset of the GPU or a reload
of the driver takes, and what Kubernetes itself grants a node that is gone (the default toleration
of `node.kubernetes.io/unreachable`)."""
RESIZED: Final = "reports another size"

MODE_FAULT: Final = "compute mode "
"""Beginning of the fault of a GPU whose compute mode is not Default; a command follows."""

NO_MEMORY: Final = "the driver reports no memory of its own, as with unified memory"
"""Reason why a GPU such as GB10 is not shared."""
_UNLESS_OTHERS: Final = f"if there is no other GPU, label the node {NODE_SHARE_LABEL}=false"

AVAILABILITY_FAULTS: Final = frozenset({FAULT_LOST, FAULT_SILENT, RESIZED})
"""Faults of a GPU that is not as advertised, while its driver says nothing bad of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What NVML reported at one moment."""

    gpus: tuple[ScannedGpu, ...] = ()
    driver_version: str = ""
    """Empty where no driver answered."""
    unsure: frozenset[str] = frozenset()
    """UUIDs of GPUs that exist and did not answer; empty for one that gave no UUID."""
    cannot_measure: str = ""
    """Why a sidecar could not measure here; empty where it could."""
    never_measures: bool = False
    """That is permanent, and not a failure of the moment: driver and kernel are what they are."""
    failed: str = ""
    """Why not everything could be read; with a fault, why nothing could."""
    fault: Fault | None = None
    """What the driver's failure as a whole asks for; nothing follows from such a scan."""
    driver_loaded: bool = False
    """The kernel has a driver, although none answered here."""


@dataclass(frozen=True, slots=True)
class TrackedGpu:
    """A GPU that is advertised, and since when it has been in doubt."""

    gpu: Gpu
    doubted_since_s: float | None = None
    """Since when it is lost or reports another size; None while it is what is advertised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What is known of a node's GPUs; the annotation holds most of it for the next start."""

    known: tuple[TrackedGpu, ...] = ()
    driver_version: str = ""
    enforcement: str = ""
    """Empty while nothing is known about it."""
    device_names: str = ""
    """Which names the node's runtime resolves, of `DeviceNames`; empty while that is not known."""
    doubted_since_s: float | None = None
    """Since when a sidecar could not measure, although it is advertised that it can."""
    advertised: bool = False
    """There were GPUs at some time, so that their absence must be shown, too."""
    fixed_bytes: int | None = None
    """An amount that an option sets, whatever a driver says."""
    unshared: str = ""
    """Sentence about the GPUs that have no memory of their own; empty if there are none."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that are advertised, in the driver's order."""
        return tuple(sorted((one.gpu for one in self.known), key=lambda gpu: (gpu.index, gpu.uuid)))

    @property
    def vram_bytes(self) -> int:
        """What the node has to share."""
        total = sum(one.gpu.memory_bytes for one in self.known)
        return total if self.fixed_bytes is None else self.fixed_bytes


def read_inventory(node: Mapping[str, Any]) -> Inventory:
    """Read from a node what an agent advertised before; what cannot be read was not advertised.

    So a restart of the agent while the driver is down forgets nothing.
    """
    labels = node_labels(node)
    known = tuple(map(TrackedGpu, read_gpus(node)[0]))
    enforcement = labels.get(NODE_ENFORCEMENT_LABEL, "")
    device_names = labels.get(NODE_DEVICE_NAMES_LABEL, "")
    verdict = read_verdict(node)
    return Inventory(
        known=known,
        driver_version=labels.get(NODE_DRIVER_LABEL, ""),
        enforcement=enforcement if enforcement in NODE_ENFORCEMENTS else "",
        device_names=device_names if device_names in tuple(DeviceNames) else "",
        advertised=bool(known),
        unshared=verdict.sentence if verdict and verdict.code is SharingCode.SOME_UNFIT else "",
    )


def apply_scan(
    inventory: Inventory, scan: Scan, now_s: float, grace_s: float = GRACE_S
) -> Inventory:
    """Return the inventory after a scan.

    | the driver | a GPU that is advertised | then | healthy |
    | --- | --- | --- | --- |
    | does not answer | - | stays as it is, and every grace begins again | as it was |
    | answers | answers as advertised | stays | by its state (`_judge_health`) |
    | answers | answers with another size | stays, and has the other size after the grace | then |
    | answers | answers in MIG mode | leaves at once: nobody uses it, or MIG were off | - |
    | answers | exists, but fails in another way than being lost | stays | no |
    | answers | is lost, or missing | stays, and leaves after the grace | no |

    A GPU that is new joins at once. Only a grace that is over lowers anything, and MIG. One that is
    not healthy is given to no further pod: that pod would keep it, and never start.
    """
    if inventory.fixed_bytes is not None:
        return inventory
    if scan.failed:
        known = tuple(TrackedGpu(one.gpu) for one in inventory.known)
        return replace(inventory, known=known, doubted_since_s=None)
    seen = {gpu.uuid: gpu for gpu in scan.gpus}
    judged = (_judge(one, seen.get(one.gpu.uuid), scan, now_s, grace_s) for one in inventory.known)
    old = {one.gpu.uuid for one in inventory.known}
    new = ((to_advertised_gpu(gpu), gpu) for gpu in seen.values() if gpu.uuid not in old)
    joined = (TrackedGpu(_judge_health(gpu, by)) for gpu, by in new if gpu is not None)
    known = (*filter(None, judged), *joined)
    enforcement, doubted_since_s = _judge_enforcement(inventory, scan, now_s, grace_s)
    return replace(
        inventory,
        known=known,
        driver_version=scan.driver_version or inventory.driver_version,
        enforcement=enforcement,
        doubted_since_s=doubted_since_s,
        advertised=inventory.advertised or bool(known),
        unshared=_why_unshared(scan, known) or (inventory.unshared if scan.unsure else ""),
    )


def _why_unshared(scan: Scan, known: Iterable[TrackedGpu]) -> str:
    """Return the sentence about GPUs that have no memory of their own; empty without any."""
    advertised, reasons = {one.gpu.uuid for one in known}, find_skip_reasons(scan)
    names = [
        f"GPU {gpu.index} ({gpu.product})"
        for gpu in scan.gpus
        if reasons.get(gpu.uuid) == NO_MEMORY and gpu.uuid not in advertised
    ]
    then = f" cannot be shared by memory: {NO_MEMORY}; {_UNLESS_OTHERS}"
    return join_names_within(names, LONGEST_STORED - len(then)) + then if names else ""


def find_skip_reasons(scan: Scan) -> dict[str, str]:
    """Return, by UUID, why a GPU that answers is not advertised."""
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
    known: TrackedGpu, seen: ScannedGpu | None, scan: Scan, now_s: float, grace_s: float
) -> TrackedGpu | None:
    """Return what becomes of a GPU that is advertised; see `apply_scan`."""
    now = to_advertised_gpu(seen) if seen else None
    if seen and seen.mig:
        return None
    if seen and now:
        now = _judge_health(now, seen, known.gpu.fault)
        if now.memory_bytes == known.gpu.memory_bytes:
            return TrackedGpu(now)
    if not now and (seen or {known.gpu.uuid, ""} & scan.unsure):
        return TrackedGpu(_ill(known.gpu, RESIZED if seen else FAULT_SILENT))
    since_s = now_s if known.doubted_since_s is None else known.doubted_since_s
    if now_s - since_s < grace_s:
        return TrackedGpu(_ill(known.gpu, RESIZED if seen else FAULT_LOST), since_s)
    return TrackedGpu(now) if now else None


def _judge_health(gpu: Gpu, seen: ScannedGpu, before: str = "") -> Gpu:
    """Return the GPU as healthy as its driver's state says; `before` is its last fault.

    A GPU is not healthy while the driver asks for a recovery, after the remapping of a bad row
    failed, or in a compute mode other than Default. A state that the driver does not report makes
    no GPU unhealthy. A recovery ends such a mode as well, so only one of the two is named.
    """
    needs = RECOVERIES.get(seen.recovery or 0)
    faults = ("row remapping failed" * seen.remap_failed, needs and f"needs {needs}")
    fault = "; ".join(filter(None, faults)) or _mode_fault(seen, before)
    return _ill(gpu, fault) if fault else gpu


def _mode_fault(seen: ScannedGpu, before: str) -> str:
    """Return the fault of a compute mode other than Default; as before if it cannot be read."""
    if seen.compute_mode is None:
        return before if before.startswith(MODE_FAULT) else ""
    mode = COMPUTE_MODES.get(seen.compute_mode, seen.compute_mode)
    return f"{MODE_FAULT}{mode}: run nvidia-smi -i {seen.uuid} -c DEFAULT" if mode else ""


def _ill(gpu: Gpu, fault: str) -> Gpu:
    return replace(gpu, healthy=False, fault=fault[:MAX_FAULT_LENGTH])


def _judge_enforcement(
    inventory: Inventory, scan: Scan, now_s: float, grace_s: float
) -> tuple[str, float | None]:
    """Return whether a sidecar can measure, and since when that is in doubt."""
    if not scan.cannot_measure:
        return ENFORCED_BY_SIDECAR, None
    if scan.never_measures or inventory.enforcement != ENFORCED_BY_SIDECAR:
        return NOT_ENFORCED, None
    since_s = now_s if inventory.doubted_since_s is None else inventory.doubted_since_s
    return (ENFORCED_BY_SIDECAR, since_s) if now_s - since_s < grace_s else (NOT_ENFORCED, None)


def to_advertised_gpu(gpu: ScannedGpu) -> Gpu | None:
    """Return the GPU as it is to be shown; None for one that is skipped."""
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
    """Return what is advertised of a GPU, whole MiB; 0 for one that is skipped."""
    return 0 if gpu.mig else max(0, gpu.usable_bytes or 0) // MIB * MIB
