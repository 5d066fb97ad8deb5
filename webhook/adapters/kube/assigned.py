"""Follow one object for long, as each node does: its own, and the list of who has its GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from webhook.adapters.kube.client import KubeError, joined
from webhook.adapters.kube.follow import Changed, Collection, Failed, Listed, follow
from webhook.core.placement.assignments import config_map_name, read_assignments, read_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.adapters.kube.client import Kube
    from webhook.adapters.kube.follow import Report
    from webhook.core.placement.assignments import Assignments, Whole

    Send = Callable[["AssignmentsSeen | AssignmentsUnread"], None]

T = TypeVar("T")

WATCH_S: Final = 300.0
"""A watch is only renewed this often: each time the object is read from etcd, too, on behalf of
each node of the cluster. A connection that died silently is found within a minute (`connect`)."""


@dataclass(frozen=True, slots=True)
class AssignmentsSeen:
    """Who has which of the node's GPUs now; nobody where the webhook keeps no list of it."""

    assignments: Assignments
    watched: bool = True
    """Whether the next change will be reported, too."""
    whole: Whole | None = None
    """The webhook's last answer which pods with whole GPUs run on the node."""


@dataclass(frozen=True, slots=True)
class AssignmentsUnread:
    """Who has which of the node's GPUs cannot be read for now."""

    why: str


def watch_assignments(kube: Kube, namespace: str, node: str, send: Send) -> None:
    """Report who has which GPUs, each change of that, and each failure, forever."""
    path, name = joined("namespaces", namespace, "configmaps"), config_map_name(node)
    follow_one(
        Collection(kube, path, _seen_in, name=name),
        lambda found, watched: send(replace(found or AssignmentsSeen({}), watched=watched)),
        lambda why: send(AssignmentsUnread(why)),
    )


def follow_one(
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


def read_assigned(kube: Kube, namespace: str, node: str) -> AssignmentsSeen:
    """Read who has which of a node's GPUs; raises KubeError."""
    found = kube.find(joined("namespaces", namespace, "configmaps", config_map_name(node)))
    return _seen_in(found or {})


def _seen_in(config_map: dict[str, Any]) -> AssignmentsSeen:
    """Return what can be read; the webhook restores the rest when it next binds a pod there."""
    data = config_map.get("data")
    return AssignmentsSeen(read_assignments(data)[0], whole=read_whole(data))
