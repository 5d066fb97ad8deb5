"""Pods and workloads in every state that `explain` knows, on a cluster of three nodes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from tests.core.admission.plugins import translated, under
from tests.support.pods import a_container, a_pod, a_rule
from tests.support.seen_cluster import a_read_node
from webhook.core.enforcement.termination_message import TerminationMessage, write_message
from webhook.core.kinds.histories import History, Run
from webhook.core.kinds.nodes import (
    GpuFigures,
    NodeFigures,
    PodFigures,
    write_time,
)
from webhook.core.policy.values import Accounting, Placement
from webhook.tools.explain.judge.explain import explain_pod, explain_workload
from webhook.tools.explain.judge.report import PodFacts, Report, WorkloadFacts
from webhook.tools.shared.pod import ClusterPod

GIB = 2**30
NOW_S = 1_795_000_000.0
RULE = a_rule(name="team")
SLICED = a_rule(name="sliced", accounting=Accounting.MIG)
SLOTTED = a_rule(name="slotted", accounting=Accounting.CAP_ONLY)
NO_SLICE = (
    "0/3 nodes are available: 1 Insufficient nvidia.com/mig-1g.20gb, 2 node(s) didn't match Pod's "
    "node affinity/selector. preemption: 0/3 nodes are available: 3 No preemption victims found "
    "for incoming pod."
)
SCHEDULER = (
    "0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, "
    "2 Insufficient vramwarden.io/vram. preemption: 0/3 nodes are available: 3 No preemption "
    "victims found for incoming pod."
)
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
DENIED = (
    'pods "train-5d9c7-x7k2p" is forbidden: admission webhook "mutate.vramwarden.io" denied the '
    "request: "
)
STOPPED = (
    "over the VRAM cap on GPU GPU-n3-1: process 41 (python train.py) of container aaaa holds "
    "61.4Gi, the cap is 60Gi; it grew last, by 1.4Gi within 1.0 s; the pod's peak was "
    "61.4Gi, so vramwarden.io/gpu-memory: 62772Mi would have been enough until then"
)
TRIED = (
    'admission webhook "mutate.vramwarden.io" denied the request: InvalidQuantity: '
    "metadata.annotations[vramwarden.io/gpu-memory]: 8GB is not a Kubernetes quantity; use 8G or "
    "8Gi"
)
CONTAINER_ID = "ab" * 32


def ago(seconds: float) -> str:
    return write_time(NOW_S - seconds)


def gpu(node: str, index: int, usable_gi: int, free_gi: int, *pods: PodFigures) -> GpuFigures:
    usable, free = usable_gi * GIB, free_gi * GIB
    promised = usable - free
    product = "H100-80GB" if usable_gi > 40 else "A10-24GB"
    return GpuFigures(
        uuid=f"GPU-{node}-{index}",
        index=index,
        product=product,
        total_bytes=usable,
        usable_bytes=usable,
        promised_bytes=promised,
        used_bytes=promised,
        free_bytes=free,
        unattributed_bytes=0,
        pods=pods,
    )


def held(uid: str, cap_gi: int, used_gi: float | None = None, peak_gi: float | None = None):
    used = None if used_gi is None else int(used_gi * GIB)
    peak = None if peak_gi is None else int(peak_gi * GIB)
    return PodFigures(uid=uid, cap_bytes=cap_gi * GIB, used_bytes=used, peak_bytes=peak)


NODES = (
    NodeFigures(
        name="n1",
        observed_s=NOW_S - 14,
        driver_version="580.95.05",
        enforcement="sidecar",
        gpus=(
            gpu("n1", 0, 79, 23, held("u-train-0", 40, 25, 38), held("u-other", 16)),
            gpu("n1", 1, 79, 0, held("u-train-0", 40, 20), held("u-idle", 39)),
        ),
    ),
    NodeFigures(
        name="n2",
        observed_s=NOW_S - 14,
        driver_version="580.95.05",
        enforcement="sidecar",
        gpus=(gpu("n2", 0, 22, 6),),
    ),
    NodeFigures(
        name="n3",
        observed_s=NOW_S - 240,
        driver_version="580.95.05",
        enforcement="sidecar",
        gpus=(
            gpu("n3", 0, 79, 15, held("u-foreign", 40)),
            gpu("n3", 1, 79, 19, held("u-train-1", 60, 58.7, 61.3)),
        ),
    ),
)
LABELS = {"vramwarden.io/gpu": "true", "vramwarden.io/enforcement": "sidecar"}
SEEN = {node.name: a_read_node(node.name, LABELS) for node in NODES}
NAMES = {"u-train-0": "train-0", "u-train-1": "train-1", "u-idle": "idle"}


def stored(name: str, memory: str, *, node: str = "", gpus: str = "", **changes: Any):
    """Return a pod as admission, the scheduler and the kubelet leave it."""
    count = changes.pop("count", None)
    notes = {"vramwarden.io/gpu-count": str(count)} if count else {}
    rule = changes.pop("rule", RULE)
    pod = translated(a_pod(memory, annotations=notes, **changes.pop("spec", {})), under(rule))
    metadata = pod["metadata"]
    metadata |= {"name": name, "uid": f"u-{name}", "creationTimestamp": ago(540)}
    if gpus:
        metadata["annotations"]["vramwarden.io/gpu"] = gpus
    metadata["annotations"] |= changes.pop("annotations", {})
    metadata |= changes.pop("metadata", {})
    if node:
        pod["spec"]["nodeName"] = node
    pod["status"] = {"phase": "Running" if node else "Pending", **changes.pop("status", {})}
    assert not changes
    return pod


def scheduled(message: str, reason: str = "Unschedulable"):
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return {"conditions": [condition]}


def facts(name: str, pod: Any, **changes: Any) -> PodFacts:
    found = None if pod is None else ClusterPod(pod)
    given = PodFacts(
        namespace="team-a", name=name, now_s=NOW_S, pod=found, nodes=NODES, seen=SEEN, names=NAMES
    )
    return replace(given, **changes)


def line(seconds: float, msg: str, **values: Any) -> str:
    return json.dumps({"ts": ago(seconds), "level": "warning", "msg": msg, **values})


def enforcer(how: str, **values: Any):
    return {"name": "vram-enforcer", "state": {how: values}, "restartCount": 0}


def a_run(name: str, hours: float, peak_gi: float | None, *, asked_gi: int = 16, stops: int = 0):
    peak = None if peak_gi is None else int(peak_gi * GIB)
    return Run(
        pod=name,
        ended_s=NOW_S - hours * 3600,
        asked_bytes=asked_gi * GIB,
        gpus=1,
        peak_bytes=peak,
        stops=stops,
        seconds=3600.0,
    )


EVAL = History(
    "team-a",
    "Job",
    "eval",
    tuple(a_run(f"eval-{n}", 50 - n, 17.2 - n / 10, asked_gi=30) for n in range(12)),
)
EVAL_OWNER = {
    "ownerReferences": [{"controller": True, "kind": "Job", "name": "eval", "uid": "u-eval"}]
}
STATUS_OF_MAIN = {"name": "main", "containerID": f"containerd://{CONTAINER_ID}"}
LOG = (
    line(4000, "self-test", why="can measure and stop", ability="full"),
    line(
        360,
        "stopping a process",
        why=STOPPED,
        gpu="GPU-n3-1",
        used_bytes=int(61.3 * GIB),
        sum_bytes=int(61.3 * GIB),
        cap_bytes=60 * GIB,
        peak_bytes=int(61.3 * GIB),
        pid=41,
        command="python  \n\ttrain.py",
        container=CONTAINER_ID,
    ),
    line(358, "memory came back", why="it left", gpu="GPU-n3-1", after_s=2.4, pid=41),
)


@dataclass(frozen=True)
class Case:
    """A state, what is said to be wrong, and the report."""

    state: str
    reasons: tuple[str, ...]
    report: Report
    start_now: int | None = None
    run: int | None = None
    admit: int | None = None
    trouble: bool = True
    more: dict[str, Any] = field(default_factory=dict)


def pending(name: str, memory: str, message: str = SCHEDULER, **changes: Any) -> Report:
    given = {key: changes.pop(key) for key in list(changes) if key in PodFacts.__slots__}
    pod = stored(name, memory, status=scheduled(message), **changes)
    return explain_pod(facts(name, pod, **given))


def last_said(verdict):
    """Return a pod that runs, whose sidecar ended with a verdict before it was restarted."""
    said = enforcer("terminated", exitCode=0, message=f"{verdict}: {STOPPED}\n")
    return on_node("train-1", "60Gi", "n3", "GPU-n3-1", status={"initContainerStatuses": [said]})


def on_node(name: str, memory: str, node: str, gpus: str, **changes: Any) -> Report:
    given = {key: changes.pop(key) for key in list(changes) if key in PodFacts.__slots__}
    status = {"startTime": ago(11_520), **changes.pop("status", {})}
    pod = stored(name, memory, node=node, gpus=gpus, status=status, **changes)
    return explain_pod(facts(name, pod, **given))


def on_node_raw(name: str, memory: str, node: str, gpus: str):
    return stored(name, memory, node=node, gpus=gpus, status={"startTime": ago(11_520)})


def without_annotation(pod: Any, **changes: Any) -> Report:
    """Explain a pod whose containers ask themselves."""
    del pod["metadata"]["annotations"]["vramwarden.io/gpu-memory"]
    return explain_pod(facts(pod["metadata"]["name"], pod, **changes))


def workload(kind: str = "Deployment", name: str = "train", **changes: Any) -> WorkloadFacts:
    named = {"kind": kind, "namespace": "team-a", "name": name}
    return WorkloadFacts(**named, **{"wanted": 3, **changes})


LAST_MESSAGE = write_message(TerminationMessage(16 * GIB, {"GPU-n1-0": int(6.1 * GIB)}, 0, 11_520))
ENDED = {"exitCode": 0, "finishedAt": ago(7200)}


def cases() -> dict[str, Case]:
    """Return every state by a name of its own."""
    n2 = {"nodeSelector": {"kubernetes.io/hostname": "n9"}}
    unnamed = {
        **SEEN,
        **{
            name: a_read_node(name, {**LABELS, "vramwarden.io/device-names": "none"})
            for name in SEEN
        },
    }
    unenforced = {
        name: a_read_node(name, LABELS | {"vramwarden.io/enforcement": "none"}) for name in SEEN
    }
    tainted = {
        name: a_read_node(name, LABELS, (("maintenance", "", "NoSchedule"),)) for name in SEEN
    }
    cordoned = {name: a_read_node(name, LABELS, unschedulable=True) for name in SEEN}
    held_by = "a device plugin offers them whole (nvidia.com/gpu), but pods may have VRAM here"
    of_plugin = tuple(replace(node, held=held_by) for node in NODES)
    unhealthy = tuple(
        replace(node, gpus=tuple(replace(one, healthy=False, fault="Xid 79") for one in node.gpus))
        for node in NODES
    )
    blind = line(100, "cannot measure", why="the driver gives no figure of process 12")
    return {
        "pending-in-pieces": Case(
            "pending",
            ("GPUsSplit", "BindingDenied"),
            pending(
                "eval-4",
                "30Gi",
                BINDING,
                histories=(EVAL,),
                metadata=EVAL_OWNER | {"creationTimestamp": ago(540)},
            ),
            23 * GIB,
        ),
        "pending-across-nodes": Case("pending", ("NodesSplit",), pending("wide", "45Gi"), 23 * GIB),
        "pending-no-room": Case("pending", ("NoRoom",), pending("huge", "70Gi"), 23 * GIB),
        "pending-too-large": Case("pending", ("TooLarge",), pending("vast", "90Gi"), 23 * GIB),
        "pending-too-many-gpus": Case("pending", ("TooFewGPUs",), pending("many", "30Gi", count=3)),
        "pending-two-gpus": Case(
            "pending", ("GPUsSplit",), pending("pair", "16Gi", count=2), 15 * GIB
        ),
        "pending-selector": Case("pending", ("NodeSelector",), pending("picky", "8Gi", spec=n2)),
        "pending-device-names": Case(
            "pending", ("NoDeviceNames",), pending("unnamed", "8Gi", seen=unnamed)
        ),
        "pending-enforcement": Case(
            "pending", ("NoEnforcement",), pending("unheld", "8Gi", seen=unenforced)
        ),
        "pending-taint": Case("pending", ("Taint",), pending("repelled", "8Gi", seen=tainted)),
        "pending-cordoned": Case("pending", ("Cordoned",), pending("held", "8Gi", seen=cordoned)),
        "pending-not-shared": Case(
            "pending",
            ("NotShared",),
            pending("alone", "8Gi", seen={"n9": a_read_node("n9", LABELS)}),
        ),
        "pending-held": Case("pending", ("Held",), pending("late", "8Gi", nodes=of_plugin)),
        "pending-beside-held": Case(
            "pending", ("NoRoom",), pending("later", "8Gi", nodes=(of_plugin[0], NODES[1])), 6 * GIB
        ),
        "pending-denied-figures-unread": Case(
            "pending",
            ("BindingDenied",),
            pending("eval-7", "30Gi", BINDING, nodes=None, seen=None),
        ),
        "pending-pods-unread": Case(
            "pending", ("GPUsSplit",), pending("eval-8", "30Gi", "", names={}), 23 * GIB
        ),
        "bound-unreadable": Case(
            "starting",
            ("InvalidQuantity",),
            on_node(
                "forged-1",
                "8Gi",
                "n1",
                "",
                status={"phase": "Pending"},
                annotations={"vramwarden.io/gpu-memory": "8GB"},
            ),
        ),
        "running-sees-all": Case(
            "running",
            (),
            on_node("all-1", "8Gi", "n1", "", rule=a_rule(name="team", placement=Placement.NONE)),
            trouble=False,
        ),
        "stopped-of-two-containers": Case(
            "stopped",
            ("stopping a process",),
            on_node(
                "train-1",
                "60Gi",
                "n3",
                "GPU-n3-1",
                log=LOG,
                annotations={"vramwarden.io/gpu-memory": "main=40Gi, loader=20Gi"},
            ),
            run=62 * GIB,
        ),
        "stopped-with-own-limits": Case(
            "stopped",
            ("stopping a process",),
            without_annotation(on_node_raw("train-1", "60Gi", "n3", "GPU-n3-1"), log=LOG),
            run=62 * GIB,
        ),
        "job-failed": Case(
            "ended",
            ("JobFailed",),
            explain_workload(
                workload(
                    "Job",
                    "over",
                    wanted=0,
                    ended="has failed: 0 pods succeeded, 3 failed",
                    failed="BackoffLimitExceeded: Job has reached the specified backoff limit",
                ),
                None,
            ),
        ),
        "job-complete": Case(
            "ended",
            (),
            explain_workload(
                workload("Job", "good", wanted=0, ended="is complete: 1 pod succeeded, 0 failed"),
                None,
            ),
            trouble=False,
        ),
        "pending-unhealthy": Case(
            "pending", ("UnhealthyGPUs",), pending("ill", "8Gi", "", nodes=unhealthy)
        ),
        "pending-unreadable": Case(
            "pending",
            ("InvalidQuantity",),
            pending("forged", "8Gi", "", annotations={"vramwarden.io/gpu-memory": "8GB"}),
        ),
        "pending-sees-all": Case(
            "pending",
            ("Unschedulable",),
            pending("all", "8Gi", rule=a_rule(name="team", placement=Placement.NONE)),
        ),
        "pending-cpu": Case(
            "pending",
            ("Unschedulable",),
            pending("busy", "8Gi", "0/3 nodes are available: 3 Insufficient cpu."),
            23 * GIB,
        ),
        "pending-gated": Case(
            "pending",
            ("SchedulingGated",),
            pending("queued", "8Gi", spec={"schedulingGates": [{"name": "kueue"}]}),
            23 * GIB,
        ),
        "pending-not-yet": Case(
            "pending", ("NotScheduledYet",), pending("new", "8Gi", ""), 23 * GIB, trouble=False
        ),
        "pending-nodes-unread": Case(
            "pending", ("GPUsSplit",), pending("eval-5", "30Gi", "", seen=None), 23 * GIB
        ),
        "pending-figures-unread": Case(
            "pending",
            ("Unschedulable",),
            pending(
                "eval-6",
                "30Gi",
                nodes=None,
                seen=None,
                left_out=("no figures of GPUs: you may not list gpunodes",),
            ),
        ),
        "pending-no-figures": Case(
            "pending", ("GPUsUnknown",), pending("lost", "30Gi", "", nodes=())
        ),
        "late": Case(
            "waiting",
            ("WaitsForGPU",),
            on_node(
                "late-0",
                "30Gi",
                "n1",
                "",
                status={"phase": "Pending", "startTime": ago(240)},
                annotations={
                    "vramwarden.io/gpu-waits": WAITS,
                },
            ),
        ),
        "starting": Case(
            "starting",
            ("ContainerWaits",),
            on_node(
                "early",
                "8Gi",
                "n1",
                "GPU-n1-0",
                status={
                    "phase": "Pending",
                    "startTime": ago(30),
                    "initContainerStatuses": [
                        enforcer("waiting", reason="ImagePullBackOff", message="Back-off pulling")
                    ],
                },
            ),
        ),
        "running": Case("running", (), on_node("train-1", "60Gi", "n3", "GPU-n3-1"), trouble=False),
        "running-on-a-broken-gpu": Case(
            "running",
            ("UnhealthyGPUs",),
            on_node("train-1", "60Gi", "n3", "GPU-n3-1", nodes=unhealthy),
        ),
        "running-reported": Case(
            "running",
            ("would stop a process",),
            last_said("would stop a process"),
            run=62 * GIB,
            trouble=False,
        ),
        "running-two-gpus": Case(
            "running",
            (),
            on_node("train-0", "40Gi", "n1", "GPU-n1-0,GPU-n1-1", count=2),
            trouble=False,
        ),
        "running-in-place-of": Case(
            "running",
            (),
            on_node(
                "train-1",
                "60Gi",
                "n3",
                "GPU-n3-1",
                annotations={"vramwarden.io/in-place-of": "nvidia.com/gpu"},
            ),
            trouble=False,
        ),
        "running-unmeasured": Case(
            "running",
            (),
            on_node(
                "quiet",
                "8Gi",
                "n4",
                "GPU-n4-0",
                left_out=("the log of container vram-enforcer: you may not read pods/log here",),
            ),
            trouble=False,
        ),
        "stopped": Case(
            "stopped",
            ("stopping a process",),
            on_node(
                "train-1",
                "60Gi",
                "n3",
                "GPU-n3-1",
                log=LOG,
                status={"containerStatuses": [STATUS_OF_MAIN]},
            ),
            run=62 * GIB,
        ),
        "stopped-by-message": Case(
            "stopped",
            ("stopping a process",),
            last_said("stopping a process"),
            run=62 * GIB,
        ),
        "stopped-from-outside": Case(
            "stopped",
            ("VRAMCapExceeded",),
            on_node(
                "train-1",
                "60Gi",
                "n3",
                "GPU-n3-1",
                status={
                    "conditions": [
                        {
                            "type": "vramwarden.io/CapHeld",
                            "status": "False",
                            "reason": "VRAMCapExceeded",
                            "message": "over the VRAM cap on GPU 1: the pod holds 61.4Gi",
                            "lastTransitionTime": ago(180),
                        }
                    ]
                },
            ),
            run=62 * GIB,
        ),
        "blind": Case(
            "blind", ("cannot measure",), on_node("dark", "60Gi", "n3", "GPU-n3-1", log=(blind,))
        ),
        "ended": Case(
            "ended",
            (),
            on_node(
                "done",
                "16Gi",
                "n1",
                "GPU-n1-0",
                status={
                    "phase": "Succeeded",
                    "initContainerStatuses": [
                        enforcer("terminated", **ENDED, message=LAST_MESSAGE)
                    ],
                },
            ),
            trouble=False,
        ),
        "gone": Case(
            "gone",
            (),
            explain_pod(
                facts(
                    "eval-9",
                    None,
                    histories=(EVAL, replace(EVAL, kind="Pod", workload="x", runs=())),
                )
            ),
            trouble=False,
        ),
        "gone-stopped": Case(
            "gone",
            ("stopping a process",),
            explain_pod(
                facts(
                    "embed-1",
                    None,
                    histories=(
                        History(
                            "team-a",
                            "Job",
                            "embed",
                            (a_run("embed-1", 2, 10.4, asked_gi=8, stops=2),),
                        ),
                    ),
                )
            ),
            run=11 * GIB,
        ),
        "unknown": Case("unknown", ("NotFound",), explain_pod(facts("trian-1", None))),
        "no-demand": Case(
            "no-demand", (), explain_pod(facts("web", a_pod() | {"status": {}})), trouble=False
        ),
        "no-demand-idiom": Case(
            "no-demand",
            ("NotRead",),
            explain_pod(facts("web", a_pod(annotations={"gpu-memory": "2000"}))),
            trouble=False,
        ),
        "no-demand-resource": Case(
            "no-demand",
            ("NotRead",),
            explain_pod(
                facts(
                    "web",
                    a_pod(
                        containers=[
                            a_container(
                                resources={
                                    "limits": {
                                        "nvidia.com/gpumem": "3000",
                                        "vramwarden.io/gpu-memory": "8Gi",
                                        "nvidia.com/gpu": "1",
                                    }
                                }
                            )
                        ]
                    ),
                )
            ),
            trouble=False,
        ),
        "not-translated": Case(
            "no-demand", ("Unmutated",), explain_pod(facts("web", a_pod("8Gi")))
        ),
        "deployment-refused": Case(
            "refused",
            ("TooLarge", "InvalidCount", "CreationDenied"),
            explain_workload(
                workload(
                    refusals=(
                        DENIED + "TooLarge: metadata.annotations[vramwarden.io/gpu-memory]: asks "
                        'for 80Gi per GPU; rule "team" allows at most 40Gi; InvalidCount: '
                        'metadata.annotations[vramwarden.io/gpu-count]: "two" is not a number of '
                        "GPUs; write a positive integer, e.g. 2. Your platform team says: ask in "
                        "#gpu-help",
                    )
                ),
                None,
            ),
            admit=40 * GIB,
        ),
        "deployment-out-of-quota": Case(
            "refused",
            ("CreationDenied",),
            explain_workload(
                workload(
                    refusals=(
                        (
                            'pods "train-x" is forbidden: exceeded quota: gpus, requested: '
                            "requests.vramwarden.io/vram=8Gi, used: 40Gi, limited: 40Gi"
                        ),
                    ),
                    pods=2,
                ),
                on_node("train-1", "60Gi", "n3", "GPU-n3-1"),
            ),
        ),
        "slice-pending": Case(
            "pending",
            ("Unschedulable",),
            pending("llama", "19Gi", NO_SLICE, rule=SLICED, nodes=None, seen=None),
        ),
        "slice-running": Case(
            "running", (), on_node("llama", "8Gi", "mig-1", "", rule=SLICED, count=2), trouble=False
        ),
        "slot-starting": Case(
            "starting",
            (),
            on_node("llama", "8Gi", "sliced-1", "", rule=SLOTTED, status={"phase": "Pending"}),
            trouble=False,
        ),
        "slot-stopped": Case(
            "stopped",
            ("stopping a process",),
            on_node("llama", "8Gi", "sliced-1", "", rule=SLOTTED, log=LOG),
            run=62 * GIB,
        ),
        "slot-ended": Case(
            "ended",
            (),
            on_node("llama", "8Gi", "sliced-1", "", rule=SLOTTED, status={"phase": "Succeeded"}),
            trouble=False,
        ),
        "job-pending": Case(
            "pending",
            (),
            explain_workload(workload("Job", "eval", wanted=1, pods=1), pending("eval-4", "30Gi")),
        ),
        "job-tried": Case(
            "refused",
            ("InvalidQuantity",),
            explain_workload(
                workload(
                    "Job",
                    wanted=1,
                    tried=True,
                    refusals=(TRIED,),
                ),
                None,
            ),
        ),
        "deployment-misplaced": Case(
            "no-demand",
            ("NotRead",),
            explain_workload(
                workload(pods=3, misplaced=("vramwarden.io/gpu-memory",)),
                explain_pod(facts("web", a_pod())),
            ),
        ),
        "deployment-unknown": Case(
            "unknown",
            ("NotFound",),
            explain_workload(workload(name="trian", exists=False, others=("train", "llama")), None),
        ),
    }
