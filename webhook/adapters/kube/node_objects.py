"""API objects of one node for its programs: Node, assignment list, GPUNode, ResourceSlices.

DRA drivers publish the devices that they allocate in ResourceSlices (KEP-4381). Kubernetes serves
the API `resource.k8s.io/v1` from 1.34 on.
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
"""Duration of a watch, in seconds. Each renewal reads the object from etcd, for each node of the
cluster. TCP keep-alive notices within a minute that a connection died silently."""

SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
REFUSED_S: Final = 300.0
"""Pause between attempts if the API server does not serve or does not permit slices, in seconds."""
TRIES: Final = 3
"""Number of consecutive failures before they are reported. Newly granted permissions take a
second to become effective, and slices that were read earlier remain valid."""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """The current Node."""

    node: dict[str, Any] | None
    watched: bool = True
    """True if the next change will also be reported."""


@dataclass(frozen=True, slots=True)
class NodeUnread:
    """Changes of the Node cannot be reported at present."""

    why: str


@dataclass(frozen=True, slots=True)
class AssignmentsSeen:
    """The node's current assignment list; empty if it does not exist."""

    assignments: Assignments
    watched: bool = True
    """True if the next change will also be reported."""
    whole: WholeGpuPods | None = None
    """The webhook's last response to the node agent: pods with whole GPUs on the node."""
    complete: bool = True
    """False if any part of the list is malformed."""


@dataclass(frozen=True, slots=True)
class AssignmentsUnread:
    """Changes of the assignment list cannot be reported at present."""

    why: str


@dataclass(frozen=True, slots=True)
class FiguresSeen:
    """The node's current GPUNode; None if it does not exist."""

    figures: NodeFigures | None
    watched: bool = True
    """True if the next change will also be reported."""


@dataclass(frozen=True, slots=True)
class FiguresUnread:
    """Changes of the node's GPUNode cannot be reported at present."""

    why: str


@dataclass(frozen=True, slots=True)
class SlicesSeen:
    """All current ResourceSlices of the node."""

    slices: tuple[ResourceSlice, ...]


@dataclass(frozen=True, slots=True)
class SlicesUnread:
    """The ResourceSlices of the node cannot be read at present."""

    why: str
    refused: bool
    """True if the API server does not serve or does not permit slices; False for other failures."""


def watch_node(kube: Kube, name: str, send: Callable[[NodeSeen | NodeUnread], object]) -> None:
    """Report the Node, each change of it, and each failure, forever."""
    _follow_object(
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
    """Report the assignment list, each change of it, and each failure, forever."""
    path, name = core_path("namespaces", namespace, "configmaps"), config_map_name(node)
    _follow_object(
        Collection(kube=kube, path=path, project=_parse_assignment_list, name=name),
        lambda found, watched: send(replace(found or AssignmentsSeen({}), watched=watched)),
        lambda error: send(AssignmentsUnread(str(error))),
    )


def watch_figures(
    kube: Kube, node: str, send: Callable[[FiguresSeen | FiguresUnread], object]
) -> None:
    """Report the node's GPUNode, each change of it, and each failure, forever.

    A cluster without the CRD is not a failure.
    """
    _follow_object(
        Collection(kube=kube, path=GPU_NODES_PATH, project=read_gpu_node, name=node),
        lambda figures, watched: send(FiguresSeen(figures, watched)),
        lambda error: None if error.not_found else send(FiguresUnread(str(error))),
    )


def read_assignment_list(kube: Kube, namespace: str, node: str) -> AssignmentsSeen:
    """Return the assignment list of a node; raises KubeError."""
    found = kube.find(core_path("namespaces", namespace, "configmaps", config_map_name(node)))
    return _parse_assignment_list(found or {})


def node_slices(kube: Kube, node: str) -> Collection[ResourceSlice]:
    """Return the ResourceSlices of a node, for `follow` or for reading them once."""
    return Collection(
        kube=kube, path=SLICES, project=read_resource_slice, fields=f"spec.nodeName={node}"
    )


def watch_slices(
    kube: Kube, node: str, send: Callable[[SlicesSeen | SlicesUnread], object]
) -> None:
    """Report the ResourceSlices of a node, each change of them, and each failure, forever."""
    slices: dict[str, ResourceSlice] = {}
    failures, refused = 0, False

    def on_report(report: Report[ResourceSlice]) -> None:
        nonlocal slices, failures, refused
        match report:
            case Listed(items):
                slices = {found.name: found for found in items}
            case Changed(kind, found):
                slices.pop(found.name, None)
                if kind != "DELETED":
                    slices[found.name] = found
            case Failed(KubeError() as error):
                failures += 1
                refused = error.not_found or (error.forbidden and failures >= TRIES)
                if refused or failures >= TRIES:
                    send(SlicesUnread(str(error), refused))
                return
            case Failed(error):
                raise error
        failures, refused = 0, False
        send(SlicesSeen(tuple(slices.values())))

    follow(
        node_slices(kube, node),
        on_report,
        sleep=lambda pause_s: time.sleep(REFUSED_S if refused else pause_s),
    )


def _follow_object(
    collection: Collection[T],
    seen: Callable[[T | None, bool], object],
    failed: Callable[[KubeError], object],
) -> None:
    """Call `seen` with the object, None if it does not exist; raises exceptions that are bugs."""

    def on_report(report: Report[T]) -> None:
        match report:
            case Listed(items, watched):
                seen(items[0] if items else None, watched)
            case Changed(kind, item):
                seen(None if kind == "DELETED" else item, True)
            case Failed(KubeError() as error):
                failed(error)
            case Failed(error):
                raise error

    follow(collection, on_report, watch_s=WATCH_S)


def _parse_assignment_list(config_map: dict[str, Any]) -> AssignmentsSeen:
    """Return the valid entries; the webhook restores the others at the node's next binding."""
    data = config_map.get("data")
    assignments, complete = read_assignments(data)
    return AssignmentsSeen(assignments, whole=read_whole_gpu_pods(data), complete=complete)


_MAYBE_IN_SUMMARY: Final = ("promised", "used", "largestFree", "unmanaged")
"""Fields that are absent if unknown; a merge patch must remove them explicitly."""


@dataclass(frozen=True, slots=True)
class OwnNode:
    """State of the sentry's node, as the node's agent published it."""

    uid: str
    enforcement: str
    not_shared: str = ""
    faults: Mapping[str, str] = field(default_factory=dict)
    """Faults keyed by the UUID of an unhealthy GPU; an empty string is an unknown fault."""
    held: str = ""
    """Reason why the node gives further pods no GPU; empty if it gives them GPUs."""


def read_own_node(kube: Kube, name: str) -> OwnNode:
    """Read the Node from the API server's cache; raises KubeError."""
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
    """Return the stored GPUNode of a node, or None if there is none; raises KubeError."""
    try:
        return read_gpu_node(kube.read(_gpu_node_path(name)))
    except KubeError as error:
        if error.not_found:
            return None
        raise


def write_figures(kube: Kube, figures: NodeFigures, node_uid: str = "") -> None:
    """Write the GPUNode of a node by a merge patch, or create it.

    Raises KubeError, with `not_found` if the CRD is missing.
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
