"""Access of a node program's container to driver and GPUs, and the device names that pods get."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from webhook.core.bounds import MAX_WORD_LENGTH
from webhook.core.node.events import EventReason
from webhook.core.node.inventory import Inventory, Scan
from webhook.core.nvidia.drivers import Fault
from webhook.core.nvidia.variables import VISIBLE_DEVICES_ENV, DeviceNames

_INJECTED: Final = {"void": DeviceNames.RUNTIME, "all": DeviceNames.UUID}
"""Device-name scheme, keyed by the value of NVIDIA_VISIBLE_DEVICES that a runtime leaves in a
container whose value was `all`; see `find_device_names`."""


class GpuAccess(StrEnum):
    """Ways in which the agent's container gets the GPUs; the values of `--gpu-access`."""

    ENVIRONMENT = "Environment"
    """`NVIDIA_VISIBLE_DEVICES=all` in an unprivileged container, as in pods with VRAM."""
    VOLUME_MOUNTS = "VolumeMounts"
    """A mount whose path names the GPUs, for runtimes that ignore the environment variable."""
    PRIVILEGED = "Privileged"
    """`NVIDIA_VISIBLE_DEVICES=all` in a privileged container, for runtimes that read it only
    there."""


@dataclass(frozen=True, slots=True)
class Access:
    """Facts about the agent's access that do not change while its container runs."""

    by: GpuAccess = GpuAccess.ENVIRONMENT
    visible_devices: str = ""
    """Value of `NVIDIA_VISIBLE_DEVICES` in the agent's container; empty if it is not set."""
    device_names: DeviceNames | None = None
    """Scheme set by `--device-names`; None to detect it."""
    runtime_class: str = ""
    voided: bool = False
    """True if the fence hides all GPUs from containers without an assignment (`fence.void`)."""


@dataclass(frozen=True, slots=True)
class AccessProblem:
    """A setting that a cluster admin should change, for a log line and an Event."""

    reason: EventReason
    what: str
    why: str


def find_device_names(access: Access) -> DeviceNames:
    """Return the device-name scheme that the node's container runtime resolves for pods.

    | `--device-names` | access | `NVIDIA_VISIBLE_DEVICES` inside | then |
    | --- | --- | --- | --- |
    | given | any | any | as given |
    | empty | Environment | void | runtime.nvidia.com |
    | empty | Environment | all | uuid |
    | empty | Environment | another, or not set | none |
    | empty | VolumeMounts | any | none |
    | empty | Privileged | any | none |

    CDI specifications set the variable to `void` so that nothing else injects GPUs. They append it,
    and runc and crun use the last of two values. Toolkits that write such specifications (1.15 and
    newer) also resolve `runtime.nvidia.com/gpu=` with a UUID. The hook, and specifications before
    1.15, leave the variable unchanged. Any other value comes from a different kind of access, which
    pods do not have. Mounts and privileges are needed if the runtime ignores the variable, and it
    then ignores the variable of pods as well.

    Source: NVIDIA Container Toolkit, pkg/nvcdi/wrapper.go, internal/modifier/cdi.go and
    internal/config/image/cuda_image.go; CHANGELOG.md, 1.15.0.
    """
    if access.device_names is not None:
        return access.device_names
    if access.by is not GpuAccess.ENVIRONMENT:
        return DeviceNames.NONE
    return _INJECTED.get(access.visible_devices, DeviceNames.NONE)


def set_device_names(inventory: Inventory, scan: Scan, access: Access) -> Inventory:
    """Return the inventory with the device-name scheme that pods must use for its GPUs.

    | the scan | `inventory.device_names` |
    | --- | --- |
    | shows a GPU | as found: at once, since a new container has new access |
    | shows no GPU, or failed | unchanged: the access of this container is not proven |
    """
    if not scan.gpus:
        return inventory
    return replace(inventory, device_names=find_device_names(access).value)


def find_gpu_access_problems(access: Access) -> tuple[AccessProblem, ...]:
    """Return problems of the access by which the agent sees GPUs; empty if there are none.

    | situation | advice |
    | --- | --- |
    | names are `none`, and the option does not set that | `DeviceNamesUnknown` |
    | a runtime read the environment variable, and the fence does not void it | `DefaultRuntime` |

    Every pod may name the RuntimeClass that gives the agent its GPUs.
    """
    found = []
    if access.device_names is None and find_device_names(access) is DeviceNames.NONE:
        found.append(_unknown_names(access))
    injected = access.by is GpuAccess.ENVIRONMENT and access.visible_devices in _INJECTED
    if injected and not access.voided:
        found.append(_shown_by_images(access.runtime_class[:MAX_WORD_LENGTH]))
    return tuple(found)


def _shown_by_images(runtime_class: str) -> AccessProblem:
    if runtime_class:
        what = f"any image can show itself GPUs here if its pod names RuntimeClass {runtime_class}"
        why = "the agent sees GPUs by that class, which every pod may name"
    else:
        what = "NVIDIA's runtime is the default one here: any image can show itself GPUs"
        why = "the agent sees GPUs without a RuntimeClass"
    cure = "the chart's value fence.void closes that"
    return AccessProblem(EventReason.DEFAULT_RUNTIME, what, f"{why}; {cure}")


