"""Clusters for recorded situations, as API servers store them, in few words.

    @situation
    def across_nodes() -> Situation:
        "No node has enough memory; all nodes together do."
        return Situation("wide", waits("wide", "45Gi"))

Nothing here is a value of `webhook.tools`: the commands are rewritten, and these situations stay.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.support import installations
from tests.support.clusters import (
    SceneCluster,
    SceneNode,
    a_cluster,
    a_gpu,
    a_node,
    a_pod,
    ago,
    gib,
    held,
)
from tests.support.installations import IMAGE, POLICY
from tests.support.merge_patches import merged
from tests.support.pods import a_request
from webhook.adapters.policy.files import load_config_map, shipped_policy_path
from webhook.core.admission.decide import Phase, decide
from webhook.core.enforcement.explanation import explain_stop
from webhook.core.enforcement.step import Excess, Process
from webhook.core.node.events import EventReason
from webhook.core.node.sharing import SharingInputs, apply_sharing, judge
from webhook.core.node.state import NodeState, desired, patches, read_inventory
from webhook.core.placement.fit import Denial, Need, place
from webhook.core.pod.demand import asks_for_vram
from webhook.core.policy.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.support.api_server import ApiServer, Request
    from webhook.core.policy.values import Policy, Rule

Json = dict[str, Any]

TEAM = "team-a"
SHIPPED = {"default.yaml": shipped_policy_path().read_text()}
HEAD = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: team}
spec:
  rules:
"""
H100 = {"product": "NVIDIA-H100-80GB-HBM3"}
A10 = {"product": "NVIDIA-A10"}
PREEMPTION = "preemption: 0/{n} nodes are available: {n} No preemption victims found for pod."


@cache
def policy_of(rules: str = "") -> Policy:
    """Return the shipped policy with rules for team-a in front of it."""
    return load_config_map(files_of(rules), "here", enforcer_image=IMAGE)


def files_of(rules: str) -> dict[str, str]:
    """Return the files of that policy."""
    return {"00-team.yaml": HEAD + rules, **SHIPPED} if rules else SHIPPED


def first_rule(rules: str) -> Rule:
    """Return the first of these rules, by which pods of team-a are admitted."""
    return policy_of(rules).rules[0]


DEFAULT = next(one for one in POLICY.rules if one.name == "default")
BY_SENTRY = "  - {name: team, match: {namespaces: [team-a]}, enforcement: {by: Sentry}}\n"

asks = partial(a_pod, rule=DEFAULT)
"""A pod that was admitted by the shipped policy."""
unseen = partial(a_pod, rule=None)
"""A pod that no webhook saw."""


@dataclass(frozen=True)
class Situation:
    """A cluster, and the pod or workload that is asked about."""

    about: str
    """What `explain` is asked: `NAME` or `KIND/NAME`."""
    cluster: SceneCluster
    rules: str = ""
    """Rules of the policy in front of the shipped ones."""
    logs: Mapping[str, str] = field(default_factory=dict)
    """Logs of sidecars, by pod."""
    answers: Callable[[Request], tuple[int, Json] | None] | None = None
    """What the API server answers to a pod that is created as a dry run; None for what our webhook
    says, which is the real admission."""
    views: bool = False
    """True if a developer asks who has the role `view` in team-a and no other right."""
    changes: tuple[Callable[[ApiServer], object], ...] = ()
    """What is not as an installation leaves it."""
    commands: tuple[str, ...] = ("explain", "check", "top", "report")
    options: tuple[str, ...] = ()
    """Options of `check`."""
    installed: bool = True
    """False if nothing of vramwarden is installed."""
    whole: bool = False
    """True if all that `check` writes is recorded, and not only what is not as it should be."""

    def stored(self) -> ApiServer:
        """Return an API server with the cluster and a whole installation."""
        policy = policy_of(self.rules)
        if self.installed:
            on = [one for one in self.cluster.nodes if _brings_agent(one)]
            api = self.cluster.stored_in(installations.installed(len(on)))
            installations.put_policy(api, files_of(self.rules), policy)
        else:
            api = self.cluster.stored_in(installations.before_installation())
        api.add(*(a_namespace(name) for name in ("default", "kube-system", TEAM, "team-b")))
        for pod in self.cluster.pods:
            metadata = pod["metadata"]
            if metadata["namespace"] == TEAM and pod["status"].get("initContainerStatuses"):
                path = f"/api/v1/namespaces/{TEAM}/pods/{metadata['name']}/log"
                api.texts[path] = self.logs.get(metadata["name"], "")
        if self.views:
            api.fails(".", may_view, forever=True)
        ours = partial(installations.admission, policy=policy)
        api.fails(
            "POST .*/pods$|POST .*/pods[?]",
            lambda one: (self.answers and self.answers(one)) or ours(one),
            forever=True,
        )
        for change in self.changes:
            change(api)
        return api


