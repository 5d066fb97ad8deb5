"""Small clusters, as stored in an API server and as read by the tools.

    cluster = a_cluster(
        [a_node("n1", a_gpu(79, held("llama", 16, 6.1))), a_node("cpu")],
        [a_pod("llama", "16Gi", node="n1", gpus="GPU-n1-0", owner="Deployment/llama")],
    )
    build_report(cluster.figures, cluster.listed_pods, NOW_S)  # values for pure functions
    run("top", cluster.stored_in(api_server))  # an API server for a command

All observations are of one time, `NOW_S`. Amounts are in GiB. A pod's UID is its name.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, replace
from functools import cached_property
from types import EllipsisType
from typing import Any

from tests.core.admission.device_plugin import policy_and_cluster, translate_under
from tests.support import pods as manifests
from tests.support.api_server import ApiServer, merged
from tests.support.gpus import put_right
from webhook.core.kinds.nodes import GpuFigures, NodeFigures, PodFigures, write_gpu_node, write_time
from webhook.core.kinds.workloads import Workload
from webhook.core.node.inventory import Inventory, TrackedGpu
from webhook.core.node.node_fields import SharingCode, SharingVerdict
from webhook.core.node.sharing import SharingInputs, judge
from webhook.core.nvidia.drivers import Proof
from webhook.core.policy.model import Rule
from webhook.tools.problems.capacity import placeable
from webhook.tools.snapshot.cluster import read_pods
from webhook.tools.snapshot.node import ClusterNode
from webhook.tools.snapshot.pod import ClusterPod

Json = dict[str, Any]

GIB = 2**30
NOW_S = 1_800_000_000.0
RULE = manifests.a_rule(name="team")
"""Rule that admits pods by default."""
PHASES = ("Pending", "Running", "Succeeded", "Failed")


def gib(amount: float) -> int:
    """Return an amount in bytes, rounded to MiB as in a node's object."""
    return round(amount * 1024) * 2**20


def ago(seconds: float) -> str:
    """Return the time this many seconds before `NOW_S`, in Kubernetes' format."""
    return write_time(NOW_S - seconds)


def held(
    uid: str,
    cap: float,
    used: float | None = None,
    peak: float | None = None,
    stops: int | None = 0,
    **more: Any,
) -> PodFigures:
    """Return a sentry's figures for a pod on one GPU; None means not measured."""
    return PodFigures(
        uid=uid,
        cap_bytes=gib(cap),
        used_bytes=None if used is None else gib(used),
        peak_bytes=None if peak is None else gib(peak),
        stops=stops,
        **more,
    )


def a_gpu(
    usable: float,
    *holders: PodFigures,
    used: float | EllipsisType | None = ...,
    unmanaged: Json | None = None,
    **more: Any,
) -> GpuFigures:
    """Return a GPU with its pods. The node assigns the index and, by default, the UUID.

    `used` is the sum over the pods by default, or None if not measured.
    """
    strangers = {uid: gib(amount) for uid, amount in (unmanaged or {}).items()}
    promised = sum(holder.cap_bytes for holder in holders)
    in_use = sum(holder.used_bytes or 0 for holder in holders) + sum(strangers.values())
    values: Json = {
        "uuid": "",
        "index": 0,
        "product": "NVIDIA-H100-80GB-HBM3",
        "total_bytes": gib(usable + 1),
        "usable_bytes": gib(usable),
        "promised_bytes": promised,
        "used_bytes": in_use if used is ... else None if used is None else gib(used),
        "free_bytes": gib(usable) - promised,
        "unattributed_bytes": gib(0.25),
        "pods": holders,
        "unmanaged": strangers,
    }
    return GpuFigures(**(values | more))


@dataclass(frozen=True)
class SceneNode:
    """A node as stored, with its sentry's figures if it has a sentry."""

    stored: Json
    figures: NodeFigures | None

    @property
    def read(self) -> ClusterNode:
        """Return the node as a user with permission to read nodes sees it."""
        return ClusterNode(self.stored)