def _unknown_names(access: Access) -> AccessProblem:
    if access.by is GpuAccess.ENVIRONMENT:
        value = access.visible_devices[:MAX_WORD_LENGTH]
        why = f"{VISIBLE_DEVICES_ENV} is {value!r} in the agent, neither `all` nor `void`"
    else:
        why = f"the agent's own access, {access.by}, does not tell"
    return AccessProblem(
        EventReason.NAMES_UNKNOWN,
        "no pod is given a GPU here: nobody knows which names of GPUs the node's runtime resolves",
        f"{why}; if the runtime reads {VISIBLE_DEVICES_ENV} of unprivileged containers (toolkit:"
        " accept-nvidia-visible-devices-envvar-when-unprivileged = true), use the chart's value"
        " agent.gpuAccess: Environment, or set agent.deviceNames to uuid (modes legacy and auto) or"
        " runtime.nvidia.com (mode cdi, as under NVIDIA's GPU operator)",
    )


KERNEL_DRIVER: Final = "/proc/driver/nvidia/version"
"""File that exists while the kernel has NVIDIA's driver; containers see it, too."""
CHANGED_AFTER_S: Final = 30.0

REVOKED_AFTER_S: Final = 300.0
"""Time for which a driver must fail before a new container is needed, in seconds. Either the
driver was replaced, or the container's access to the GPUs was revoked (systemd does that on
daemon-reload)."""

LOADED_AFTER_S: Final = 30.0
"""Time for which the kernel must have had a driver that this container cannot reach, in seconds."""
STUCK_AFTER_S: Final = 60.0
"""Delay after which a scan that is due counts as hanging, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStatus:
    """Results of past scans that concern the driver."""

    scanned_s: float
    """Time of the last scan, or of the agent's start."""
    answered_s: float
    """Time of the driver's last response, or of the agent's start."""
    worked: bool = False
    """True if the driver has ever responded."""
    fault: Fault | None = None
    why: str = ""
    loaded_since_s: float | None = None
    """Time since which scans fail although the kernel has a driver; None if it has none."""


def record_scan(driver: DriverStatus, scan: Scan, now_s: float) -> DriverStatus:
    """Return the status after a scan."""
    if scan.fault is None:
        return DriverStatus(scanned_s=now_s, answered_s=now_s, worked=True)
    since_s = now_s if driver.loaded_since_s is None else driver.loaded_since_s
    loaded_since_s = since_s if scan.driver_loaded else None
    return DriverStatus(
        scanned_s=now_s,
        answered_s=driver.answered_s,
        worked=driver.worked,
        fault=scan.fault,
        why=scan.failed,
        loaded_since_s=loaded_since_s,
    )


def is_hanging(driver: DriverStatus, now_s: float, interval_s: float) -> bool:
    """Return True if the scan that was due `interval_s` after the last one is overdue."""
    return now_s - driver.scanned_s > STUCK_AFTER_S + interval_s


def needs_new_container(driver: DriverStatus, now_s: float) -> bool:
    """Return True if only a new container gets the driver's library, or access to the GPUs, again.

    | the last scan | the driver answered before | the kernel has one | for longer than | new |
    | --- | --- | --- | --- | --- |
    | answered | any | any | any | no |
    | DRIVER_CHANGED | any | any | CHANGED_AFTER_S | yes |
    | UNKNOWN | yes | any | REVOKED_AFTER_S | yes |
    | UNKNOWN | no | any | any | no |
    | LIBRARY_MISSING | any | yes | LOADED_AFTER_S | yes |
    | LIBRARY_MISSING | any | no | any | no |
    | DRIVER_DOWN | no | yes | LOADED_AFTER_S | yes |
    | DRIVER_DOWN | no | no | any | no |
    | DRIVER_DOWN | yes | any | any | no |
    | any other | any | any | any | no |

    A runtime adds library and devices when it creates a container, never later. An unknown failure
    since the start has an unknown cause, which a new container need not fix. A driver that worked
    and is down recovers by itself, or reports that it was replaced. In mode `legacy` the hook shows
    the kernel's file as it was when the container was created.

    Source: libnvidia-container, src/nvc_mount.c (`mount_procfs`).
    """
    silent_s = now_s - driver.answered_s
    if driver.fault is Fault.DRIVER_CHANGED:
        return silent_s > CHANGED_AFTER_S
    if driver.fault is Fault.UNKNOWN:
        return driver.worked and silent_s > REVOKED_AFTER_S
    if not _never_came(driver) or driver.loaded_since_s is None:
        return False
    return now_s - driver.loaded_since_s > LOADED_AFTER_S


def explain_unready(driver: DriverStatus) -> str:
    """Return the missing part and the usual remedy, if the driver never reached this container.

    The result is empty once it has: later failures may be temporary, and the node keeps its
    state. On a node that never gets a driver the agent stays unready.
    """
    if not _never_came(driver):
        return ""
    if driver.loaded_since_s is None:
        return f"{driver.why}; the node's kernel has no NVIDIA driver yet"
    if driver.fault is Fault.DRIVER_DOWN:
        return f"{driver.why}; the node's kernel has a driver: a new container gets its devices"
    return (
        f"{driver.why}; the node's kernel has a driver, so this container is older than it, or was"
        " made without NVIDIA's runtime (chart value agent.runtimeClassName; what Auto means was"
        " decided when Helm installed: run `helm upgrade` again if the RuntimeClass came later), or"
        " by one that ignores NVIDIA_VISIBLE_DEVICES of unprivileged containers (agent.gpuAccess)"
    )


def _never_came(driver: DriverStatus) -> bool:
    down = driver.fault is Fault.DRIVER_DOWN and not driver.worked
    return down or driver.fault is Fault.LIBRARY_MISSING