class Named(NamedTuple):
    """A situation, and one sentence about what has happened."""

    title: str
    make: Callable[[], Situation]


SITUATIONS: dict[str, Named] = {}
"""All situations, by name."""


def situation(make: Callable[[], Situation]) -> Callable[[], Situation]:
    """Register a situation, whose docstring is its title."""
    register(make.__name__.replace("_", "-"), Named(str(make.__doc__), make))
    return make


def register(name: str, found: Named) -> None:
    """Register a situation."""
    assert name not in SITUATIONS
    SITUATIONS[name] = found


# Nodes.


def _brings_agent(node: SceneNode) -> bool:
    labels = node.stored["metadata"].get("labels") or {}
    return "nvidia.com/gpu.present" in labels or "vramwarden.io/gpu" in labels


def gpu_node(name: str, *gpus: Any, **more: Any) -> SceneNode:
    """Return a node that GPU feature discovery labelled."""
    labels = {"nvidia.com/gpu.present": "true", **(more.pop("labels", None) or {})}
    amounts = {"cpu": "32", "memory": "256Gi", **(more.pop("amounts", None) or {})}
    return a_node(name, *gpus, labels=labels, amounts=amounts, **more)


def with_sentry(node: SceneNode) -> SceneNode:
    """Return a node whose sentry acts and measures every GPU."""
    assert node.figures
    gpus = tuple(replace(one, measured=True) for one in node.figures.gpus)
    figures = replace(node.figures, acts=True, gpus=gpus)
    stored = merged(node.stored, {"metadata": {"labels": {"vramwarden.io/sentry": "true"}}})
    return SceneNode(stored, figures)


def judged(
    node: SceneNode, *, shares: bool, unshared: str = "", **inputs: Any
) -> tuple[SceneNode, Json]:
    """Return a node as its agent leaves it once it has judged the GPUs, and the agent's Event."""
    known = {"has_pods": shares, "in_use": (), "shares": shares} | inputs
    sharing = judge(node.stored, SharingInputs(**known))
    whole = desired(read_inventory(node.stored)) if shares else NodeState()
    figures, stored = node.figures, node.stored
    promised = sum(one.promised_bytes or 0 for one in figures.gpus) if figures else None
    made = patches(
        stored, apply_sharing(stored, whole, sharing, promised_bytes=promised, unshared=unshared)
    )
    for one in filter(None, (made.metadata, made.status)):
        stored = merged(stored, one)
    if figures:
        whys = {"held" if shares else "not_shared": sharing.sentence or unshared}
        figures = replace(figures, **whys)
    reason, sentence = sharing.reason or EventReason.NOT_SHARED, sharing.sentence or unshared
    return SceneNode(stored, figures), of_node(stored["metadata"]["name"], reason, sentence)


def of_node(name: str, reason: str, message: str) -> Json:
    """Return the Event that an agent writes about its node."""
    return {
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"namespace": "default", "name": f"{name}.{reason.lower()}"},
        "involvedObject": {"kind": "Node", "name": name, "uid": name},
        "type": "Warning", "reason": reason, "lastTimestamp": ago(60), "message": message,
    }  # fmt: skip


