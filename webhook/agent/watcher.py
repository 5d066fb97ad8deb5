"""The threads that wait for others, so that the main one never does: driver and API server."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from webhook.adapters.kube.client import KubeError, joined
from webhook.agent.observer import scan
from webhook.core.placement.assignments import config_map_name, read_assignments

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.adapters.kube.client import Kube
    from webhook.adapters.nvml import Nvml
    from webhook.core.node.inventory import Scan
    from webhook.core.placement.assignments import Assignments

    Tell = Callable[["Scan | NodeSeen | WatchFailed | AssignmentsSeen | AssignmentsUnread"], None]

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
    _for_ever(lambda: _watch_once(kube, name, tell), lambda why: tell(WatchFailed(why)))


def watch_assignments(kube: Kube, namespace: str, node: str, tell: Tell) -> None:
    """Tell who has which GPUs, each change of that, and each failure, for ever."""
    _for_ever(
        lambda: _watch_assignments_once(kube, namespace, node, tell),
        lambda why: tell(AssignmentsUnread(why)),
    )


def _for_ever(watch_once: Callable[[], None], tell_failure: Callable[[str], None]) -> None:
    """Watch again and again, with pauses that grow while that fails."""
    pause_s = FIRST_PAUSE_S
    while True:
        started_s = time.monotonic()
        try:
            watch_once()
        except KubeError as error:
            tell_failure(str(error))
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


def _watch_assignments_once(kube: Kube, namespace: str, node: str, tell: Tell) -> None:
    found = _read_list(kube, namespace, node)
    # With the name as field selector the rights to get and to watch are enough: none to list. Where
    # there is no list yet, 0 means any version: without one, API servers of 1.36 wait until their
    # cache is as new as etcd, which older etcds and kine never tell them, and answer 504.
    query = {
        "fieldSelector": f"metadata.name={config_map_name(node)}",
        "resourceVersion": found["metadata"]["resourceVersion"] if found else "0",
    }
    path = joined("namespaces", namespace, "configmaps")
    try:
        changes = kube.watch(path, lasting_s=WATCH_S, **query)
    except KubeError:
        tell(AssignmentsSeen(_assignments_in(found), watched=False))
        raise
    tell(AssignmentsSeen(_assignments_in(found)))
    for kind, changed in changes:
        if kind != "BOOKMARK":
            tell(AssignmentsSeen(_assignments_in(None if kind == "DELETED" else changed)))


def read_assigned(kube: Kube, namespace: str, node: str) -> Assignments:
    """Read who has which of a node's GPUs; raises KubeError."""
    return _assignments_in(_read_list(kube, namespace, node))


def _read_list(kube: Kube, namespace: str, node: str) -> dict[str, Any] | None:
    path = joined("namespaces", namespace, "configmaps", config_map_name(node))
    return _found(lambda: kube.read(path))


def _assignments_in(config_map: dict[str, Any] | None) -> Assignments:
    """Return what can be read; the webhook mends the rest when it next binds a pod there."""
    return read_assignments((config_map or {}).get("data"))[0]


def read(kube: Kube, name: str) -> dict[str, Any] | None:
    """Read the node; None where there is none, or none yet."""
    return _found(lambda: kube.node(name))


def _found(ask: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    try:
        return ask()
    except KubeError as error:
        if error.not_found:
            return None
        raise


def watch_gpus(nvml: Nvml, interval_s: float, tell: Tell) -> None:
    """Tell what NVML says, for ever; a driver that hangs holds up nobody but this thread."""
    while True:
        tell(scan(nvml))
        time.sleep(interval_s)
