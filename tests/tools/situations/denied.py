"""Pods that are not created or not mutated, workloads, and broken installations."""

from __future__ import annotations

from typing import Any

from tests.support import policies
from tests.support.api_server import ApiServer, Request
from tests.support.clusters import a_cluster, a_gpu, a_node, ago
from tests.support.installations import DAEMON_SETS, HOOKS, POLICIES, WEBHOOK, patch
from tests.support.pods import a_container
from tests.tools.situations.scenes import (
    NO_RIGHT,
    Answer,
    Change,
    Json,
    Row,
    Situation,
    a_deployment,
    a_workload,
    asks,
    beside_rag,
    denied,
    failed_create,
    foreign_node,
    full,
    full_nodes,
    has_role_view,
    in_team,
    lacks_gpu,
    refused,
    rules,
    runs,
    to_pods_that_ask,
    unseen,
    waits,
)
from tests.tools.situations.waiting import UNMATCHED, WHOLE, in_full, one_node

CANNOT_CALL = "Internal error occurred: failed calling webhook "
CANNOT_CALL_OURS = (
    f'{CANNOT_CALL}"mutate.vramwarden.io": failed to call webhook: Post '
    '"https://vramwarden-webhook.vramwarden-system.svc:443/mutate?timeout=10s": '
)
UNTRUSTED = (
    f"{CANNOT_CALL_OURS}tls: failed to verify certificate: x509: certificate signed by unknown "
    "authority"
)
CANNOT_CALL_ANOTHER = (
    f'{CANNOT_CALL}"inject.mesh.example": failed to call webhook: Post '
    '"https://mesh.mesh.svc:443/inject": no endpoints available for service "mesh"'
)
QUOTA = (
    'pods "train-5d9c7-" is forbidden: exceeded quota: gpus, requested: '
    "requests.vramwarden.io/vram=8Gi, used: requests.vramwarden.io/vram=40Gi, limited: "
    "requests.vramwarden.io/vram=40Gi"
)
SECOND_LINE = (
    "pods \"train-5d9c7-\" is forbidden: ValidatingAdmissionPolicy 'vramwarden-second-line' with "
    "binding 'vramwarden-second-line' denied request: vramwarden: create the pod again; it asks "
    "for GPU memory and was not translated. If it stays so, tell your platform team that "
    "vramwarden's webhook did not run, or that another webhook added the demand after it: "
    "webhook.configurationName must sort last"
)
AT_MOST_64 = rules(memory="{max: 64Gi}")
AT_MOST_4 = rules(memory="{max: 4Gi}")
AUDIT, WARN, IGNORE = (
    rules(action=action, memory="{max: 4Gi}") for action in ("Audit", "Warn", "Ignore")
)


# Workloads.


def job(
    status: Json | None = None, *more: Json, memory: str = "8Gi", name: str = "train", **spec: Any
) -> Situation:
    made = a_workload("Job", name, unseen(name, memory), status, **spec)
    return Situation(f"job/{name}", beside_rag(made, *more))


def deployment(
    template: Json | None = None,
    says: str = "",
    *more: Json,
    metadata: Json | None = None,
    about: str = "deployment/train",
    **fields: Any,
) -> Situation:
    """Return a Deployment whose ReplicaSet cannot create pods; `says` is the message."""
    made = a_deployment("train", template or unseen("train", "8Gi"), says)
    made[0]["metadata"] |= metadata or {}
    event = [failed_create("ReplicaSet/train-5d9c7", says)] if says else []
    return Situation(about, beside_rag(*made, *event, *more), **fields)


def of_ddp(*objects: Json, about: str = "pytorchjob/ddp") -> Situation:
    """Return the objects of a PyTorchJob, which is not a built-in kind."""
    return Situation(about, beside_rag(*objects))


def happened(kind: str, **more: str) -> Json:
    return {"conditions": [{"type": kind, "status": "True", **more}]}


# Pods without memory.


def without_memory(name: str, resources: Json | None = None, **more: Any) -> Situation:
    containers = [a_container(resources={"limits": resources or {}})]
    return Situation(name, beside_rag(asks(name, containers=containers, **more)))


def old(rules: str = "", memory: str = "8Gi", **more: Any) -> Situation:
    """Return a running pod that requests VRAM but has none."""
    pod = unseen("old", memory, node="n1", age_s=90_000)
    return Situation("old", beside_rag(pod), rules, **more)


def exempts_team(api: ApiServer) -> None:
    key = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["team-a"]}
    selector = {"namespaceSelector": {"matchExpressions": [key]}}
    hooks = [{"name": webhook["name"], **selector} for webhook in api.objects[HOOKS[0]]["webhooks"]]
    patch(api, HOOKS[0], {"webhooks": hooks})


