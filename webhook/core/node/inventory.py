"""The inventory of a node's GPUs, and how a scan changes it.

A node's capacity is a promise to the pods that run there: when the kubelet restarts it admits them
again, and fails those that no longer fit (kubernetes/kubernetes issue 73948). So what is doubtful
stays as it was, and what is certain changes at once. `webhook.core.node.state` puts it on the node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from webhook.core.nvidia.drivers import RECOVERIES, Fault, SeenGpu, explain_xid
from webhook.core.pod.gpus import LONGEST_FAULT, Gpu
from webhook.core.pod.quantity import MIB
from webhook.names import ENFORCED_BY_SIDECAR, NOT_ENFORCED

if TYPE_CHECKING:
    from collections.abc import Iterable

GRACE_S: Final = 300.0
"""How long a GPU may be lost before it leaves the list: longer than a reset of the GPU or a reload
of the driver takes, and what Kubernetes itself grants a node that is gone (the default toleration
of `node.kubernetes.io/unreachable`)."""

LOST: Final = "is lost"
SILENT: Final = "does not answer"
RESIZED: Final = "reports another size"
UNSEEN: Final = frozenset({LOST, SILENT, RESIZED})
"""Faults of a GPU that is not as advertised, while its driver says nothing bad of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What NVML reported at one moment."""

    gpus: tuple[SeenGpu, ...] = ()
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
    boot_id: str = ""
    """The start of the machine (`nodeInfo.bootID`) in which one of these GPUs answered last; empty
    where that is not known."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that are advertised, in the driver's order."""
        return tuple(sorted((one.gpu for one in self.known), key=lambda gpu: (gpu.index, gpu.uuid)))

    @property
    def vram_bytes(self) -> int:
        """What the node has to share."""
        total = sum(one.gpu.memory_bytes for one in self.known)
        return total if self.fixed_bytes is None else self.fixed_bytes


def observe(
    inventory: Inventory, scan: Scan, now_s: float, grace_s: float = GRACE_S, boot_id: str = ""
) -> Inventory:
    """Return the inventory after a scan; `boot_id` is that of the machine, empty where unknown.

    | the driver | a GPU that is advertised | then | healthy |
    | --- | --- | --- | --- |
    | does not answer | - | stays as it is, and every grace begins again | as it was |
    | answers | answers as advertised | stays | by state and Xid (`_judge_health`) |
    | answers | answers with another size | stays, and has the other size after the grace | then |
    | answers | answers in MIG mode | leaves at once: nobody uses it, or MIG were off | - |
    | answers | exists, but fails in another way than being lost | stays | no |
    | answers | is lost, or missing | stays, and leaves after the grace | no |

    A GPU that is new joins at once. Only a grace that is over lowers anything, and MIG. One that is
    not healthy is given to no further pod: that pod would keep it, and never start. Another machine
    (`_is_another_machine`) has no grace: its GPUs and those of the last are never shown together.
    """
    if inventory.fixed_bytes is not None:
        return inventory
    if scan.failed:
        known = tuple(TrackedGpu(one.gpu) for one in inventory.known)
        return replace(inventory, known=known, doubted_since_s=None)
    inventory = _of_this_start(inventory, boot_id)
    seen = {gpu.uuid: gpu for gpu in scan.gpus}
    left_s = 0.0 if _is_another_machine(inventory, scan, boot_id) else grace_s
    judged = (_judge(one, seen.get(one.gpu.uuid), scan, now_s, left_s) for one in inventory.known)
    old = {one.gpu.uuid for one in inventory.known}
    new = ((as_advertised(gpu), gpu) for gpu in seen.values() if gpu.uuid not in old)
    joined = (TrackedGpu(_judge_health(gpu, by, gpu)) for gpu, by in new if gpu is not None)
    known = (*filter(None, judged), *joined)
    answered = boot_id and not seen.keys().isdisjoint(one.gpu.uuid for one in known)
    enforcement, doubted_since_s = _judge_enforcement(inventory, scan, now_s, grace_s)
    return replace(
        inventory,
        known=known,
        driver_version=scan.driver_version or inventory.driver_version,
        enforcement=enforcement,
        doubted_since_s=doubted_since_s,
        advertised=inventory.advertised or bool(known),
        boot_id=boot_id if answered else inventory.boot_id,
    )


def strike(inventory: Inventory, uuid: str, xid: int, boot_id: str = "") -> Inventory:
    """Return the inventory once a GPU reported an Xid of `BROKEN`, in this start of the machine.

    The first is kept: what follows it is often its consequence. Without effect on a GPU that is not
    advertised.
    """
    if all(one.gpu.uuid != uuid for one in inventory.known):
        return inventory
    inventory = _of_this_start(inventory, boot_id)
    known = tuple(
        replace(one, gpu=_ill(replace(one.gpu, xid=one.gpu.xid or xid, resets=False)))
        if one.gpu.uuid == uuid
        else one
        for one in inventory.known
    )
    return replace(inventory, known=known, boot_id=boot_id or inventory.boot_id)


