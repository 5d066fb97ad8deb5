"""Settings of the agent, which the command line sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from webhook.core.node.access import KERNEL_DRIVER, Access
from webhook.core.node.inventory import GRACE_S

INTERVAL_S: Final = 30.0
"""Interval between scans of the GPUs, in seconds.

Changes of the node are watched. Scans only find GPUs that were added or removed, and a lost GPU has
minutes of grace. On a node without persistence mode each scan wakes the GPUs, which takes a second
or more per GPU.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Settings of the agent."""

    node: str
    interval_s: float = INTERVAL_S
    grace_s: float = GRACE_S
    fixed_bytes: int | None = None
    """Amount to advertise without reading a driver, in bytes; None to scan."""
    access: Access = field(default_factory=Access)
    kernel_driver: str = KERNEL_DRIVER
    namespace: str = ""
    """Namespace of the assignment lists; empty if the webhook does not assign GPUs."""
    expects_sentry: bool = False
    """True if a sentry should act on the node; a condition of the node then reports its absence."""
    kubeconfig: Path | None = None
    run_folder: str = ""
    """Folder of the heartbeat; empty for no heartbeat."""
    dry_run: bool = False
    documentation_url: str = ""
    """URL pattern of documentation pages; see `core.documentation`."""
    startup_taint: str = ""
    """Key of the taint to remove once the node is in its desired state; empty for none."""
