"""The agent's settings; the command line reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from webhook.core.node.access import KERNEL_DRIVER, Access
from webhook.core.node.inventory import GRACE_S

INTERVAL_S: Final = 30.0
"""Between scans of the GPUs. Changes of the node are reconciled at once, by the watch; scans only
find GPUs that came or went, and a lost GPU has minutes of grace anyway. On a node without
persistence mode each scan wakes the GPUs, which takes a second or more for each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Which node, and how."""

    node: str
    interval_s: float = INTERVAL_S
    grace_s: float = GRACE_S
    """How long a GPU may be lost before it leaves the list."""
    fixed_bytes: int | None = None
    """Advertise this, and read no driver."""
    access: Access = field(default_factory=Access)
    kernel_driver: str = KERNEL_DRIVER
    """The file that exists while the kernel has a driver."""
    namespace: str = ""
    """Where the webhook keeps the lists of who has which GPUs; empty where it does not place."""
    expects_sentry: bool = False
    """A sentry that acts is to run on the node: its absence is a condition of the node."""
    kubeconfig: Path | None = None
    run_folder: str = ""
    """Where the heartbeat for the probes is written; empty for nowhere."""
    dry_run: bool = False
    documentation_url: str = ""
    """See `core.documentation`."""
    startup_taint: str = ""
    """Key of the taint that goes once the node is in its desired state; empty for none."""
