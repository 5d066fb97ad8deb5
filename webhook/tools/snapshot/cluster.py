"""Facts of a cluster and a namespace, each read once and only if it is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote

from webhook.adapters.kube.client import Kube, core_path
from webhook.adapters.kube.errors import KubeError
from webhook.core.kinds.histories import History
from webhook.core.kinds.nodes import NodeFigures
from webhook.core.pod.fields import find_object, find_string
from webhook.names import ENFORCER_CONTAINER, NODE_GPU_LABEL
from webhook.tools.snapshot.facts import ClusterFacts, asking, fact
from webhook.tools.snapshot.kinds import EVENT, POD, WorkloadKind
from webhook.tools.snapshot.node import ClusterNode
from webhook.tools.snapshot.objects import FactUnavailable
from webhook.tools.snapshot.pod import ClusterPod
from webhook.tools.snapshot.reading import read_gpu_nodes, read_pods

Json = dict[str, Any]

K = TypeVar("K")
T = TypeVar("T")

MOST_LOG_BYTES: Final = 2**20
"""Maximum size of a log that is read."""
MOST_LOG_LINES: Final = 500
"""Maximum number of log lines that are read, the newest; as many of the previous container."""
_OF_NODES: Final = (
    *("name", "labels", "taints", "unschedulable", "vram_bytes", "said", "enforcement", "closed"),
)
_IN_ALL: Final = " in all namespaces; name one of yours with -n"


class ClusterSnapshot(ClusterFacts):
    """Facts of a cluster and of one namespace."""

    def __init__(self, kube: Kube, namespace: str, selector: str = "") -> None:
        """`namespace` is empty for all; `selector` is one of labels, for `pods` alone."""
        super().__init__(kube)
        self.namespace = namespace
        self.selector = selector

    @property
    def scope(self) -> str:
        """The namespaces of `pods` in words."""
        return f"namespace {self.namespace}" if self.namespace else "all namespaces"

    @fact("list gpunodes (chart value gpuNodes.readableBy)")
    def gpu_nodes(self) -> tuple[NodeFigures, ...]:
        """Figures of all nodes with GPUs."""
        return _if_served("GPUNode", lambda: read_gpu_nodes(self.kube))

    @fact("list nodes")
    def shared_nodes(self) -> dict[str, ClusterNode]:
        """Nodes whose GPUs are shared, by name."""

        def keep(raw: Json) -> ClusterNode:
            return ClusterNode(raw).keep(*_OF_NODES)

        shared = f"{NODE_GPU_LABEL}=true"
        nodes = self.kube.list_all(core_path("nodes"), keep, labelSelector=shared)
        return {one.name: one for one in nodes}

    def node(self, name: str) -> ClusterNode:
        """Return one node; raises FactUnavailable."""
        return asking("get nodes", lambda: ClusterNode(self.kube.node(name)))

    @fact("list pods in {0.scope}; name one of yours with -n")
    def pods(self) -> tuple[ClusterPod, ...]:
        """Managed pods of the namespace that have not ended."""
        return tuple(read_pods(self.kube, self.namespace, selector=self.selector))

    @fact("list pods in all namespaces")
    def pods_of_all_namespaces(self) -> tuple[ClusterPod, ...]:
        """Managed pods of the cluster that have not ended."""
        return tuple(read_pods(self.kube, ""))

    @fact("list vramhistories")
    def histories(self) -> tuple[History, ...]:
        """Histories of the namespace's workloads, sorted."""
        from webhook.adapters.kube.histories import HistoriesApi  # noqa: PLC0415 - not for `top`

        return _if_served("VRAMHistory", lambda: HistoriesApi(self.kube).of(self.namespace))

    @fact("list pods")
    def pod_rows(self) -> list[ClusterPod]:
        """Names, workloads and owners of all pods of the namespace."""
        return self.kube.list_rows(self.path(POD), read_row)

    def path(self, kind: WorkloadKind, *rest: str) -> str:
        """Return the path of the namespace's objects of a kind, or of what is below it."""
        within = ("namespaces", self.namespace) if self.namespace else ()
        parts = (*within, kind.plural, *rest)
        return "/".join((kind.path, *(quote(one, safe="") for one in parts)))

    def find(self, kind: WorkloadKind, name: str) -> Json | None:
        """Return an object of the namespace; None if it does not exist; raises FactUnavailable."""
        path = self.path(kind, name)
        return asking(f"get {kind.plural}", lambda: self.kube.find(path))

    def find_pod(self, name: str) -> ClusterPod | None:
        """Return a pod of the namespace; None if it does not exist; raises FactUnavailable."""
        raw = self.find(POD, name)
        return None if raw is None else ClusterPod(raw)

    def collect(
        self, kind: WorkloadKind, keep: Callable[[Json], T | None], **query: str
    ) -> list[T]:
        """Return the results of `keep` for a kind, without None; raises FactUnavailable."""
        right = f"list {kind.plural}" + ("" if self.namespace else _IN_ALL)
        return asking(right, lambda: self.kube.list_all(self.path(kind), keep, **query))

    def names(self, kind: WorkloadKind) -> list[str]:
        """Return the names of all objects of a kind; raises FactUnavailable."""
        read = self.path(kind)
        return asking(f"list {kind.plural}", lambda: self.kube.list_names(read))

    def owned(
        self, kind: WorkloadKind, owners: Sequence[str], labels: str = ""
    ) -> list[ClusterPod]:
        """Return the objects of a kind that these UIDs own; raises FactUnavailable."""

        def is_owned(raw: Json) -> ClusterPod | None:
            found = ClusterPod(raw)
            return found if found.owner_uid in owners else None

        return self.collect(kind, is_owned, labelSelector=labels)

    def newest_events(self, fields: str, group: Callable[[Json], K | None]) -> dict[K, str]:
        """Return the message of the newest Event of each group; raises FactUnavailable.

        `fields` is a selector; Events whose group is None are passed over.
        """
        newest: dict[K, tuple[str, str]] = {}

        def add(event: Json) -> None:
            if (key := group(event)) is not None:
                at = find_string(event, "lastTimestamp") or find_string(event, "eventTime")
                found = at, find_string(event, "message")
                newest[key] = max(newest.get(key, found), found)

        self.collect(EVENT, add, fieldSelector=fields)
        return {key: message for key, (_, message) in newest.items()}

    def log(self, pod: ClusterPod) -> list[str]:
        """Return the newest lines of the sidecar's log, with those before its last restart.

        Raises FactUnavailable.
        """
        status = next((one for one in pod.statuses() if one.get("name") == ENFORCER_CONTAINER), {})
        restarted = bool(status.get("restartCount"))
        if not (restarted or find_object(status, "state").keys() & {"running", "terminated"}):
            return []

        def read(**query: str) -> list[str]:
            path = self.path(POD, pod.name, "log")
            query |= {"container": ENFORCER_CONTAINER, "tailLines": str(MOST_LOG_LINES)}
            return self.kube.read_text(path, MOST_LOG_BYTES, **query).splitlines()

        def previous() -> list[str]:
            try:
                return read(previous="true") if restarted else []
            except KubeError:  # it may be gone, which is no reason to show less of the current one
                return []

        return asking("get pods/log", lambda: [*previous(), *read()])


def _if_served(kind: str, read: Callable[[], list[T]]) -> tuple[T, ...]:
    try:
        return tuple(read())
    except KubeError as error:
        if not error.not_found:
            raise
        why = f"this cluster does not serve {kind}: vramwarden is not installed here, or without "
        raise FactUnavailable(f"{why}its definitions (crds.install)") from error


def read_row(row: Json) -> ClusterPod:
    """Return the name and the owners of a table's row, or of a whole object."""
    metadata = find_object(row, "object", "metadata") or find_object(row, "metadata")
    one = ClusterPod({"metadata": metadata})
    return one.keep("uid", "name", "workload", "owner", "owner_version", "created_s")
