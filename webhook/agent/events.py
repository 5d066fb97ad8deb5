"""What changed from one scan to the next, as events: one when it begins, one when it is over.

The journal has all of it; what an admin should see in `kubectl describe node` is an Event as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from webhook.core.node.inventory import NO_ENFORCEMENT, skipped
from webhook.core.pod.quantity import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.adapters.journal import Journal
    from webhook.agent.telling import NodeEvents
    from webhook.core.node.inventory import Inventory, Scan
    from webhook.core.pod.gpus import Gpu

GPU_LOST: Final = "GPULost"
GPU_BACK: Final = "GPUBack"
DRIVER_UNFIT: Final = "GPUDriverUnfit"
CAPACITY_CHANGED: Final = "VRAMCapacityChanged"


def report(
    journal: Journal, scan: Scan, before: Inventory, after: Inventory, grace_s: float
) -> None:
    """Write what a scan changed; `before` and `after` are the inventories around it."""
    _report_driver(journal, scan, after)
    if scan.failed:
        return
    reasons = skipped(scan)
    for gpu in scan.gpus:
        if why := reasons.get(gpu.uuid):
            journal.once(
                f"skipped {gpu.uuid}", "warning", "GPU skipped", why, gpu=gpu.uuid, name=gpu.product
            )
        else:
            journal.over(f"skipped {gpu.uuid}", "GPU no longer skipped", gpu=gpu.uuid)
    _report_doubts(journal, scan, before, after, grace_s)
    if scan.cannot_measure and after.gpus:
        what = "a sidecar cannot measure here"
        journal.once("measure", "warning", what, scan.cannot_measure, label=after.enforcement)
    else:
        journal.over("measure", "a sidecar can measure here", label=after.enforcement)
    shared = _shared(after) != _shared(before)
    if shared or (after.gpus and after.enforcement != before.enforcement):
        journal.event(
            "info",
            "GPUs",
            vram=format_bytes(after.vram_bytes),
            gpus={
                gpu.uuid: f"{gpu.product}, {format_bytes(gpu.memory_bytes)}" for gpu in after.gpus
            },
            driver=after.driver_version,
            enforcement=after.enforcement,
        )


def _shared(inventory: Inventory) -> list[Gpu]:
    """Return what is shared; whether a GPU is healthy has a line of its own (`_report_doubts`)."""
    return [replace(gpu, healthy=True) for gpu in inventory.gpus]


def _report_driver(journal: Journal, scan: Scan, after: Inventory) -> None:
    """Report once that no driver answers, and that this changes nothing on the node."""
    if scan.failed and after.gpus:
        what = "the driver does not answer; the node keeps what it shows"
        journal.once("driver", "warning", what, scan.failed)
    elif scan.failed:
        what = "no GPU can be read on this node; waiting, and leaving the node alone"
        journal.once("driver", "info", what, scan.failed)
    elif not scan.gpus and not scan.unsure and not after.advertised:
        why = "the driver shows no GPU to this container"
        journal.once("driver", "info", "no GPU on this node; waiting", why)
    else:
        journal.over("driver", "the driver answers", driver=scan.driver_version)


def _report_doubts(
    journal: Journal, scan: Scan, before: Inventory, after: Inventory, grace_s: float
) -> None:
    seen = {gpu.uuid for gpu in scan.gpus}
    left = {one.gpu.uuid for one in before.known} - {one.gpu.uuid for one in after.known}
    restarted = before.boot_id not in {"", after.boot_id}
    lost = "the machine has others" if restarted else f"it was lost for {grace_s:g} s"
    for uuid in sorted(left):
        why = "it is in MIG mode now" if uuid in seen else lost
        journal.event("warning", "a GPU left the list", why=why, gpu=uuid)
        journal.forget(f"gpu {uuid}")
    for one in after.known:
        uuid = one.gpu.uuid
        if one.doubted_since_s is None:
            journal.over(f"gpu {uuid}", "a GPU is as advertised", gpu=uuid)
        elif uuid in seen:
            what = "a GPU reports another size; the node shows it if that lasts"
            journal.once(f"gpu {uuid}", "warning", what, f"for {grace_s:g} s", gpu=uuid)
        else:
            what = "a GPU is lost; it leaves the list if that lasts"
            journal.once(f"gpu {uuid}", "warning", what, f"for {grace_s:g} s", gpu=uuid)
    if scan.unsure:
        named = ", ".join(sorted(uuid or "one without a UUID" for uuid in scan.unsure))
        journal.once("unsure", "warning", "a GPU does not answer; it gets no further pod", named)
    else:
        journal.over("unsure", "every GPU answers, or is lost")


def tell_changes(
    events: NodeEvents, scan: Scan, before: Inventory, after: Inventory, grace_s: float
) -> None:
    """Write an Event of each change that an admin of the node should see.

    | what | Event |
    | --- | --- |
    | a GPU that was healthy is lost, does not answer, or left the list | Warning `GPULost` |
    | a GPU that was not healthy is as advertised again | Normal `GPUBack` |
    | a sidecar cannot measure here, and the node shows that | Warning `GPUDriverUnfit` |
    | what is advertised already is another amount now | Normal `VRAMCapacityChanged` |
    | the driver as a whole does not answer | none: the node keeps what it shows |
    """
    if scan.failed:
        return
    for reason, sentence, warning in _changes(scan, before, after, grace_s):
        events.over(reason)  # it happened again, whatever was told before
        events.tell(reason, sentence, warning=warning)
    if scan.cannot_measure and after.gpus and after.enforcement == NO_ENFORCEMENT:
        events.tell(DRIVER_UNFIT, f"a sidecar cannot measure here: {scan.cannot_measure}")
    elif not scan.cannot_measure:
        events.over(DRIVER_UNFIT)


def _changes(
    scan: Scan, before: Inventory, after: Inventory, grace_s: float
) -> Iterator[tuple[str, str, bool]]:
    seen = {gpu.uuid for gpu in scan.gpus}
    now = {one.gpu.uuid: one for one in after.known}
    for was in before.gpus:
        named = f"GPU {was.index} ({was.uuid})"
        one = now.get(was.uuid)
        if one is None:
            if was.healthy:
                why = "it is in MIG mode now" if was.uuid in seen else "the machine has others"
                yield GPU_LOST, f"{named} left the list: {why}", True
        elif was.healthy and not one.gpu.healthy and was.uuid not in seen:
            lost = f"is lost; it leaves the list if that lasts for {grace_s:g} s"
            doubt = "does not answer" if one.doubted_since_s is None else lost
            yield GPU_LOST, f"{named} {doubt}; it gets no further pod", True
        elif not was.healthy and one.gpu.healthy and was.memory_bytes == one.gpu.memory_bytes:
            yield GPU_BACK, f"{named} is as advertised again", False
    if before.advertised and after.vram_bytes != before.vram_bytes:
        amounts = format_bytes(after.vram_bytes), format_bytes(before.vram_bytes)
        yield (
            CAPACITY_CHANGED,
            f"its GPUs have {amounts[0]} to share now, and had {amounts[1]}",
            False,
        )
