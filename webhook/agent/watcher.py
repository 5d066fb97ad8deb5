"""The two threads that wait for others, so that the main one never does: driver and API server."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from webhook.adapters.kube import KubeError
from webhook.agent.observer import look

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.adapters.kube import Kube
    from webhook.adapters.nvml import Nvml
    from webhook.core.capacity import Look

    Tell = Callable[["Look | NodeSeen | WatchFailed"], None]

WATCH_S: Final = 60.0
"""The node is read anew this often, in case that a watch went silent."""

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 15.0
"""Between tries to reach an API server; doubled from the first to the longest."""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """The node as it is now."""

    node: dict[str, Any] | None
    """None where there is no such node."""
    watched: bool = True
    """Whether its next change will be told, too."""


@dataclass(frozen=True, slots=True)
class WatchFailed:
    """The node's changes cannot be told for the moment."""

    why: str


def watch(kube: Kube, name: str, tell: Tell) -> None:
    """Tell of the node, of each change of it, and of each failure, for ever."""
    pause_s = FIRST_PAUSE_S
    while True:
        started_s = time.monotonic()
        try:
            _watch_once(kube, name, tell)
        except KubeError as error:
            tell(WatchFailed(str(error)))
            time.sleep(pause_s * random.uniform(0.75, 1.0))  # noqa: S311 - many agents, one server
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        else:
            pause_s = FIRST_PAUSE_S
            time.sleep(max(0.0, started_s + FIRST_PAUSE_S - time.monotonic()))


def _watch_once(kube: Kube, name: str, tell: Tell) -> None:
    """Read the node and watch it for a while; where only the watch is refused, reading is left."""
    node = read(kube, name)
    since = node["metadata"]["resourceVersion"] if node else ""
    try:
        changes = kube.watch_node(name, since, lasting_s=WATCH_S)
    except KubeError:
        tell(NodeSeen(node, watched=False))
        raise
    tell(NodeSeen(node))
    for changed in changes:
        tell(NodeSeen(changed))


def read(kube: Kube, name: str) -> dict[str, Any] | None:
    """Read the node; None where there is none, or none yet."""
    try:
        return kube.node(name)
    except KubeError as error:
        if error.not_found:
            return None
        raise


def watch_gpus(nvml: Nvml, interval_s: float, tell: Tell) -> None:
    """Tell what NVML says, for ever; a driver that hangs holds up nobody but this thread."""
    while True:
        tell(look(nvml))
        time.sleep(interval_s)
