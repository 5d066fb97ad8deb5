"""The threads that wait for others, so that the main one never does: driver and API server."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from webhook.adapters.kube.client import KubeError, joined
from webhook.adapters.kube.follow import Changed, Collection, Failed, Listed, follow
from webhook.agent.observer import scan
from webhook.core.placement.assignments import config_map_name, read_assignments

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.adapters.kube.client import Kube
    from webhook.adapters.kube.follow import Report
    from webhook.adapters.nvml import Nvml
    from webhook.core.node.inventory import Scan
    from webhook.core.placement.assignments import Assignments

    Tell = Callable[["Scan | NodeSeen | WatchFailed | AssignmentsSeen | AssignmentsUnread"], None]

T = TypeVar("T")

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 15.0
"""Between tries to patch the node; doubled from the first to the longest."""


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


@dataclass(frozen=True, slots=True)
class AssignmentsSeen:
    """Who has which of the node's GPUs now; nobody where the webhook keeps no list of it."""

    assignments: Assignments
    watched: bool = True
    """Whether the next change will be told, too."""


@dataclass(frozen=True, slots=True)
class AssignmentsUnread:
    """It cannot be told for the moment."""

    why: str


def watch(kube: Kube, name: str, tell: Tell) -> None:
    """Tell of the node, of each change of it, and of each failure, for ever."""
    _follow_one(
        Collection(kube, joined("nodes"), lambda node: node, name=name),
        lambda node, watched: tell(NodeSeen(node, watched)),
        lambda why: tell(WatchFailed(why)),
    )


def watch_assignments(kube: Kube, namespace: str, node: str, tell: Tell) -> None:
    """Tell who has which GPUs, each change of that, and each failure, for ever."""
    path, name = joined("namespaces", namespace, "configmaps"), config_map_name(node)
    _follow_one(
        Collection(kube, path, _assignments_in, name=name),
        lambda found, watched: tell(AssignmentsSeen(found or {}, watched)),
        lambda why: tell(AssignmentsUnread(why)),
    )


def _follow_one(
    collection: Collection[T],
    seen: Callable[[T | None, bool], None],
    failed: Callable[[str], None],
) -> None:
    """Tell of the object of a name, None where it is gone; raises what is a bug."""

    def hear(report: Report[T]) -> None:
        match report:
            case Listed(things, watched):
                seen(things[0] if things else None, watched)
            case Changed(kind, thing):
                seen(None if kind == "DELETED" else thing, True)
            case Failed(KubeError() as error):
                failed(str(error))
            case Failed(error):
                raise error

    follow(collection, hear)


def read_assigned(kube: Kube, namespace: str, node: str) -> Assignments:
    """Read who has which of a node's GPUs; raises KubeError."""
    found = kube.find(joined("namespaces", namespace, "configmaps", config_map_name(node)))
    return _assignments_in(found or {})


def _assignments_in(config_map: dict[str, Any]) -> Assignments:
    """Return what can be read; the webhook mends the rest when it next binds a pod there."""
    return read_assignments(config_map.get("data"))[0]


def watch_gpus(nvml: Nvml, interval_s: float, tell: Tell) -> None:
    """Tell what NVML says, for ever; a driver that hangs holds up nobody but this thread."""
    while True:
        tell(scan(nvml))
        time.sleep(interval_s)
