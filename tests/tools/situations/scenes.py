"""Clusters for recorded situations, as stored in API servers.

    "across-nodes": ("No node has enough memory; all nodes together do.", in_full("wide", "45Gi")),

Nothing here is a value of `webhook.tools`: the commands are rewritten, and these situations stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from tests.support import installations, policies
from tests.support.api_server import ApiServer, Request
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
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Phase
from webhook.core.enforcement.messages import explain_stop
from webhook.core.enforcement.model import Excess, Process
from webhook.core.node.events import EventReason
from webhook.core.node.inventory import read_inventory
from webhook.core.node.patches import build_patches
from webhook.core.node.sharing import SharingInputs, apply_sharing, judge
from webhook.core.node.state import NodeState, build_desired_state
from webhook.core.placement.fit import Denial, Need, place
from webhook.core.pod.demand import requests_vram
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.model import Policy, Rule

Answer = tuple[int, Any]
Change = Callable[[ApiServer], object]

Json = dict[str, Any]

TEAM = "team-a"
SHIPPED = {"default.yaml": shipped_policy_path().read_text()}
NOT_IN_VIEW = (
    r"^(?!GET /version|GET /apis$|GET /apis/vramwarden.io/|POST .*/selfsubjectaccessreviews)"
    rf"(?!GET (/api|/apis/apps|/apis/batch)/v1/namespaces/{TEAM}/(?!secrets))"
)
"""Requests that neither every user nor the role `view` in team-a may make."""
NO_RIGHT = 'pods is forbidden: User "dev" cannot create resource "pods" in API group ""'


def rules(**fields: str) -> str:
    """Return one rule for team-a as YAML."""
    written = ", ".join(f"{key}: {value}" for key, value in fields.items())
    return f"  - {{name: team, match: {{namespaces: [{TEAM}]}}, {written}}}\n"


BY_SENTRY = rules(enforcement="{by: Sentry}")
DEFAULT = next(rule for rule in POLICY.rules if rule.name == "default")


@cache
def policy_of(rules: str = "") -> Policy:
    """Return the shipped policy, preceded by these rules."""
    return load_config_map(files_of(rules), "here", enforcer_image=IMAGE)


def files_of(rules: str) -> dict[str, str]:
    return {"00-team.yaml": f"{policies.HEAD}  rules:\n{rules}", **SHIPPED} if rules else SHIPPED


def first_rule(rules: str) -> Rule:
    return policy_of(rules).rules[0] if rules else DEFAULT


asks = partial(a_pod, rule=DEFAULT)
"""A pod that was admitted by the shipped policy."""
unseen = partial(a_pod, rule=None)
"""A pod that bypassed admission."""


@dataclass(frozen=True)
class Situation:
    """A cluster, and the pod or workload to explain."""

    about: str
    """Argument of `explain`: `NAME` or `KIND/NAME`."""
    cluster: SceneCluster
    rules: str = ""
    """Rules that precede those of the shipped policy."""
    log: str = ""
    """Log of the pod's sidecar."""
    answers: Callable[[Request], Answer | None] | None = None
    """Response of the API server to a dry run; None calls vramwarden's actual admission."""
    changes: tuple[Change, ...] = ()
    """Differences from a working installation."""
    installed: bool = True
    """False if vramwarden is not installed."""

    def stored(self) -> ApiServer:
        policy = policy_of(self.rules)
        if self.installed:
            api = installations.installed(sum(map(_brings_agent, self.cluster.nodes)))
            installations.put_policy(api, files_of(self.rules), policy)
        else:
            api = installations.before_installation()
        self.cluster.stored_in(api)
        for name in ("default", "kube-system", TEAM, "team-b"):
            metadata = {"name": name, "labels": {"kubernetes.io/metadata.name": name}}
            api.put(f"/api/v1/namespaces/{name}", {"kind": "Namespace", "metadata": metadata})
        for path, found in api.objects.items():
            of_team = path.startswith(f"/api/v1/namespaces/{TEAM}/pods/")
            if of_team and found["status"].get("initContainerStatuses"):
                is_asked = found["metadata"]["name"] == self.about
                api.texts[f"{path}/log"] = self.log if is_asked else ""
        for change in self.changes:
            change(api)
        ours = partial(installations.admission, policy=policy)
        api.fails(
            "POST .*/pods($|[?])",
            lambda request: (self.answers and self.answers(request)) or ours(request),
            forever=True,
        )
        return api


