"""API requests for placement: pods, nodes, and a ConfigMap per GPU node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import quote

from webhook.adapters.kube.bounded_json import Json
from webhook.adapters.kube.client import Kube, core_path
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.follow import Collection
from webhook.core.node.node_fields import explain_closed, node_labels, read_gpus
from webhook.core.nvidia.variables import DeviceNames, read_device_names
from webhook.core.placement.assignment_codec import (
    WholeGpuPods,
    config_map_name,
    read_assignments,
    read_whole_gpu_pods,
    write_assignments,
    write_whole_gpu_pods,
)
from webhook.core.placement.assignments import Assignment, Assignments
from webhook.core.placement.pod_state import PodState, read_pod_state
from webhook.core.pod.gpus import Gpu
from webhook.core.pod.whole_gpus import (
    DRA_DRIVER,
    MAX_CLAIMS,
    find_claim_drivers,
    find_claim_names,
    has_whole_gpu,
)
from webhook.names import (
    ASSIGNMENTS_LABEL,
    ASSIGNMENTS_NODE_ANNOTATION,
    MANAGED_LABEL,
    NODE_DEVICE_NAMES_LABEL,
    NODE_DRIVER_LIMIT_LABEL,
    NODE_GPU_LABEL,
    NODE_QUESTION_LABEL,
    NODE_SENTRY_LABEL,
)

MANAGED: Final = f"{MANAGED_LABEL}=true"
WITH_GPU: Final = f"{NODE_GPU_LABEL}=true"

_ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNode:
    """A node with GPUs, as placement sees it."""

    name: str
    gpus: tuple[Gpu, ...]
    device_names: DeviceNames | None = DeviceNames.UUID
    """Device names that the node's container runtime resolves; None if this release cannot write
    them."""
    closed_reason: str = ""
    """Reason why the node gives further pods no GPU; empty if it gives them GPUs."""
    driver_limit: bool = False
    """True if the agent's label states that the driver enforces caps."""
    sentry_acts: bool = False
    """True if the agent's label states that the sentry enforces caps."""
    unread: int = 0
    """Number of malformed entries in the node's list of GPUs. Such GPUs are never assigned."""


@dataclass(frozen=True, slots=True)
class Question:
    """A node agent's question to the webhook for the pods with whole GPUs on its node."""

    node: str
    asked: str
    """Value of the node's label, which identifies the question."""


@dataclass(frozen=True, slots=True)
class StoredPod:
    """A pod with its version, so that a write fails if the pod has changed."""

    state: PodState
    version: str


@dataclass(frozen=True, slots=True)
class StoredList:
    """A node's assignment list as stored."""

    node: str
    assignments: Assignments
    whole: bool
    """True if the list exists and every entry is valid."""
    version: str
    """`resourceVersion` of the list; empty if it does not exist."""
    answer: WholeGpuPods | None = None
    """Last response to the node agent's question; every write keeps it."""


