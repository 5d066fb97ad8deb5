"""The sentry's settings, which the command line sets."""

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
    """Settings of the sentry of one node."""

    node: str
    namespace: str
    act: bool = True
    """True if processes may be stopped; False if an excess is only reported."""
    pod_metrics: bool = True
    """True if metrics have a series for each pod, with the pod's name."""
    host: str = HOST
    metrics_port: int = METRICS_PORT
    """Port number, or 0 for any free port."""
    pod_name: str = ""
    pod_uid: str = ""
    """UID of the sentry's pod, which shows how this node names the cgroups of pods."""
    kernel_driver: str = KERNEL_DRIVER
    limiter_folder: str = LIMITER_FOLDER
    """Folder of the limiter's file, which is missing if the node has no limiter."""
    kubeconfig: Path | None = None
    proc: str = "/proc"