def none_ready(path: str, field: str = "numberReady") -> Change:
    """Return a change after which no pod of a vramwarden workload is ready."""
    return lambda api: patch(api, path, {"status": {field: 0}})


def without_agent() -> Situation:
    """Return the full cluster with a new node that has no agent."""
    new = foreign_node("n4", a_gpu(79), why="its agent does not advertise them")
    cluster = full(waits("next", "30Gi"), nodes=(*full_nodes(), new))
    return Situation("next", cluster, changes=(none_ready(DAEMON_SETS[0]),))


def without_webhook() -> Situation:
    """Return a pod that was bound while no webhook replica was ready."""
    status = {"phase": "Pending", "startTime": ago(240)}
    status |= lacks_gpu("initContainerStatuses", "vram-enforcer")
    pod = asks("late-0", "20Gi", node="n1", age_s=240, status=status)
    said = f"{CANNOT_CALL_OURS}dial tcp 10.0.0.7:443: connect: connection refused"
    return Situation(
        "late-0", full(pod), answers=to_pods_that_ask(refused(500, said)),
        changes=(none_ready(WEBHOOK, "readyReplicas"),),
    )  # fmt: skip


def put_wrong_policy(api: ApiServer) -> None:
    patch(api, POLICIES, {"data": {"zz.yaml": f"{policies.HEAD.rstrip()} {{rulez: []}}\n"}})


