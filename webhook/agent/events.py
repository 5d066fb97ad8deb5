"""Log lines and Events about changes from one scan to the next: when they begin and when they end.

The log has every change. Events report changes that an admin should see in `kubectl describe node`.
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


def log_changes(
    journal: Journal, scan: Scan, before: Inventory, after: Inventory, grace_s: float
) -> None:
    """Log the changes of a scan; `before` and `after` are the inventories around it."""
    _log_driver(journal, scan, after)
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
    _log_lost_gpus(journal, scan, before, after, grace_s)
    _log_health(journal, after)
    if scan.cannot_measure and after.gpus:
        what = "a sidecar cannot measure here"
        journal.once("measure", "warning", what, scan.cannot_measure, label=after.enforcement)
    else:
        journal.over("measure", "a sidecar can measure here", label=after.enforcement)
    shared = _shared_gpus(after) != _shared_gpus(before)
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


def _shared_gpus(inventory: Inventory) -> list[Gpu]:
    """Return the shared GPUs without their health, which `_log_health` reports."""
    return [replace(gpu, healthy=True, fault="") for gpu in inventory.gpus]


def _log_health(journal: Journal, after: Inventory) -> None:
    """Log the GPUs that the driver reports as broken, and the GPUs that have recovered."""
    for gpu in after.gpus:
        about = f"health {gpu.uuid}"
        if gpu.healthy:
            journal.over(about, "a GPU is healthy again", gpu=gpu.uuid)
        elif gpu.fault not in AVAILABILITY_FAULTS:
            what = "a GPU is not healthy; it gets no further pod"
            journal.once(about, "warning", what, gpu.fault, gpu=gpu.uuid)


def _log_driver(journal: Journal, scan: Scan, after: Inventory) -> None:
    """Log once that no driver responds and that the node stays unchanged."""
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


def _log_lost_gpus(
    journal: Journal, scan: Scan, before: Inventory, after: Inventory, grace_s: float
) -> None:
    seen = {gpu.uuid for gpu in scan.gpus}
    left = {gpu.uuid for gpu in before.gpus} - {gpu.uuid for gpu in after.gpus}
    for uuid in sorted(left):
        why = "it is in MIG mode now" if uuid in seen else f"it was lost for {grace_s:g} s"
        journal.event("warning", "a GPU left the list", why=why, gpu=uuid)
        journal.forget(f"gpu {uuid}")
        journal.forget(f"health {uuid}")
    for entry in after.tracked:
        uuid = entry.gpu.uuid
        if entry.doubted_since_s is None:
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


def write_events(
    events: EventWriter, scan: Scan, before: Inventory, after: Inventory, grace_s: float
) -> None:
    """Write an Event for each change that an admin of the node should see; see `EventReason`.

    No Event is written if the driver as a whole does not respond, since the node stays unchanged.
    """
    for reason, sentence in _find_events(scan, before, after, grace_s):
        events.over(reason)  # it is a new change, so an earlier Event does not count
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


def _find_events(
    scan: Scan, before: Inventory, after: Inventory, grace_s: float
) -> Iterator[tuple[EventReason, str]]:
    seen = {gpu.uuid for gpu in scan.gpus}
    now = {entry.gpu.uuid: entry for entry in after.tracked}
    faults = {gpu.uuid: gpu.fault for gpu in before.gpus}
    for gpu in after.gpus:
        if gpu.fault and gpu.fault not in AVAILABILITY_FAULTS and gpu.fault != faults.get(gpu.uuid):
            named = f"GPU {gpu.index} ({gpu.uuid})"
            sentence = f"{named}: {gpu.fault}; it gets no further pod. {_CURE}"
            yield EventReason.GPU_UNHEALTHY, sentence
    for was in before.gpus:
        named = f"GPU {was.index} ({was.uuid})"
        entry = now.get(was.uuid)
        if entry is None:
            if was.healthy and was.uuid in seen:
                yield EventReason.GPU_LOST, f"{named} left the list: it is in MIG mode now"
        elif was.healthy and entry.gpu.fault in {FAULT_LOST, FAULT_SILENT}:
            until = f"; it leaves the list if that lasts for {grace_s:g} s"
            doubt = f"{entry.gpu.fault}{until if entry.gpu.fault == FAULT_LOST else ''}"
            yield EventReason.GPU_LOST, f"{named} {doubt}; it gets no further pod"
        elif not was.healthy and entry.gpu.healthy and was.memory_bytes == entry.gpu.memory_bytes:
            if was.fault and was.fault not in AVAILABILITY_FAULTS:
                yield EventReason.GPU_HEALTHY, f"{named} is healthy again; it was not: {was.fault}"
            else:
                yield EventReason.GPU_BACK, f"{named} is as advertised again"
    if before.advertised and after.vram_bytes != before.vram_bytes:
        amounts = format_bytes(after.vram_bytes), format_bytes(before.vram_bytes)
        sentence = f"its GPUs have {amounts[0]} to share now, and had {amounts[1]}"
        yield EventReason.CAPACITY_CHANGED, sentence
