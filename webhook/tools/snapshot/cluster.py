"""Facts of a cluster: each is read once, with the user's own rights, and only if it is needed.

Any request may be forbidden, or its kind not served. Such a fact is one sentence; commands show
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
"""Beginning of the reason why a fact is unavailable if the user lacks a right."""
_LONGEST_PREFIX: Final = 50
"""Maximum number of characters of a dry run's `generateName`."""
_NO_NODE: Final = "<none>"
"""Cell of kubectl's column Node for a pod without a node."""
NOT_ENDED: Final = "status.phase!=Succeeded,status.phase!=Failed"
"""Field selector; pods that have ended hold no memory."""
_POD_FACTS: Final = (
    *("uid", "namespace", "name", "status", "node", "created_s", "gpus", "requested_bytes"),
    *("owner_uid", "gpu_count", "waiting_reason", "scheduler_message", "managed", "workload"),
)


class DryRunAnswer(NamedTuple):
    """Answer of the API server to a pod that was created as a dry run."""

    pod: ClusterPod | None
    """The pod as it would be stored; None if it was denied."""
    denial: str = ""
    """The API server's message if it was denied."""
    warnings: tuple[str, ...] = ()


class ClusterFacts:
    """Facts that are read from one API server with the user's own rights."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self.failures: dict[str, FactUnavailable] = {}
        """Failures by the name of the fact, so that no request is repeated."""
        self.left_out: dict[str, str] = {}
        """Facts that `attempt` could not read: description and reason."""

    @property
    def now_s(self) -> float:
        """Unix time by the API server's clock, as of its last answer."""
        return self.kube.now_s()

    def attempt(self, read: Callable[[], T], what: str = "") -> T | None:
        """Return the result of `read`; None if it is unavailable.

        If `what` is given, the failure is noted in `left_out` under it.
        """
        try:
            return read()
        except FactUnavailable as error:
            if what:
                self.left_out.setdefault(what, error.why)
            return None

    def dry_run_create(self, namespace: str, name: str, pod: Json) -> DryRunAnswer:
        """Create a pod like this one as a dry run.

        Raise FactUnavailable if the user may not create pods, or the API server cannot answer.
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

    `right` names the right that it needs, such as "list nodes"; `{0}` in it is the object, as in
    `str.format`. The fact raises FactUnavailable if it cannot be read, and KubeError if the API
    server does not answer.
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

    Raise FactUnavailable if the API server denies the request or fails, and KubeError if it does
    not answer or does not know the user.
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
        """`namespace` is empty for all; `selector`, of labels, applies to `pods` only."""
        super().__init__(kube)
        self.namespace = namespace
        self.selector = selector

    @property
    def scope(self) -> str:
        """Namespaces of `pods`, for messages."""
        return f"namespace {self.namespace}" if self.namespace else "all namespaces"

    @fact("list gpunodes (chart value gpuNodes.readableBy)")
    def gpu_nodes(self) -> tuple[NodeFigures, ...]:
        """Figures of all nodes with GPUs."""
        return read_if_served("GPUNode", lambda: read_gpu_nodes(self.kube))

    @fact("list nodes")
    def shared_nodes(self) -> dict[str, ClusterNode]:
        """Nodes whose GPUs are shared, by name."""

        def keep(raw: Json) -> ClusterNode:
            return ClusterNode(raw).project(*_NODE_FACTS)

        shared = f"{NODE_GPU_LABEL}=true"
        nodes = self.kube.list_all(core_path("nodes"), keep, labelSelector=shared)
        return {node.name: node for node in nodes}

    def node(self, name: str) -> ClusterNode:
        """Return one node; raises FactUnavailable."""
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
    """Return the result of `read`; raise FactUnavailable if the kind is not served."""
    try:
        return tuple(read())
    except KubeError as error:
        if not error.not_found:
            raise
        why = f"this cluster does not serve {kind}: vramwarden is not installed here, or without "
        raise FactUnavailable(f"{why}its definitions (crds.install)") from error


@contextmanager
def reading_cluster() -> Iterator[None]:
    """Show progress while the block runs; raise NoCluster for FactUnavailable and KubeError."""
    with Progress(cluster_progress):
        try:
            yield
        except KubeError as error:
            raise NoCluster(str(error)) from error
        except FactUnavailable as error:
            raise NoCluster(error.why) from error


def cluster_progress() -> str:
    """Return how many objects have been read, for the progress line."""
    return "reading the cluster" + (
        f": {Kube.objects_listed:,} objects" if Kube.objects_listed else ""
    )


def read_gpu_nodes(kube: Kube) -> list[NodeFigures]:
    """Return the figures of all nodes, which may be seconds old; raise KubeError."""
    return kube.list_cached(GPU_NODES_PATH, read_gpu_node)


def read_pods(kube: Kube, namespace: str, *, selector: str = "") -> list[ClusterPod]:
    """Return the managed pods of a namespace, or of all for ""; raise KubeError.

    Pods with a node are read as metadata and two columns of kubectl's table, because whole pods
    of a large cluster are hundreds of MB. Pods without a node are read whole, for their exact
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
    """Return the pods of a node that request no VRAM, for their names; raise KubeError."""
    return kube.list_rows(
        pods_path(namespace),
        _read_row,
        labelSelector=f"{MANAGED_LABEL}!=true",
        fieldSelector=f"spec.nodeName={node}",
    )


def deduplicate(keep: Callable[[Json], None]) -> Callable[[Json], None]:
    """Return a function that calls `keep` once per object, by its UID or else its name.

    `Kube.list_all` repeats a page that is too large, takes too long or has expired. It has then
    called `keep` for objects of the discarded page. Callers that count objects need this function.
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
    """Read a row of a table, or a whole pod if the server returns no tables."""
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
