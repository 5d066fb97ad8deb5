"""Follow what concerns one node, from that node: itself, its list, its GPUNode, its ResourceSlices.

By ResourceSlices a DRA driver says which devices it gives away: KEP-4381 and the API
`resource.k8s.io/v1`, which Kubernetes serves from 1.34 on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar
from urllib.parse import quote

from webhook.adapters.kube.client import Kube, core_path
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.follow import Changed, Collection, Failed, Listed, Report, follow
from webhook.core.kinds.nodes import NodeFigures, read_gpu_node, write_gpu_node
from webhook.core.node.inventory import read_inventory
from webhook.core.node.node_fields import explain_closed, is_advertised, node_labels
from webhook.core.placement.assignment_codec import (
    WholeGpuPods,
    config_map_name,
    read_assignments,
    read_whole_gpu_pods,
)
from webhook.core.placement.assignments import Assignments
from webhook.core.pod.whole_gpus import ResourceSlice, read_resource_slice
from webhook.names import GPU_NODES_PATH, NODE_ENFORCEMENT_LABEL

T = TypeVar("T")

WATCH_S: Final = 300.0
"""A watch is only renewed this often: each time the object is read from etcd, too, on behalf of
each node of the cluster. A connection that died silently is found within a minute (`connect`)."""

SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
REFUSED_S: Final = 300.0
"""Between tries where the API server does not serve slices, or not to us."""
TRIES: Final = 3
"""So often in a row it must fail before that is reported: rights that were just granted take a
second to count, and what was read until then still holds."""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """The node as it is now."""

    node: dict[str, Any] | None
    """None where it does not exist."""
    watched: bool = True
    """Whether its next change will be reported, too."""


@dataclass(frozen=True, slots=True)
class NodeUnread:
    """Changes of the node cannot be reported for now."""

    why: str


@dataclass(frozen=True, slots=True)
class AssignmentsSeen:
    """Who has which of the node's GPUs now; nobody where the webhook keeps no list of it."""

    assignments: Assignments
    watched: bool = True
    """Whether the next change will be reported, too."""
    whole: WholeGpuPods | None = None
    """The webhook's last answer which pods with whole GPUs run on the node."""
    complete: bool = True
    """False if the list, or part of it, is malformed."""


@dataclass(frozen=True, slots=True)
class AssignmentsUnread:
    """Who has which of the node's GPUs cannot be read for now."""

    why: str


@dataclass(frozen=True, slots=True)
class FiguresSeen:
    """The node's GPUNode as it is stored; None if there is none."""

    figures: NodeFigures | None
    watched: bool = True
    """True if the next change will be reported, too."""


@dataclass(frozen=True, slots=True)
class FiguresUnread:
    """Changes of the node's GPUNode cannot be reported for now."""

    why: str


@dataclass(frozen=True, slots=True)
class SlicesSeen:
    """All slices of the node as they are now."""

    slices: tuple[ResourceSlice, ...]


@dataclass(frozen=True, slots=True)
class SlicesUnread:
    """The slices of the node cannot be read for now."""

    why: str
    refused: bool
    """The API server does not serve them, or not to us; nothing was lost on the way."""


def watch_node(kube: Kube, name: str, send: Callable[[NodeSeen | NodeUnread], object]) -> None:
    """Report the node, each change of it, and each failure, forever."""
    _follow_one(
        Collection(kube=kube, path=core_path("nodes"), project=lambda node: node, name=name),
        lambda node, watched: send(NodeSeen(node, watched)),
        lambda error: send(NodeUnread(str(error))),
    )


def watch_assignments(
    kube: Kube,
    namespace: str,
    node: str,
    send: Callable[[AssignmentsSeen | AssignmentsUnread], object],
) -> None:
    """Report who has which GPUs, each change of that, and each failure, forever."""
    path, name = core_path("namespaces", namespace, "configmaps"), config_map_name(node)
    _follow_one(
        Collection(kube=kube, path=path, project=_seen_in, name=name),
        lambda found, watched: send(replace(found or AssignmentsSeen({}), watched=watched)),
        lambda error: send(AssignmentsUnread(str(error))),
    )


def watch_figures(
    kube: Kube, node: str, send: Callable[[FiguresSeen | FiguresUnread], object]
) -> None:
    """Report the node's GPUNode, each change of it, and each failure, forever.

    In a cluster that does not know the kind there is none, and that is no failure.
    """
    _follow_one(
        Collection(kube=kube, path=GPU_NODES_PATH, project=read_gpu_node, name=node),
        lambda figures, watched: send(FiguresSeen(figures, watched)),
        lambda error: None if error.not_found else send(FiguresUnread(str(error))),
    )


def read_assigned(kube: Kube, namespace: str, node: str) -> AssignmentsSeen:
    """Read who has which of a node's GPUs; raises KubeError."""
    found = kube.find(core_path("namespaces", namespace, "configmaps", config_map_name(node)))
    return _seen_in(found or {})


