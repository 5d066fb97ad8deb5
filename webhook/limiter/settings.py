"""The limiter's settings; the command line reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from webhook.core.node.access import KERNEL_DRIVER
from webhook.names import LIMITER_FOLDER

CGROUPS: Final = "/host/sys/fs/cgroup"
"""Path at which the chart mounts the node's cgroups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimiterSettings:
    """Settings of the limiter of one node."""

    node: str
    namespace: str
    """Namespace of the assignment lists, which is the webhook's."""
    pod_uid: str = ""
    """UID of the limiter's pod, to find its cgroup and thereby the kubelet's."""
    cgroups: str = CGROUPS
    dmem: bool = False
    """True to enable the kernel's dmem controller down to each pod, if the driver uses it."""
    folder: str = LIMITER_FOLDER
    """Folder of the report for the sentry."""
    kernel_driver: str = KERNEL_DRIVER
    """Path of a file that exists while the kernel has a driver."""
    kubeconfig: Path | None = None