def foreign_node(name: str, *gpus: Any, why: str, **more: Any) -> SceneNode:
    """Return a node whose GPUs were never shared; its sentry says why."""
    node = gpu_node(name, **more)
    seen = a_node(name, *gpus or (a_gpu(1),)).figures
    assert seen
    seen = replace(seen, not_shared=why, enforcement="", gpus=seen.gpus if gpus else ())
    return SceneNode(node.stored, seen)


def full(*pods: Json, more: tuple[Json, ...] = ()) -> SceneCluster:
    """Return three nodes with five GPUs on which much is promised, with these pods in addition.

    | node | GPU | usable | free | pods |
    | --- | --- | --- | --- | --- |
    | n1 | 0 | 79Gi | 23Gi | train-0, other of team-b |
    | n1 | 1 | 79Gi | 0 | train-0, idle |
    | n2 | 0 | 22Gi | 6Gi | embed of team-b |
    | n3 | 0 | 79Gi | 15Gi | big of team-b |
    | n3 | 1 | 79Gi | 19Gi | train-1 |
    """
    return a_cluster(full_nodes(), [*full_pods(), *pods], *more)


def full_nodes(**more: Any) -> list[SceneNode]:
    """Return the nodes of `full`."""
    train = held("train-0", 40, 25, 38)
    return [
        gpu_node(
            "n1",
            a_gpu(79, train, held("other", 16, 12, 14), **H100),
            a_gpu(79, replace(train, used_bytes=gib(20)), held("idle", 39, 2, 8), **H100),
            **more,
        ),
        gpu_node("n2", a_gpu(22, held("embed", 16, 9, 10), **A10), **more),
        gpu_node(
            "n3",
            a_gpu(79, held("big", 64, 60, 61), **H100),
            a_gpu(79, held("train-1", 60, 58.5, 59), **H100),
            **more,
        ),
    ]


def full_pods() -> list[Json]:
    """Return the pods that have the memory of `full`."""
    return [
        runs("train-0", "40Gi", "n1", "GPU-n1-0,GPU-n1-1", count=2, owner="Job/train"),
        runs("idle", "39Gi", "n1", "GPU-n1-1", owner="StatefulSet/notebook"),
        runs("train-1", "60Gi", "n3", "GPU-n3-1", owner="Job/train"),
        runs("other", "16Gi", "n1", "GPU-n1-0", namespace="team-b"),
        runs("embed", "16Gi", "n2", "GPU-n2-0", namespace="team-b"),
        runs("big", "64Gi", "n3", "GPU-n3-0", namespace="team-b"),
    ]


def one_gpu(
    *pods: Json, used: float | None = 6, peak: float | None = 6.1, **more: Any
) -> SceneCluster:
    """Return a cluster of one node with one GPU, on which `rag` has 8Gi."""
    gpu = a_gpu(79, held("rag", 8, used, peak, **more.pop("figures", {})), used=used, **H100)
    return a_cluster([gpu_node("n1", gpu, **more)], list(pods))


def beside_rag(*pods: Json, more: tuple[Json, ...] = (), **node: Any) -> SceneCluster:
    """Return the cluster of `one_gpu` with the pod `rag`, which runs, and these pods."""
    cluster = one_gpu(rag(), *pods, **node)
    return replace(cluster, others=more)


# Pods.


def unscheduled(message: str, reason: str = "Unschedulable") -> Json:
    """Return the status of a pod that the scheduler could not bind."""
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return {"phase": "Pending", "conditions": [condition | {"lastTransitionTime": ago(530)}]}


def scheduler_says(*whys: str, nodes: int = 3) -> str:
    """Return the scheduler's sentence of a pod that fits no node."""
    tail = PREEMPTION.format(n=nodes)
    return f"0/{nodes} nodes are available: {', '.join(whys)}. {tail}"


NO_VRAM = scheduler_says("3 Insufficient vramwarden.io/vram")


