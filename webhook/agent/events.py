"""What changed from one scan to the next, as events: one when it begins, one when it is over.

The journal has all of it; what an admin should see in `kubectl describe node` is an Event as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from webhook.adapters.journal import Journal
from webhook.core.node.events import EventReason
from webhook.core.node.inventory import AVAILABILITY_FAULTS, Inventory, Scan, find_skip_reasons
from webhook.core.pod.gpus import FAULT_LOST, FAULT_SILENT, Gpu
from webhook.core.pod.quantity import format_bytes
from webhook.names import NOT_ENFORCED
from webhook.node_programs.events import EventWriter

_CURE: Final = "It is taken back by itself once the driver no longer says so"


def report(
    journal: Journal, scan: Scan, before: Inventory, after: Inventory, grace_s: float
) -> None:
    """Write what a scan changed; `before` and `after` are the inventories around it."""
    _report_driver(journal, scan, after)
    if scan.failed:
        return
    reasons = find_skip_reasons(scan)
    for gpu in scan.gpus:
        if why := reasons.get(gpu.uuid):
            journal.once(
                f"skipped {gpu.uuid}", "warning", "GPU skipped", why, gpu=gpu.uuid, name=gpu.product
            )
        else:
            journal.over(f"skipped {gpu.uuid}", "GPU no longer skipped", gpu=gpu.uuid)
    _report_unsure(journal, scan, before, after, grace_s)
    _report_health(journal, after)
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
    """Return what is shared; whether a GPU is healthy has a line of its own (`_report_unsure`)."""
    return [replace(gpu, healthy=True, fault="") for gpu in inventory.gpus]


def _report_health(journal: Journal, after: Inventory) -> None:
    """Write which GPUs the driver calls broken, and which no longer."""
    for gpu in after.gpus:
        about = f"health {gpu.uuid}"
        if gpu.healthy:
            journal.over(about, "a GPU is healthy again", gpu=gpu.uuid)
        elif gpu.fault not in AVAILABILITY_FAULTS:
            what = "a GPU is not healthy; it gets no further pod"
            journal.once(about, "warning", what, gpu.fault, gpu=gpu.uuid)


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


def _report_unsure(
    journal: Journal, scan: Scan, before: Inventory, after: Inventory, grace_s: float
) -> None:
    seen = {gpu.uuid for gpu in scan.gpus}
    left = {one.gpu.uuid for one in before.known} - {one.gpu.uuid for one in after.known}
    for uuid in sorted(left):
        why = "it is in MIG mode now" if uuid in seen else f"it was lost for {grace_s:g} s"
        journal.event("warning", "a GPU left the list", why=why, gpu=uuid)
        journal.forget(f"gpu {uuid}")
        journal.forget(f"health {uuid}")
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


def report_changes(
    events: EventWriter, scan: Scan, before: Inventory, after: Inventory, grace_s: float
) -> None:
    """Write an Event of each change that an admin of the node should see; see `EventReason`.

    Where the driver as a whole does not answer there is none: the node keeps what it shows.
    """
    for reason, sentence in _changes(scan, before, after, grace_s):
        events.over(reason)  # it happened again, whatever was told before
        events.once(reason, sentence)
    if scan.failed:
        return
    if after.unshared:
        events.once(EventReason.NOT_SHARED, after.unshared)
    elif before.unshared:
        events.over(EventReason.NOT_SHARED)
    pending = [f"{gpu.index} ({gpu.uuid})" for gpu in scan.gpus if gpu.remap_pending]
    if pending:
        what = "pending retirement of a bad row of memory: reset the GPU when it is idle"
        events.once(EventReason.RETIREMENT_PENDING, f"GPU {', '.join(pending)}: {what}")
    else:
        events.over(EventReason.RETIREMENT_PENDING)
    if scan.cannot_measure and after.gpus and after.enforcement == NOT_ENFORCED:
        events.once(
            EventReason.DRIVER_UNFIT, f"a sidecar cannot measure here: {scan.cannot_measure}"
        )
    elif not scan.cannot_measure:
        events.over(EventReason.DRIVER_UNFIT)


def _changes(
    scan: Scan, before: Inventory, after: Inventory, grace_s: float
) -> Iterator[tuple[EventReason, str]]:
    seen = {gpu.uuid for gpu in scan.gpus}
    now = {one.gpu.uuid: one for one in after.known}
    known = {gpu.uuid: gpu.fault for gpu in before.gpus}
    for gpu in after.gpus:
        if gpu.fault and gpu.fault not in AVAILABILITY_FAULTS and gpu.fault != known.get(gpu.uuid):
            named = f"GPU {gpu.index} ({gpu.uuid})"
            sentence = f"{named}: {gpu.fault}; it gets no further pod. {_CURE}"
            yield EventReason.GPU_UNHEALTHY, sentence
    for was in before.gpus:
        named = f"GPU {was.index} ({was.uuid})"
        one = now.get(was.uuid)
        if one is None:
            if was.healthy and was.uuid in seen:
                yield EventReason.GPU_LOST, f"{named} left the list: it is in MIG mode now"
        elif was.healthy and one.gpu.fault in {FAULT_LOST, FAULT_SILENT}:
            until = f"; it leaves the list if that lasts for {grace_s:g} s"
            doubt = f"{one.gpu.fault}{until if one.gpu.fault == FAULT_LOST else ''}"
            yield EventReason.GPU_LOST, f"{named} {doubt}; it gets no further pod"
        elif not was.healthy and one.gpu.healthy and was.memory_bytes == one.gpu.memory_bytes:
            if was.fault and was.fault not in AVAILABILITY_FAULTS:
                yield EventReason.GPU_HEALTHY, f"{named} is healthy again; it was not: {was.fault}"
            else:
                yield EventReason.GPU_BACK, f"{named} is as advertised again"
    if before.advertised and after.vram_bytes != before.vram_bytes:
        amounts = format_bytes(after.vram_bytes), format_bytes(before.vram_bytes)
        sentence = f"its GPUs have {amounts[0]} to share now, and had {amounts[1]}"
        yield EventReason.CAPACITY_CHANGED, sentence