def has_role_view(api: ApiServer) -> None:
    api.fails(NOT_IN_VIEW, refused(403, NO_RIGHT), forever=True)


def without_figures(situation: Situation) -> Situation:
    """Return a situation without any figures of sentries."""
    nodes = tuple(replace(node, figures=None) for node in situation.cluster.nodes)
    return replace(situation, cluster=replace(situation.cluster, nodes=nodes))


Row = tuple[str, Situation]
"""A sentence about the events, and the situation."""


# Nodes.


def _brings_agent(node: SceneNode) -> bool:
    labels = node.stored["metadata"].get("labels") or {}
    return "nvidia.com/gpu.present" in labels or "vramwarden.io/gpu" in labels


def gpu_node(name: str, *gpus: Any, **more: Any) -> SceneNode:
    labels = {"nvidia.com/gpu.present": "true", **(more.pop("labels", None) or {})}
    amounts = {"cpu": "32", "memory": "256Gi", **(more.pop("amounts", None) or {})}
    return a_node(name, *gpus, labels=labels, amounts=amounts, **more)


def with_sentry(node: SceneNode) -> SceneNode:
    assert node.figures
    gpus = tuple(replace(gpu, measured=True) for gpu in node.figures.gpus)
    figures = replace(node.figures, acts=True, gpus=gpus)
    stored = merged(node.stored, {"metadata": {"labels": {"vramwarden.io/sentry": "true"}}})
    return SceneNode(stored, figures)


def judged(
    node: SceneNode, *, shares: bool = False, unshared: str = "", **inputs: Any
) -> tuple[SceneNode, Json]:
    """Return a node with the verdict and Event of its agent."""
    known = {"has_pods": shares, "in_use": (), "is_advertised": shares} | inputs
    sharing = judge(node.stored, SharingInputs(**known))
    whole = build_desired_state(read_inventory(node.stored)) if shares else NodeState()
    figures, stored = node.figures, node.stored
    promised = sum(gpu.promised_bytes or 0 for gpu in figures.gpus) if figures else None
    made = build_patches(
        stored, apply_sharing(stored, whole, sharing, promised_bytes=promised, unshared=unshared)
    )
    for patch in filter(None, (made.metadata, made.status)):
        stored = merged(stored, patch)
    reason, sentence = sharing.reason or EventReason.NOT_SHARED, sharing.sentence or unshared
    if figures:
        figures = replace(figures, **{"held" if shares else "not_shared": sentence})
    return SceneNode(stored, figures), an_event(f"Node/{node.read.name}", reason, sentence)


def foreign_node(name: str, *gpus: Any, why: str, **more: Any) -> SceneNode:
    """Return a node whose GPUs were never shared; the figures have the reason."""
    seen = a_node(name, *gpus or (a_gpu(1),)).figures
    assert seen
    seen = replace(seen, not_shared=why, enforcement="", gpus=seen.gpus if gpus else ())
    return SceneNode(gpu_node(name, **more).stored, seen)


def full(*objects: Json, nodes: tuple[SceneNode, ...] = ()) -> SceneCluster:
    """Return three nodes whose five GPUs are nearly full, with additional objects.

    | node | GPU | usable | free | pods |
    | --- | --- | --- | --- | --- |
    | n1 | 0 | 79Gi | 23Gi | train-0, other of team-b |
    | n1 | 1 | 79Gi | 0 | train-0, idle |
    | n2 | 0 | 22Gi | 6Gi | embed of team-b |
    | n3 | 0 | 79Gi | 15Gi | big of team-b |
    | n3 | 1 | 79Gi | 19Gi | train-1 |
    """
    pods = [
        runs("train-0", "40Gi", "n1", "GPU-n1-0,GPU-n1-1", count=2, owner="Job/train"),
        runs("idle", "39Gi", "n1", "GPU-n1-1", owner="StatefulSet/notebook"),
        runs("train-1", "60Gi", "n3", "GPU-n3-1", owner="Job/train"),
        runs("other", "16Gi", "n1", "GPU-n1-0", namespace="team-b"),
        runs("embed", "16Gi", "n2", "GPU-n2-0", namespace="team-b"),
        runs("big", "64Gi", "n3", "GPU-n3-0", namespace="team-b"),
    ]
    return a_cluster([*(nodes or full_nodes())], pods, *objects)


