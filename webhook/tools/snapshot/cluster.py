"""Facts of a cluster: each is read once, on demand, with the user's own permissions.

A request may be forbidden, or its kind not served. Commands then show a message for this fact and
the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from sys import intern
from typing import Any, Final, NamedTuple, TypeVar

from webhook.adapters.kube.client import Kube, core_path
from webhook.adapters.kube.errors import KubeError
from webhook.core.kinds.nodes import NodeFigures, read_gpu_node
from webhook.core.pod.fields import Json, as_object, find_object
from webhook.names import GPU_NODES_PATH, MANAGED_LABEL, NODE_GPU_LABEL
from webhook.options import NoCluster
from webhook.tools.render.output import Progress
from webhook.tools.snapshot.node import ClusterNode
from webhook.tools.snapshot.objects import CachedProperty, FactUnavailable
from webhook.tools.snapshot.pod import ClusterPod

T = TypeVar("T")

_NODE_FACTS: Final = (
    *("name", "labels", "taints", "unschedulable", "vram_bytes", "is_configured", "enforcement"),
    "closed_reason",
)
NEEDS_RIGHT: Final = "needs the right to "
"""Prefix of the reason why a fact is unavailable if the user lacks a permission."""
_LONGEST_PREFIX: Final = 50
"""Maximum length of a dry run's `generateName`, in characters."""
_NO_NODE: Final = "<none>"
"""Value of kubectl's column Node for a pod without a node."""
NOT_ENDED: Final = "status.phase!=Succeeded,status.phase!=Failed"
"""Field selector for pods that have not ended; other pods hold no memory."""
_POD_FACTS: Final = (
    *("uid", "namespace", "name", "status", "node", "created_s", "gpus", "requested_bytes"),
    *("owner_uid", "gpu_count", "waiting_reason", "scheduler_message", "managed", "workload"),
)


class DryRunAnswer(NamedTuple):
    """Response of the API server to a dry run that creates a pod."""

    pod: ClusterPod | None
    """Pod as it would be stored; None if it was denied."""
    denial: str = ""
    """Message of the API server; empty if the pod was created."""
    warnings: tuple[str, ...] = ()


class ClusterFacts:
    """Facts read from one API server with the user's own permissions."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self.failures: dict[str, FactUnavailable] = {}
        """Failures keyed by the fact's name, so that no request is repeated."""
        self.left_out: dict[str, str] = {}
        """Reasons keyed by the facts that `attempt` could not read."""

    @property
    def now_s(self) -> float:
        """Current Unix time by the API server's clock, as of its last response."""
        return self.kube.now_s()

    def attempt(self, read: Callable[[], T], what: str = "") -> T | None:
        """Return the result of `read`, or None if the fact is unavailable.

        If `what` is given, the failure is recorded in `left_out` under this name.
        """
        try:
            return read()
        except FactUnavailable as error:
            if what:
                self.left_out.setdefault(what, error.why)
            return None

    def dry_run_create(self, namespace: str, name: str, pod: Json) -> DryRunAnswer:
        """Create a copy of a pod as a dry run.

        Raises FactUnavailable if the user may not create pods or the API server fails.
        """
        metadata = {key: find_object(pod, "metadata", key) for key in ("labels", "annotations")}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**metadata, "generateName": f"{name[:_LONGEST_PREFIX]}-"},
            "spec": find_object(pod, "spec"),
        }
        try:
            made, warnings = self.kube.dry_run_create(
                core_path("namespaces", namespace, "pods"), body
            )
        except KubeError as error:
            if not error.code:
                raise
            if error.lacks_right:
                raise FactUnavailable(f"{NEEDS_RIGHT}create pods in {namespace}") from error
            if error.unauthorized or (error.retryable and not error.lacks_webhook):
                raise FactUnavailable(str(error)) from error
            return DryRunAnswer(None, error.api_message or str(error))
        return DryRunAnswer(ClusterPod(made), warnings=warnings)


def fact(right: str) -> Callable[[Callable[[Any], T]], CachedProperty[T]]:
    """Decorate a method of `ClusterFacts` that reads one fact.

    `right` names the required permission, such as "list nodes"; `{0}` in it is replaced by the
    object. The fact raises FactUnavailable if it cannot be read, and KubeError if the API server
    does not respond.
    """

    def decorate(read: Callable[[Any], T]) -> CachedProperty[T]:
        @wraps(read)
        def read_once(facts: ClusterFacts) -> T:
            name = read.__name__
            if name not in facts.failures:
                try:
                    return read_with_right(right.format(facts), lambda: read(facts))
                except FactUnavailable as error:
                    facts.failures[name] = error
            raise facts.failures[name]

        return CachedProperty(read_once)

    return decorate


def read_with_right(right: str, read: Callable[[], T]) -> T:
    """Return the result of `read`.

    Raises FactUnavailable if the API server denies the request or fails. Raises KubeError if it
    does not respond or does not know the user.
    """
    try:
        return read()
    except KubeError as error:
        if not error.code or error.unauthorized:
            raise
        why = f"{NEEDS_RIGHT}{right}" if error.forbidden else f"{right}: {error}"
        raise FactUnavailable(why) from error


