"""One scan of the node's GPUs: NVML in, a Scan out; failures are part of it."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from webhook.adapters import surroundings
from webhook.adapters.nvml import NvmlError
from webhook.core.node.driver import KERNEL_DRIVER
from webhook.core.node.inventory import Scan, SeenGpu
from webhook.core.nvidia.drivers import DriverClass, Fault, driver_class, explain_driver

if TYPE_CHECKING:
    from collections.abc import Iterable

    from webhook.adapters.nvml import Device, Nvml


def scan(nvml: Nvml, kernel_driver: str = KERNEL_DRIVER, *, proc: str = "/proc") -> Scan:
    """Open NVML, scan, and close: while it is open, the driver cannot be replaced.

    Never raises: where the driver as a whole does not answer, the scan says why, and whether the
    kernel has one, by the file `kernel_driver`.
    """
    try:
        with nvml:
            version = nvml.driver_version()
            devices = _devices(nvml)
            seen = Scan(
                tuple(_seen(device, nvml) for device in devices),
                driver_version=version,
                unsure=_unsure(nvml.unreachable),
            )
            return _probed(seen, nvml, devices, proc)
    except NvmlError as error:
        loaded = os.path.exists(kernel_driver)  # noqa: PTH110 - Path's may raise
        return Scan(failed=str(error), fault=error.fault, driver_loaded=loaded)


def _devices(nvml: Nvml) -> tuple[Device, ...]:
    """Return the GPUs that answer; where none does, but the driver does, none."""
    try:
        return nvml.devices()
    except NvmlError:
        if not nvml.unreachable:
            raise
        return ()


def _unsure(errors: Iterable[NvmlError]) -> frozenset[str]:
    """Return which GPUs failed to answer but are not lost."""
    return frozenset(error.gpu for error in errors if error.fault is not Fault.GPU_LOST)


def _seen(device: Device, nvml: Nvml) -> SeenGpu:
    shown = device.uuid, device.name, device.index, device.usable_bytes, device.mig
    # It was just there: where it fails now, the next scan says what became of it.
    used_bytes = recovery = None
    pending = failed = False
    with suppress(NvmlError):
        used_bytes = nvml.device_used_bytes(device.uuid)
    with suppress(NvmlError):
        recovery = nvml.recovery(device.uuid)
    with suppress(NvmlError):
        pending, failed = nvml.remaps(device.uuid)
    return SeenGpu(
        *shown,
        total_bytes=device.total_bytes,
        used_bytes=used_bytes,
        recovery=recovery,
        remap_failed=failed,
        remap_pending=pending,
    )


def _probed(seen: Scan, nvml: Nvml, devices: Iterable[Device], proc: str) -> Scan:
    """Try what the enforcer's self-test will: version, kernel, and figures of each shared GPU.

    What it cannot try is whether the driver gives a figure for each process: a container sees only
    its own processes, and this one has none on a GPU. The version stands in for that.
    """
    kernel = surroundings.trustworthy_kernel(proc=proc)
    version = seen.driver_version
    if driver_class(version) is not DriverClass.WORKS:
        return replace(seen, cannot_measure=explain_driver(version), never_measures=True)
    if kernel.holds is False:
        return replace(seen, cannot_measure=kernel.reason, never_measures=True)
    try:
        for device in devices:
            if not device.mig:
                nvml.device_used_bytes(device.uuid)
                nvml.processes(device.uuid)
    except NvmlError as error:
        return replace(seen, cannot_measure=str(error))
    if not devices:
        return replace(seen, cannot_measure="no GPU answers")
    return seen
