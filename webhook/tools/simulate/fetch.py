"""Read nodes and pods from an API server or from files, and keep those with GPUs.

Permissions: `list` on `pods` and `nodes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from webhook.adapters.kube.bounded_json import ListReader, MalformedError
from webhook.adapters.kube.client import Kube, core_path
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.yaml_documents import DocumentProblem
from webhook.core.formatting import join_names
from webhook.core.pod.fields import as_object, find_string
from webhook.core.policy.match import matches_any
from webhook.options import NoCluster, WrongInput
from webhook.tools.manifests.documents import read_documents
from webhook.tools.manifests.reading import ManifestError, input_name, read_text
from webhook.tools.simulate.comparison import TodayPod
from webhook.tools.simulate.gpu_requests import read_request
from webhook.tools.simulate.node_gpus import Given, NodeGpus, read_node_gpus
from webhook.tools.snapshot.cluster import NOT_ENDED, deduplicate, pods_path
from webhook.tools.snapshot.node import ClusterNode
from webhook.tools.snapshot.pod import ClusterPod

Json = dict[str, Any]

_SYSTEM: Final = (
    *("kube-system", "gpu-operator", "nvidia-gpu-operator", "nvidia-device-plugin"),
    "hami-system",
    # Pods that hold a GPU for KAI, which gives fractions of the GPU to other pods.
    *("kai-resource-reservation", "runai-reservation"),
)
_MOST_NAMED: Final = 5


@dataclass(slots=True, kw_only=True)
class TodayObjects:
    """Nodes with GPUs, and pods that have GPUs or wait for them.

    Only a few fields of each object stay in memory, since most pods of a large cluster have no GPU.
    """

    given: Sequence[Given] = ()
    """Values of `--gpu-memory`."""
    namespace: str = ""
    """Namespace of the pods; empty for all."""
    nodes: list[NodeGpus] = field(default_factory=list)
    pods: list[TodayPod] = field(default_factory=list)
    others: int = 0
    """Number of nodes without GPUs."""
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Uncounted pods, keyed by reason."""

    def add(self, value: Json, of: str = "") -> None:
        """Add an object of any kind. `of` is the default kind for items of a list."""
        kind, items = value.get("kind") or of, value.get("items")
        if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list):
            for item in filter(None, map(as_object, items)):
                self.add(item, kind.removesuffix("List"))
        elif kind == "Pod":
            self.add_pod(value)
        elif kind == "Node":
            self.add_node(value)

    def add_node(self, raw: Json) -> None:
        """Keep a node with GPUs."""
        if found := read_node_gpus(ClusterNode(raw), self.given):
            self.nodes.append(found)
        else:
            self.others += 1

    def add_pod(self, raw: Json) -> None:
        """Keep a pod that has GPUs or waits for them and has not ended."""
        pod = ClusterPod(raw)
        namespace = pod.namespace or "default"
        path = f"{namespace}/{pod.name}"
        if pod.has_ended or self.namespace not in ("", namespace):
            return
        try:
            request = read_request(raw)
        except ValueError as error:
            self._leave_out("with unreadable requests", f"{path}: {error}")
            return
        if request is None:
            if pod.part("spec").get("resourceClaims"):
                self._leave_out("with resource claims (DRA)", path)
        elif matches_any(namespace, _SYSTEM):
            self._leave_out("of system namespaces", path)
        else:
            selector = pod.part("spec", "nodeSelector").items()
            self.pods.append(
                TodayPod(
                    path=path,
                    request=request,
                    node=pod.node,
                    selector=tuple(sorted((str(key), str(item)) for key, item in selector)),
                    created_s=pod.created_s or 0.0,
                    workload=f"{namespace}/{pod.workload.name}",
                )
            )

    def _leave_out(self, reason: str, pod: str) -> None:
        self.left_out.setdefault(reason, []).append(pod)

    def check_nodes(self) -> None:
        """Raise WrongInput if the GPU memory of a node is unknown."""
        names = [node.name for node in self.nodes if not all(gpu.memory_bytes for gpu in node.gpus)]
        if names:
            raise WrongInput(
                f"unknown memory of the GPUs of {join_names(names, _MOST_NAMED)}; pass "
                "--gpu-memory "
                f"80Gi, or by node --gpu-memory '{names[0]}=8x80Gi', or install GPU feature "
                "discovery"
            )


def read_cluster(found: TodayObjects, kube: Kube) -> None:
    """Add each node and each pod that has not ended, once. Raises NoCluster."""
    try:
        kube.list_all(
            pods_path(found.namespace), deduplicate(found.add_pod), fieldSelector=NOT_ENDED
        )
        kube.list_all(core_path("nodes"), deduplicate(found.add_node))
    except KubeError as error:
        where = f"namespace {found.namespace}" if found.namespace else "all namespaces"
        why = (
            f"you may not list pods of {where}, or nodes; ask an administrator for the output of "
            "`kubectl get nodes,pods -A -o json`, and pass it: vramwarden simulate --nodes FILE"
        )
        raise NoCluster(why if error.forbidden else str(error)) from error


def read_files(found: TodayObjects, names: Sequence[str]) -> None:
    """Add the objects in files. Raises WrongInput."""
    for name in names:
        shown, text = input_name(name), read_text(name)
        try:
            if text.lstrip().startswith("{"):
                _read_json(text, found)
            else:
                for document in read_documents(text):
                    found.add(as_object(document.value))
        except MalformedError as error:
            raise WrongInput(f"{shown}: not valid JSON: {error}") from error
        except ManifestError as error:
            raise WrongInput(
                str(DocumentProblem(shown, error.line or 0, "", str(error)))
            ) from error
    if not (found.nodes or found.others):
        raise WrongInput("no node in it; pass the output of: kubectl get nodes,pods -A -o json")


def _read_json(text: str, found: TodayObjects) -> None:
    """Read a stream of objects and lists, keeping one object in memory at a time."""
    at, end = 0, len(text.rstrip())
    while at < end:
        at = _read_list(text, at, found)


def _read_list(text: str, at: int, found: TodayObjects) -> int:
    # Lists from the API server state the kind before the items. In kubectl's lists, each item has
    # one.
    reader: ListReader[None] = ListReader(
        lambda item: found.add(item, find_string(reader.other_members, "kind").removesuffix("List"))
    )
    at = reader.read(text, at)
    found.add(reader.other_members)
    return at