class ClusterSnapshot(ClusterFacts):
    """Facts of a cluster, and of the pods of one namespace or of all."""

    def __init__(self, kube: Kube, namespace: str, selector: str = "") -> None:
        """`namespace` is empty for all. The label `selector` applies only to `pods`."""
        super().__init__(kube)
        self.namespace = namespace
        self.selector = selector

    @property
    def scope(self) -> str:
        """Description of the namespaces of `pods`, for messages."""
        return f"namespace {self.namespace}" if self.namespace else "all namespaces"

    @fact("list gpunodes (chart value gpuNodes.readableBy)")
    def gpu_nodes(self) -> tuple[NodeFigures, ...]:
        """Figures of all GPU nodes."""
        return read_if_served("GPUNode", lambda: read_gpu_nodes(self.kube))

    @fact("list nodes")
    def shared_nodes(self) -> dict[str, ClusterNode]:
        """Nodes whose GPUs are shared, keyed by name."""

        def keep(raw: Json) -> ClusterNode:
            return ClusterNode(raw).project(*_NODE_FACTS)

        shared = f"{NODE_GPU_LABEL}=true"
        nodes = self.kube.list_all(core_path("nodes"), keep, labelSelector=shared)
        return {node.name: node for node in nodes}

    def node(self, name: str) -> ClusterNode:
        """Return one node. Raises FactUnavailable."""
        return read_with_right("get nodes", lambda: ClusterNode(self.kube.node(name)))

    @fact("list pods in {0.scope}; name one of yours with -n")
    def pods(self) -> tuple[ClusterPod, ...]:
        """Managed pods of the namespace that have not ended."""
        return tuple(read_pods(self.kube, self.namespace, selector=self.selector))

    @fact("list pods in all namespaces")
    def pods_of_all_namespaces(self) -> tuple[ClusterPod, ...]:
        """Managed pods of the cluster that have not ended."""
        return tuple(read_pods(self.kube, ""))


def read_if_served(kind: str, read: Callable[[], list[T]]) -> tuple[T, ...]:
    """Return the result of `read`. Raises FactUnavailable if the kind is not served."""
    try:
        return tuple(read())
    except KubeError as error:
        if not error.not_found:
            raise
        why = f"this cluster does not serve {kind}: vramwarden is not installed here, or without "
        raise FactUnavailable(f"{why}its definitions (crds.install)") from error


@contextmanager
def reading_cluster() -> Iterator[None]:
    """Show progress during the block. Convert FactUnavailable and KubeError to NoCluster."""
    with Progress(cluster_progress):
        try:
            yield
        except KubeError as error:
            raise NoCluster(str(error)) from error
        except FactUnavailable as error:
            raise NoCluster(error.why) from error


def cluster_progress() -> str:
    """Return the number of objects read, for the progress line."""
    return "reading the cluster" + (
        f": {Kube.objects_listed:,} objects" if Kube.objects_listed else ""
    )


def read_gpu_nodes(kube: Kube) -> list[NodeFigures]:
    """Return the figures of all nodes, which may be seconds old. Raises KubeError."""
    return kube.list_cached(GPU_NODES_PATH, read_gpu_node)


def read_pods(kube: Kube, namespace: str, *, selector: str = "") -> list[ClusterPod]:
    """Return the managed pods of a namespace, or of all for "". Raises KubeError.

    Pods with a node are read as metadata and two columns of kubectl's table, because whole pods of
    a large cluster need hundreds of MB. Pods without a node are read whole, for their exact
    requests and the scheduler's messages.
    """
    path, labels = pods_path(namespace), ",".join(filter(None, (f"{MANAGED_LABEL}=true", selector)))
    rows = kube.list_rows(path, _read_row, labelSelector=labels, fieldSelector=NOT_ENDED)
    pods = {pod.uid: pod for pod in rows}
    if any(not pod.node for pod in pods.values()):
        waiting = f"spec.nodeName=,{NOT_ENDED}"
        whole = kube.list_all(path, _read_whole, labelSelector=labels, fieldSelector=waiting)
        pods |= {pod.uid: pod for pod in whole if pod.uid in pods}
    return list(pods.values())


def read_unmanaged_pods(kube: Kube, namespace: str, node: str) -> list[ClusterPod]:
    """Return the pods of a node that request no VRAM. Raises KubeError."""
    return kube.list_rows(
        pods_path(namespace),
        _read_row,
        labelSelector=f"{MANAGED_LABEL}!=true",
        fieldSelector=f"spec.nodeName={node}",
    )


def deduplicate(keep: Callable[[Json], None]) -> Callable[[Json], None]:
    """Return a function that calls `keep` once per object, identified by UID or name.

    `Kube.list_all` repeats a page that is too large, takes too long or has expired. By then it has
    called `keep` for objects of the discarded page, so callers that count need this function.
    """
    seen: set[str] = set()

    def keep_once(raw: Json) -> None:
        metadata = as_object(raw.get("metadata"))
        uid = str(metadata.get("uid") or f"{metadata.get('namespace')}/{metadata.get('name')}")
        if uid not in seen:
            seen.add(uid)
            keep(raw)

    return keep_once


def pods_path(namespace: str) -> str:
    """Return the path of the pods of a namespace, or of all for ""."""
    return core_path("namespaces", namespace, "pods") if namespace else core_path("pods")


def _read_row(row: Json) -> ClusterPod | None:
    """Parse a row of a table, or a whole pod if the server returns no tables."""
    about, cells = row.get("object"), row.get("cells")
    if not isinstance(about, dict) or not isinstance(cells, dict):
        return _read_whole(row)
    status, node = (cells.get(key) for key in ("Status", "Node"))
    return _project(
        ClusterPod(
            {"metadata": about.get("metadata")},
            status=intern(status) if isinstance(status, str) else "",
            node=intern(node) if isinstance(node, str) and node != _NO_NODE else "",
        )
    )


def _read_whole(raw: Json) -> ClusterPod | None:
    return _project(ClusterPod(raw))


def _project(pod: ClusterPod) -> ClusterPod | None:
    return pod.project(*_POD_FACTS) if pod.uid and pod.namespace and pod.name else None