def binding_denied(node: SceneNode, memory: float, count: int = 1) -> str:
    """Return the scheduler's sentence once our webhook denied a binding to a node."""
    gpus = [one.gpu for one in read_inventory(node.stored).known]
    assert node.figures
    free = {one.uuid: one.free_bytes or 0 for one in node.figures.gpus}
    denial = place(node.figures.name, gpus, free, Need(gib(memory), count))
    assert isinstance(denial, Denial)
    return (
        'binding rejected: running Bind plugin "DefaultBinder": admission webhook '
        f'"bind.vramwarden.io" denied the request: {denial.sentence}'
    )


def waits(name: str, memory: str, message: str = NO_VRAM, **more: Any) -> Json:
    """Return a pod that waits for a node."""
    return asks(name, memory, status=unscheduled(message), **more)


def sidecar(how: str = "running", restarts: int = 0, **values: Any) -> Json:
    """Return the status of the sidecar's container."""
    return {
        "name": "vram-enforcer",
        "image": IMAGE,
        "state": {how: values or {"startedAt": ago(500)}},
        "started": how == "running",
        "restartCount": restarts,
    }


def runs(name: str, memory: str, node: str, gpus: str, **more: Any) -> Json:
    """Return a pod that runs beside its sidecar."""
    main = {
        "name": "main", "restartCount": 0, "state": {"running": {"startedAt": ago(490)}},
        "containerID": f"containerd://{'ab' * 32}",
    }  # fmt: skip
    ready = [{"type": one, "status": "True"} for one in ("PodScheduled", "Ready")]
    status = {
        "phase": "Running",
        "startTime": ago(more.get("age_s", 540)),
        "conditions": ready,
        "initContainerStatuses": [sidecar()],
        "containerStatuses": [main],
    }
    status |= more.pop("status", {})
    return asks(name, memory, node=node, gpus=gpus, status=status, **more)


def rag(**more: Any) -> Json:
    """Return the pod that has 8Gi on the GPU of `one_gpu`."""
    return runs("rag", "8Gi", "n1", "GPU-n1-0", age_s=11_520, **more)


def lacks_gpu(field: str, name: str) -> Json:
    """Return a container's status as the kubelet writes it for a pod without a GPU."""
    why = "missing value for VRAMWARDEN_GPU_ASSIGNMENT"
    waiting = {"reason": "CreateContainerConfigError", "message": why}
    return {field: [{"name": name, "state": {"waiting": waiting}, "restartCount": 0}]}


# What sidecar and sentry say.


def excess(cap: float, used: float) -> tuple[Process, Excess]:
    """Return a process that grew over its cap on GPU-n1-0."""
    process = Process(41, 1, "python train.py", "ab" * 32)
    over = Excess(
        gpu="GPU-n1-0",
        used_bytes=gib(used),
        sum_bytes=gib(used),
        cap_bytes=gib(cap),
        peak_bytes=gib(used),
        grew_bytes=gib(0.5),
        grew_within_s=1.0,
    )
    return process, over


def stop(cap: float, used: float) -> str:
    """Return the sentence of a stop."""
    return explain_stop(*excess(cap, used))


def log_line(age_s: float, level: str, message: str, **values: Any) -> str:
    """Return a line of a sidecar's log."""
    return json.dumps({"ts": ago(age_s), "level": level, "msg": message, **values}) + "\n"


def stop_lines(cap: float, used: float, message: str = "stopping a process") -> str:
    """Return what a sidecar writes of a stop."""
    process, over = excess(cap, used)
    figures = {
        "gpu": over.gpu, "used_bytes": over.used_bytes, "sum_bytes": over.sum_bytes,
        "cap_bytes": over.cap_bytes, "peak_bytes": over.peak_bytes,
    }  # fmt: skip
    who = {"pid": process.pid, "command": process.command, "container": process.container}
    return log_line(360, "warning", message, why=explain_stop(process, over), **figures, **who)


# Workloads.


