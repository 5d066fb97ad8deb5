"""NVIDIA's drivers: state of GPUs, reliability of process lists, limits of cgroups, and failures.

Only a state that the driver reports makes a GPU unhealthy, never an Xid: a tenant's faulty program
can cause most of those.
"""

from __future__ import annotations

import enum
import re
from typing import Final

from webhook.core.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Proof:
    """Result of the limiter's test that the driver accepts a limit and reports it back."""

    holds: bool
    back_end: str = ""
    """Cgroup controller, `misc` or `dmem`; empty if limits are not enforced."""
    why: str = ""
    """Reason why limits are not enforced; empty if they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedGpu:
    """A GPU as NVML reports it."""

    uuid: str
    product: str
    index: int
    """NVML's index, which may change whenever the library is opened."""
    usable_bytes: int | None
    """Memory that programs can share, in bytes, without the driver's reserve if the driver
    reports the reserve. None if the GPU has no memory of its own, such as GB10."""
    mig: bool = False
    total_bytes: int | None = None
    """Total memory including the driver's reserve, in bytes; None if unknown."""
    used_bytes: int | None = None
    """Memory in use by all processes, without the driver's reserve, in bytes; None if unknown."""
    recovery: int | None = None
    """Recovery action that the driver requests: a key of `RECOVERIES`, or 0 for none; None if
    unknown."""
    remap_failed: bool = False
    """True if a bad row of its memory could not be replaced."""
    remap_pending: bool = False
    """True if a bad row will be replaced at the next reset; the row is not used until then."""
    compute_mode: int | None = 0
    """Key of `COMPUTE_MODES`, or 0 for Default; None if the driver failed to report it."""


class DriverClass(enum.Enum):
    """Reliability of NVML's process lists inside a container's PID namespace."""

    HOST_PIDS = "host-pids"
    """Lists host PIDs, which belong to other processes inside a container."""
    BLIND = "blind"
    """Lists the right processes, but 0 or another process's figure for their memory."""
    WORKS = "works"
    """Lists the right processes with their own figures."""


_TRANSLATES_PIDS: Final = (535, 113, 1)
_TRANSLATES_MEMORY: Final = (565, 57, 1)
_WIDE_ENTRIES: Final = ((535, 43), (535, 86))
SIDECAR_FROM: Final = 570
"""Oldest driver branch with which a sidecar is supported."""
LIMITS_FROM: Final = 615
"""Oldest driver branch that can limit cgroups."""
_VERSION: Final = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})(?:\.([0-9]{1,6}))?(?:[-+~ ].*)?")

_LISTS_OUR_PROCESSES_ALONE: Final = frozenset({580})
"""Driver branches for which tests/gpu proved how memory of a dead process is listed while a
child still has it open: with the dead process's PID, and only in its own PID namespace."""

_NO_VERSION: Final = "the driver's version {!r} cannot be read, so its figures are not trusted"
_REASONS: Final = {
    DriverClass.HOST_PIDS: "driver {} lists host PIDs, not the pod's; 565.57.01 or newer is needed",
    DriverClass.BLIND: "driver {} does not report processes' memory in a container;"
    " 565.57.01 or newer is needed",
}


def classify_driver(version: str) -> DriverClass:
    """Return the reliability of a driver's process lists, given its version; never raises.

    A version that cannot be parsed counts as blind, so its figures stop no process. The version is
    only a first judgement. Programs confirm it by measuring a process that they know.

    | from       | to         | class      |
    | ---------- | ---------- | ---------- |
    | 0.0        | 535.113    | HOST_PIDS  |
    | 535.113.01 | 565.57     | BLIND      |
    | 565.57.01  | 9999.0     | WORKS      |

    Source: NVIDIA/open-gpu-kernel-modules, gpu_rmapi.c and subdevice_ctrl_gpu_kernel.c at the tags
    515.43.04 to 595.45.04.
    """
    parts = _parts(version)
    if parts is None:
        return DriverClass.BLIND
    if parts < _TRANSLATES_PIDS:
        return DriverClass.HOST_PIDS
    return DriverClass.BLIND if parts < _TRANSLATES_MEMORY else DriverClass.WORKS


def has_wide_entries(version: str) -> bool:
    """Return True if version 3 of a driver's process lists has entries with an additional field.

    From 535.43 to 535.86 entries end with the memory that confidential computing protects. Source:
    nvidia-ml-py 12.535.77 compared with 12.535.108.
    """
    parts = _parts(version)
    return parts is not None and _WIDE_ENTRIES[0] <= parts[:2] <= _WIDE_ENTRIES[1]


def supports_sidecar(version: str) -> bool:
    """Return True if a sidecar can measure with a driver of this version."""
    parts = _parts(version)
    return parts is not None and parts[0] >= SIDECAR_FROM


def explain_support(version: str) -> str:
    """Return a phrase with the reason for the result of `supports_sidecar`."""
    if _parts(version) is None:
        return _NO_VERSION.format(version)
    if supports_sidecar(version):
        return f"driver {version.strip()} reports processes' memory in a container"
    return f"driver {version.strip()} is too old for a sidecar; {SIDECAR_FROM} or newer is needed"


