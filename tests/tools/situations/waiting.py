"""Pods that wait for a node."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

from tests.support.clusters import GIB, NOW_S, SceneNode, a_cluster, a_gpu, a_node, gib, held
from tests.support.pods import a_container
from tests.tools.situations.scenes import (
    BY_SENTRY,
    NO_VRAM,
    ONE_WITHOUT_VRAM,
    Change,
    Json,
    Row,
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
    has_role_view,
    judged,
    rules,
    runs,
    scheduler_reasons,
    unscheduled,
    waits,
    without_figures,
)
from webhook.core.kinds.histories import History, Run, write_history
from webhook.core.node.inventory import Inventory, Scan, apply_scan
from webhook.core.nvidia.drivers import ScannedGpu

UNMATCHED = "didn't match Pod's node affinity/selector"
LAPTOP = rules(placement="None", enforcement="{by: None}")
SEES_ALL = rules(placement="None")
SLICED = rules(accounting="MIG")
NO_SLICE = scheduler_reasons("1 Insufficient nvidia.com/mig-1g.20gb", f"2 node(s) {UNMATCHED}")
NO_VOLUME = scheduler_reasons('persistentvolumeclaim "models" not found')


def a_run(pod: str, peak: float, asked: float = 8, ago_s: float = 7200, **more: Any) -> Run:
    """Return a run that lasted an hour and has ended."""
    known = {"stops": 0, "gpus": 1, "seconds": 3600.0} | more
    ended_s, peak_bytes = NOW_S - ago_s, int(peak * GIB)
    return Run(pod=pod, ended_s=ended_s, requested_bytes=gib(asked), peak_bytes=peak_bytes, **known)


EVAL = History("team-a", "Job", "eval", tuple(
    a_run(f"eval-{number}", 17.2 - number / 10, 30, (50 - number) * 3600) for number in range(12)
))  # fmt: skip
UNMEASURED = tuple(replace(run, peak_bytes=None) for run in EVAL.runs[10:])
GAP = replace(EVAL, runs=(*EVAL.runs[:10], *UNMEASURED))


def may_not(*rights: str) -> tuple[Change, ...]:
    """Return a change that removes permissions, such as `list nodes`."""
    return (lambda api: api.denied.update(tuple(right.split()) for right in rights),)


def one_node(why: str) -> str:
    """Return the scheduler's message if the pod does not fit on the only node."""
    return scheduler_reasons(f"1 node(s) {why}", nodes=1)


def in_full(
    name: str,
    memory: str,
    message: str = NO_VRAM,
    *objects: Json,
    nodes: tuple[SceneNode, ...] = (),
    rules: str = "",
    changes: tuple[Change, ...] = (),
    **pod: Any,
) -> Situation:
    waiting = waits(name, memory, message, rule=first_rule(rules), **pod)
    return Situation(name, full(waiting, *objects, nodes=nodes), rules, changes=changes)


def beside(
    name: str, message: str = NO_VRAM, *, rules: str = "", pod: Json | None = None, **node: Any
) -> Situation:
    """Return a pod that waits for the node of `rag`; `pod` has arguments for `a_pod`."""
    waiting = waits(name, "8Gi", message, rule=first_rule(rules), **(pod or {}))
    return Situation(name, beside_rag(waiting, **node), rules)


def alone(
    name: str, node: SceneNode, *pods: Json, message: str = one_node(UNMATCHED), **how: Any
) -> Situation:
    """Return a pod that waits for the only node, which has a verdict by its agent."""
    node, event = judged(node, **how)
    return Situation(name, a_cluster([node], [*pods, waits(name, "8Gi", message)], event))


def on_laptop(
    memory: str,
    first: str = "10Gi",
    changes: tuple[Change, ...] = (),
    namespace: str = "team-a",
    count: int = 1,
) -> Situation:
    """Return a pod that waits for a node with a configured amount and the pod `first`."""
    rule = first_rule(LAPTOP)
    pods = [
        asks("first", first, node="laptop", rule=rule, namespace=namespace),
        waits("second", memory, ONE_WITHOUT_VRAM, rule=rule, count=count),
    ]
    cluster = a_cluster([a_node("laptop", said=16)], pods)
    return Situation("second", cluster, LAPTOP, changes=changes)


def broken() -> Situation:
    node = gpu_node("n1", a_gpu(79, healthy=False, fault="needs a reset"))
    return Situation("ill", a_cluster([node], [waits("ill", "8Gi", binding_denied(node, 8))]))


