"""The threads that wait for driver and API server, so that the main one never does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from webhook.adapters.kube.client import KubeError, joined
from webhook.adapters.kube.follow import Changed, Collection, Failed, Listed, follow
from webhook.agent.observer import scan
from webhook.core.placement.assignments import config_map_name, read_assignments

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event

    from webhook.adapters.kube.client import Kube
    from webhook.adapters.kube.follow import Report
    from webhook.adapters.nvml import Nvml
    from webhook.core.node.inventory import Scan
    from webhook.core.placement.assignments import Assignments

    Send = Callable[["Scan | NodeSeen | WatchFailed | AssignmentsSeen | AssignmentsUnread"], None]

T = TypeVar("T")

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 15.0
"""Between retries to patch the node; doubled from the first to the longest."""

WATCH_S: Final = 300.0
"""A watch is only renewed this often: each time the object is read from etcd, too, on behalf of
each node of the cluster. A connection that died silently is found within a minute (`connect`)."""


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


@dataclass(frozen=True, slots=True)
class AssignmentsSeen:
    """Who has which of the node's GPUs now; nobody where the webhook keeps no list of it."""

    assignments: Assignments
    watched: bool = True
    """Whether the next change will be reported, too."""


@dataclass(frozen=True, slots=True)
class AssignmentsUnread:
    """Who has which of the node's GPUs cannot be read for now."""

    why: str


def watch(kube: Kube, name: str, send: Send) -> None:
    """Report the node, each change of it, and each failure, forever."""
    _follow_one(
        Collection(kube, joined("nodes"), lambda node: node, name=name),
        lambda node, watched: send(NodeSeen(node, watched)),
        lambda why: send(WatchFailed(why)),
    )


def watch_assignments(kube: Kube, namespace: str, node: str, send: Send) -> None:
    """Report who has which GPUs, each change of that, and each failure, forever."""
    path, name = joined("namespaces", namespace, "configmaps"), config_map_name(node)
    _follow_one(
        Collection(kube, path, _assignments_in, name=name),
        lambda found, watched: send(AssignmentsSeen(found or {}, watched)),
        lambda why: send(AssignmentsUnread(why)),
    )


def _follow_one(
    collection: Collection[T],
    seen: Callable[[T | None, bool], None],
    failed: Callable[[str], None],
) -> None:
    """Report the object of a name, None where it is gone; raises what is a bug."""

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

    follow(collection, hear, watch_s=WATCH_S)


def read_assigned(kube: Kube, namespace: str, node: str) -> Assignments:
    """Read who has which of a node's GPUs; raises KubeError."""
    found = kube.find(joined("namespaces", namespace, "configmaps", config_map_name(node)))
    return _assignments_in(found or {})


def _assignments_in(config_map: dict[str, Any]) -> Assignments:
    """Return what can be read; the webhook restores the rest when it next binds a pod there."""
    return read_assignments(config_map.get("data"))[0]


def watch_gpus(nvml: Nvml, kernel_driver: str, interval_s: float, now: Event, send: Send) -> None:
    """Report what NVML says, forever; a driver that hangs blocks only this thread.

    Each `interval_s`, and where `now` is set at once.
    """
    while True:
        now.clear()
        send(scan(nvml, kernel_driver))
        now.wait(interval_s)
