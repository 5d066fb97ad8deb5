"""The sentry's settings; the command line reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from webhook.core.node.access import KERNEL_DRIVER
from webhook.names import LIMITER_FOLDER

METRICS_PORT: Final = 8081
HOST: Final = "0.0.0.0"  # noqa: S104 - kubelets and Prometheus ask a pod's address


@dataclass(frozen=True, slots=True, kw_only=True)
class SentrySettings:
    """Which node, and how."""

    node: str
    namespace: str
    """Where the webhook keeps the lists of who has which GPUs."""
    act: bool = True
    """Whether to stop processes; otherwise an excess is reported alone."""
    pod_metrics: bool = True
    """Whether the metrics have a series for each pod, which names it."""
    host: str = HOST
    metrics_port: int = METRICS_PORT
    """0 for any that is free."""
    pod_name: str = ""
    """Our own, for what we report."""
    pod_uid: str = ""
    """Our own, by which we find out how this node names pods' cgroups."""
    kernel_driver: str = KERNEL_DRIVER
    """The file that exists while the kernel has a driver."""
    limiter_folder: str = LIMITER_FOLDER
    """Where the node's limiter leaves what it did; it may not be there."""
    kubeconfig: Path | None = None
    proc: str = "/proc"
