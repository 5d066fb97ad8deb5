"""Pods that wait for a node."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.support.clusters import NOW_S, a_cluster, a_gpu, held
from tests.support.pods import a_container
from tests.tools.situations.scenes import (
    BY_SENTRY,
    H100,
    NO_VRAM,
    Json,
    Named,
    Situation,
    a_deployment,
    asks,
    beside_rag,
    binding_denied,
    first_rule,
    foreign_node,
    full,
    full_nodes,
    gpu_node,
    judged,
    register,
    runs,
    scheduler_says,
    situation,
    unscheduled,
    waits,
)
from webhook.core.kinds.histories import History, Run, write_history
from webhook.core.node.inventory import Inventory, Scan, observe
from webhook.core.nvidia.drivers import SeenGpu

if TYPE_CHECKING:
    from collections.abc import Callable

WHOLE = {"nvidia.com/gpu": "2"}
UNMATCHED = "didn't match Pod's node affinity/selector"
RECENT = {"age_s": 5}


def one_node(why: str) -> str:
    """Return what the scheduler says where the only node does not fit."""
    return scheduler_says(f"1 node(s) {why}", nodes=1)


def _a_run(number: int) -> Run:
    return Run(
        pod=f"eval-{number}",
        ended_s=NOW_S - (50 - number) * 3600,
        asked_bytes=30 * 2**30,
        gpus=1,
        peak_bytes=int((17.2 - number / 10) * 2**30),
        stops=0,
        seconds=3600.0,
    )


EVAL = History("team-a", "Job", "eval", tuple(map(_a_run, range(12))))


@situation
def plugin_offers_whole() -> Situation:
    """A device plugin offers the GPUs of the only node whole, so they are not shared."""
    gpus = a_gpu(79, **H100), a_gpu(79, **H100)
    node = foreign_node("n1", *gpus, why="nvidia.com/gpu is offered", amounts=WHOLE)
    says = one_node(UNMATCHED)
    node, event = judged(node, shares=False)
    return Situation("alone", a_cluster([node], [waits("alone", "8Gi", says)], event))


@situation
def held_node() -> Situation:
    """A device plugin came to a node whose GPUs are shared: no further pod gets any of it."""
    gpu = a_gpu(79, held("rag", 8, 6, 6.1), **H100)
    node, event = judged(gpu_node("n1", gpu, amounts={"nvidia.com/gpu": "1"}), shares=True)
    says = scheduler_says("1 Insufficient vramwarden.io/vram", nodes=1)
    rag = runs("rag", "8Gi", "n1", "GPU-n1-0")
    return Situation("late", a_cluster([node], [rag, waits("late", "8Gi", says)], event))


@situation
def old_figures() -> Situation:
    """The figures of all nodes are ten minutes old."""
    nodes = full_nodes(age_s=600)
    return Situation("eval-5", replace(full(waits("eval-5", "30Gi")), nodes=tuple(nodes)))


@situation
def no_figures() -> Situation:
    """No sentry has written any figures."""
    nodes = [replace(one, figures=None) for one in full_nodes()]
    return Situation("lost", replace(full(waits("lost", "30Gi")), nodes=tuple(nodes)))


@situation
def broken_gpu() -> Situation:
    """The only GPU needs a reset, and a pod waits for it."""
    node = gpu_node("n1", a_gpu(79, healthy=False, fault="needs a reset", **H100))
    pod = waits("ill", "8Gi", binding_denied(node, 8))
    return Situation("ill", a_cluster([node], [pod]))


@situation
def rollout_waits_for_itself() -> Situation:
    """The new pod of a Deployment waits for memory that only its old pod has."""
    node = gpu_node("n1", a_gpu(22, held("roll-7f-old", 15, 14, 14.2)))
    owner = {"owner": "Deployment/roll"}
    old = runs("roll-7f-old", "15Gi", "n1", "GPU-n1-0", age_s=9000, **owner)
    says = scheduler_says("1 Insufficient vramwarden.io/vram", nodes=1)
    new = waits("roll-5d-new", "15Gi", says, **owner)
    made = a_deployment("roll", waits("template", "15Gi"), replicas=2, readyReplicas=1)
    older = deepcopy(made[1])
    older["metadata"] |= {"name": "roll-7f", "uid": "roll-7f"}
    for one, hash_ in ((old, "7f"), (new, "5d9c7")):
        one["metadata"]["labels"] |= {"app": "roll", "pod-template-hash": hash_}
        named = {"name": f"roll-{hash_}", "uid": f"roll-{hash_}"}
        one["metadata"]["ownerReferences"][0] |= named
    made.append(older)
    return Situation("deployment/roll", a_cluster([node], [old, new], *made))


@situation
def high_priority_behind_low() -> Situation:
    """A pod of high priority waits behind pods of low priority on two GPUs that are in pieces."""
    low = {"priority": 10, "priorityClassName": "low"}
    gpus = a_gpu(80, held("low-0", 50, 40, 41)), a_gpu(80, held("low-1", 50, 40, 41))
    node = gpu_node("g1", *gpus)
    high = waits("high", "40Gi", binding_denied(node, 40), priority=1000, priorityClassName="high")
    behind = [runs(f"low-{n}", "50Gi", "g1", f"GPU-g1-{n}", **low) for n in (0, 1)]
    return Situation("high", a_cluster([node], [*behind, high]))


@situation
def gated_by_kueue() -> Situation:
    """Kueue has not admitted the pod yet."""
    says = "Scheduling is blocked due to non-empty scheduling gates"
    pod = waits("queued", "8Gi", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
    pod["status"] |= unscheduled(says, "SchedulingGated")
    return Situation("queued", full(pod))


@situation
def not_scheduled_yet() -> Situation:
    """The scheduler has not said anything of a pod that is three seconds old."""
    pod = asks("new", "8Gi", age_s=3)
    return Situation("new", full(pod))


@situation
def bound_just_now() -> Situation:
    """A pod was bound five seconds ago; the figures are older and show its memory as free."""
    node = gpu_node("n1", a_gpu(24, held("vl-a", 10, 8, 8), **H100))
    owner = {"owner": "Deployment/vl", **RECENT}
    a = runs("vl-a", "10Gi", "n1", "GPU-n1-0", owner="Deployment/vl", age_s=90)
    b = asks("vl-b", "10Gi", node="n1", gpus="GPU-n1-0", status="Pending", **owner)
    says = scheduler_says("1 Insufficient vramwarden.io/vram", nodes=1)
    return Situation("vl-c", a_cluster([node], [a, b, waits("vl-c", "10Gi", says, **owner)]))


@situation
def whole_gpu_pods_first() -> Situation:
    """The plugin has left, and the node is shared once the pods with whole GPUs have ended."""
    gpus = a_gpu(79, **H100), a_gpu(79, **H100)
    node, event = judged(
        foreign_node("n1", *gpus, why="its agent does not advertise them"),
        shares=False,
        whole_pods=("team-b/trainer",),
    )
    whole = [a_container(resources={"limits": {"nvidia.com/gpu": "1"}})]
    trainer = runs("trainer", None, "n1", "", namespace="team-b", containers=whole)
    says = one_node(UNMATCHED)
    return Situation("first", a_cluster([node], [trainer, waits("first", "8Gi", says)], event))


@situation
def unified_memory() -> Situation:
    """The only GPU has no memory of its own, so it cannot be shared."""
    gpu = SeenGpu(uuid="GPU-spark-0", product="NVIDIA GB10", index=0, usable_bytes=None)
    seen = observe(Inventory(), Scan(gpus=(gpu,)), NOW_S)
    node = foreign_node("spark", why="its agent does not advertise them")
    node, event = judged(node, shares=False, unshared=seen.unshared)
    says = one_node(UNMATCHED)
    return Situation("chat", a_cluster([node], [waits("chat", "8Gi", says)], event))


def may_not(*rights: str) -> tuple[Callable[[Any], object], ...]:
    """Return a change that takes rights away, as `list nodes`."""
    return (lambda api: api.denied.update(tuple(one.split()) for one in rights),)


def in_full(name: str, memory: str, message: str = NO_VRAM, **more: Any) -> Situation:
    """Return a pod that waits in the full cluster."""
    fields = {key: more.pop(key) for key in ("rules", "changes") if key in more}
    rule = {"rule": first_rule(fields["rules"])} if "rules" in fields else {}
    others = more.pop("more", ())
    return Situation(
        name, full(waits(name, memory, message, **rule, **more), more=others), **fields
    )


def beside(pod: Json, **more: Any) -> Situation:
    """Return a pod that waits for the node of `rag`."""
    rules = more.pop("rules", "")
    return Situation(pod["metadata"]["name"], beside_rag(pod, **more), rules=rules)


MODELS = {"name": "models", "persistentVolumeClaim": {"claimName": "models"}}
ROWS = {
    "in-pieces": (
        "A node has enough memory in sum, and no GPU has; the scheduler tried it.",
        lambda: in_full("eval-4", "30Gi", binding_denied(full_nodes()[2], 30), owner="Job/eval",
                        more=(write_history(EVAL),)),
    ),
    "across-nodes": (
        "No node has enough memory; all nodes together do.", lambda: in_full("wide", "45Gi"),
    ),
    "no-room": ("GPUs are large enough, and all are full.", lambda: in_full("huge", "70Gi")),
    "too-large": ("No GPU of the cluster has as much memory.", lambda: in_full("vast", "90Gi")),
    "two-gpus": (
        "A pod wants two GPUs of one node, of which only one has enough.",
        lambda: in_full("pair", "16Gi", binding_denied(full_nodes()[2], 16, 2), count=2),
    ),
    "other-selector": (
        "The pod's node selector matches no node with GPUs.",
        lambda: in_full("picky", "8Gi", scheduler_says(f"3 node(s) {UNMATCHED}"),
                        nodeSelector={"kubernetes.io/hostname": "n9"}),
    ),
    "hidden-figures": (
        "The person may not read the figures, and the scheduler tried a node.",
        lambda: in_full("eval-7", "30Gi", binding_denied(full_nodes()[2], 30),
                        changes=may_not("list gpunodes")),
    ),
    "no-cpu": (
        "There is room on GPUs, and no CPU.",
        lambda: in_full("busy", "8Gi", scheduler_says("3 Insufficient cpu")),
    ),
    "missing-volume": (
        "The pod's volume does not exist, and every GPU is full.",
        lambda: in_full("serve", "30Gi", scheduler_says('persistentvolumeclaim "models" not found'),
                        volumes=[MODELS]),
    ),
    "taint": (
        "The only node has a taint that the pod does not tolerate.",
        lambda: beside(waits("repelled", "8Gi", one_node("had untolerated taint {maintenance: }")),
                       taints=({"key": "maintenance", "effect": "NoSchedule"},)),
    ),
    "cordoned": (
        "Somebody cordoned the only node.",
        lambda: beside(waits("kept-out", "8Gi", one_node("were unschedulable")),
                       unschedulable=True),
    ),
    "no-enforcement": (
        "The driver lets no sidecar measure.",
        lambda: beside(waits("unheld", "8Gi", one_node(UNMATCHED)), enforcement="none"),
    ),
    "no-sentry-acts": (
        "The pod is to be held by the sentry, and no sentry acts.",
        lambda: beside(waits("notebook", "8Gi", one_node(UNMATCHED), rule=first_rule(BY_SENTRY)),
                       rules=BY_SENTRY),
    ),
    "no-device-names": (
        "The container runtime resolves no name of a GPU.",
        lambda: beside(waits("unnamed", "8Gi", one_node(UNMATCHED)), device_names="none"),
    ),
    "driver-limit-required": (
        "The pod requires that the driver holds its cap, and no driver does.",
        lambda: beside(waits("strict", "8Gi", one_node(UNMATCHED),
                             nodeSelector={"vramwarden.io/driver-limit": "true"})),
    ),
    "unreadable-amount": (
        "Somebody changed the annotation of a pod that waits.",
        lambda: beside(waits("forged", "8Gi", annotations={"vramwarden.io/gpu-memory": "8GB"})),
    ),
}  # fmt: skip

for name, row in ROWS.items():
    register(name, Named(*row))