def rollout() -> Situation:
    """Return a Deployment with an old pod that runs and a new pod that waits."""
    node = gpu_node("n1", a_gpu(22, held("roll-7f-old", 15, 14, 14.2)))
    owner = {"owner": "Deployment/roll"}
    old = runs("roll-7f-old", "15Gi", "n1", "GPU-n1-0", age_s=9000, **owner)
    new = waits("roll-5d-new", "15Gi", ONE_WITHOUT_VRAM, **owner)
    made = a_deployment("roll", waits("template", "15Gi"), replicas=2, readyReplicas=1)
    older = deepcopy(made[1])
    older["metadata"] |= {"name": "roll-7f", "uid": "roll-7f"}
    for item, hash_ in ((old, "7f"), (new, "5d9c7")):
        item["metadata"]["labels"] |= {"app": "roll", "pod-template-hash": hash_}
        named = {"name": f"roll-{hash_}", "uid": f"roll-{hash_}"}
        item["metadata"]["ownerReferences"][0] |= named
    return Situation("deployment/roll", a_cluster([node], [old, new], *made, older))


def behind_low_priority() -> Situation:
    low = {"priority": 10, "priorityClassName": "low"}
    node = gpu_node("g1", *(a_gpu(80, held(f"low-{n}", 50, 40, 41)) for n in (0, 1)))
    high = waits("high", "40Gi", binding_denied(node, 40), priority=1000, priorityClassName="high")
    behind = [runs(f"low-{n}", "50Gi", "g1", f"GPU-g1-{n}", **low) for n in (0, 1)]
    return Situation("high", a_cluster([node], [*behind, high]))


def after_a_binding() -> Situation:
    """Return a pod that waits for memory that its Deployment's other pod just got."""
    node = gpu_node("n1", a_gpu(24, held("vl-a", 10, 8, 8)))
    owner = {"owner": "Deployment/vl"}
    a = runs("vl-a", "10Gi", "n1", "GPU-n1-0", age_s=90, **owner)
    b = asks("vl-b", "10Gi", node="n1", gpus="GPU-n1-0", status="Pending", age_s=5, **owner)
    c = waits("vl-c", "10Gi", ONE_WITHOUT_VRAM, age_s=5, **owner)
    return Situation("vl-c", a_cluster([node], [a, b, c]))


