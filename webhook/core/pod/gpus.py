"""GPUs as nodes advertise them, and what pods are promised: what several rooms share."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from webhook.core.bounds import LONGEST_UUID
from webhook.names import NODE_GPU_MEMORY_FREE_LABEL

EVERY_GPU: Final = "*"
"""Stands in place of UUIDs for each GPU of a node."""

MAX_COUNTED_GPUS: Final = 16
"""For how many GPUs of a node the labels say what is free; few nodes have more."""

MAX_GPUS: Final = 64
"""Of a node or a pod: so many are read; servers have 16 at most."""

MAX_FAULT_LENGTH: Final = 120
"""Characters that say why a GPU is not healthy."""

FAULT_LOST: Final = "is lost"
FAULT_SILENT: Final = "does not answer"
"""Faults of a GPU that its node's agent cannot reach."""

UUID_PATTERN: Final = re.compile(f"[0-9A-Za-z-]{{1,{LONGEST_UUID}}}")
"""A GPU's UUID, wherever it is read from an object."""

MAX_PRODUCT_LENGTH: Final = 96
"""Characters of a product's name (NVML_DEVICE_NAME_V2_BUFFER_SIZE)."""

MAX_GPU_INDEX: Final = 255
"""Largest index of a GPU; the driver has fewer minor numbers for GPUs of one machine."""


class DriverLimit(StrEnum):
    """Whether the driver holds a pod to its cap. Its containers wait until the limit is set."""

    AUTO = "Auto"
    """On nodes whose driver holds caps."""
    REQUIRE = "Require"
    """Always: it runs on no other nodes."""
    OFF = "Off"


class EnforceBy(StrEnum):
    """The program that holds a pod to its cap."""

    SIDECAR = "Sidecar"
    """A container in the pod; the node's sentry stops what the container cannot."""
    SENTRY = "Sentry"
    """The node's sentry only; the pod gets no container."""
    NONE = "None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as it is advertised."""

    uuid: str
    memory_bytes: int
    """Usable, in whole MiB."""
    product: str
    index: int
    total_bytes: int | None = None
    """Includes the driver's reserve; None if the node does not state it."""
    healthy: bool = True
    """Whether it may be chosen now; where not, its memory still counts into the capacity."""
    fault: str = ""
    """Why it is not healthy, in a few words; may be empty."""


class Allocation(Protocol):
    """What somebody has of GPUs: an entry of the assignments, for code that only adds up."""

    @property
    def uuids(self) -> tuple[str, ...]:
        """The GPUs."""

    @property
    def memory_bytes(self) -> int:
        """The amount on each of them."""


def is_valid_gpu_id(uuid: object, index: object) -> bool:
    """Return True if UUID and index have the form and size that a driver's have.

    Both are quoted in pods, lists and messages, and whoever can write a node's objects wrote them.
    """
    return (
        isinstance(uuid, str)
        and UUID_PATTERN.fullmatch(uuid) is not None
        and type(index) is int
        and 0 <= index <= MAX_GPU_INDEX
    )


def free_memory_label(gpu_count: int) -> str:
    """Name the node label that says how much as many of its GPUs have free, each at least.

    `gpu-memory-free-mib` for one GPU, `gpu-memory-free-mib.2` for two, and so on: a pod of two GPUs
    would else be sent forever to a node where one GPU has room and the sum fits.
    """
    counted = min(gpu_count, MAX_COUNTED_GPUS)
    return NODE_GPU_MEMORY_FREE_LABEL + (f".{counted}" if counted > 1 else "")


def free_bytes(gpus: Iterable[Gpu], taken: Iterable[tuple[Iterable[str], int]]) -> dict[str, int]:
    """Return what is free on each GPU, given UUIDs and the bytes taken on each of them.

    Below zero where a GPU shrank, where a binding bypassed us, or by who sees all GPUs, whom nobody
    denies. GPUs that left the node's list are ignored.
    """
    free = {gpu.uuid: gpu.memory_bytes for gpu in gpus}
    for uuids, taken_bytes in taken:
        for uuid in uuids:  # as `allocate` has it, which would be a call for each pod
            if uuid in free:
                free[uuid] -= taken_bytes
            elif uuid == EVERY_GPU:
                allocate(free, (uuid,), taken_bytes)
    return free


def allocate(free: dict[str, int], uuids: Iterable[str], taken_bytes: int) -> None:
    """Allocate so many bytes of each of these GPUs; `EVERY_GPU` is each that there is."""
    for uuid in uuids:
        if uuid in free:
            free[uuid] -= taken_bytes
        elif uuid == EVERY_GPU:
            for each in free:
                free[each] -= taken_bytes
