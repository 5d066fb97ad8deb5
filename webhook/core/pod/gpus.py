"""GPUs that nodes advertise, and the free memory on each GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from webhook.core.bounds import MAX_UUID_LENGTH
from webhook.names import NODE_GPU_MEMORY_FREE_LABEL

EVERY_GPU: Final = "*"
"""Placeholder for all GPUs of a node in a list of UUIDs."""

MAX_COUNTED_GPUS: Final = 16
"""Largest number of GPUs with a free-memory label; few nodes have more GPUs."""

MAX_GPUS: Final = 64
"""Maximum number of GPUs read from a node or a pod; servers have at most 16."""

MAX_FAULT_LENGTH: Final = 120
"""Maximum length of `Gpu.fault`, in characters."""

FAULT_LOST: Final = "is lost"
FAULT_SILENT: Final = "does not answer"
"""Faults of a GPU that the node agent cannot reach."""

UUID_PATTERN: Final = re.compile(f"[0-9A-Za-z-]{{1,{MAX_UUID_LENGTH}}}")
"""Regular expression that matches the UUID of a GPU in any object."""

MAX_PRODUCT_LENGTH: Final = 96
"""Maximum length of a product name, in characters (NVML_DEVICE_NAME_V2_BUFFER_SIZE)."""

MAX_GPU_INDEX: Final = 255
"""Largest GPU index; the driver has fewer minor numbers."""


class DriverLimit(StrEnum):
    """Use of the driver's memory limit for a pod. Its containers wait until the limit is set."""

    AUTO = "Auto"
    """Use the limit on nodes whose driver enforces caps."""
    REQUIRE = "Require"
    """Always use the limit: the pod only runs on such nodes."""
    OFF = "Off"


class EnforceBy(StrEnum):
    """Program that enforces the cap of a pod."""

    SIDECAR = "Sidecar"
    """A container in the pod. The node's sentry stops processes that the sidecar cannot stop."""
    SENTRY = "Sentry"
    """The node's sentry only; the pod gets no container."""
    NONE = "None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """GPU that a node advertises."""

    uuid: str
    memory_bytes: int
    """Usable memory in bytes, a multiple of a MiB."""
    product: str
    index: int
    total_bytes: int | None = None
    """Memory including the driver's reserve, in bytes; None if the node does not report it."""
    healthy: bool = True
    """False if no pod may get the GPU now. Its memory still counts towards the node's capacity."""
    fault: str = ""
    """Reason why the GPU is unhealthy, in a few words; may be empty."""


class Allocation(Protocol):
    """Memory allocated on GPUs: the part of an assignment that sums need."""

    @property
    def uuids(self) -> tuple[str, ...]:
        """UUIDs of the GPUs."""

    @property
    def memory_bytes(self) -> int:
        """Bytes on each of the GPUs."""


def is_valid_gpu_id(uuid: object, index: object) -> bool:
    """Return True if UUID and index have the form and size that the driver uses.

    Both come from objects that other users may write, and both are copied into pods and messages.
    """
    return (
        isinstance(uuid, str)
        and UUID_PATTERN.fullmatch(uuid) is not None
        and type(index) is int
        and 0 <= index <= MAX_GPU_INDEX
    )


def free_memory_label(gpu_count: int) -> str:
    """Return the node label for the memory that is free on each of `gpu_count` GPUs.

    `gpu-memory-free-mib` is for one GPU, `gpu-memory-free-mib.2` for two, and so on. Without these
    labels, the scheduler would bind a pod with two GPUs again and again to a node on which only the
    sum fits.
    """
    counted = min(gpu_count, MAX_COUNTED_GPUS)
    return NODE_GPU_MEMORY_FREE_LABEL + (f".{counted}" if counted > 1 else "")


def free_bytes(gpus: Iterable[Gpu], taken: Iterable[tuple[Iterable[str], int]]) -> dict[str, int]:
    """Return the free bytes of each GPU; `taken` contains UUIDs and the bytes taken on each GPU.

    A value is negative if the GPU shrank, if a binding bypassed the webhook, or if pods see all
    GPUs, since such pods are never denied. GPUs that are no longer in the node's list are ignored.
    """
    free = {gpu.uuid: gpu.memory_bytes for gpu in gpus}
    for uuids, taken_bytes in taken:
        for uuid in uuids:  # as in `allocate`, without a call for each pod
            if uuid in free:
                free[uuid] -= taken_bytes
            elif uuid == EVERY_GPU:
                allocate(free, (uuid,), taken_bytes)
    return free


def allocate(free: dict[str, int], uuids: Iterable[str], taken_bytes: int) -> None:
    """Subtract bytes from the free bytes of each GPU; `EVERY_GPU` means all GPUs."""
    for uuid in uuids:
        if uuid in free:
            free[uuid] -= taken_bytes
        elif uuid == EVERY_GPU:
            for each in free:
                free[each] -= taken_bytes
