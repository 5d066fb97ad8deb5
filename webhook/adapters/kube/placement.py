"""What placement reads and writes in the API server: pods, nodes, and a ConfigMap per GPU node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from webhook.adapters.kube.client import Kube, joined
from webhook.adapters.kube.follow import Collection
from webhook.core.node.state import read_inventory
from webhook.core.placement.assignments import (
    Assignments,
    PodState,
    config_map_name,
    read_assignments,
    read_pod_state,
    write_assignments,
)
from webhook.names import (
    ASSIGNMENTS_LABEL,
    ASSIGNMENTS_NODE_ANNOTATION,
    MANAGED_LABEL,
    NODE_GPU_LABEL,
)

if TYPE_CHECKING:
    from webhook.core.pod.gpus import Gpu

    Json = dict[str, Any]

MANAGED: Final = f"{MANAGED_LABEL}=true"
WITH_GPU: Final = f"{NODE_GPU_LABEL}=true"


@dataclass(frozen=True, slots=True)
class GpuNode:
    """A node, as far as placement is concerned."""

    name: str
    uid: str
    gpus: tuple[Gpu, ...]
    """Empty where it does not show them."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A node's assignments as they are stored."""

    node: str
    assignments: Assignments
    whole: bool
    """Nothing is missing: the list exists and could be read completely."""
    version: str
    """Its `resourceVersion`; empty where it does not exist yet."""


class PlacementApi:
    """The API server as placement sees it; every method raises KubeError."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        """Keep assignments in `namespace`."""
        self._kube = kube
        self._config_maps = joined("namespaces", namespace, "configmaps")
        self.pods = Collection(kube, joined("pods"), read_pod_state, labels=MANAGED)
        """All pods with a demand."""
        self.nodes = Collection(kube, joined("nodes"), _gpu_node, labels=WITH_GPU)
        """All nodes with a GPU."""

    def pod(self, namespace: str, name: str) -> PodState | None:
        """Read a pod; None where it is gone."""
        return self._kube.find_kept(joined("namespaces", namespace, "pods", name), read_pod_state)

    def node(self, name: str) -> GpuNode | None:
        """Read a node; None where it does not exist."""
        found = self._kube.find(joined("nodes", name))
        return None if found is None else _gpu_node(found)

    def pods_on(self, node: str) -> list[PodState]:
        """Read the pods with a demand on a node, not from a cache."""
        selectors = {"labelSelector": MANAGED, "fieldSelector": f"spec.nodeName={node}"}
        return self._kube.list_all(joined("pods"), read_pod_state, **selectors)[0]

    def assignments(self, node: str) -> Stored:
        """Read a node's assignments."""
        found = self._kube.find(f"{self._config_maps}/{config_map_name(node)}")
        return Stored(node, {}, whole=False, version="") if found is None else _stored(found)

    def all_assignments(self) -> list[Stored]:
        """Read the assignments of every node."""
        ours = f"{ASSIGNMENTS_LABEL}=true"
        return self._kube.list_all(self._config_maps, _stored, labelSelector=ours)[0]

    def store(self, node: GpuNode, assignments: Assignments, version: str) -> Stored:
        """Write a node's assignments, unless somebody wrote them since `version`.

        Raises KubeError, `conflict` where somebody did. The node owns the list, so that the garbage
        collector deletes it with the node.
        """
        metadata: Json = {
            "name": config_map_name(node.name),
            "labels": {ASSIGNMENTS_LABEL: "true"},
            "annotations": {ASSIGNMENTS_NODE_ANNOTATION: node.name},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
            ],
        }
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        body["data"] = write_assignments(assignments)
        if version:
            metadata["resourceVersion"] = version
            written = self._kube.replace(f"{self._config_maps}/{metadata['name']}", body)
        else:
            written = self._kube.create(self._config_maps, body)
        return Stored(
            node.name, assignments, whole=True, version=written["metadata"]["resourceVersion"]
        )


def _gpu_node(node: Json) -> GpuNode:
    metadata = node["metadata"]
    return GpuNode(metadata["name"], metadata["uid"], read_inventory(node).gpus)


def _stored(config_map: Json) -> Stored:
    metadata = config_map["metadata"]
    assignments, whole = read_assignments(config_map.get("data"))
    node = (metadata.get("annotations") or {}).get(ASSIGNMENTS_NODE_ANNOTATION, "")
    return Stored(node, assignments, whole, metadata["resourceVersion"])
