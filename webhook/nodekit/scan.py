"""One scan of the node's GPUs: NVML in, a Scan out; failures are part of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

from webhook.adapters.nvml import NvmlError
from webhook.core.node.inventory import Scan

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.adapters.nvml import Nvml
    from webhook.core.nvidia.drivers import SeenGpu

S = TypeVar("S", bound=Scan)


def scan_with(nvml: Nvml, kernel_driver: str, kind: type[S], read: Callable[[str], S]) -> S:
    """Open NVML, read with the driver's version, and close: open, no driver can be replaced.

    Never raises: where the driver as a whole does not answer, the scan says why, and whether the
    kernel has one, by the file `kernel_driver`.
    """
    try:
        with nvml:
            return read(nvml.driver_version())
    except NvmlError as error:
        loaded = os.path.exists(kernel_driver)  # noqa: PTH110 - Path's may raise
        return kind(failed=str(error), fault=error.fault, driver_loaded=loaded)


def answering(nvml: Nvml) -> tuple[SeenGpu, ...]:
    """Return the GPUs that answer; where none does, but the driver does, none."""
    try:
        return nvml.devices()
    except NvmlError:
        if not nvml.unreachable:
            raise
        return ()