FAILED = happened(
    "Failed", reason="BackoffLimitExceeded", message="Job has reached the specified backoff limit"
)
OWNED_BY_TRAIN = {
    "labels": {"app": "train"},
    "ownerReferences": [
        {"kind": "ReplicaSet", "name": "train-5d9c7", "uid": "train-5d9c7", "controller": True}
    ],
}
DDP = runs("ddp-0", "8Gi", "n1", "GPU-n1-0", metadata={"ownerReferences": [
    {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "ddp", "uid": "ddp",
     "controller": True},
]})  # fmt: skip
LLAMA = runs("llama-7c9f-x2kq4", "8Gi", "n1", "GPU-n1-0", owner="Deployment/llama")
LIMIT_RANGE = {
    "apiVersion": "v1", "kind": "LimitRange",
    "metadata": {"name": "gpus", "namespace": "team-a"},
    "spec": {"limits": [{"type": "Container", "max": {"nvidia.com/gpu": "1"}}]},
}  # fmt: skip
RESOURCE_QUOTA = {
    "apiVersion": "v1", "kind": "ResourceQuota",
    "metadata": {"name": "gpus", "namespace": "team-a"},
    "spec": {"hard": {"limits.vramwarden.io/vram": "10Gi"}},
    "status": {"hard": {"limits.vramwarden.io/vram": "10Gi"}, "used": {}},
}  # fmt: skip
STATIC = unseen("driver-n1", node="n1", annotations={
    "kubernetes.io/config.mirror": "0123", "kubernetes.io/config.hash": "0123",
    "kubernetes.io/config.source": "file", "vramwarden.io/gpu-memory": "8Gi",
}, metadata={"ownerReferences": [
    {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1", "controller": True}
]})  # fmt: skip
TOO_LARGE = unseen("train", "80Gi", annotations={"vramwarden.io/gpu-count": "two"})
UNREADABLE = unseen("train", "8GB")
DENIED = denied(UNREADABLE)
DENIED_WITH_WHOLE = denied(unseen("train", "8Gi", containers=WHOLE))


def left_alone(request: Request) -> Answer:
    """Respond like an API server that does not call the webhook."""
    return 201, request.body


ROWS: dict[str, Row] = {
    "denied-at-creation": (
        "Our webhook denies the pods of a Deployment: too much memory, and no number of GPUs.",
        deployment(TOO_LARGE, denied(TOO_LARGE, AT_MOST_64), rules=AT_MOST_64),
    ),
    "denied-job": (
        "Our webhook denies the pods of a Job, and only an Event says so.",
        job(None, failed_create("Job/train", DENIED), memory="8GB"),
    ),
    "limit-range-adds-a-gpu": (
        "A LimitRange adds a whole GPU to containers that ask for memory of one.",
        deployment(None, DENIED_WITH_WHOLE, LIMIT_RANGE,
                   answers=in_team(refused(403, DENIED_WITH_WHOLE))),
    ),
    "out-of-quota": (
        "A quota denies the pods of a Deployment.",
        deployment(None, QUOTA, answers=in_team(refused(403, QUOTA))),
    ),
    "quota-that-counts-nothing": (
        "A quota names our resource with the prefix `limits.`, which Kubernetes does not count.",
        Situation("rag", beside_rag(RESOURCE_QUOTA)),
    ),
    "webhook-unreachable": (
        "The API server distrusts the webhook's certificate, so no pod with memory is created.",
        deployment(None, UNTRUSTED, answers=to_pods_that_ask(refused(500, UNTRUSTED))),
    ),
    "policy-invalid": (
        "The stored policy has a typing error; replicas go on with the last valid one.",
        Situation("rag", beside_rag(), changes=(put_wrong_policy,)),
    ),
    "agent-down": (
        "The agent runs on no node; two nodes keep what it wrote, and a new one has nothing.",
        without_agent(),
    ),
    "sentry-down": (
        "The sentry runs on no node; its figures are 20 minutes old.",
        in_full("next", "30Gi", nodes=full_nodes(age_s=1200),
                changes=(none_ready(DAEMON_SETS[1]),)),
    ),
    "webhook-down": (
        "No replica of the webhook is ready: a pod was bound without a GPU, for no stated reason.",
        without_webhook(),
    ),
    "rights-to-view-a-denied-workload": (
        "A developer with the role `view` asks why a Deployment has no pods.",
        deployment(UNREADABLE, DENIED, changes=(has_role_view,)),
    ),
    "suspended-by-kueue": (
        "Kueue keeps a Job suspended, so it has no pods.", job(name="queued", suspend=True),
    ),
    "no-gpu-node": (
        "No node has a GPU.",
        Situation("next", a_cluster(
            [a_node("cpu")], [waits("next", "8Gi", one_node(UNMATCHED))]
        )),
    ),
    "no-demand": (
        "A pod asks for no GPU memory.", without_memory("web", node="n1"),
    ),
    "idiom-of-another-product": (
        "A pod asks for GPU memory as HAMi reads it.",
        without_memory("hami", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}),
    ),
    "created-before-the-policy": (
        "A pod that asks for memory was created before vramwarden was installed, and runs.",
        old(),
    ),
    "static-pod": (
        "A kubelet runs a static pod that asks for memory.",
        Situation("driver-n1", beside_rag(STATIC)),
    ),
}  # fmt: skip
"""Situations in which all four commands are recorded."""
EXPLAINED = {
    "The name is that of a workload.": Situation("llama", beside_rag(LLAMA)),
    "A pod has an annotation of another product.":
        without_memory("web", annotations={"gpu-memory": "2000"}),
    "A pod names our annotation as a resource.":
        without_memory("web", {"vramwarden.io/gpu-memory": "8Gi"}),
    "A pod without memory would be denied now.": old(memory="8GB"),
    "The namespace is exempt.": old(changes=(exempts_team,), answers=left_alone),
    "A rule ignores the pod.": old(IGNORE),
    "A rule only records.": old(AUDIT, memory="2Gi"),
    "A rule only warns.": old(WARN),
    "A rule enforces, and the webhook is not asked.": old(answers=left_alone),
    "The person may not create pods, and the amount is too large.":
        old(AT_MOST_4, answers=lambda _: refused(403, NO_RIGHT)),
    "The person has the role `view`, and the amount is wrong.":
        old(memory="8GB", changes=(has_role_view,)),
    "A Job has failed.": job(FAILED | {"failed": 3}),
    "A Job is complete.": job(happened("Complete") | {"succeeded": 1}),
    "The Events of a denied Job are gone, so a pod like its own is tried.": job(memory="8GB"),
    "Nothing says why a Deployment has no pods.": deployment(),
    "The API server denies pods that were not translated.": deployment(None, SECOND_LINE),
    "The API server cannot call another product's webhook.":
        deployment(None, CANNOT_CALL_ANOTHER),
    "The annotation is on the Deployment, and not in its template.": deployment(
        unseen("train"), "", asks("train-a", owner="Deployment/train", metadata=OWNED_BY_TRAIN),
        metadata={"annotations": {"vramwarden.io/gpu-memory": "8Gi"}},
    ),
    "No Deployment has this name.": deployment(about="deployment/trian"),
    "An object of another kind owns a pod that runs.": of_ddp(DDP),
    "Pods of an object of another kind are denied.":
        of_ddp(failed_create("PyTorchJob/ddp", denied(unseen("ddp", "8GB")))),
    "No object of another kind has this name.": of_ddp(DDP, about="pytorchjob/dpp"),
    "There is no such kind.": of_ddp(about="deploymnet/roll"),
}  # fmt: skip
