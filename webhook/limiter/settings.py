"""The limiter's settings, which the command line sets."""

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
    """Namespace of the assignment lists: the webhook's namespace."""
    pod_uid: str = ""
    """UID of the limiter's pod, which identifies its cgroup and thereby the kubelet's cgroups."""
    cgroups: str = CGROUPS
    dmem: bool = False
    """True to enable the kernel's dmem controller down to each pod, if the driver uses dmem."""
    folder: str = LIMITER_FOLDER
    kernel_driver: str = KERNEL_DRIVER
    kubeconfig: Path | None = None