class PlacementApi:
    """The API server's objects that placement uses; every method raises KubeError."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        saw: Callable[[Json, PodState], None] = lambda _raw, _state: None,
        asked: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """Keep assignments in `namespace`; call `saw` with each pod that `pods` reads or watches.

        `asked` returns the keys of the pod labels that the current policy matches.
        """
        self._kube = kube
        self._read_pod = partial(read_pod_state, asked=asked)
        self.now_s = kube.now_s
        self._config_maps = core_path("namespaces", namespace, "configmaps")

        def keep(raw: Json) -> PodState:
            state = self._read_pod(raw)
            saw(raw, state)
            return state

        self.pods = Collection(kube=kube, path=core_path("pods"), project=keep, labels=MANAGED)
        self.nodes = Collection(
            kube=kube, path=core_path("nodes"), project=_gpu_node, labels=WITH_GPU
        )
        self.questions = Collection(
            kube=kube, path=core_path("nodes"), project=_question, labels=NODE_QUESTION_LABEL
        )

    def pod(self, namespace: str, name: str) -> PodState | None:
        """Return a pod, or None if it does not exist."""
        return self._kube.find_parsed(
            core_path("namespaces", namespace, "pods", name), self._read_pod
        )

    def read_pods(self, entries: Mapping[str, Assignment]) -> dict[str, PodState | None]:
        """Return pods keyed by the UID of their entry; None for a pod that does not exist.

        Each pod is read individually. API servers before 1.34 read every pod of the cluster from
        etcd for any list with a `limit` (cacher.go, `shouldDelegateList`).
        """
        return {uid: self.pod(*entry.pod.split("/")) for uid, entry in entries.items()}

    def read_stored_pod(self, name: str) -> StoredPod | None:
        """Return a pod with its version, given `namespace/name`, or None if it does not exist."""
        return self._kube.find_parsed(
            _pod_path(name),
            lambda pod: StoredPod(self._read_pod(pod), pod["metadata"]["resourceVersion"]),
        )

    def annotate(self, pod: StoredPod, annotations: Mapping[str, str | None]) -> None:
        """Set or remove annotations of a pod; raises a conflict if the pod has changed.

        The request patches the subresource `status`, so the webhook needs no permission to change
        what pods run.
        """
        metadata = {
            "uid": pod.state.uid,
            "resourceVersion": pod.version,
            "annotations": dict(annotations),
        }
        self._kube.merge(f"{_pod_path(pod.state.name)}/status", {"metadata": metadata})

    def delete_pod(self, pod: StoredPod) -> None:
        """Delete a pod; raises a conflict if the pod has changed since it was read."""
        self._kube.delete(_pod_path(pod.state.name), uid=pod.state.uid, version=pod.version)

    def is_allowed(self, verb: str, resource: str, subresource: str) -> bool:
        """Return True if the webhook's account has a permission in all namespaces."""
        wanted = {"verb": verb, "resource": resource, "subresource": subresource}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": wanted},
        }
        answer = self._kube.create(_ACCESS_REVIEWS, body)
        return (answer.get("status") or {}).get("allowed") is True

    def node(self, name: str) -> GpuNode | None:
        """Return a node, or None if it does not exist."""
        found = self._kube.find(core_path("nodes", name))
        return None if found is None else _gpu_node(found)

    def list_pods_on(self, node: str) -> list[PodState]:
        """Return the pods on a node that request VRAM, read from etcd."""
        selectors = {"labelSelector": MANAGED, "fieldSelector": f"spec.nodeName={node}"}
        return self._kube.list_all(core_path("pods"), self._read_pod, **selectors)

    def list_whole_gpu_pods(self, node: str) -> list[str]:
        """Return the sorted names of the pods on a node that have whole GPUs.

        They are read from the API server's cache. Otherwise older API servers would read every pod
        of the cluster from etcd (see `read_pods`), twice a minute for each waiting node. The cache
        is fresh enough, since no pod gets a whole GPU after the node's agent has asked.
        """

        def keep(raw: Json) -> tuple[str, bool, tuple[str, ...]]:
            metadata = raw["metadata"]
            name = f"{metadata['namespace']}/{metadata['name']}"
            return name, has_whole_gpu(raw), find_claim_names(raw)

        on_node = f"spec.nodeName={node}"
        found = self._kube.list_cached(core_path("pods"), keep, fieldSelector=on_node)
        return sorted(
            name
            for name, has, claims in found
            if has or (claims and self._claims_gpu(name, claims))
        )

    def _claims_gpu(self, pod: str, claims: tuple[str, ...]) -> bool:
        """Return True if one of a pod's claims has a GPU; False if reading claims is forbidden.

        At most `MAX_CLAIMS` claims are read. A pod with more claims counts if all of the read ones
        are allocated, since a pod runs only once all of its claims are allocated.
        """
        namespace = quote(pod.partition("/")[0], safe="")
        path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
        try:
            drivers = [
                self._kube.find_parsed(f"{path}/{quote(claim, safe='')}", find_claim_drivers)
                for claim in claims[:MAX_CLAIMS]
            ]
        except KubeError as error:
            if not error.forbidden:
                raise
            return False
        has_gpu = any(DRA_DRIVER in found for found in drivers if found)
        return has_gpu or (len(claims) > MAX_CLAIMS and all(drivers))

    def read_list(self, node: str) -> StoredList:
        """Return a node's assignment list."""
        found = self._kube.find(f"{self._config_maps}/{config_map_name(node)}")
        return StoredList(node, {}, whole=False, version="") if found is None else _stored(found)

    def list_all(
        self, known: Callable[[str], StoredList | None] = lambda _node: None
    ) -> list[StoredList]:
        """Return the assignment lists of all nodes.

        `known` returns a node's list as last read, or None. That list is reused if its version has
        not changed.
        """

        def keep(config_map: Json) -> StoredList:
            metadata = config_map["metadata"]
            before = known(_read_node_name(metadata))
            is_known = before is not None and before.version == metadata["resourceVersion"]
            return before if before and is_known else _stored(config_map)

        ours = f"{ASSIGNMENTS_LABEL}=true"
        return self._kube.list_all(self._config_maps, keep, labelSelector=ours)

    def write_list(
        self, node: str, assignments: Assignments, version: str, answer: WholeGpuPods | None = None
    ) -> StoredList:
        """Write a node's list and response; raises a conflict if they changed since `version`.

        The node does not own the list. Otherwise deleting and registering a Node again would delete
        the list while pods have GPUs.
        """
        metadata: Json = {
            "name": config_map_name(node),
            "labels": {ASSIGNMENTS_LABEL: "true"},
            "annotations": {ASSIGNMENTS_NODE_ANNOTATION: node},
        }
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        body["data"] = {**write_assignments(assignments), **write_whole_gpu_pods(answer)}
        if version:
            metadata["resourceVersion"] = version
            written = self._kube.replace(f"{self._config_maps}/{metadata['name']}", body)
        else:
            written = self._kube.create(self._config_maps, body)
        return StoredList(node, assignments, True, written["metadata"]["resourceVersion"], answer)

    def delete_list(self, stored: StoredList) -> None:
        """Delete a node's list; raises a conflict if it has changed since it was read."""
        self._kube.delete(
            f"{self._config_maps}/{config_map_name(stored.node)}", version=stored.version
        )


