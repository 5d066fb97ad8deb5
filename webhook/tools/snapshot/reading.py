"""Figures of nodes and pods of a cluster, read with the user's own rights.

Anything may be forbidden, or not installed: what fails is one sentence, and the rest is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from sys import intern
from typing import Any, Final, TypeVar

from webhook.adapters.kube.client import Kube, core_path
from webhook.adapters.kube.errors import KubeError
from webhook.core.kinds.nodes import NodeFigures, read_gpu_node
from webhook.core.pod.fields import as_object
from webhook.names import GPU_NODES_PATH, MANAGED_LABEL
from webhook.options import NoCluster
from webhook.tools.render.progress import Progress
from webhook.tools.snapshot.objects import FactUnavailable
from webhook.tools.snapshot.pod import ClusterPod

Json = dict[str, Any]

_NO_NODE: Final = "<none>"
"""Cell of the table's column Node for a pod without a node."""
NOT_ENDED: Final = "status.phase!=Succeeded,status.phase!=Failed"
"""Pods that ended hold nothing."""

_OF_PODS: Final = (
    *("uid", "namespace", "name", "status", "node", "created_s", "gpus", "requested_bytes"),
    *("owner_uid", "gpu_count", "waits", "unscheduled", "managed", "workload"),
)

T = TypeVar("T")


def read_gpu_nodes(kube: Kube) -> list[NodeFigures]:
    """Return the figures of all nodes, seconds old; raises KubeError."""
    return kube.list_cached(GPU_NODES_PATH, read_gpu_node)


def read_pods(kube: Kube, namespace: str, *, selector: str = "") -> list[ClusterPod]:
    """Return the managed pods of a namespace, or of all for ""; raises KubeError.

    As metadata and two columns of the table: whole pods of a large cluster are hundreds of MB.
    Those without a node are read whole: only so it is known exactly what they ask for, and what the
    scheduler says.
    """
    path, labels = pods_path(namespace), ",".join(filter(None, (f"{MANAGED_LABEL}=true", selector)))
    rows = kube.list_rows(path, _row, labelSelector=labels, fieldSelector=NOT_ENDED)
    pods = {pod.uid: pod for pod in rows}
    if any(not pod.node for pod in pods.values()):
        waiting = f"spec.nodeName=,{NOT_ENDED}"
        whole = kube.list_all(path, _whole, labelSelector=labels, fieldSelector=waiting)
        pods |= {pod.uid: pod for pod in whole if pod.uid in pods}
    return list(pods.values())


def read_unmanaged_pods(kube: Kube, namespace: str, node: str) -> list[ClusterPod]:
    """Return those pods of a node that asked for nothing, for their names; raises KubeError."""
    return kube.list_rows(
        pods_path(namespace),
        _row,
        labelSelector=f"{MANAGED_LABEL}!=true",
        fieldSelector=f"spec.nodeName={node}",
    )


def once(keep: Callable[[Json], None]) -> Callable[[Json], None]:
    """Return a function that calls `keep` once per object, by its uid or else its name.

    `Kube.list_all` asks again for a page that is too large, takes too long or has expired, and has
    called `keep` for the objects that it discards. So callers that count objects need this.
    """
    taken: set[str] = set()

    def kept(found: Json) -> None:
        metadata = as_object(found.get("metadata"))
        uid = str(metadata.get("uid") or f"{metadata.get('namespace')}/{metadata.get('name')}")
        if uid not in taken:
            taken.add(uid)
            keep(found)

    return kept


@contextmanager
def reading() -> Iterator[None]:
    """Show progress while the block runs; raises NoCluster for FactUnavailable and KubeError."""
    with Progress(cluster_progress):
        try:
            yield
        except KubeError as error:
            raise NoCluster(str(error)) from error
        except FactUnavailable as error:
            raise NoCluster(error.why) from error


def cluster_progress() -> str:
    """Return the progress of reading the cluster in words."""
    return "reading the cluster" + (
        f": {Kube.objects_listed:,} objects" if Kube.objects_listed else ""
    )


def pods_path(namespace: str) -> str:
    """Return where the pods of a namespace are, or of all for ""."""
    return core_path("namespaces", namespace, "pods") if namespace else core_path("pods")


def _row(row: Json) -> ClusterPod | None:
    """Read a row of a table, or the whole pod of a server that makes none."""
    about, cells = row.get("object"), row.get("cells")
    if not isinstance(about, dict) or not isinstance(cells, dict):
        return _whole(row)
    status, node = (cells.get(key) for key in ("Status", "Node"))
    return _kept(
        ClusterPod(
            {"metadata": about.get("metadata")},
            status=intern(status) if isinstance(status, str) else "",
            node=intern(node) if isinstance(node, str) and node != _NO_NODE else "",
        )
    )


def _whole(raw: Json) -> ClusterPod | None:
    return _kept(ClusterPod(raw))


def _kept(pod: ClusterPod) -> ClusterPod | None:
    return pod.keep(*_OF_PODS) if pod.uid and pod.namespace and pod.name else None
