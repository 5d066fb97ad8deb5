"""Pods and workloads in every state that `explain` knows, on a cluster of three nodes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, NamedTuple

from tests.support.clusters import (
    GIB,
    NOW_S,
    RULE,
    a_cluster,
    a_gpu,
    a_node,
    a_pod,
    ago,
    held,
)
from tests.support.pods import a_container, a_rule
from webhook.core.enforcement.termination_message import TerminationMessage, write_message
from webhook.core.kinds.histories import History, Run
from webhook.core.node.limits import Proof
from webhook.core.pod.findings import Finding, Reason
from webhook.core.policy.values import Accounting, Action, EnforceBy, Placement
from webhook.tools.explain.judge.explain import explain_pod, explain_workload
from webhook.tools.explain.judge.report import (
    Anew,
    PodFacts,
    Report,
    Ruling,
    TriedPod,
    WorkloadFacts,
)
from webhook.tools.snapshot.pod import ClusterPod

SLICED = replace(RULE, name="sliced", accounting=Accounting.MIG)
SLOTTED = replace(RULE, name="slotted", accounting=Accounting.CAP_ONLY)
SEES_ALL = a_rule(name="team", placement=Placement.NONE)
BY_SENTRY = a_rule(name="team", enforcement={"by": EnforceBy.SENTRY})
ON_LAPTOP = a_rule(name="laptop", placement=Placement.NONE, enforcement={"by": EnforceBy.NONE})
PREEMPTION = (
    ". preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."
)
NO_SLICE = (
    "0/3 nodes are available: 1 Insufficient nvidia.com/mig-1g.20gb, 2 node(s) didn't match Pod's "
    f"node affinity/selector{PREEMPTION}"
)
SCHEDULER = (
    "0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, "
    f"2 Insufficient vramwarden.io/vram{PREEMPTION}"
)
NO_CPU = "0/1 nodes are available: 1 Insufficient cpu."
BINDING = (
    'binding rejected: running Bind plugin "DefaultBinder": admission webhook '
    '"bind.vramwarden.io" denied the request: no GPU of node n3 has 30Gi free, which this pod '
    "needs; the largest free amount is 19Gi, on GPU 1 (GPU-n3-1); the scheduler retries, also on "
    "other nodes"
)
WAITS = (
    "no GPU of node n1 has 30Gi free, which this pod needs; the largest free amount is 23Gi, on "
    "GPU 0 (GPU-n1-0); it was bound while vramwarden was away, and is tried again whenever a pod "
    "ends there or the node changes"
)
WEBHOOK = 'admission webhook "mutate.vramwarden.io" denied the request: '
DENIED = f'pods "train-5d9c7-x7k2p" is forbidden: {WEBHOOK}'
TOO_LARGE = (
    "TooLarge: metadata.annotations[vramwarden.io/gpu-memory]: asks for 80Gi per GPU; rule "
    '"team" allows at most 40Gi\n; InvalidCount: metadata.annotations[vramwarden.io/gpu-count]: '
    '"two" is not a number of GPUs; write a positive integer, e.g. "2". Your platform team says: '
    "ask in #gpu-help"
)
UNTRANSLATED = (
    "is forbidden: ValidatingAdmissionPolicy 'vramwarden-second-line' with binding "
    "'vramwarden-second-line' denied request: vramwarden: create the pod again; it asks for GPU "
    "memory and was not translated. If it stays so, tell your platform team that vramwarden's "
    "webhook did not run, or that another webhook added the demand after it: "
    "webhook.configurationName must sort last"
)
OUT_OF_QUOTA = (
    'pods "train-x" is forbidden: exceeded quota: gpus, requested: '
    "requests.vramwarden.io/vram=8Gi, used: 40Gi, limited: 40Gi"
)
STOPPED = (
    "over the VRAM cap on GPU GPU-n3-1: process 41 (python train.py) of container aaaa holds "
    "61.4Gi, the cap is 60Gi; it grew last, by 1.4Gi within 1.0 s; the pod's peak was "
    "61.4Gi, so write vramwarden.io/gpu-memory: 71Gi (the peak and 15 %)"
)
TRIED = (
    f"{WEBHOOK}InvalidQuantity: metadata.annotations[vramwarden.io/gpu-memory]: 8GB is not a "
    "Kubernetes quantity; use 8G or 8Gi"
)

H100, A10 = {"product": "H100-80GB"}, {"product": "A10-24GB"}
CLUSTER = a_cluster(
    [
        a_node(
            "n1",
            a_gpu(79, held("train-0", 40, 25, 38), held("other", 16), **H100),
            a_gpu(79, held("train-0", 40, 20), held("idle", 39), **H100),
        ),
        a_node("n2", a_gpu(22, free_bytes=6 * GIB, **A10)),
        a_node(
            "n3",
            a_gpu(79, held("foreign", 40), free_bytes=15 * GIB, **H100),
            a_gpu(79, held("train-1", 60, 58.65, 61.25), **H100),
            age_s=240,
        ),
    ]
)
NODES, SEEN = CLUSTER.figures, CLUSTER.read_nodes
NAMES = {name: name for name in ("train-0", "train-1", "idle")}
LLAMA = {"u": "web-1", "v": "llama-7c9f-x2kq4"}
HELD = "a device plugin offers them whole (nvidia.com/gpu), but pods may have VRAM here"
LEFT = a_node("n1", a_gpu(79, held("llama", 16, 6)), a_gpu(79, held("idle", 24), **H100)).figures
HOLDS = Proof(holds=True, back_end="misc")
CANNOT = Proof(holds=False, why="driver 580.95.05 has no such call; r615 has")
GUARDED = tuple(
    replace(one, acts=True, gpus=tuple(replace(gpu, measured=True) for gpu in one.gpus))
    for one in NODES
)
"""The nodes with a sentry that acts; the figures of n3 are too old to prove it."""
LIMITED = (replace(NODES[0], limit=CANNOT), *NODES[1:])
OF_PLUGIN = tuple(replace(node, held=HELD) for node in NODES)
UNHEALTHY = tuple(
    replace(
        node, gpus=tuple(replace(one, healthy=False, fault="needs a reset") for one in node.gpus)
    )
    for node in NODES
)


def seen(**changes: Any):
    """Return the nodes as who may read them sees them, changed."""
    return {name: a_node(name, a_gpu(79), **changes).read for name in SEEN}


def scheduled(message: str, reason: str = "Unschedulable"):
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return {"conditions": [condition]}


def enforcer(how: str, **values: Any):
    return {"name": "vram-enforcer", "state": {how: values}, "restartCount": 0}


def of_enforcer(how: str, **values: Any):
    return {"initContainerStatuses": [enforcer(how, **values)]}


def asks(memory: str | None):
    """Return what a pod says whose annotation somebody changed after admission, or took away."""
    return {"annotations": {"vramwarden.io/gpu-memory": memory}}


def facts(name: str, pod: Any, **changes: Any) -> PodFacts:
    found = None if pod is None else ClusterPod(pod)
    given = PodFacts(
        namespace="team-a", name=name, now_s=NOW_S, pod=found, nodes=NODES, seen=SEEN, names=NAMES
    )
    return replace(given, **changes)


def explained(name: str, memory: str | None, **changes: Any) -> Report:
    """Explain a pod; what is a field of its facts is one, and the rest is about the pod."""
    given = {key: changes.pop(key) for key in list(changes) if key in PodFacts.__slots__}
    return explain_pod(facts(name, a_pod(name, memory, **changes), **given))


def pending(name: str, memory: str, message: str = SCHEDULER, **changes: Any) -> Report:
    return explained(name, memory, status=scheduled(message), **changes)


def on_laptop(
    name: str,
    memory: str,
    message: str = "",
    others: str | None = "10Gi",
    other_gpus: int = 1,
    **changes: Any,
) -> Report:
    """Explain a pod beside one, on a node of which 16Gi are said."""
    first = a_pod("first", others, node="laptop", rule=ON_LAPTOP, count=other_gpus)
    cluster = a_cluster([a_node("laptop", said=16)], [] if others is None else [first])
    pods = None if others is None else tuple(cluster.listed_pods)
    given = {"nodes": (), "seen": cluster.read_nodes, "pods": pods, "names": {"first": "first"}}
    message = message or "0/1 nodes are available: 1 Insufficient vramwarden.io/vram."
    return pending(name, memory, message, rule=ON_LAPTOP, **(given | changes))


def bound(name: str, memory: str, node: str, gpus: str = "", **changes: Any) -> Report:
    status = {"startTime": ago(11_520), **changes.pop("status", {})}
    return explained(name, memory, node=node, gpus=gpus, status=status, **changes)


def gated(field: str, name: str) -> dict[str, Any]:
    """Return a container status as the kubelet writes it for a pod without a GPU."""
    why = "missing value for VRAMWARDEN_GPU_ASSIGNMENT"
    waiting = {"reason": "CreateContainerConfigError", "message": why}
    return {field: [{"name": name, "state": {"waiting": waiting}}]}


def by_sentry(
    age_s: float = 14, by: str = "sentry", peak: float = 6, stops: int = 0, **changes: Any
) -> Report:
    """Explain a pod by Sentry on a node whose sentry wrote its figures so long ago."""
    gpu = a_gpu(79, held("rag", 8, 6, peak, stops, held_by=by), measured=True, **H100)
    node = a_node("n1", gpu, age_s=age_s)
    acts = replace(node.figures, acts=True)
    given = {"nodes": (acts,), "seen": {"n1": node.read}, "rule": BY_SENTRY} | changes
    return bound("rag", "8Gi", "n1", "GPU-n1-0", **given)


def train(**changes: Any) -> Report:
    """Explain a pod that runs on the second GPU of n3."""
    return bound("train-1", "60Gi", "n3", "GPU-n3-1", **changes)


def on_limited(
    by: str, mode: str = "Auto", peak: float = 6, *, proof: Proof | None = HOLDS, **changes: Any
) -> Report:
    """Explain a pod with a cap of 8Gi on the one GPU of a node whose driver was to hold it."""
    gpu = a_gpu(changes.pop("size", 79), held("rag", 8, peak, peak, held_by=by), **H100)
    nodes = a_cluster([a_node("n1", gpu, limit=proof)]).figures
    notes = {"annotations": {"vramwarden.io/driver-limit": mode} if mode else {}}
    return bound("rag", "8Gi", "n1", "GPU-n1-0", nodes=nodes, **notes, **changes)


def fails(code: int, when: str = "state", **values: Any):
    """Return the status of a pod whose container ended by itself, if nothing else is said."""
    ended = {"exitCode": code, "reason": "Error", "finishedAt": ago(300), **values}
    return {"containerStatuses": [{"name": "main", when: {"terminated": ended}}]}


def llama(**changes: Any) -> Report:
    """Explain a pod whose GPUs are cut or offered by the device plugin."""
    return bound("llama", "8Gi", "sliced-1", **changes)


def last_said(verdict: str) -> Report:
    """Explain a pod that runs, whose sidecar ended with a verdict before it was restarted."""
    return train(status=of_enforcer("terminated", exitCode=0, message=f"{verdict}: {STOPPED}\n"))


def line(seconds: float, msg: str, **values: Any) -> str:
    return json.dumps({"ts": ago(seconds), "level": "warning", "msg": msg, **values})


LOG = (
    line(4000, "self-test", why="can measure and stop", ability="full"),
    line(360, "stopping a process", why=STOPPED, peak_bytes=int(61.3 * GIB), pid=41),
    line(358, "memory came back", why="it left", gpu="GPU-n3-1", after_s=2.4, pid=41),
)
NO_LIMIT = "the driver has no limit for this pod on GPU GPU-n1-0"
BLIND = line(100, "cannot measure", why="the driver gives no figure of process 12")
NO_LOG = "the log of container vram-enforcer: you may not read pods/log here"
LAST_MESSAGE = write_message(TerminationMessage(16 * GIB, {"GPU-n1-0": int(6.1 * GIB)}, 0, 11_520))


def a_run(
    name: str, hours: float, peak: float, *, asked: int = 16, stops: int = 0, limited: bool = False
) -> Run:
    return Run(
        pod=name,
        ended_s=NOW_S - hours * 3600,
        asked_bytes=asked * GIB,
        gpus=1,
        peak_bytes=int(peak * GIB),
        stops=stops,
        seconds=3600.0,
        limited=limited,
    )


EVAL = History(
    "team-a",
    "Job",
    "eval",
    tuple(a_run(f"eval-{n}", 50 - n, 17.2 - n / 10, asked=30) for n in range(12)),
)
EMBED = History("team-a", "Job", "embed", (a_run("embed-1", 2, 10.4, asked=8, stops=2),))
RAG = History("team-a", "Job", "rag", (a_run("rag-1", 2, 7.9, asked=8, limited=True),))
OTHER = replace(EVAL, kind="Pod", workload="x", runs=())


def workload(kind: str = "Deployment", name: str = "train", **changes: Any) -> WorkloadFacts:
    named = {"kind": kind, "namespace": "team-a", "name": name}
    return WorkloadFacts(**named, **{"wanted": 3, **changes})


class Case(NamedTuple):
    """A state, the reasons with commas, the report, and the GiB that it names as enough."""

    state: str
    reasons: str
    report: Report
    start: int | None = None
    run: int | None = None
    admit: int | None = None


NO_TROUBLE = {
    *("owner", "running-said", "running-where-others-left"),
    *("job-complete", "pending-not-yet", "running", "running-sees-all", "running-reported"),
    *("running-two-gpus", "running-in-place-of", "running-unmeasured", "ended", "gone"),
    *("no-demand", "no-demand-idiom", "no-demand-resource", "slice-running", "slot-starting"),
    *("held-by-driver", "held-late", "held-by-sidecar", "held-by-sentry", "held-without-limit"),
    *("held-by-nobody-known", "held-no-more", "held-only-by-sentry", "held-by-no-sentry"),
    *("held-by-no-sentry-ever", "held-by-no-sentry-known", "held-and-only-reported"),
    *("late-assigned", "ended-by-sentry"),
    "ended-before-it-was-created",
    *("starting-without-limiter", "cap-not-hit", "cap-not-hit-killed"),
    *("cap-not-hit-of-the-host", "cap-not-held", "gone-filled"),
    *("slot-ended", "untranslated-recorded", "untranslated-over-quota"),
}
"""Where `explain` ends with 0."""


def cases() -> dict[str, Case]:
    """Return every state by a name of its own."""
    return {**_pending(), **_bound(), **_ended(), **_without_demand(), **_workloads()}


def _pending() -> dict[str, Case]:
    def case(reasons: str, report: Report, start: int | None = None) -> Case:
        return Case("pending", reasons, report, start)

    n9 = {"kubernetes.io/hostname": "n9"}
    wants_limit = {"nodeSelector": {"vramwarden.io/driver-limit": "true"}}
    taint = ({"key": "maintenance", "effect": "NoSchedule"},)
    elsewhere = {"n9": a_node("n9", a_gpu(79)).read}
    unread = {"nodes": None, "seen": None}
    denied = "no figures of GPUs: you may not list gpunodes"
    return {
        "pending-in-pieces": case(
            "GPUsSplit, BindingDenied",
            pending("eval-4", "30Gi", BINDING, histories=(EVAL,), owner="Job/eval"),
            23,
        ),
        "pending-across-nodes": case("NodesSplit", pending("wide", "45Gi"), 23),
        "pending-no-room": case("NoRoom", pending("huge", "70Gi"), 23),
        "pending-too-large": case("TooLarge", pending("vast", "90Gi"), 23),
        "pending-too-many-gpus": case("TooFewGPUs", pending("many", "30Gi", count=3)),
        "pending-two-gpus": case("GPUsSplit", pending("pair", "16Gi", count=2), 15),
        "pending-selector": case("NodeSelector", pending("picky", "8Gi", nodeSelector=n9)),
        "pending-device-names": case(
            "NoDeviceNames", pending("unnamed", "8Gi", seen=seen(device_names="none"))
        ),
        "pending-enforcement": case(
            "NoEnforcement", pending("unheld", "8Gi", seen=seen(enforcement="none"))
        ),
        "pending-sentry": case("NoSentry", pending("unheld", "8Gi", rule=BY_SENTRY)),
        "pending-sentry-unread": case(
            "NoSentry, Unschedulable",
            pending("unheld", "8Gi", rule=BY_SENTRY, seen=None, nodes=GUARDED[2:]),
        ),
        "pending-by-sentry": case(
            "NoRoom, Unschedulable",
            pending("huge", "70Gi", rule=BY_SENTRY, seen=None, nodes=GUARDED),
            23,
        ),
        "pending-driver-limit": case(
            "NoDriverLimit",
            pending("rag", "8Gi", nodes=LIMITED, **wants_limit),
        ),
        "pending-taint": case("Taint", pending("repelled", "8Gi", seen=seen(taints=taint))),
        "pending-cordoned": case("Cordoned", pending("held", "8Gi", seen=seen(unschedulable=True))),
        "pending-not-shared": case("NotShared", pending("alone", "8Gi", seen=elsewhere)),
        "pending-held": case("Held", pending("late", "8Gi", nodes=OF_PLUGIN)),
        "pending-beside-held": case(
            "NoRoom", pending("later", "8Gi", nodes=(OF_PLUGIN[0], NODES[1])), 6
        ),
        "pending-denied-figures-unread": case(
            "BindingDenied", pending("eval-7", "30Gi", BINDING, **unread)
        ),
        "pending-pods-unread": case("GPUsSplit", pending("eval-8", "30Gi", "", names={}), 23),
        "pending-unhealthy": case("UnhealthyGPUs", pending("ill", "8Gi", "", nodes=UNHEALTHY)),
        "pending-unreadable": case("InvalidQuantity", pending("forged", "8Gi", "", **asks("8GB"))),
        "pending-sees-all": case("Unschedulable", pending("all", "8Gi", rule=SEES_ALL)),
        "pending-said": case("NoRoom", on_laptop("second", "10Gi"), 6),
        "pending-said-too-large": case("TooLarge", on_laptop("huge", "20Gi"), 6),
        "pending-said-of-others": case("NoRoom", on_laptop("second", "16Gi", names={}), 6),
        "pending-said-full": case("NoRoom", on_laptop("second", "8Gi", others="16Gi")),
        "pending-said-of-two": case(
            "NoRoom", on_laptop("second", "8Gi", others="6Gi", other_gpus=2), 4
        ),
        "pending-said-unknown": case("Unschedulable", on_laptop("x", "8Gi", others="main=9Gi")),
        "pending-said-two": case("NoRoom", on_laptop("second", "8Gi", count=2), 3),
        "pending-said-cpu": case("Unschedulable", on_laptop("busy", "6Gi", NO_CPU), 6),
        "pending-said-not-yet": case(
            "GPUsUnknown", on_laptop("first", "10Gi", seen={}, nodes=None, pods=None)
        ),
        "pending-said-unlisted": case("Unschedulable", on_laptop("second", "10Gi", others=None)),
        "pending-cpu": case(
            "Unschedulable",
            pending("busy", "8Gi", "0/3 nodes are available: 3 Insufficient cpu."),
            23,
        ),
        "pending-gated": case(
            "SchedulingGated", pending("queued", "8Gi", schedulingGates=[{"name": "kueue"}]), 23
        ),
        "pending-not-yet": case("NotScheduledYet", pending("new", "8Gi", ""), 23),
        "pending-nodes-unread": case("GPUsSplit", pending("eval-5", "30Gi", "", seen=None), 23),
        "pending-figures-unread": case(
            "Unschedulable", pending("eval-6", "30Gi", left_out=(denied,), **unread)
        ),
        "pending-no-figures": case("GPUsUnknown", pending("lost", "30Gi", "", nodes=())),
        "slice-pending": case(
            "Unschedulable", pending("llama", "19Gi", NO_SLICE, rule=SLICED, **unread)
        ),
    }


def _bound() -> dict[str, Case]:
    def starting(reasons: str, report: Report) -> Case:
        return Case("starting", reasons, report)

    def running(report: Report, reasons: str = "", run: int | None = None) -> Case:
        return Case("running", reasons, report, run=run)

    def stopped(report: Report, reasons: str = "stopping a process") -> Case:
        return Case("stopped", reasons, report, run=71)

    pending = {"phase": "Pending"}
    early = of_enforcer("waiting", reason="ImagePullBackOff", message="Back-off pulling")
    early |= {"phase": "Pending", "startTime": ago(30)}
    since = {"phase": "Pending", "startTime": ago(240)}
    late = {"annotations": {"vramwarden.io/gpu-waits": WAITS}}
    sidecar = since | gated("initContainerStatuses", "vram-enforcer")
    app, init = gated("containerStatuses", "main"), gated("initContainerStatuses", "load")
    not_held = {
        "type": "vramwarden.io/CapHeld",
        "status": "False",
        "reason": "VRAMCapExceeded",
        "message": "over the VRAM cap on GPU 1: the pod holds 61.4Gi",
        "lastTransitionTime": ago(180),
    }
    in_place = {"vramwarden.io/in-place-of": "nvidia.com/gpu"}
    both = "GPU-n1-0,GPU-n1-1"
    unheld = (line(90, "not held by the driver", why=f"{NO_LIMIT}; what is over is stopped"),)
    waits = (line(90, "waiting for the driver's limit", why=NO_LIMIT),)
    blind = bound("dark", "60Gi", "n3", "GPU-n3-1", log=(BLIND,))
    return {
        "bound-unreadable": starting(
            "InvalidQuantity", bound("forged-1", "8Gi", "n1", status=pending, **asks("8GB"))
        ),
        "late": Case(
            "waiting",
            "WaitsForGPU, ContainerWaits",
            bound("late-0", "30Gi", "n1", status=sidecar, **late),
        ),
        "late-owned": Case(
            "waiting",
            "WaitsForGPU, ContainerWaits",
            bound(
                "late-0",
                "30Gi",
                "n1",
                status=since | init,
                owner="Job/late",
                rule=BY_SENTRY,
                **late,
            ),
        ),
        "late-away": Case(
            "waiting",
            "WaitsForGPU, ContainerWaits",
            bound("late-0", "30Gi", "n1", status=since | app, rule=BY_SENTRY, nodes=GUARDED),
        ),
        "late-not-created-yet": Case(
            "waiting", "WaitsForGPU", bound("late-0", "30Gi", "n1", status=since)
        ),
        "late-assigned": starting(
            "ContainerWaits", bound("late-0", "30Gi", "n1", "GPU-n1-0", status=since | app)
        ),
        "late-unreadable": starting(
            "InvalidQuantity", bound("forged-1", "8Gi", "n1", status=since | app, **asks("8GB"))
        ),
        "starting": starting(
            "ContainerWaits", bound("early", "8Gi", "n1", "GPU-n1-0", status=early)
        ),
        "slot-starting": starting("", llama(rule=SLOTTED, status=pending)),
        "running": running(train()),
        "running-sees-all": running(bound("all-1", "8Gi", "n1", rule=SEES_ALL)),
        "running-said": running(
            bound(
                "first",
                "10Gi",
                "laptop",
                rule=ON_LAPTOP,
                nodes=(),
                seen={"laptop": a_node("laptop", said=16).read},
            )
        ),
        "running-on-a-broken-gpu": running(train(nodes=UNHEALTHY), "UnhealthyGPUs"),
        "running-reported": running(
            last_said("would stop a process"), "would stop a process", run=71
        ),
        "running-two-gpus": running(bound("train-0", "40Gi", "n1", both, count=2)),
        "running-where-others-left": running(
            bound("llama", "16Gi", "n1", "GPU-n1-0", nodes=(LEFT,), uid="llama")
        ),
        "running-in-place-of": running(train(annotations=in_place)),
        "running-unmeasured": running(bound("quiet", "8Gi", "n4", "GPU-n4-0", left_out=(NO_LOG,))),
        "slice-running": running(bound("llama", "8Gi", "mig-1", rule=SLICED, count=2)),
        "stopped": stopped(train(log=LOG)),
        "stopped-of-two-containers": stopped(train(log=LOG, **asks("main=40Gi, loader=20Gi"))),
        "stopped-with-own-limits": stopped(train(log=LOG, **asks(None))),
        "stopped-by-message": stopped(last_said("stopping a process")),
        "stopped-from-outside": stopped(
            train(status={"conditions": [not_held]}), "VRAMCapExceeded"
        ),
        "stopped-by-sentry": Case(
            "stopped",
            "VRAMCapExceeded",
            by_sentry(peak=8.4, stops=1, status={"conditions": [not_held]}),
            run=10,
        ),
        "stopped-by-figures": Case(
            "stopped", "stopping a process", by_sentry(peak=8.4, stops=2), run=10
        ),
        "held-only-by-sentry": running(by_sentry()),
        "held-by-no-sentry": running(by_sentry(130), "NoSentry"),
        "held-by-no-sentry-ever": running(by_sentry(nodes=()), "NoSentry"),
        "held-by-no-sentry-known": running(by_sentry(nodes=None)),
        "held-and-only-reported": running(by_sentry(by="")),
        "slot-stopped": stopped(llama(rule=SLOTTED, log=LOG)),
        "held-by-driver": running(on_limited("driver")),
        "held-late": running(on_limited("driver, late")),
        "held-by-sidecar": running(on_limited("sidecar", mode="")),
        "held-by-sentry": running(on_limited("sentry", mode="")),
        "held-without-limit": running(on_limited("sidecar", log=unheld), "NoDriverLimit"),
        "held-by-nobody-known": running(on_limited("", log=unheld), "NoDriverLimit"),
        "held-no-more": running(on_limited("sidecar", proof=CANNOT), "NoDriverLimit"),
        "starting-without-limit": starting(
            "NoDriverLimit", on_limited("", status=pending, log=waits)
        ),
        "starting-without-limiter": starting(
            "NoDriverLimit",
            on_limited("", "Require", proof=None, status=pending | {"startTime": ago(9)}),
        ),
        "cap-hit": running(on_limited("driver", peak=7.9, status=fails(1, "lastState")), "CapHit"),
        "cap-hit-nowhere-more": running(
            on_limited("driver", peak=8.1, size=9, status=fails(134)), "CapHit"
        ),
        "cap-not-hit": running(on_limited("driver", peak=6, status=fails(1))),
        "cap-not-hit-killed": running(on_limited("driver", peak=8, status=fails(137))),
        "cap-not-hit-of-the-host": running(
            on_limited("driver", peak=8, status=fails(1, reason="OOMKilled"))
        ),
        "cap-hit-stopped": stopped(
            on_limited("driver, late", peak=8.1, log=LOG, status=fails(1)),
        ),
        "cap-not-held": running(on_limited("sidecar", "", peak=8, status=fails(1))),
        "blind": Case("blind", "cannot measure", blind),
    }


def _ended() -> dict[str, Case]:
    last = of_enforcer("terminated", exitCode=0, finishedAt=ago(7200), message=LAST_MESSAGE)
    done = {"phase": "Succeeded", **last}
    words = write_message(TerminationMessage(8 * GIB, {"GPU-n1-0": int(7.9 * GIB)}, 0, 11_520))
    told = of_enforcer("terminated", exitCode=0, finishedAt=ago(290), message=words)
    ended = {"phase": "Failed", **told, **fails(1)}
    promised = {"annotations": {"vramwarden.io/driver-limit": "Require"}}
    denied = bound("rag", "8Gi", "n1", "GPU-n1-0", status=ended, **promised)

    def gone(name: str, *histories: History) -> Report:
        return explain_pod(facts(name, None, histories=histories))

    return {
        "ended": Case("ended", "", bound("done", "16Gi", "n1", "GPU-n1-0", status=done)),
        "ended-by-sentry": Case(
            "ended",
            "",
            bound(
                "rag-1",
                "8Gi",
                "n1",
                status={"phase": "Succeeded"},
                rule=BY_SENTRY,
                histories=(RAG,),
                age_s=9000,
            ),
        ),
        "ended-before-it-was-created": Case(
            "ended",
            "",
            bound(
                "rag-1", "8Gi", "n1", status={"phase": "Succeeded"}, histories=(RAG,), age_s=3600
            ),
        ),
        "cap-hit-ended": Case("ended", "CapHit", denied),
        "slot-ended": Case("ended", "", llama(rule=SLOTTED, status={"phase": "Succeeded"})),
        "gone": Case("gone", "", gone("eval-9", EVAL, OTHER)),
        "gone-stopped": Case("gone", "stopping a process", gone("embed-1", EMBED), run=12),
        "gone-filled": Case("gone", "CapHit", gone("rag-1", RAG)),
        "unknown": Case("unknown", "NotFound", gone("trian-1")),
        "unknown-of-workload": Case(
            "unknown",
            "NotFound",
            explain_pod(facts("llama", None, names=LLAMA, workloads=("deployment/llama",))),
        ),
    }


def _without_demand() -> dict[str, Case]:
    limits = {
        "nvidia.com/gpumem": "3000",
        "vramwarden.io/gpu-memory": "8Gi",
        "nvidia.com/gpu": "1",
    }
    asking = [a_container(resources={"limits": limits})]
    idiom = {"annotations": {"gpu-memory": "2000"}}
    return {
        "no-demand": Case("no-demand", "", explained("web", None)),
        "no-demand-idiom": Case("no-demand", "NotRead", explained("web", None, **idiom)),
        "no-demand-resource": Case(
            "no-demand", "NotRead", explained("web", None, containers=asking)
        ),
        "not-translated": Case("no-demand", "Unmutated", explained("web", "8Gi", rule=None)),
        **{f"untranslated-{name}": case for name, case in _untranslated().items()},
    }


def _untranslated() -> dict[str, Case]:
    """Return pods that ask and have nothing, by what becomes of one like them."""
    large = Finding(Reason.TOO_LARGE, "metadata.annotations[vramwarden.io/gpu-memory]", "is 80Gi")
    none, left = {"trial": None}, {"trial": TriedPod()}

    def case(
        reasons: str,
        action: Action | None = None,
        *found: Finding,
        malformed: str = "",
        **anew: Any,
    ) -> Case:
        rule = "looking" if action else ""
        known = {"trial": None, "ruling": Ruling(rule, action, found, malformed), "exempt": False}
        memory = anew.pop("memory", "8Gi")
        report = explained("web", memory, rule=None, anew=Anew(**(known | anew)))
        return Case("no-demand", reasons, report)

    def unread(reasons: str, trial: TriedPod | None, **changes: Any) -> Case:
        return case(reasons, trial=trial, ruling=None, **changes)

    return {
        "before": case("Unmutated", Action.WARN, trial=TriedPod(translated=True)),
        "denied": case("Unmutated, InvalidQuantity", Action.ENFORCE, trial=TriedPod(denial=TRIED)),
        "over-quota": case("NotInForce", Action.AUDIT, trial=TriedPod(denial=OUT_OF_QUOTA)),
        "exempt": case("NotInForce", Action.ENFORCE, exempt=True, **left),
        "no-rule": case("NotInForce", **left),
        "ignored": case("NotInForce", Action.IGNORE, **left),
        "recorded": case("NotInForce", Action.AUDIT, **left),
        "recorded-wrong": case("NotInForce, TooLarge", Action.AUDIT, large, **none),
        "recorded-malformed": case("NotInForce, CreationDenied", Action.AUDIT, malformed="spec: x"),
        "warned": case("NotInForce, TooLarge", Action.WARN, large, **left),
        "not-asked": case("NotInForce", Action.ENFORCE, **left),
        "missed": case("Unmutated", Action.ENFORCE, **none),
        "missed-wrong": case("Unmutated, TooLarge", Action.ENFORCE, large, **none),
        "unread": unread("Unmutated", None),
        "unread-left-alone": unread("NotInForce", TriedPod(warnings=("of others: x",))),
        "unread-wrong": unread("NotInForce, InvalidQuantity", TriedPod(), memory="8GB"),
        "unread-untried-wrong": unread("Unmutated, InvalidQuantity", None, memory="8GB"),
        "unread-warned": unread(
            "NotInForce, TooLarge", TriedPod(warnings=(str(large), "of others"))
        ),
    }


def _workloads() -> dict[str, Case]:
    limit = "BackoffLimitExceeded: Job has reached the specified backoff limit"
    failed = {"ended": "has failed: 0 pods succeeded, 3 failed", "failed": limit}
    complete = "is complete: 1 pod succeeded, 0 failed"
    misplaced = {"pods": 3, "misplaced": ("vramwarden.io/gpu-memory",)}
    unknown = {"exists": False, "others": ("train", "llama")}
    by_owner = {"by_owner": True, "wanted": None}

    def job(name: str, pod: Report | None = None, **changes: Any) -> Report:
        return explain_workload(workload("Job", name, **changes), pod)

    def deployment(name: str, pod: Report | None = None, **changes: Any) -> Report:
        return explain_workload(workload("Deployment", name, **changes), pod)

    return {
        "job-failed": Case("ended", "JobFailed", job("over", wanted=0, **failed)),
        "job-complete": Case("ended", "", job("good", wanted=0, ended=complete)),
        "job-pending": Case(
            "pending", "", job("eval", pending("eval-4", "30Gi"), wanted=1, pods=1)
        ),
        "job-tried": Case(
            "refused", "InvalidQuantity", job("train", wanted=1, tried=True, refusals=(TRIED,))
        ),
        "deployment-refused": Case(
            "refused",
            "TooLarge, InvalidCount, CreationDenied",
            deployment("train", refusals=(DENIED + TOO_LARGE,)),
            admit=40,
        ),
        "deployment-untranslated": Case(
            "refused", "Unmutated", deployment("train", refusals=(UNTRANSLATED,))
        ),
        "deployment-out-of-quota": Case(
            "refused",
            "CreationDenied",
            deployment("train", train(), refusals=(OUT_OF_QUOTA,), pods=2),
        ),
        "deployment-silent": Case("pending", "NoPods", deployment("train")),
        "deployment-misplaced": Case(
            "no-demand", "NotRead", deployment("train", explained("web", None), **misplaced)
        ),
        "owner": Case(
            "running",
            "",
            explain_workload(workload("PyTorchJob", "ddp", pods=1, **by_owner), train()),
        ),
        "owner-refused": Case(
            "refused",
            "InvalidQuantity",
            explain_workload(workload("PyTorchJob", "ddp", refusals=(TRIED,), **by_owner), None),
        ),
        "owner-unknown": Case(
            "unknown",
            "NotFound",
            explain_workload(
                workload("Workflow", "eval", exists=False, others=("train",), **by_owner), None
            ),
        ),
        "owner-of-no-kind": Case(
            "unknown",
            "NotFound",
            explain_workload(workload("deploymnet", "roll", exists=False, **by_owner), None),
        ),
        "deployment-unknown": Case("unknown", "NotFound", deployment("trian", **unknown)),
    }
