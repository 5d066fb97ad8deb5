"""What the driver's answers over time ask for: patience, a line in the log, or a new container."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from webhook.core.node.inventory import Scan
from webhook.core.nvidia.drivers import Fault

KERNEL_DRIVER: Final = "/proc/driver/nvidia/version"
"""Exists while the kernel has NVIDIA's driver, also in containers: it belongs to no namespace."""

CHANGED_AFTER_S: Final = 30.0
REVOKED_AFTER_S: Final = 300.0
"""How long a driver must fail in a way that only a new container fixes: it was replaced, or the
container's access to the GPUs was revoked (systemd does so on daemon-reload)."""
LOADED_AFTER_S: Final = 30.0
"""How long the kernel must have had a driver that this container cannot reach."""

STUCK_AFTER_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """What is remembered of the driver's answers."""

    scanned_s: float
    """When the last scan came, or the agent started."""
    answered_s: float
    """When the driver answered last, or the agent started."""
    worked: bool = False
    """Whether it ever answered."""
    fault: Fault | None = None
    """What the last scan failed with."""
    why: str = ""
    loaded_since_s: float | None = None
    """Since when scans failed although the kernel has a driver; None where it has none."""


def after_scan(driver: Driver, scan: Scan, now_s: float) -> Driver:
    """Return what is remembered once a scan came."""
    if scan.fault is None:
        return Driver(scanned_s=now_s, answered_s=now_s, worked=True)
    since_s = now_s if driver.loaded_since_s is None else driver.loaded_since_s
    loaded_since_s = since_s if scan.driver_loaded else None
    return Driver(
        scanned_s=now_s,
        answered_s=driver.answered_s,
        worked=driver.worked,
        fault=scan.fault,
        why=scan.failed,
        loaded_since_s=loaded_since_s,
    )


def hangs(driver: Driver, now_s: float, interval_s: float) -> bool:
    """Say whether a scan that is due, `interval_s` after the last, has not come for too long."""
    return now_s - driver.scanned_s > STUCK_AFTER_S + interval_s


def needs_new_container(driver: Driver, now_s: float) -> bool:
    """Say whether only a new container gets the driver's library, or access to the GPUs, again.

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

    A runtime gives a container library and devices when it creates it: what came to the node later
    never gets in. An unknown failure that was always there has a cause that nobody knows. A driver
    that worked and is down comes back by itself, or reports that it was replaced; and the hook of
    mode `legacy` shows us the kernel's file as it was when our container was created.
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


def why_unready(driver: Driver) -> str:
    """Say what is missing while the driver never reached this container, and what usually helps.

    Empty where it did: whatever fails then may be over in a moment, and the node keeps what it
    shows. On a node that never gets a driver the agent stays unready.
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


def _never_came(driver: Driver) -> bool:
    down = driver.fault is Fault.DRIVER_DOWN and not driver.worked
    return down or driver.fault is Fault.LIBRARY_MISSING
