"""The limiter's settings; the command line reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from webhook.core.node.access import KERNEL_DRIVER
from webhook.names import LIMITER_FOLDER

CGROUPS: Final = "/host/sys/fs/cgroup"
"""Where the chart mounts the node's cgroups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimiterSettings:
    """Which node, and how."""

    node: str
    namespace: str
    """Where the webhook keeps the lists of who has which GPUs."""
    pod_uid: str = ""
    """Our own, by which our cgroup is found, and so the kubelet's."""
    cgroups: str = CGROUPS
    dmem: bool = False
    """Whether to enable the kernel's controller dmem down to each pod where the driver uses it."""
    folder: str = LIMITER_FOLDER
    """Where what was done is written, for the sentry."""
    kernel_driver: str = KERNEL_DRIVER
    """The file that exists while the kernel has a driver."""
    kubeconfig: Path | None = None