GATED = waits("queued", "8Gi", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
GATED["status"] |= unscheduled(
    "Scheduling is blocked due to non-empty scheduling gates", "SchedulingGated"
)
MODELS = {"name": "models", "persistentVolumeClaim": {"claimName": "models"}}
DRIVER_LIMIT = {"nodeSelector": {"vramwarden.io/driver-limit": "true"}}
FORGED = {"annotations": {"vramwarden.io/gpu-memory": "8GB"}}
TWO = a_gpu(79), a_gpu(79)
WHOLE = [a_container(resources={"limits": {"nvidia.com/gpu": "1"}})]
TRAINER = runs("trainer", None, "n1", "", namespace="team-b", containers=WHOLE)
SPARK_GPU = ScannedGpu(uuid="GPU-spark-0", product="NVIDIA GB10", index=0, usable_bytes=None)
SPARK = apply_scan(Inventory(), Scan(gpus=(SPARK_GPU,)), NOW_S)

ROWS: dict[str, Row] = {
    "plugin-offers-whole": (
        "A device plugin offers the GPUs of the only node whole, so they are not shared.",
        alone("alone", foreign_node("n1", *TWO, why="nvidia.com/gpu is offered",
                                    amounts={"nvidia.com/gpu": "2"})),
    ),
    "held-node": (
        "A device plugin came to a node whose GPUs are shared: no further pod gets any of it.",
        alone("late", gpu_node("n1", a_gpu(79, held("rag", 8, 6, 6.1)),
                               amounts={"nvidia.com/gpu": "1"}),
              runs("rag", "8Gi", "n1", "GPU-n1-0"), message=ONE_WITHOUT_VRAM, shares=True),
    ),
    "no-figures": (
        "No sentry has written any figures.",
        without_figures(in_full("lost", "30Gi")),
    ),
    "broken-gpu": ("The only GPU needs a reset, and a pod waits for it.", broken()),
    "rollout-waits-for-itself": (
        "The new pod of a Deployment waits for memory that only its old pod has.", rollout(),
    ),
    "high-priority-behind-low": (
        "A pod of high priority waits behind pods of low priority on two GPUs that are in pieces.",
        behind_low_priority(),
    ),
    "gated-by-kueue": ("Kueue has not admitted the pod yet.", Situation("queued", full(GATED))),
    "not-scheduled-yet": (
        "The scheduler has not said anything of a pod that is three seconds old.",
        Situation("new", full(asks("new", "8Gi", age_s=3))),
    ),
    "bound-just-now": (
        "A pod was bound five seconds ago; the figures are older and show its memory as free.",
        after_a_binding(),
    ),
    "whole-gpu-pods-first": (
        "The plugin has left, and the node is shared once the pods with whole GPUs have ended.",
        alone("first", foreign_node("n1", *TWO, why="its agent does not advertise them"), TRAINER,
              whole_pods=("team-b/trainer",)),
    ),
    "unified-memory": (
        "The only GPU has no memory of its own, so it cannot be shared.",
        alone("chat", foreign_node("spark", why="its agent does not advertise them"),
              unshared=SPARK.unshared),
    ),
    "in-pieces": (
        "A node has enough memory in sum, and no GPU has; the scheduler tried it.",
        in_full("eval-4", "30Gi", binding_denied(full_nodes()[2], 30), write_history(EVAL),
                owner="Job/eval"),
    ),
    "across-nodes": (
        "No node has enough memory; all nodes together do.", in_full("wide", "45Gi"),
    ),
    "no-room": ("GPUs are large enough, and all are full.", in_full("huge", "70Gi")),
    "too-large": ("No GPU of the cluster has as much memory.", in_full("vast", "90Gi")),
    "two-gpus": (
        "A pod wants two GPUs of one node, of which only one has enough.",
        in_full("pair", "16Gi", binding_denied(full_nodes()[2], 16, 2), count=2),
    ),
    "other-selector": (
        "The pod's node selector matches no node with GPUs.",
        in_full("picky", "8Gi", scheduler_reasons(f"3 node(s) {UNMATCHED}"),
                nodeSelector={"kubernetes.io/hostname": "n9"}),
    ),
    "hidden-figures": (
        "The person may not read the figures, and the scheduler tried a node.",
        in_full("eval-7", "30Gi", binding_denied(full_nodes()[2], 30),
                changes=may_not("list gpunodes")),
    ),
    "rights-to-view-one-namespace": (
        "A developer with the role `view` in one namespace asks why a pod waits.",
        in_full("eval-5", "30Gi", changes=(has_role_view,)),
    ),
    "no-cpu": (
        "There is room on GPUs, and no CPU.",
        in_full("busy", "8Gi", scheduler_reasons("3 Insufficient cpu")),
    ),
    "missing-volume": (
        "The pod's volume does not exist, and every GPU is full.",
        in_full("serve", "30Gi", NO_VOLUME, volumes=[MODELS]),
    ),
    "taint": (
        "The only node has a taint that the pod does not tolerate.",
        beside("repelled", one_node("had untolerated taint {maintenance: }"),
               taints=({"key": "maintenance", "effect": "NoSchedule"},)),
    ),
    "cordoned": (
        "The only node is cordoned.",
        beside("kept-out", one_node("were unschedulable"), unschedulable=True),
    ),
    "no-enforcement": (
        "The driver lets no sidecar measure.",
        beside("unheld", one_node(UNMATCHED), enforcement="none"),
    ),
    "no-sentry-acts": (
        "The pod is to be held by the sentry, and no sentry acts.",
        beside("notebook", one_node(UNMATCHED), rules=BY_SENTRY),
    ),
    "no-device-names": (
        "The container runtime resolves no name of a GPU.",
        beside("unnamed", one_node(UNMATCHED), device_names="none"),
    ),
    "driver-limit-required": (
        "The pod requires that the driver holds its cap, and no driver does.",
        beside("strict", one_node(UNMATCHED), pod=DRIVER_LIMIT),
    ),
    "unreadable-amount": (
        "The annotation of a pod that waits was changed.", beside("forged", pod=FORGED),
    ),
}  # fmt: skip
"""Situations in which all four commands are recorded."""
EXPLAINED = {
    "Two of the twelve last runs were not measured.":
        in_full("eval-4", "30Gi", NO_VRAM, write_history(GAP), owner="Job/eval"),
    "No node has three GPUs.": in_full("many", "30Gi", count=3),
    "The person may not list pods.": in_full("eval-8", "30Gi", changes=may_not("list pods")),
    "The pod is to see all GPUs of a node, and no node has the sum.":
        in_full("all", "30Gi", rules=SEES_ALL),
    "The pod wants more than the configured amount.": on_laptop("20Gi"),
    "Another pod has all of a configured amount.": on_laptop("8Gi", first="16Gi"),
    "A pod of another namespace has most of a configured amount.":
        on_laptop("16Gi", namespace="team-b"),
    "The pod wants two GPUs of a configured amount.": on_laptop("8Gi", count=2),
    "The person may not list the pods that have a configured amount.":
        on_laptop("10Gi", changes=may_not("list pods")),
    "No slice of a GPU is left.": in_full("llama", "19Gi", NO_SLICE, rules=SLICED),
}  # fmt: skip