def counts_unidentified(version: str) -> bool:
    """Return True if memory of a listed but unidentified process certainly belongs to the pod.

    Drivers that translate PIDs should list only the container's own PID namespace. How they list a
    client whose process has ended is known only from their source, so a branch counts once tests
    have confirmed it.
    """
    parts = _parts(version)
    return parts is not None and parts[0] in _LISTS_OUR_PROCESSES_ALONE


def can_limit_cgroups(version: str) -> bool:
    """Return True if a driver's branch can limit cgroups: r615 or newer.

    Whether the driver actually does depends on the kernel, the driver's modes and the GPU.
    """
    parts = _parts(version)
    return parts is not None and parts[0] >= LIMITS_FROM


def explain_driver(version: str) -> str:
    """Return the reason why a driver's process lists are not trusted; not for the class WORKS."""
    if _parts(version) is None:
        return _NO_VERSION.format(version)
    return _REASONS[classify_driver(version)].format(version.strip())


def _parts(version: str) -> tuple[int, int, int] | None:
    """Parse `535.113.01`, `615.12` and `570.86.15-0ubuntu1`; a missing third part is 0."""
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        return None
    major, minor, patch = match.groups(default="0")
    return int(major), int(minor), int(patch)


class Fault(enum.Enum):
    """Action that an NVML error requires from the caller; never a reason to stop a process."""

    LIBRARY_MISSING = "library-missing"
    """Fail closed at the start: the container runtime mounted no driver library."""
    DRIVER_DOWN = "driver-down"
    """Call `reopen` after a pause that grows from 1 to 30 s."""
    DRIVER_CHANGED = "driver-changed"
    """Exit with code 75: only a new container gets the new driver's library."""
    GPU_LOST = "gpu-lost"
    """Call `devices` again every 30 s. The GPU's handle has already been dropped."""
    NO_PERMISSION = "no-permission"
    """Continue without figures of this GPU: it may be in MIG mode, or inaccessible."""
    NOT_SUPPORTED = "not-supported"
    """Continue without this figure."""
    LIBRARY_TOO_OLD = "library-too-old"
    """Fail the self-test: every older form of the function was tried."""
    STUCK = "stuck"
    """Skip this observation. If it lasts, the liveness probe restarts the container."""
    TOO_LONG = "too-long"
    """Skip this observation: the list kept outgrowing its buffer."""
    UNKNOWN = "unknown"
    """Try three times, then report that figures are missing: access to the GPU may have been
    revoked."""


_FAULTS: Final = {
    1: Fault.DRIVER_DOWN,  # uninitialized
    2: Fault.GPU_LOST,  # invalid argument: a handle from before a reset
    3: Fault.NOT_SUPPORTED,
    4: Fault.NO_PERMISSION,
    6: Fault.GPU_LOST,  # not found
    7: Fault.TOO_LONG,  # insufficient size
    9: Fault.DRIVER_DOWN,  # driver not loaded
    10: Fault.STUCK,  # timeout
    12: Fault.LIBRARY_MISSING,  # library not found
    13: Fault.LIBRARY_TOO_OLD,  # function not found
    15: Fault.GPU_LOST,
    16: Fault.GPU_LOST,  # reset required
    18: Fault.DRIVER_CHANGED,  # library and resource manager differ in version
    25: Fault.LIBRARY_TOO_OLD,  # argument's version differs
    28: Fault.GPU_LOST,  # not found
}

_SENTENCES: Final = {
    Fault.LIBRARY_MISSING: "the driver's library libnvidia-ml.so.1 cannot be loaded; the container"
    " needs the node's (runtime class, NVIDIA_DRIVER_CAPABILITIES=utility) and glibc",
    Fault.DRIVER_DOWN: "the NVIDIA driver is not loaded, or is being replaced",
    Fault.DRIVER_CHANGED: "the node's driver was replaced and does not fit the library mounted"
    " here; only a new container gets the new one",
    Fault.GPU_LOST: "the GPU is gone, was reset, or has not been looked up",
    Fault.NO_PERMISSION: "the driver denies access; it does so for a GPU in MIG mode",
    Fault.NOT_SUPPORTED: "this GPU does not offer it",
    Fault.LIBRARY_TOO_OLD: "the driver's library lacks this function; a newer driver is needed",
    Fault.STUCK: "the driver did not answer in time",
    Fault.TOO_LONG: "the answer outgrew every buffer for it",
    Fault.UNKNOWN: "the driver failed for a reason not known here; where it worked before, the node"
    " may have revoked the container's access to the GPU",
}


def classify_error(code: int) -> Fault:
    """Return the fault of an NVML error code (nvmlReturn_t of nvml.h)."""
    return _FAULTS.get(code, Fault.UNKNOWN)


def explain_fault(fault: Fault) -> str:
    """Return a sentence that describes a fault."""
    return _SENTENCES[fault]


RECOVERIES: Final = {
    1: "a reset of the GPU",
    2: "a reboot of the node",
    3: "a drain of peer-to-peer traffic",
    4: "a drain and a reset of the GPU",
    5: "a recovery of the IMEX domain",
    6: "a reset of the bus",
    7: "a reboot of the system",
}
"""Recovery actions that a driver from r570 on requests, keyed by number; 0 is none.

Source: nvml.h, nvmlDeviceGpuRecoveryAction_t.
"""

COMPUTE_MODES: Final = {1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
"""Compute modes in which a second program cannot use a GPU, as nvidia-smi names them, keyed by
number; 0 is Default.

Source: nvml.h, nvmlComputeMode_t.
"""