def full_nodes(**more: Any) -> tuple[SceneNode, ...]:
    train = held("train-0", 40, 25, 38)
    n1 = (
        a_gpu(79, train, held("other", 16, 12, 14)),
        a_gpu(79, replace(train, used_bytes=gib(20)), held("idle", 39, 2, 8)),
    )
    n3 = a_gpu(79, held("big", 64, 60, 61)), a_gpu(79, held("train-1", 60, 58.5, 59))
    a10 = a_gpu(22, held("embed", 16, 9, 10), product="NVIDIA-A10")
    return gpu_node("n1", *n1, **more), gpu_node("n2", a10, **more), gpu_node("n3", *n3, **more)


def one_gpu(
    *objects: Json,
    used: float | None = 6,
    peak: float | None = 6.1,
    figures: Json | None = None,
    **node: Any,
) -> SceneCluster:
    """Return a cluster with one GPU, on which the pod `rag` has 8Gi."""
    gpu = a_gpu(79, held("rag", 8, used, peak, **(figures or {})), used=used)
    return a_cluster([gpu_node("n1", gpu, **node)], [], *objects)


def beside_rag(*objects: Json, **node: Any) -> SceneCluster:
    """Return the cluster of `one_gpu` with the running pod `rag` and these objects."""
    return one_gpu(rag(), *objects, **node)


# Pods.


def unscheduled(message: str, reason: str = "Unschedulable") -> Json:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return {"phase": "Pending", "conditions": [condition | {"lastTransitionTime": ago(530)}]}


def scheduler_reasons(*whys: str, nodes: int = 3) -> str:
    """Return the scheduler's message for a pod that fits no node."""
    none = f"0/{nodes} nodes are available: "
    preemption = f"preemption: {none}{nodes} No preemption victims found for pod."
    return f"{none}{', '.join(whys)}. {preemption}"


NO_VRAM = scheduler_reasons("3 Insufficient vramwarden.io/vram")
ONE_WITHOUT_VRAM = scheduler_reasons("1 Insufficient vramwarden.io/vram", nodes=1)


def binding_denied(node: SceneNode, memory: float, count: int = 1) -> str:
    """Return the scheduler's message after the webhook denied a binding to a node."""
    gpus = [tracked.gpu for tracked in read_inventory(node.stored).tracked]
    assert node.figures
    free = {gpu.uuid: gpu.free_bytes or 0 for gpu in node.figures.gpus}
    denial = place(node.figures.name, gpus, free, Need(gib(memory), count))
    assert isinstance(denial, Denial)
    return (
        'binding rejected: running Bind plugin "DefaultBinder": admission webhook '
        f'"bind.vramwarden.io" denied the request: {denial.sentence}'
    )


def waits(name: str, memory: str, message: str = NO_VRAM, **more: Any) -> Json:
    return asks(name, memory, status=unscheduled(message), **more)


def container(how: str, *, name: str = "main", restarts: int = 0, **values: Any) -> Json:
    """Return a container status; `how` is `running`, `waiting` or `terminated`."""
    return {"name": name, "state": {how: values}, "restartCount": restarts}


def sidecar(how: str = "running", restarts: int = 0, **values: Any) -> Json:
    values = values or {"startedAt": ago(500)}
    found = container(how, name="vram-enforcer", restarts=restarts, **values)
    return found | {"image": IMAGE, "started": how == "running"}