def forget_xids(inventory: Inventory) -> Inventory:
    """Forget every Xid; what is not healthy by it is until the next scan says more."""
    known = (
        replace(one, gpu=replace(one.gpu, xid=0, resets=False)) if one.gpu.xid else one
        for one in inventory.known
    )
    return replace(inventory, known=tuple(known))


def _of_this_start(inventory: Inventory, boot_id: str) -> Inventory:
    """Forget the Xids of an earlier start of the machine: a reboot resets its GPUs."""
    restarted = boot_id and inventory.boot_id not in {"", boot_id}
    return forget_xids(inventory) if restarted else inventory


def skipped(scan: Scan) -> dict[str, str]:
    """Return, by UUID, why a GPU that answers is not advertised."""
    reasons = {}
    for gpu in scan.gpus:
        if gpu.mig:
            reasons[gpu.uuid] = "it is in MIG mode, in which memory is divided by the driver"
        elif gpu.usable_bytes is None:
            reasons[gpu.uuid] = "the driver reports no memory of its own; --vram can name an amount"
        elif gpu.usable_bytes < MIB:
            reasons[gpu.uuid] = "it has less than 1 MiB of usable memory"
    return reasons


def _is_another_machine(inventory: Inventory, scan: Scan, boot_id: str) -> bool:
    """Say whether the machine behind the Node was replaced since its GPUs were recorded.

    | since then | the scan shows | another machine |
    | --- | --- | --- |
    | the machine started again | GPUs, and none of those that are known | yes |
    | the machine started again | one that is known, answering or not | no |
    | the machine started again | no GPU, or the driver does not answer | no: it may be on its way |
    | it did not, or nobody knows | anything | no |
    """
    if not scan.gpus or not boot_id or inventory.boot_id in {"", boot_id}:
        return False
    there = {gpu.uuid for gpu in scan.gpus} | scan.unsure
    return not there & {one.gpu.uuid for one in inventory.known}


def _judge(
    known: TrackedGpu, seen: SeenGpu | None, scan: Scan, now_s: float, grace_s: float
) -> TrackedGpu | None:
    """Return what becomes of a GPU that is advertised; see `observe`."""
    now = as_advertised(seen) if seen else None
    if seen and seen.mig:
        return None
    if seen and now:
        now = _judge_health(now, seen, known.gpu)
        if now.memory_bytes == known.gpu.memory_bytes:
            return TrackedGpu(now)
    if not now and (seen or {known.gpu.uuid, ""} & scan.unsure):
        return TrackedGpu(_ill(known.gpu, (RESIZED if seen else SILENT,)))
    since_s = now_s if known.doubted_since_s is None else known.doubted_since_s
    if now_s - since_s < grace_s:
        return TrackedGpu(_ill(known.gpu, (RESIZED if seen else LOST,)), since_s)
    return TrackedGpu(now) if now else None


def _judge_health(gpu: Gpu, seen: SeenGpu, was: Gpu) -> Gpu:
    """Say whether a GPU that answers is healthy, by the driver's state and what it `was`.

    | an Xid is recorded | the driver asked for a recovery since | now it asks for | the Xid |
    | --- | --- | --- | --- |
    | no | - | any, or does not say | - |
    | yes | no | none, or does not say | stays |
    | yes | no | one | stays, and that it asked is remembered |
    | yes | yes | one, or does not say | stays |
    | yes | yes | none | is forgotten: there was a reset |

    What the driver does not say makes no GPU healthy, and none unhealthy.
    """
    needs = RECOVERIES.get(seen.recovery or 0)
    xid = 0 if was.resets and seen.recovery == 0 else was.xid
    gpu = replace(gpu, xid=xid, resets=bool(xid and (was.resets or needs)))
    state = ("row remapping failed" * seen.remap_failed, needs and f"needs {needs}")
    return _ill(gpu, filter(None, state)) if xid or any(state) else gpu


def _ill(gpu: Gpu, faults: Iterable[str] = ()) -> Gpu:
    """Return the GPU as one that is not healthy, for its Xid and these."""
    said = (*((explain_xid(gpu.xid),) if gpu.xid else ()), *faults)
    return replace(gpu, healthy=False, fault="; ".join(said)[:LONGEST_FAULT])


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


def as_advertised(gpu: SeenGpu) -> Gpu | None:
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


def advertised_bytes(gpu: SeenGpu) -> int:
    """Return what is advertised of a GPU, whole MiB; 0 for one that is skipped."""
    return 0 if gpu.mig else max(0, gpu.usable_bytes or 0) // MIB * MIB