def a_node(
    name: str = "n1",
    *gpus: GpuFigures,
    age_s: float = 14,
    labels: Json | None = None,
    annotations: Json | None = None,
    amounts: Json | None = None,
    taints: tuple[Json, ...] = (),
    enforcement: str = "sidecar",
    device_names: str = "runtime.nvidia.com",
    held: str = "",
    not_shared: str = "",
    limit: Proof | None = None,
    said: float | None = None,
    **spec: Any,
) -> SceneNode:
    """Return a node. If it has GPUs, its agent and (`age_s` ago) its sentry have updated it.

    The agent also updates a node with a configured amount (`said`, the value `agent.vram`).

    `labels`, `annotations` and `amounts` (capacity, all of it allocatable) are added last; None
    removes a key. Other keyword arguments are fields of the spec.
    """
    node: Json = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {}, "annotations": {}},
        "spec": {"taints": list(taints), **spec},
        "status": {
            "capacity": {},
            "allocatable": {},
            "conditions": [{"type": "Ready", "status": "True"}],
            "runtimeHandlers": [{"name": ""}, {"name": "nvidia"}],
            "nodeInfo": {
                "operatingSystem": "linux",
                "architecture": "amd64",
                "kubeletVersion": "v1.36.2",
            },
        },
    }
    figures = None
    if gpus:
        numbered = enumerate(gpus)
        figures = NodeFigures(
            name=name,
            observed_s=NOW_S - age_s,
            driver_version="580.95.05",
            enforcement=enforcement,
            gpus=tuple(
                replace(item, index=index, uuid=item.uuid or f"GPU-{name}-{index}")
                for index, item in numbered
            ),
            not_shared=not_shared,
            limit=limit,
            held=held,
        )
        node = put_right(node, _inventory(figures, device_names))
    elif said is not None:
        node = put_right(node, Inventory(fixed_bytes=gib(said)))
    texts = {key: amount and str(amount) for key, amount in (amounts or {}).items()}
    changes = {
        "metadata": {"labels": labels or {}, "annotations": annotations or {}},
        "status": {"capacity": texts, "allocatable": texts},
    }
    node = merged(node, changes)
    if gpus or said is not None:
        written = {"vramwarden.io/sharing": str(_verdict(node, held, not_shared))}
        node["metadata"]["annotations"] = written | node["metadata"]["annotations"]
    return SceneNode(node, figures)


def _verdict(node: Json, held: str, not_shared: str) -> SharingVerdict:
    """Return the agent's verdict on a GPU node; some of its pods have VRAM."""
    if held or not_shared:
        code = SharingCode.DRAINING if held else SharingCode.NOT_SHARED
        return SharingVerdict(code, held or not_shared)
    inputs = SharingInputs(is_advertised=True, has_pods=True, in_use=())
    return judge(node, inputs).verdict("", has_gpus=True)


def _inventory(node: NodeFigures, device_names: str) -> Inventory:
    """Return the agent's inventory of the node's GPUs."""
    # The agent knows all GPUs, even those for which the sentry reports no free memory.
    every = replace(node, gpus=tuple(replace(gpu, free_bytes=0) for gpu in node.gpus))
    return Inventory(
        tracked=tuple(map(TrackedGpu, placeable(every)[0])),
        driver_version=node.driver_version,
        enforcement=node.enforcement,
        device_names=device_names,
        advertised=True,
    )


