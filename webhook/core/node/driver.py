"""What the driver's answers over time ask for: patience, a line in the log, or a new container."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from webhook.core.nvidia.drivers import Fault

if TYPE_CHECKING:
    from webhook.core.node.inventory import Scan

CHANGED_AFTER_S: Final = 30.0
REVOKED_AFTER_S: Final = 300.0
"""How long a driver must fail in a way that only a new container fixes: it was replaced, or the
container's access to the GPUs was revoked (systemd does so on daemon-reload)."""

STUCK_AFTER_S: Final = 60.0


@dataclass(frozen=True, slots=True)
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


def after_scan(driver: Driver, scan: Scan, now_s: float) -> Driver:
    """Return what is remembered once a scan came."""
    if scan.fault is None:
        return Driver(now_s, now_s, worked=True)
    return Driver(now_s, driver.answered_s, driver.worked, scan.fault, scan.failed)


def hangs(driver: Driver, now_s: float, interval_s: float) -> bool:
    """Say whether a scan that is due, `interval_s` after the last, has not come for too long."""
    return now_s - driver.scanned_s > STUCK_AFTER_S + interval_s


def needs_new_container(driver: Driver, now_s: float) -> bool:
    """Say whether only a new container gets the driver's library, or access to the GPUs, again.

    | the last scan | the driver answered before | for longer than | a new container |
    | --- | --- | --- | --- |
    | answered | - | - | no |
    | the driver was replaced | whether or not | `CHANGED_AFTER_S` | yes |
    | an unknown failure | yes: access was revoked | `REVOKED_AFTER_S` | yes |
    | an unknown failure | no: nobody knows that one would help | - | no |
    | any other failure | whether or not | - | no |
    """
    silent_s = now_s - driver.answered_s
    if driver.fault is Fault.DRIVER_CHANGED:
        return silent_s > CHANGED_AFTER_S
    return driver.fault is Fault.UNKNOWN and driver.worked and silent_s > REVOKED_AFTER_S