def a_namespace(name: str) -> Json:
    """Return a namespace."""
    labels = {"kubernetes.io/metadata.name": name}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def a_workload(
    kind: str, name: str, template: Json, status: Json | None = None, **more: Any
) -> Json:
    """Return a workload whose UID is its name; `template` is a pod of it."""
    labels = {"app": name}
    metadata = template["metadata"]
    of_pods = {"metadata": {"labels": labels, "annotations": metadata.get("annotations") or {}}}
    version = {"Job": "batch/v1"}.get(kind, "apps/v1")
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "template": of_pods | {"spec": template["spec"]},
    }
    own = {"namespace": TEAM, "name": name, "uid": name, "creationTimestamp": ago(700)}
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": own | more.pop("metadata", {}),
        "spec": spec | more,
        "status": status or {},
    }


def a_deployment(name: str, template: Json, says: str = "", **status: Any) -> list[Json]:
    """Return a Deployment and its ReplicaSet, which could create no pod because `says`."""
    failed = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": says}
    of = {"replicas": 0, **status} | ({"conditions": [failed]} if says else {})
    owner = {"kind": "Deployment", "name": name, "uid": name, "controller": True}
    metadata = {"ownerReferences": [owner], "labels": {"app": name}}
    rs = a_workload("ReplicaSet", f"{name}-5d9c7", template, of, metadata=metadata)
    rs["spec"]["selector"] = {"matchLabels": {"app": name}}
    return [a_workload("Deployment", name, template, of), rs]


def failed_create(about: str, message: str, age_s: float = 60) -> Json:
    """Return the Event of a pod that could not be created; `about` is `Kind/name`."""
    kind, _, name = about.partition("/")
    return {
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"namespace": TEAM, "name": f"{name}.1"},
        "involvedObject": {"kind": kind, "name": name, "namespace": TEAM, "uid": name},
        "type": "Warning", "reason": "FailedCreate", "lastTimestamp": ago(age_s),
        "message": f"Error creating: {message}",
    }  # fmt: skip


# Denials.


def denied(pod: Json, rules: str = "") -> str:
    """Return what the API server says of a pod of team-a that our webhook denies."""
    found = decide(a_request(pod, namespace=TEAM), policy_of(rules), Cluster(), Phase.MUTATE)
    assert not found.allowed
    return f'admission webhook "mutate.vramwarden.io" denied the request: {found.message}'


def refused(code: int, message: str) -> tuple[int, Json]:
    """Return the API server's answer to a pod that it does not create."""
    return code, {"kind": "Status", "code": code, "message": message}


def in_team(answer: tuple[int, Json]) -> Callable[[Request], tuple[int, Json] | None]:
    """Return an answer to pods of team-a alone."""
    return lambda request: answer if f"/namespaces/{TEAM}/" in request.path else None


def to_pods_that_ask(answer: tuple[int, Json]) -> Callable[[Request], tuple[int, Json] | None]:
    """Return an answer to pods for which our webhook is called."""
    return lambda request: answer if asks_for_vram(request.body) else None


# Rights.


def may_view(request: Any) -> tuple[int, Json] | None:
    """Answer 403 to what the role `view` in team-a, and every user's rights, do not allow."""
    path, method = request.path, request.method
    own = f"/api/v1/namespaces/{TEAM}/", f"/apis/apps/v1/namespaces/{TEAM}/"
    own += (f"/apis/batch/v1/namespaces/{TEAM}/",)
    all_may = ("/version", "/apis/vramwarden.io/")
    is_view = method == "GET" and path.startswith(own) and "/secrets" not in path
    if is_view or (method == "GET" and (path == "/apis" or path.startswith(all_may))):
        return None
    if path.endswith("selfsubjectaccessreviews"):
        return None
    kind, name, namespace = _parts(path)
    verb = "create" if method == "POST" else "get" if name else "list"
    group = path.split("/")[2] if path.startswith("/apis/") else ""
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    what = f'{kind} "{name}"' if name else kind
    said = (
        f'{what} is forbidden: User "dev" cannot {verb} resource "{kind}" in API group "{group}" '
        f"{where}"
    )
    return 403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": said}


def _parts(path: str) -> tuple[str, str, str]:
    parts = path.strip("/").split("/")[2 if path.startswith("/api/") else 3 :]
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    return parts[0], parts[1] if len(parts) > 1 else "", namespace
