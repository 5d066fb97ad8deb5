"""The agent's thread that scans the GPUs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from webhook.adapters import host_environment
from webhook.adapters.node_nvml import NodeNvml
from webhook.adapters.nvml import NvmlError
from webhook.core.node.access import KERNEL_DRIVER
from webhook.core.node.inventory import Scan
from webhook.core.nvidia.drivers import Fault, ScannedGpu, explain_support, supports_sidecar
from webhook.node_programs.program import list_answering_gpus, scan_with


def watch_gpus(
    nvml: NodeNvml,
    kernel_driver: str,
    interval_s: float,
    now: threading.Event,
    send: Callable[[Scan], object],
) -> None:
    """Report a scan every `interval_s`, and immediately if `now` is set, forever.

    A driver that hangs blocks only this thread.
    """
    while True:
        now.clear()
        send(scan(nvml, kernel_driver))
        now.wait(interval_s)


def scan(nvml: NodeNvml, kernel_driver: str = KERNEL_DRIVER, *, proc: str = "/proc") -> Scan:
    """Return a scan of NVML; never raises."""
    return scan_with(nvml, kernel_driver, Scan, lambda version: _scan(nvml, version, proc))


def _scan(nvml: NodeNvml, version: str, proc: str) -> Scan:
    gpus = tuple(_read_details(gpu, nvml) for gpu in list_answering_gpus(nvml))
    # GPUs that failed to respond but are not lost.
    unsure = {error.gpu for error in nvml.unreachable if error.fault is not Fault.GPU_LOST}
    return _check_sidecar_support(
        Scan(gpus=gpus, driver_version=version, unsure=frozenset(unsure)), nvml, proc
    )


def _read_details(gpu: ScannedGpu, nvml: NodeNvml) -> ScannedGpu:
    # The GPU has just responded. If it fails now, the next scan reports the reason.
    with suppress(NvmlError):
        gpu = replace(gpu, used_bytes=nvml.device_used_bytes(gpu.uuid))
    with suppress(NvmlError):
        gpu = replace(gpu, recovery=nvml.recovery_action(gpu.uuid))
    with suppress(NvmlError):
        pending, failed = nvml.row_remapping(gpu.uuid)
        gpu = replace(gpu, remap_pending=pending, remap_failed=failed)
    try:
        compute_mode, _ = nvml.modes(gpu.uuid)
    except NvmlError:
        return replace(gpu, compute_mode=None)
    return replace(gpu, compute_mode=compute_mode)


def _check_sidecar_support(scan: Scan, nvml: NodeNvml, proc: str) -> Scan:
    """Check what the enforcer's self-test checks: version, kernel, and figures of each shared GPU.

    It cannot be checked whether the driver reports the memory of each process: a container sees
    only its own processes, and the agent's use no GPU. The driver's version is checked instead.
    """
    kernel = host_environment.check_kernel(proc=proc)
    version = scan.driver_version
    if not supports_sidecar(version):
        return replace(scan, cannot_measure=explain_support(version), never_measures=True)
    if kernel.holds is False:
        return replace(scan, cannot_measure=kernel.reason, never_measures=True)
    return replace(scan, cannot_measure=_find_measuring_fault(scan.gpus, nvml))


def _find_measuring_fault(gpus: Iterable[ScannedGpu], nvml: NodeNvml) -> str:
    try:
        for gpu in gpus:
            if not gpu.mig:
                nvml.device_used_bytes(gpu.uuid)
                nvml.processes(gpu.uuid)
    except NvmlError as error:
        return str(error)
    return "" if gpus else "no GPU answers"
