"""Further situations, of which only `explain` is recorded, one row each."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from tests.support.clusters import GIB, a_cluster, a_gpu, a_node, ago, gib, held
from tests.support.installations import HOOKS, patch
from tests.support.pods import a_container
from tests.tools.situations.bound import ENDED, HOLDS, a_run, failed
from tests.tools.situations.scenes import (
    BY_SENTRY,
    H100,
    Json,
    Named,
    Situation,
    a_deployment,
    a_workload,
    asks,
    beside_rag,
    denied,
    failed_create,
    first_rule,
    gpu_node,
    lacks_gpu,
    log_line,
    one_gpu,
    rag,
    refused,
    register,
    runs,
    scheduler_says,
    sidecar,
    stop,
    stop_lines,
    unseen,
    waits,
    with_sentry,
)
from tests.tools.situations.waiting import EVAL, in_full, may_not
from webhook.core.enforcement.termination_message import TerminationMessage, write_message
from webhook.core.kinds.histories import History, write_history


def rules(**fields: Any) -> str:
    """Return one rule for team-a."""
    written = ", ".join(f"{key}: {value}" for key, value in fields.items())
    return f"  - {{name: team, match: {{namespaces: [team-a]}}, {written}}}\n"


LAPTOP = rules(placement="None", enforcement="{by: None}")
SEES_ALL = rules(placement="None")
SLICED, SLOTTED = rules(accounting="MIG"), rules(accounting="CapOnly")
AUDIT, WARN, IGNORE = (
    rules(action=one, memory="{max: 4Gi}") for one in ("Audit", "Warn", "Ignore")
)
NO_SLICE = scheduler_says(
    "1 Insufficient nvidia.com/mig-1g.20gb", "2 node(s) didn't match Pod's node affinity/selector"
)
AUTO = {"annotations": {"vramwarden.io/driver-limit": "Auto"}}
STARTING = {"phase": "Pending", "startTime": ago(240)}
NO_GPU_YET = STARTING | lacks_gpu("containerStatuses", "main")
NO_GPU = {"vramwarden.io/gpu": None}
FORGED = NO_GPU | {"vramwarden.io/gpu-memory": "8GB"}
NO_STATUS = {"initContainerStatuses": [], "containerStatuses": []}
UNHELD = log_line(
    90, "warning", "not held by the driver", why="the driver has no limit for this pod"
)
SECOND_LINE = (
    "pods \"train-5d9c7-\" is forbidden: ValidatingAdmissionPolicy 'vramwarden-second-line' with "
    "binding 'vramwarden-second-line' denied request: vramwarden: create the pod again; it asks "
    "for GPU memory and was not translated. If it stays so, tell your platform team that "
    "vramwarden's webhook did not run, or that another webhook added the demand after it: "
    "webhook.configurationName must sort last"
)
QUOTA = 'pods "old" is forbidden: exceeded quota: gpus, requested: requests.vramwarden.io/vram=8Gi'


# Pods that wait.


UNMEASURED = tuple(replace(one, peak_bytes=None) for one in EVAL.runs[10:])
GAP = replace(EVAL, runs=(*EVAL.runs[:10], *UNMEASURED))


def on_laptop(
    memory: str,
    message: str = scheduler_says("1 Insufficient vramwarden.io/vram", nodes=1),
    first: str = "10Gi",
    **more: Any,
) -> Situation:
    """Return a pod that waits for a node whose amount is configured, beside `first`."""
    rule = first_rule(LAPTOP)
    changes = more.pop("changes", ())
    namespace = more.pop("namespace", "team-a")
    pods = [
        asks("first", first, node="laptop", rule=rule, namespace=namespace),
        waits("second", memory, message, rule=rule, **more),
    ]
    cluster = a_cluster([a_node("laptop", said=16)], pods)
    return Situation("second", cluster, rules=LAPTOP, changes=changes)


WAITING = {
    "history-with-a-gap": (
        "Two of the twelve last runs were not measured.",
        lambda: in_full("eval-4", "30Gi", owner="Job/eval", more=(write_history(GAP),)),
    ),
    "three-gpus": ("No node has three GPUs.", lambda: in_full("many", "30Gi", count=3)),
    "pods-unread": (
        "The person may not list pods.",
        lambda: in_full("eval-8", "30Gi", changes=may_not("list pods")),
    ),
    "sees-all-gpus": (
        "The pod is to see all GPUs of a node, and no node has the sum.",
        lambda: in_full("all", "30Gi", rules=SEES_ALL),
    ),
    "configured-amount-too-small": (
        "The pod wants more than the configured amount.", lambda: on_laptop("20Gi"),
    ),
    "configured-amount-taken": (
        "Another pod has all of a configured amount.", lambda: on_laptop("8Gi", first="16Gi"),
    ),
    "configured-amount-of-others": (
        "A pod of another namespace has most of a configured amount.",
        lambda: on_laptop("16Gi", namespace="team-b"),
    ),
    "configured-amount-two-gpus": (
        "The pod wants two GPUs of a configured amount.", lambda: on_laptop("8Gi", count=2),
    ),
    "configured-amount-pods-unread": (
        "The person may not list the pods that have a configured amount.",
        lambda: on_laptop("10Gi", changes=may_not("list pods")),
    ),
    "no-slice": (
        "No slice of a GPU is left.", lambda: in_full("llama", "19Gi", NO_SLICE, rules=SLICED),
    ),
}  # fmt: skip


# Pods that run or start.


def with_gpu(
    *, rule: str = "", log: str = "", figures: Json | None = None, node: Json | None = None,
    changes: tuple[Any, ...] = (), sentry: bool = False, used: float | None = 6, **pod: Any,
) -> Situation:  # fmt: skip
    """Return the pod `rag` on its GPU."""
    by = {"rule": first_rule(rule)} if rule else {}
    known = dict(figures or {})
    cluster = one_gpu(
        rag(**by, **pod), used=used, peak=known.pop("peak", 6.1), figures=known, **(node or {})
    )
    if sentry:
        cluster = replace(cluster, nodes=tuple(map(with_sentry, cluster.nodes)))
    return Situation("rag", cluster, rules=rule, logs={"rag": log}, changes=changes)


def by_sentry(**more: Any) -> Situation:
    """Return the pod `rag`, which the sentry is to hold."""
    status = more.pop("status", {}) | {"initContainerStatuses": []}
    return with_gpu(rule=BY_SENTRY, status=status, sentry=True, **more)


def by_driver(held_by: str = "driver", **more: Any) -> Situation:
    """Return the pod `rag`, which the driver may hold."""
    figures = {"held_by": held_by, **more.pop("figures", {})}
    return with_gpu(figures=figures, node={"limit": HOLDS}, **AUTO, **more)


def sliced(rule: str, **more: Any) -> Situation:
    """Return a pod whose GPUs the device plugin gives."""
    log = more.pop("log", "")
    pod = runs("llama", "8Gi", "mig-1", "", rule=first_rule(rule), **more)
    return Situation("llama", a_cluster([a_node("mig-1")], [pod]), rules=rule, logs={"llama": log})


def restarted(verdict: str) -> Json:
    """Return the status of a sidecar that left a verdict and runs again."""
    last = {"terminated": {"exitCode": 0, "finishedAt": ago(120), "message": verdict}}
    return {"initContainerStatuses": [sidecar(restarts=1) | {"lastState": last}]}


OVER = {"peak": 8.4, "stops": 1}
MANY_STOPS = "".join(
    log_line(1000 - n, "warning", "stopping a process", why=f"stop {n}", pid=n, peak_bytes=GIB)
    for n in range(9)
)
BOUND = {
    "late-and-unreadable": (
        "A pod was bound late, and somebody changed its amount.",
        lambda: with_gpu(status=NO_GPU_YET, annotations=FORGED),
    ),
    "late-and-assigned": (
        "A pod has got its GPU, and the kubelet has not tried again.",
        lambda: with_gpu(status=NO_GPU_YET),
    ),
    "running-and-sees-all": (
        "A pod sees all GPUs of its node.",
        lambda: with_gpu(rule=SEES_ALL, annotations=NO_GPU),
    ),
    "running-where-others-left": (
        "A pod runs where others have left.",
        lambda: Situation("embed", a_cluster(
            [gpu_node("n1", a_gpu(79, held("embed", 16, 6)), a_gpu(79, held("x", 24)))],
            [runs("embed", "16Gi", "n1", "GPU-n1-0")],
        )),
    ),
    "running-in-place-of-a-whole-gpu": (
        "A rule gave the pod a share in place of a whole GPU.",
        lambda: with_gpu(annotations={"vramwarden.io/in-place-of": "nvidia.com/gpu"}),
    ),
    "running-and-log-unread": (
        "Nothing is known of the GPU, and the log may not be read.",
        lambda: with_gpu(
            used=None, figures={"peak": None},
            changes=(lambda api: api.fails("/pods/rag/log", refused(403, "no"), forever=True),),
        ),
    ),
    "slice-running": ("A pod has a slice.", lambda: sliced(SLICED)),
    "slot-running": ("A pod has a slot of time-slicing.", lambda: sliced(SLOTTED)),
    "stopped-of-two-containers": (
        "A process was stopped of a pod with two amounts.",
        lambda: with_gpu(
            log=stop_lines(8, 8.4), figures=OVER,
            annotations={"vramwarden.io/gpu-memory": "main=5Gi, loader=3Gi"},
        ),
    ),
    "stopped-with-limits-of-its-own": (
        "A process was stopped of a pod whose containers set the amounts.",
        lambda: with_gpu(
            log=stop_lines(8, 8.4), figures=OVER, annotations={"vramwarden.io/gpu-memory": None},
        ),
    ),
    "stopped-at-a-late-limit": (
        "The driver's limit came late, so the sidecar stopped a process, and the program ended.",
        lambda: by_driver(
            "driver, late", figures=OVER, log=stop_lines(8, 8.4), status=failed(1),
        ),
    ),
    "over-its-cap-and-not-stopped": (
        "A pod was over its cap, and nothing says that anything was stopped.",
        lambda: with_gpu(figures={"peak": 8.1}),
    ),
    "stopped-many-times": (
        "Nine processes were stopped.",
        lambda: with_gpu(log=MANY_STOPS, figures=OVER | {"stops": 9}),
    ),
    "stopped-before-a-restart": (
        "The sidecar stopped a process before it was restarted, and its log is gone.",
        lambda: with_gpu(
            status=restarted(f"stopping a process: {stop(8, 8.4)}\n"), figures=OVER,
        ),
    ),
    "reported-before-a-restart": (
        "The sidecar reported an excess before it was restarted.",
        lambda: with_gpu(
            status=restarted(f"would stop a process: {stop(8, 8.4)}\n"), figures={"peak": 8.4},
        ),
    ),
    "held-by-the-sentry": (
        "The sentry holds the cap.", lambda: by_sentry(figures={"held_by": "sentry"}),
    ),
    "held-by-a-silent-sentry": (
        "The sentry has written nothing for two minutes.",
        lambda: by_sentry(figures={"held_by": "sentry"}, node={"age_s": 130}),
    ),
    "held-by-an-unread-sentry": (
        "The person may not read what the sentry writes.",
        lambda: by_sentry(changes=may_not("list gpunodes")),
    ),
    "held-late-by-the-driver": (
        "The driver holds the cap since after the start.", lambda: by_driver("driver, late"),
    ),
    "cap-held-by-nothing-known": (
        "The driver got no limit, and nothing else is known.", lambda: by_driver("", log=UNHELD),
    ),
    "starting-without-limiter": (
        "The pod requires the driver's limit, and no limiter reports.",
        lambda: with_gpu(
            status={"phase": "Pending", "startTime": ago(9)} | NO_STATUS,
            annotations={"vramwarden.io/driver-limit": "Require"},
        ),
    ),
    "cap-hit-and-no-larger-gpu": (
        "The program ended at its cap, and no GPU has much more.",
        lambda: Situation("rag", a_cluster(
            [gpu_node("n1", a_gpu(9, held("rag", 8, 8, 8, held_by="driver")), limit=HOLDS)],
            [rag(status=failed(134), **AUTO)],
        )),
    ),
    "cap-not-hit-memory-of-the-node": (
        "The program took too much memory of the node.",
        lambda: by_driver(figures={"peak": 8}, used=8, status=failed(1, reason="OOMKilled")),
    ),
}  # fmt: skip


# Pods that have ended, are gone, or have no demand.


def after(pod: Json, *more: Json, about: str = "rag") -> Situation:
    """Return a pod that has ended."""
    return Situation(about, a_cluster([gpu_node("n1", a_gpu(79, **H100))], [pod], *more))


def last(peak: float, stops: int = 0) -> str:
    """Return the last message of a sidecar."""
    return write_message(TerminationMessage(8 * GIB, {"GPU-n1-0": gib(peak)}, stops, 7200))


def ended(message: str = ENDED, phase: str = "Succeeded", **status: Any) -> Json:
    """Return the status of a pod whose sidecar left a message."""
    terminated = sidecar("terminated", exitCode=0, finishedAt=ago(290), message=message)
    return {"phase": phase, "initContainerStatuses": [terminated], **status}


def old(rules: str = "", memory: str = "8Gi", **more: Any) -> Situation:
    """Return a pod that runs without the memory it asks for."""
    pod = unseen("old", memory, node="n1", age_s=90_000, **more.pop("pod", {}))
    return Situation("old", beside_rag(pod), rules=rules, **more)


def exempts_team(api: Any) -> None:
    """Let the API server ask our webhook about no pod of team-a."""
    key = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["team-a"]}
    hooks = api.objects[HOOKS[0]]["webhooks"]
    selector = {"namespaceSelector": {"matchExpressions": [key]}}
    patch(api, HOOKS[0], {"webhooks": [{"name": one["name"], **selector} for one in hooks]})
    api.fails("POST .*/pods", lambda request: (201, request.body), forever=True)


LIMITED = replace(a_run("rag-1", 7.9), limited=True)
RAG = write_history(History("team-a", "Pod", "rag", (replace(LIMITED, pod="rag"),)))
left_alone = {"answers": lambda request: (201, request.body)}
OTHERS = {
    "ended-by-sentry": (
        "A pod without a sidecar ended, and its history says what it took.",
        lambda: after(
            rag(status={"phase": "Succeeded", **NO_STATUS}, rule=first_rule(BY_SENTRY)), RAG
        ),
    ),
    "ended-before-it-was-created": (
        "An earlier pod of the same name ended, and the history says what that one took.",
        lambda: after(
            rag(
                status={"phase": "Succeeded", **NO_STATUS},
                metadata={"creationTimestamp": ago(60)},
            ),
            RAG,
        ),
    ),
    "cap-hit-and-ended": (
        "The driver denied memory, and the pod ended.",
        lambda: after(rag(
            status=ended(last(7.9), "Failed", **failed(1)),
            annotations={"vramwarden.io/driver-limit": "Require"},
        )),
    ),
    "gone-and-fine": (
        "A pod is gone that took less than it asked for.",
        lambda: Situation("eval-9", beside_rag(more=(write_history(EVAL),))),
    ),
    "gone-and-filled": (
        "A pod is gone that took all that the driver gave it.",
        lambda: Situation("rag-1", beside_rag(more=(
            write_history(History("team-a", "Job", "rag", (LIMITED,))),
        ))),
    ),
    "name-of-a-workload": (
        "The name is that of a workload.",
        lambda: Situation("llama", beside_rag(
            runs("llama-7c9f-x2kq4", "8Gi", "n1", "GPU-n1-0", owner="Deployment/llama")
        )),
    ),
    "idiom-in-an-annotation": (
        "A pod has an annotation of another product.",
        lambda: Situation("web", beside_rag(asks("web", annotations={"gpu-memory": "2000"}))),
    ),
    "idiom-in-resources": (
        "A pod names our annotation as a resource.",
        lambda: Situation("web", beside_rag(asks("web", containers=[
            a_container(resources={"limits": {"vramwarden.io/gpu-memory": "8Gi"}})
        ]))),
    ),
    "old-and-denied-now": (
        "A pod without memory would be denied now.", lambda: old(memory="8GB"),
    ),
    "old-and-exempt": (
        "The namespace is exempt.", lambda: old(changes=(exempts_team,), **left_alone),
    ),
    "old-and-ignored": ("A rule ignores the pod.", lambda: old(IGNORE)),
    "old-and-recorded": ("A rule only records.", lambda: old(AUDIT, memory="2Gi")),
    "old-and-warned": ("A rule only warns.", lambda: old(WARN)),
    "old-and-left-alone": (
        "A rule enforces, and the webhook is not asked.", lambda: old(**left_alone),
    ),
    "old-and-not-tried-wrong": (
        "The person may not create pods, and the amount is too large.",
        lambda: old(rules(memory="{max: 4Gi}"), answers=lambda _: refused(403, NO_RIGHT)),
    ),
    "old-and-nothing-read-wrong": (
        "The person has the role `view`, and the amount is wrong.",
        lambda: old(memory="8GB", views=True),
    ),
}  # fmt: skip
NO_RIGHT = 'pods is forbidden: User "dev" cannot create resource "pods" in API group ""'


# Workloads.


def job(status: Json | None = None, *more: Json, memory: str = "8Gi", **fields: Any) -> Situation:
    """Return a Job."""
    made = a_workload("Job", "train", unseen("train", memory), status)
    return Situation("job/train", beside_rag(more=(made, *more)), **fields)


def deployment(*pods: Json, says: str = "", metadata: Json | None = None, **more: Any) -> Situation:
    """Return a Deployment, by default without pods."""
    made = a_deployment("train", more.pop("template", unseen("train", "8Gi")), says)
    made[0]["metadata"] |= metadata or {}
    return Situation("deployment/train", beside_rag(*pods, more=tuple(made)), **more)


def owned(about: str, *pods: Json, more: tuple[Json, ...] = ()) -> Situation:
    """Return what owns pods and is no kind of Kubernetes."""
    return Situation(about, beside_rag(*pods, more=more))


def below(kind: str, name: str, pod: Json) -> Json:
    """Return a pod that an object of any kind owns."""
    owner = {
        "apiVersion": "kubeflow.org/v1", "kind": kind, "name": name, "uid": name, "controller": True
    }  # fmt: skip
    pod["metadata"]["ownerReferences"] = [owner]
    return pod


def happened(kind: str, **more: str) -> Json:
    """Return a condition that holds."""
    return {"conditions": [{"type": kind, "status": "True", **more}]}


FAILED = happened(
    "Failed", reason="BackoffLimitExceeded", message="Job has reached the specified backoff limit"
)
OF_TRAIN = {
    "labels": {"app": "train"},
    "ownerReferences": [
        {"kind": "ReplicaSet", "name": "train-5d9c7", "uid": "train-5d9c7", "controller": True}
    ],
}
APP = {"labels": {"app": "train"}}
OTHER_WEBHOOK = (
    'Internal error occurred: failed calling webhook "inject.mesh.example": failed to call '
    'webhook: Post "https://mesh.mesh.svc:443/inject": no endpoints available for service "mesh"'
)
ddp = partial(below, "PyTorchJob", "ddp")
WORKLOADS = {
    "job-failed": ("A Job has failed.", lambda: job(FAILED | {"failed": 3})),
    "job-complete": ("A Job is complete.", lambda: job(happened("Complete") | {"succeeded": 1})),
    "job-denied-without-event": (
        "The Events of a denied Job are gone, so a pod like its own is tried.",
        lambda: job(memory="8GB"),
    ),
    "job-silent": ("Nothing says why a Job has no pods.", job),
    "deployment-silent": ("Nothing says why a Deployment has no pods.", deployment),
    "deployment-not-translated": (
        "The API server denies pods that were not translated.",
        lambda: deployment(says=SECOND_LINE),
    ),
    "deployment-and-another-webhook-away": (
        "The API server cannot call another product's webhook.",
        lambda: deployment(says=OTHER_WEBHOOK),
    ),
    "deployment-misplaced": (
        "The annotation is on the Deployment, and not in its template.",
        lambda: deployment(
            asks("train-a", owner="Deployment/train", metadata=OF_TRAIN),
            template=unseen("train"),
            metadata={"annotations": {"vramwarden.io/gpu-memory": "8Gi"}},
        ),
    ),
    "deployment-unknown": (
        "No Deployment has this name.",
        lambda: replace(deployment(), about="deployment/trian"),
    ),
    "owner": (
        "An object of another kind owns a pod that runs.",
        lambda: owned("pytorchjob/ddp", ddp(runs("ddp-0", "8Gi", "n1", "GPU-n1-0"))),
    ),
    "owner-denied": (
        "Pods of an object of another kind are denied.",
        lambda: owned("pytorchjob/ddp", more=(
            failed_create("PyTorchJob/ddp", denied(unseen("ddp", "8GB"))),
        )),
    ),
    "owner-unknown": (
        "No object of another kind has this name.",
        lambda: owned("pytorchjob/dpp", ddp(runs("ddp-0", "8Gi", "n1", "GPU-n1-0"))),
    ),
    "kind-unknown": ("There is no such kind.", lambda: owned("deploymnet/roll")),
}  # fmt: skip

for rows in (WAITING, BOUND, OTHERS, WORKLOADS):
    for name, (title, make) in rows.items():
        register(name, Named(title, lambda made=make: replace(made(), commands=("explain",))))