def slices_of(kube: Kube, node: str) -> Collection[ResourceSlice]:
    """Return the slices of a node for `follow`, or to be read once."""
    return Collection(
        kube=kube, path=SLICES, project=read_resource_slice, fields=f"spec.nodeName={node}"
    )


def watch_slices(
    kube: Kube, node: str, send: Callable[[SlicesSeen | SlicesUnread], object]
) -> None:
    """Report the slices of a node, each change of them, and each failure, forever."""
    known: dict[str, ResourceSlice] = {}
    failures, refused = 0, False

    def on_report(report: Report[ResourceSlice]) -> None:
        nonlocal known, failures, refused
        match report:
            case Listed(things):
                known = {one.name: one for one in things}
            case Changed(kind, one):
                known.pop(one.name, None)
                if kind != "DELETED":
                    known[one.name] = one
            case Failed(KubeError() as error):
                failures += 1
                refused = error.not_found or (error.forbidden and failures >= TRIES)
                if refused or failures >= TRIES:
                    send(SlicesUnread(str(error), refused))
                return
            case Failed(error):
                raise error
        failures, refused = 0, False
        send(SlicesSeen(tuple(known.values())))

    follow(
        slices_of(kube, node),
        on_report,
        sleep=lambda pause_s: time.sleep(REFUSED_S if refused else pause_s),
    )


def _follow_one(
    collection: Collection[T],
    seen: Callable[[T | None, bool], object],
    failed: Callable[[KubeError], object],
) -> None:
    """Report the object of a name, None where it is gone; raises what is a bug."""

    def on_report(report: Report[T]) -> None:
        match report:
            case Listed(things, watched):
                seen(things[0] if things else None, watched)
            case Changed(kind, thing):
                seen(None if kind == "DELETED" else thing, True)
            case Failed(KubeError() as error):
                failed(error)
            case Failed(error):
                raise error

    follow(collection, on_report, watch_s=WATCH_S)


def _seen_in(config_map: dict[str, Any]) -> AssignmentsSeen:
    """Return what can be read; the webhook restores the rest when it next binds a pod there."""
    data = config_map.get("data")
    assignments, complete = read_assignments(data)
    return AssignmentsSeen(assignments, whole=read_whole_gpu_pods(data), complete=complete)


_MAYBE_IN_SUMMARY: Final = ("promised", "used", "largestFree", "unmanaged")
"""Absent where unknown, so a patch has to take them out: it merges objects, and replaces lists."""


@dataclass(frozen=True, slots=True)
class OwnNode:
    """Facts about the Node that a sentry is on."""

    uid: str
    enforcement: str
    """The label; empty where the node agent has not written it."""
    not_shared: str = ""
    """Why its GPUs are not shared, by its agent's verdict; empty if they are."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """Why, by UUID, GPUs are not healthy, as the node agent says it; it may say no more."""
    held: str = ""
    """Why no further pod gets a GPU, by its agent's verdict; empty if one may."""


def read_own_node(kube: Kube, name: str) -> OwnNode:
    """Read a Node, from the API server's cache; raises KubeError."""
    node = kube.read(core_path("nodes", name), resourceVersion="0")
    why, is_shared = explain_closed(node), is_advertised(node)
    return OwnNode(
        str(node["metadata"].get("uid") or ""),
        str(node_labels(node).get(NODE_ENFORCEMENT_LABEL) or ""),
        "" if is_shared else why or "its agent does not advertise them",
        {gpu.uuid: gpu.fault for gpu in read_inventory(node).gpus if not gpu.healthy},
        why if is_shared else "",
    )


def read_figures(kube: Kube, name: str) -> NodeFigures | None:
    """Read what is stored of a node, None where nothing is; raises KubeError."""
    try:
        return read_gpu_node(kube.read(_gpu_node_path(name)))
    except KubeError as error:
        if error.not_found:
            return None
        raise


def write_figures(kube: Kube, figures: NodeFigures, node_uid: str = "") -> None:
    """Write a node's figures over those that are stored, or create the object; raises KubeError.

    Not found means that the cluster does not know the kind: its CRD is missing.
    """
    written = write_gpu_node(figures, node_uid)
    status = {"notShared": None, "held": None, "driverLimit": None, **written["status"]}
    status["summary"] = dict.fromkeys(_MAYBE_IN_SUMMARY) | status["summary"]
    patch: dict[str, Any] = {"status": status}
    if owners := written["metadata"].get("ownerReferences"):
        patch["metadata"] = {"ownerReferences": owners}
    try:
        kube.merge(_gpu_node_path(figures.name), patch)
    except KubeError as error:
        if not error.not_found:
            raise
        kube.create(GPU_NODES_PATH, written)


def _gpu_node_path(name: str) -> str:
    return f"{GPU_NODES_PATH}/{quote(name, safe='')}"
