"""What changed from one scan to the next, as events: one when it begins, one when it is over."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from webhook.core.node.inventory import skipped
from webhook.core.pod.quantity import format_bytes

if TYPE_CHECKING:
    from webhook.adapters.journal import Journal
    from webhook.core.node.inventory import Inventory, Scan
    from webhook.core.pod.gpus import Gpu


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
