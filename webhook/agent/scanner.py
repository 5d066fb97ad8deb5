"""The agent's threads that ask the driver: one scans the GPUs, one hears of broken ones.

A library that is held open keeps the driver from being replaced and a GPU from being reset, and it
shows the GPUs of when it was opened to the whole process, also to the scans of another thread.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from webhook.adapters import surroundings
from webhook.adapters.nvml import NvmlError
from webhook.core.node.driver import KERNEL_DRIVER
from webhook.core.node.inventory import Scan
from webhook.core.nvidia.drivers import (
    BROKEN,
    DriverClass,
    Fault,
    SeenGpu,
    driver_class,
    explain_driver,
)
from webhook.nodekit.program import answering, scan_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from webhook.adapters.nvml import Nvml

FRESH_EVERY_S: Final = 600.0
"""How often a scan opens the library anew in any case: one that is held open never shows a GPU that
was added, or that came back."""

SLICE_S: Final = 2.0
"""The driver is let go within this time."""
PATIENCE_S: Final = 10.0
"""How long a scan waits for that; longer where the driver hangs, which must hold up nobody else."""
PAUSE_S: Final = 15.0


def watch_gpus(
    nvml: Nvml,
    kernel_driver: str,
    interval_s: float,
    now: threading.Event,
    lease: DriverLease,
    send: Callable[[Scan], object],
) -> None:
    """Report what NVML says, forever; a driver that hangs blocks only this thread.

    Each `interval_s`, and where `now` is set at once. After a scan that failed, or that saw other
    GPUs than the one before, and now and then in any case, the watch for Xids lets the driver go.
    """
    fresh_s, doubted, before = float("-inf"), False, None
    while True:
        now.clear()
        fresh = doubted or time.monotonic() - fresh_s >= FRESH_EVERY_S
        with lease.fresh() if fresh else nullcontext():
            found = scan(nvml, kernel_driver)
        fresh_s = time.monotonic() if fresh else fresh_s
        seen = {gpu.uuid for gpu in found.gpus}
        doubted = bool(found.failed or found.unsure) or (not fresh and seen != before)
        before = seen
        send(found)
        now.wait(interval_s)


def scan(nvml: Nvml, kernel_driver: str = KERNEL_DRIVER, *, proc: str = "/proc") -> Scan:
    """Return what NVML reports now; never raises."""
    return scan_with(nvml, kernel_driver, Scan, lambda version: _scan(nvml, version, proc))


def _scan(nvml: Nvml, version: str, proc: str) -> Scan:
    gpus = tuple(_described(gpu, nvml) for gpu in answering(nvml))
    # Which failed to answer but are not lost.
    unsure = {error.gpu for error in nvml.unreachable if error.fault is not Fault.GPU_LOST}
    return _probed(Scan(gpus=gpus, driver_version=version, unsure=frozenset(unsure)), nvml, proc)


def _described(gpu: SeenGpu, nvml: Nvml) -> SeenGpu:
    # It was just there: where it fails now, the next scan says what became of it.
    with suppress(NvmlError):
        gpu = replace(gpu, used_bytes=nvml.device_used_bytes(gpu.uuid))
    with suppress(NvmlError):
        gpu = replace(gpu, recovery=nvml.recovery(gpu.uuid))
    with suppress(NvmlError):
        pending, failed = nvml.remaps(gpu.uuid)
        gpu = replace(gpu, remap_pending=pending, remap_failed=failed)
    return gpu


def _probed(scan: Scan, nvml: Nvml, proc: str) -> Scan:
    """Try what the enforcer's self-test will: version, kernel, and figures of each shared GPU.

    What it cannot try is whether the driver gives a figure for each process: a container sees only
    its own processes, and this one has none on a GPU. The version stands in for that.
    """
    kernel = surroundings.trustworthy_kernel(proc=proc)
    version = scan.driver_version
    if driver_class(version) is not DriverClass.WORKS:
        return replace(scan, cannot_measure=explain_driver(version), never_measures=True)
    if kernel.holds is False:
        return replace(scan, cannot_measure=kernel.reason, never_measures=True)
    return replace(scan, cannot_measure=_why_not_measured(scan.gpus, nvml))


def _why_not_measured(gpus: Iterable[SeenGpu], nvml: Nvml) -> str:
    try:
        for gpu in gpus:
            if not gpu.mig:
                nvml.device_used_bytes(gpu.uuid)
                nvml.processes(gpu.uuid)
    except NvmlError as error:
        return str(error)
    return "" if gpus else "no GPU answers"


@dataclass(frozen=True, slots=True)
class XidSeen:
    """A GPU reported an Xid of `BROKEN`."""

    uuid: str
    xid: int


@dataclass(frozen=True, slots=True)
class XidsWatched:
    """From now on Xids are reported, or they are not."""

    unwatched: str = ""
    """Why not."""


class DriverLease:
    """Who has the driver: the watch, while the node lets it and no scan wants it fresh."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._allowed = self._wanted = self._held = False

    def allow(self, allowed: bool) -> None:
        """Let the watch hold the driver, or not."""
        with self._changed:
            self._allowed = allowed
            self._changed.notify_all()

    @property
    def lasts(self) -> bool:
        """Whether the watch may hold the driver for another slice."""
        return self._allowed and not self._wanted

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Wait until the watch may hold the driver, and hold it."""
        with self._changed:
            self._changed.wait_for(lambda: self.lasts)
            self._held = True
        try:
            yield
        finally:
            with self._changed:
                self._held = False
                self._changed.notify_all()

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Take the driver from the watch: who opens the library meanwhile opens it anew."""
        with self._changed:
            self._wanted = True
            self._changed.wait_for(lambda: not self._held, PATIENCE_S)
        try:
            yield
        finally:
            with self._changed:
                self._wanted = False
                self._changed.notify_all()


def watch_xids(
    nvml: Nvml, lease: DriverLease, send: Callable[[XidSeen | XidsWatched], object]
) -> None:
    """Report each Xid that means a broken GPU, forever, while the driver may be held.

    A driver that hangs blocks only this thread. What happens while it is let go is missed; the
    state that scans ask for covers what lasts.
    """
    while True:
        with lease.watching():
            try:
                _watch(nvml, lease, send)
                continue
            except NvmlError as error:
                send(XidsWatched(str(error)))
        time.sleep(PAUSE_S)


def _watch(nvml: Nvml, lease: DriverLease, send: Callable[[XidSeen | XidsWatched], object]) -> None:
    with nvml:
        nvml.devices()
        nvml.register_xids()
        send(XidsWatched())
        while lease.lasts:
            seen = nvml.next_xid(SLICE_S)
            if seen and seen[1] in BROKEN:
                send(XidSeen(*seen))