def a_pod(
    name: str = "p",
    memory: str | None = None,
    *,
    uid: str = "",
    node: str = "",
    gpus: str = "",
    status: str | Json = "",
    owner: str = "",
    namespace: str = "team-a",
    count: int = 1,
    age_s: float = 540,
    rule: Rule | None = RULE,
    metadata: Json | None = None,
    annotations: Json | None = None,
    **spec: Any,
) -> Json:
    """Return a pod as admission, the scheduler and the kubelet leave it.

    `rule` admitted it if it requests VRAM; None for a pod that bypassed admission. `gpus` are UUIDs
    with commas, `status` a status or a word of `kubectl get pods`, `owner` a workload such as
    `Deployment/llama`. `metadata` and `annotations` are added after admission.
    """
    asked = {"vramwarden.io/gpu-count": str(count)} if count > 1 else {}
    pod = manifests.a_pod(memory, annotations=asked, **spec)
    if memory and rule:
        pod = translate_under(pod, policy_and_cluster(rule))
    notes = {"vramwarden.io/gpu": gpus} if gpus else {}
    own = {
        "name": name,
        "namespace": namespace,
        "uid": uid or name,
        "creationTimestamp": ago(age_s),
    }
    if isinstance(status, str):
        word = status or ("Running" if node else "Pending")
        status = {"phase": word} if word in PHASES else {"phase": "Running", "reason": word}
    changes: Json = {
        "metadata": {"creationTimestamp": ago(age_s), "annotations": notes} | own | _owned(owner),
        "status": {"phase": "Running" if node else "Pending"} | status,
    }
    if node:
        changes["spec"] = {"nodeName": node}
        changes["status"].setdefault("startTime", ago(age_s))
    on_top = {"metadata": (metadata or {}) | {"annotations": annotations or {}}}
    return merged(merged(pod, changes), on_top)


def _owned(workload: str) -> Json:
    """Return the metadata of a pod that a workload's controller created."""
    kind, _, name = workload.partition("/")
    if not kind:
        return {}
    labels = {}
    if kind == "Deployment":
        kind, name, labels = "ReplicaSet", f"{name}-5d9c7", {"pod-template-hash": "5d9c7"}
    owner = {"kind": kind, "name": name, "uid": name, "controller": True}
    return {"ownerReferences": [owner], "labels": labels}


def a_listed_pod(uid: str, namespace: str, name: str, **facts: Any) -> ClusterPod:
    """Return a pod as in a row of a table, with any facts, even hostile names."""
    told = {"uid": uid, "namespace": namespace, "name": name, "status": "", "node": ""}
    told |= {
        "created_s": None,
        "gpus": (),
        "requested_bytes": None,
        "gpu_count": 1,
        "waiting_reason": "",
    }
    told |= {"owner_uid": ""}
    told |= {"scheduler_message": "", "managed": True, "workload": Workload("", "")} | facts
    return ClusterPod({}, **told).project(*told)


@dataclass(frozen=True)
class SceneCluster:
    nodes: tuple[SceneNode, ...]
    pods: tuple[Json, ...]
    others: tuple[Json, ...]

    @property
    def figures(self) -> tuple[NodeFigures, ...]:
        return tuple(node.figures for node in self.nodes if node.figures)

    @property
    def read_nodes(self) -> dict[str, ClusterNode]:
        """Return all nodes by name, as a user with permission to read nodes sees them."""
        return {node.read.name: node.read for node in self.nodes}

    @property
    def read_pods(self) -> list[ClusterPod]:
        return [ClusterPod(pod) for pod in self.pods]

    @cached_property
    def listed_pods(self) -> list[ClusterPod]:
        """Return the pods with VRAM that have not ended, as rows of a table."""
        return read_pods(self.stored_in(ApiServer()).kube(), "")

    def stored_in(self, api: ApiServer) -> ApiServer:
        """Store the cluster in an API server and set the server's clock."""
        api.now_s = lambda: NOW_S
        figures = [write_gpu_node(figure) for figure in self.figures]
        stored = [node.stored for node in self.nodes]
        return api.add(*stored, *figures, *self.pods, *self.others)


def a_cluster(
    nodes: list[SceneNode] | None = None, pods: list[Json] | None = None, *others: Json
) -> SceneCluster:
    """Return a cluster of nodes, pods and other stored objects."""
    return SceneCluster(tuple(nodes or ()), tuple(pods or ()), others)