def _gpu_node(node: Json) -> GpuNode:
    name, labels = node["metadata"]["name"], node_labels(node)
    names = read_device_names(labels.get(NODE_DEVICE_NAMES_LABEL))
    limits = labels.get(NODE_DRIVER_LIMIT_LABEL) == "true"
    gpus, unread = read_gpus(node)
    return GpuNode(
        name=name,
        gpus=gpus,
        device_names=names,
        closed_reason=explain_closed(node),
        driver_limit=limits,
        sentry_acts=labels.get(NODE_SENTRY_LABEL) == "true",
        unread=unread,
    )


def _question(node: Json) -> Question:
    metadata = node["metadata"]
    return Question(metadata["name"], (metadata.get("labels") or {}).get(NODE_QUESTION_LABEL, ""))


def _pod_path(name: str) -> str:
    namespace, _, of_pod = name.partition("/")
    return core_path("namespaces", namespace, "pods", of_pod)


def _stored(config_map: Json) -> StoredList:
    metadata = config_map["metadata"]
    data = config_map.get("data")
    node, version = _read_node_name(metadata), metadata["resourceVersion"]
    return StoredList(node, *read_assignments(data), version, read_whole_gpu_pods(data))


def _read_node_name(metadata: Json) -> str:
    node: str = (metadata.get("annotations") or {}).get(ASSIGNMENTS_NODE_ANNOTATION, "")
    return node
