"""The object `GPUNode` of one node, as its sentry reads and writes it.

One request a write: a merge patch, which finds the object, and a creation only where that does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from webhook.adapters.kube.client import Kube, core_path
from webhook.adapters.kube.errors import KubeError
from webhook.core.kinds.nodes import NodeFigures, read_gpu_node, write_gpu_node
from webhook.core.node.sharing import is_advertised
from webhook.core.node.state import labels_of, read_inventory
from webhook.core.node.verdict import why_closed
from webhook.names import GPU_NODES_PATH, NODE_ENFORCEMENT_LABEL

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
    why, is_shared = why_closed(node), is_advertised(node)
    return OwnNode(
        str(node["metadata"].get("uid") or ""),
        str(labels_of(node).get(NODE_ENFORCEMENT_LABEL) or ""),
        "" if is_shared else why or "its agent does not advertise them",
        {gpu.uuid: gpu.fault for gpu in read_inventory(node).gpus if not gpu.healthy},
        why if is_shared else "",
    )


def read_figures(kube: Kube, name: str) -> NodeFigures | None:
    """Read what is stored of a node, None where nothing is; raises KubeError."""
    try:
        return read_gpu_node(kube.read(_path(name)))
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
        kube.merge(_path(figures.name), patch)
    except KubeError as error:
        if not error.not_found:
            raise
        kube.create(GPU_NODES_PATH, written)


def _path(name: str) -> str:
    return f"{GPU_NODES_PATH}/{quote(name, safe='')}"