def held_nodes() -> list[SceneNode]:
    """Return two nodes with idle pods. The driver enforces the caps on one of them."""
    late = {"held_by": "driver, late", "idle_since_s": NOW_S - 21_600}
    train = held("train", 40, 40, 40, held_by="driver", idle_since_s=NOW_S - 60)
    other = replace(train, held_by="sidecar", idle_since_s=NOW_S - 30)
    asleep = held("asleep", 8, 2, 2, held_by="sentry", idle_since_s=NOW_S - 90_000)
    return [
        a_node(
            "n1",
            a_gpu(79, train, held("llama", 16, 6, 6.1, **late)),
            a_gpu(79, other, held("embed", 8, 7.9, 7.9, held_by="driver")),
            limit=Proof(holds=True, back_end="misc"),
        ),
        a_node("n2", a_gpu(22, asleep), age_s=245, limit=Proof(holds=False, why="it is old")),
    ]


def held_pods() -> list[Json]:
    both = a_pod("train", "40Gi", node="n1", gpus="GPU-n1-0,GPU-n1-1", count=2)
    nodes = {"llama": "n1", "embed": "n1", "asleep": "n2"}
    return [both, *(a_pod(name, "8Gi", node=node) for name, node in nodes.items())]


def team_nodes() -> list[SceneNode]:
    """Return three nodes: n2 has unmanaged memory, n3 has stopped reporting."""
    a10 = {"product": "NVIDIA-A10"}
    train = held("train-0", 40, 25, 38.2)
    return [
        a_node(
            "n1",
            a_gpu(79, held("llama", 16, 6, 6.1), train),
            a_gpu(79, train, held("other-3", 39, 19, 20, None)),
        ),
        a_node(
            "n2",
            a_gpu(22, held("embed", 8, 7.8, 7.9), held("other-4", 8, 1.5, 2), used=9.7, **a10),
            a_gpu(22, held("other-5", 8, 2, 2), unmanaged={"rogue": 3.1}, **a10),
        ),
        a_node(
            "n3",
            a_gpu(79, held("train-0b", 64, 41, 42)),
            a_gpu(79, held("train-1", 60, 58.7, 61.3, 1)),
            age_s=245,
        ),
    ]


def team_pods() -> list[Json]:
    """Return the pods of team-a, one of which is pending."""
    since: Json = {"age_s": 11_520}
    n1, both = {"node": "n1", **since}, "GPU-n1-0,GPU-n1-1"
    return [
        a_pod("llama-7c9f-x2kq4", "16Gi", uid="llama", gpus="GPU-n1-0", **n1),
        a_pod("embed-29411-8tq5w", "8Gi", uid="embed", node="n2", gpus="GPU-n2-0", **since),
        a_pod("train-0", "40Gi", count=2, gpus=both, owner="Job/train", **n1),
        a_pod("train-1", "60Gi", node="n3", gpus="GPU-n3-1", owner="Job/train", **since),
        a_pod("eval-4", "80Gi"),
    ]


def many_nodes(number: int, gpus: int = 8, pods: int = 4) -> list[SceneNode]:
    """Return a large cluster in which all names and amounts differ."""
    drawn = random.Random(number)  # noqa: S311 - the same ones in each run

    def a_uid() -> str:
        return str(uuid.UUID(int=drawn.getrandbits(128)))

    def one() -> GpuFigures:
        holders = []
        for _ in range(pods):
            cap = drawn.randint(4, 19)
            used = round(cap * drawn.random(), 3)
            holders.append((a_uid(), cap, used, used))
        used = round(sum(holder[2] for holder in holders) + 0.5, 3)
        return a_gpu(79, *(held(*holder) for holder in holders), used=used, uuid=f"GPU-{a_uid()}")

    return [a_node(f"gpu-node-{node:04d}", *(one() for _ in range(gpus))) for node in range(number)]
