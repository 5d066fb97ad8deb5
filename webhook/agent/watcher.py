"""The threads that wait for driver and API server, so that the main one never does."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from webhook.adapters.kube.assigned import follow_one
from webhook.adapters.kube.client import joined
from webhook.adapters.kube.follow import Collection
from webhook.agent.observer import scan

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event

    from webhook.adapters.kube.client import Kube
    from webhook.adapters.nvml import Nvml
    from webhook.agent.xids import Hold
    from webhook.core.node.inventory import Scan

    Send = Callable[["Scan | NodeSeen | WatchFailed"], None]

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 15.0
"""Between retries to patch the node; doubled from the first to the longest."""
FRESH_EVERY_S: Final = 600.0
"""How often a scan opens the library anew in any case: one that is held open never shows a GPU that
was added, or that came back."""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """The node as it is now."""

    node: dict[str, Any] | None
    """None where it does not exist."""
    watched: bool = True
    """Whether its next change will be reported, too."""


@dataclass(frozen=True, slots=True)
class WatchFailed:
    """Changes of the node cannot be reported for now."""

    why: str


def watch(kube: Kube, name: str, send: Send) -> None:
    """Report the node, each change of it, and each failure, forever."""
    follow_one(
        Collection(kube, joined("nodes"), lambda node: node, name=name),
        lambda node, watched: send(NodeSeen(node, watched)),
        lambda why: send(WatchFailed(why)),
    )


def watch_gpus(
    nvml: Nvml, kernel_driver: str, interval_s: float, now: Event, hold: Hold, send: Send
) -> None:
    """Report what NVML says, forever; a driver that hangs blocks only this thread.

    Each `interval_s`, and where `now` is set at once. After a scan that failed, or that saw other
    GPUs than the one before, and now and then in any case, the watch for Xids lets the driver go.
    """
    fresh_s, doubted, before = float("-inf"), False, None
    while True:
        now.clear()
        fresh = doubted or time.monotonic() - fresh_s >= FRESH_EVERY_S
        with hold.fresh() if fresh else nullcontext():
            found = scan(nvml, kernel_driver)
        fresh_s = time.monotonic() if fresh else fresh_s
        seen = {gpu.uuid for gpu in found.gpus}
        doubted = bool(found.failed or found.unsure) or (not fresh and seen != before)
        before = seen
        send(found)
        now.wait(interval_s)
