"""Main function, message queue and GPU scan of the node programs."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, NoReturn, TypeVar

from webhook.adapters.journal import Journal
from webhook.adapters.kube.client import Kube
from webhook.adapters.kube.connection import connect
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.nvml import Nvml, NvmlError
from webhook.core.node.inventory import Scan
from webhook.core.nvidia.drivers import ScannedGpu

M = TypeVar("M")
S = TypeVar("S", bound=Scan)

STOPPED: Final = 0
FAILED: Final = 1
NEW_CONTAINER: Final = 75


class NewContainerNeededError(Exception):
    """Only a new container gets the driver's library, or access to the GPUs, again."""


class NotStartedError(Exception):
    """A requirement of the program is missing; the arguments are message and reason."""


class _StoppedError(Exception):
    """SIGTERM or SIGINT."""


def run_program(kubeconfig: Path | None, work: Callable[[Kube, Journal], NoReturn]) -> int:
    """Run `work` until SIGTERM; return the exit code.

    | exit code | meaning |
    | --- | --- |
    | 0 | stopped by SIGTERM |
    | 1 | no API server is configured, another requirement is missing, or a bug |
    | 75 | the driver was loaded or replaced, or its devices were lost: a new container is needed |
    """
    # If stdout is closed, its descriptor may soon belong to another file.
    journal = Journal(partial(os.write, 1 if sys.stdout else -1))
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        work(connect(kubeconfig), journal)
    except _StoppedError:
        journal.event("info", "stopped")
        return STOPPED
    except KubeError as error:
        journal.event("error", "no API server", why=str(error))
        return FAILED
    except NotStartedError as error:
        what, why = error.args
        journal.event("error", what, why=why)
        return FAILED
    except NewContainerNeededError as error:
        journal.event("error", "a new container is needed", why=str(error))
        return NEW_CONTAINER


def _stop(_number: int, _frame: object) -> None:
    raise _StoppedError


class Inbox(Generic[M]):
    """Queue of reports from a program's threads to its main thread, which waits only for it."""

    def __init__(self) -> None:
        self._reports: queue.SimpleQueue[M | Exception] = queue.SimpleQueue()

    def put(self, report: M | Exception) -> None:
        """Add a report, or the exception of a bug."""
        self._reports.put(report)

    def get(self, wait_s: float = 0.0) -> M | None:
        """Return the next report, None after the timeout; raises an exception from a thread."""
        try:
            report = self._reports.get(timeout=wait_s) if wait_s else self._reports.get_nowait()
        except queue.Empty:
            return None
        if isinstance(report, Exception):
            raise report
        return report

    def start(self, work: Callable[..., None], *arguments: Any) -> None:
        """Run `work` on a thread; a bug in it ends the program."""

        def run() -> None:
            try:
                work(*arguments)
            except Exception as error:  # noqa: BLE001 - handed to the main thread, which raises it
                self.put(error)

        threading.Thread(target=run, name=work.__name__, daemon=True).start()


def scan_with(nvml: Nvml, kernel_driver: str, kind: type[S], read: Callable[[str], S]) -> S:
    """Open NVML, call `read` with the driver's version, and close: an open driver blocks updates.

    Never raises. If the driver as a whole does not respond, the scan contains the reason, and
    whether the kernel has a driver, which the file `kernel_driver` shows.
    """
    try:
        with nvml:
            return read(nvml.driver_version())
    except NvmlError as error:
        loaded = os.path.exists(kernel_driver)  # noqa: PTH110 - Path's may raise
        return kind(failed=str(error), fault=error.fault, driver_loaded=loaded)


def list_answering_gpus(nvml: Nvml) -> tuple[ScannedGpu, ...]:
    """Return the GPUs that respond; empty if only the driver responds."""
    try:
        return nvml.devices()
    except NvmlError:
        if not nvml.unreachable:
            raise
        return ()