def runs(name: str, memory: str | None, node: str, gpus: str, **more: Any) -> Json:
    main = container("running", startedAt=ago(490)) | {"containerID": f"containerd://{'ab' * 32}"}
    status = {
        "phase": "Running",
        "startTime": ago(more.get("age_s", 540)),
        "conditions": [
            {"type": condition, "status": "True"} for condition in ("PodScheduled", "Ready")
        ],
        "initContainerStatuses": [sidecar()],
        "containerStatuses": [main],
    }
    status |= more.pop("status", {})
    return asks(name, memory, node=node, gpus=gpus, status=status, **more)


def rag(**more: Any) -> Json:
    return runs("rag", "8Gi", "n1", "GPU-n1-0", age_s=11_520, **more)


def lacks_gpu(field: str, name: str) -> Json:
    """Return a container status as the kubelet writes it for a pod without a GPU."""
    why = "missing value for VRAMWARDEN_GPU_ASSIGNMENT"
    waiting = {"reason": "CreateContainerConfigError", "message": why}
    return {field: [container("waiting", name=name, **waiting)]}


# Messages of sidecar and sentry.


OVER = Excess(
    gpu="GPU-n1-0",
    used_bytes=gib(8.4),
    sum_bytes=gib(8.4),
    cap_bytes=gib(8),
    peak_bytes=gib(8.4),
    grew_bytes=gib(0.5),
    grew_within_s=1.0,
)
STOP = explain_stop(Process(41, 1, "python train.py", "ab" * 32), OVER)
"""Message about the stop of a process of `rag` that exceeded its cap."""


def log_line(age_s: float, level: str, message: str, **values: Any) -> str:
    return json.dumps({"ts": ago(age_s), "level": level, "msg": message, **values}) + "\n"


def stop_line(message: str = "stopping a process") -> str:
    return log_line(360, "warning", message, why=STOP, peak_bytes=OVER.peak_bytes)


# Workloads and Events.


def a_workload(
    kind: str, name: str, template: Json, status: Json | None = None, **more: Any
) -> Json:
    """Return a workload with its name as UID; `template` is one of its pods."""
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
    """Return a Deployment and its ReplicaSet; `says` is why pods cannot be created."""
    failed = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": says}
    of = {"replicas": 0, **status} | ({"conditions": [failed]} if says else {})
    owner = {"kind": "Deployment", "name": name, "uid": name, "controller": True}
    metadata = {"ownerReferences": [owner], "labels": {"app": name}}
    rs = a_workload("ReplicaSet", f"{name}-5d9c7", template, of, metadata=metadata)
    rs["spec"]["selector"] = {"matchLabels": {"app": name}}
    return [a_workload("Deployment", name, template, of), rs]


def an_event(
    about: str, reason: str, message: str, namespace: str = "default", age_s: float = 60
) -> Json:
    """Return a warning Event about an object `Kind/name`, which has its name as UID."""
    kind, _, name = about.partition("/")
    return {
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"namespace": namespace, "name": f"{name}.{reason.lower()}"},
        "involvedObject": {"kind": kind, "name": name, "namespace": namespace, "uid": name},
        "type": "Warning", "reason": reason, "lastTimestamp": ago(age_s), "message": message,
    }  # fmt: skip


def failed_create(about: str, message: str, age_s: float = 60) -> Json:
    """Return the Event of a failed pod creation; `about` is `Kind/name`."""
    return an_event(about, "FailedCreate", f"Error creating: {message}", TEAM, age_s)


# Denials.


def denied(pod: Json, rules: str = "") -> str:
    """Return the API server's message when the webhook denies a pod of team-a."""
    found = decide(a_request(pod, namespace=TEAM), policy_of(rules), Cluster(), Phase.MUTATE)
    assert not found.allowed
    return installations.denial(found.message)[1]["message"]


def refused(code: int, message: str) -> Answer:
    return code, {"kind": "Status", "code": code, "message": message}


def in_team(answer: Answer) -> Callable[[Request], Answer | None]:
    """Return a response that applies only to pods of team-a."""
    return lambda request: answer if f"/namespaces/{TEAM}/" in request.path else None


def to_pods_that_ask(answer: Answer) -> Callable[[Request], Answer | None]:
    """Return a response for pods for which the API server calls the webhook."""
    return lambda request: answer if requests_vram(request.body) else None
