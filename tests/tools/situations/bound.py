"""Pods that are bound, have ended or were deleted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.clusters import GIB, NOW_S, a_cluster, a_gpu, a_node, ago, gib, held
from tests.tools.situations.scenes import (
    BY_SENTRY,
    STOP,
    Change,
    Json,
    Row,
    Situation,
    asks,
    beside_rag,
    container,
    first_rule,
    full,
    gpu_node,
    lacks_gpu,
    log_line,
    one_gpu,
    rag,
    refused,
    rules,
    runs,
    sidecar,
    stop_line,
    with_sentry,
    without_figures,
)
from tests.tools.situations.waiting import EVAL, SEES_ALL, SLICED, a_run, may_not
from webhook.core.enforcement.termination_message import TerminationMessage, write_message
from webhook.core.kinds.histories import History, write_history
from webhook.core.kinds.nodes import GpuFigures
from webhook.core.nvidia.drivers import Proof

HOLDS = Proof(holds=True, back_end="misc")
CANNOT = Proof(holds=False, why="driver 580.95.05 has no such call; r615 has")
REPORTS = rules(enforcement="{onExcess: Report}")
LIMITED = rules(enforcement="{driverLimit: Require}")
SLOTTED = rules(accounting="CapOnly")
AUTO, REQUIRE = ({"vramwarden.io/driver-limit": mode} for mode in ("Auto", "Require"))


# Running and starting pods.


def with_gpu(
    *,
    rules: str = "",
    log: str = "",
    changes: tuple[Change, ...] = (),
    used: float | None = 6,
    peak: float | None = 6.1,
    figures: Json | None = None,
    node: Json | None = None,
    **pod: Any,
) -> Situation:
    """Return the pod `rag` on its GPU; `pod` has arguments for `a_pod`."""
    found = rag(rule=first_rule(rules), **pod)
    cluster = one_gpu(found, used=used, peak=peak, figures=figures, **(node or {}))
    return Situation("rag", cluster, rules, log, changes=changes)


def by_sentry(*, acts: bool = True, status: Json | None = None, **more: Any) -> Situation:
    """Return the pod `rag`, whose cap the sentry should enforce."""
    status = {**(status or {}), "initContainerStatuses": []}
    found = with_gpu(rules=BY_SENTRY, status=status, **more)
    nodes = tuple(map(with_sentry, found.cluster.nodes)) if acts else found.cluster.nodes
    return replace(found, cluster=replace(found.cluster, nodes=nodes))


def by_driver(held_by: str = "driver", limit: Proof = HOLDS, **more: Any) -> Situation:
    """Return the pod `rag`, whose cap the driver may enforce."""
    figures = {"held_by": held_by, "stops": more.pop("stops", 0)}
    return with_gpu(figures=figures, node={"limit": limit}, annotations=AUTO, **more)


def stopped(log: str = "", stops: int = 1, **more: Any) -> Situation:
    return with_gpu(log=log, peak=8.4, figures={"stops": stops}, **more)


def late(**more: Any) -> Situation:
    status = {"phase": "Pending", "startTime": ago(240), "containerStatuses": []}
    status |= lacks_gpu("initContainerStatuses", "vram-enforcer")
    notes = {"vramwarden.io/gpu-waits": LATE}
    pod = asks("late-0", "30Gi", node="n1", status=status, annotations=notes, **more)
    return Situation("late-0", full(pod))


def on_gpus(pod: Json, *gpus: GpuFigures, limit: Proof | None = None) -> Situation:
    node = gpu_node("n1", *gpus, limit=limit)
    return Situation(pod["metadata"]["name"], a_cluster([node], [pod]))


def sliced(rules: str) -> Situation:
    pod = runs("llama", "8Gi", "mig-1", "", rule=first_rule(rules))
    return Situation("llama", a_cluster([a_node("mig-1")], [pod]), rules)


def failed(code: int, reason: str = "Error") -> Json:
    ended = {"exitCode": code, "reason": reason, "finishedAt": ago(300)}
    main = container("running", restarts=1, startedAt=ago(280))
    return {"containerStatuses": [main | {"lastState": {"terminated": ended}}]}


def restarted(verdict: str) -> Json:
    """Return the status of a restarted sidecar with this termination message."""
    last = {"terminated": {"exitCode": 0, "finishedAt": ago(120), "message": verdict}}
    return {"initContainerStatuses": [sidecar(restarts=1) | {"lastState": last}]}


LATE = (
    "no GPU of node n1 has 30Gi free, which this pod needs; the largest free amount is 23Gi, on "
    "GPU 0 (GPU-n1-0); it was bound while vramwarden was away, and is tried again whenever a pod "
    "ends there or the node changes"
)
NOT_PULLED = container(
    "waiting", reason="ImagePullBackOff", message='Back-off pulling image "example"'
)
CAP_HELD = {
    "type": "vramwarden.io/CapHeld", "status": "False", "reason": "VRAMCapExceeded",
    "message": STOP, "lastTransitionTime": ago(180),
}  # fmt: skip
STARTING = {
    "phase": "Pending",
    "initContainerStatuses": [sidecar() | {"started": False}],
    "containerStatuses": [container("waiting", reason="PodInitializing")],
}
NO_STATUS = {"initContainerStatuses": [], "containerStatuses": []}
NO_GPU_YET = {"phase": "Pending", "startTime": ago(240)} | lacks_gpu("containerStatuses", "main")
NO_GPU = {"vramwarden.io/gpu": None}
MANY_STOPS = "".join(
    log_line(1000 - n, "warning", "stopping a process", why=f"stop {n}", pid=n, peak_bytes=GIB)
    for n in range(9)
)


# Pods that have ended or were deleted.


def ended(
    peak: float = 6.1, stops: int = 0, said: str = "", ago_s: float = 290, **status: Any
) -> Json:
    """Return the status of an ended pod; its sidecar wrote a termination message."""
    message = write_message(TerminationMessage(8 * GIB, {"GPU-n1-0": gib(peak)}, stops, 7200))
    last = sidecar("terminated", exitCode=0, finishedAt=ago(ago_s), message=said + message)
    return {"phase": "Failed", "initContainerStatuses": [last], **status}


def after(*others: Json, rules: str = "", **pod: Any) -> Situation:
    found = rag(rule=first_rule(rules), **pod)
    return Situation("rag", a_cluster([gpu_node("n1", a_gpu(79))], [found], *others))


DONE = ended(ago_s=7200) | {"phase": "Succeeded", "containerStatuses": [
    container("terminated", exitCode=0, reason="Completed", finishedAt=ago(7200))
]}  # fmt: skip
STOPPED = ended(8.4, 1, f"stopping a process: {STOP}\n", containerStatuses=[
    container("terminated", exitCode=143, reason="Error", finishedAt=ago(300))
])  # fmt: skip
REBOOTED = ended(containerStatuses=STOPPED["containerStatuses"])
REBOOTED["initContainerStatuses"][0]["state"]["terminated"] |= {
    "exitCode": 137, "reason": "ContainerStatusUnknown", "finishedAt": None
}  # fmt: skip
WITHOUT_SIDECAR = {"phase": "Succeeded", **NO_STATUS}
FILLED = a_run("rag-1", 7.9, limited=True)
RAG = write_history(History("team-a", "Pod", "rag", (replace(FILLED, pod="rag"),)))
FILLED_JOB = write_history(History("team-a", "Job", "rag", (FILLED,)))
EMBED = write_history(History("team-a", "Job", "embed", (a_run("embed-1", 10.4, stops=2),)))

ROWS: dict[str, Row] = {
    "late-without-gpu": (
        "A pod that was bound while vramwarden was away waits for a GPU of its node.", late(),
    ),
    "late-with-an-owner": (
        "The same pod belongs to a Job, which replaces it if it is deleted.",
        late(owner="Job/late"),
    ),
    "image-not-pulled": (
        "The image of a container cannot be pulled.",
        with_gpu(status={"phase": "Pending", "containerStatuses": [NOT_PULLED]}),
    ),
    "running": ("Nothing is wrong.", with_gpu()),
    "running-on-two-gpus": (
        "Nothing is wrong with a pod that has two GPUs, one of which is full.",
        Situation("train-0", full()),
    ),
    "bound-to-a-broken-gpu": (
        "The GPU of a running pod needs a reset.",
        on_gpus(
            rag(), a_gpu(79, held("rag", 8, 6, 6.1), healthy=False, fault="needs a reset")
        ),
    ),
    "stopped-by-the-sidecar": (
        "The sidecar stopped a process; the container runs again.",
        stopped(stop_line(), status=failed(143)),
    ),
    "stopped-and-ended": (
        "The sidecar stopped a process, and the pod ended.", after(status=STOPPED),
    ),
    "stopped-by-the-sentry": (
        "The sentry stopped a process, and says so in a condition of the pod.",
        by_sentry(peak=8.4, figures={"stops": 1, "held_by": "sentry"},
                  status={"conditions": [{"type": "Ready", "status": "True"}, CAP_HELD]}),
    ),
    "only-reported": (
        "A pod is over its cap, and the policy only reports it.",
        with_gpu(rules=REPORTS, log=stop_line("would stop a process"), used=8.4, peak=8.4,
                 figures={"would_stop": 3, "would_stop_since_s": NOW_S - 7200}),
    ),
    "blind": (
        "The sidecar cannot measure the pod.",
        with_gpu(log=log_line(100, "error", "cannot measure",
                              why="the driver gives no figure of process 12"),
                 used=None, peak=None),
    ),
    "waits-for-the-drivers-limit": (
        "The pod requires the driver's limit, and does not start before it has one.",
        with_gpu(rules=LIMITED, used=0, peak=0, node={"limit": HOLDS}, annotations=REQUIRE,
                 status=STARTING,
                 log=log_line(90, "warning", "waiting for the driver's limit",
                              why="the driver has no limit for this pod on GPU GPU-n1-0")),
    ),
    "driver-limit-lost": (
        "The driver was to hold the cap, and cannot any longer; the sidecar holds it.",
        by_driver("sidecar", CANNOT),
    ),
    "denied-by-the-driver": (
        "The driver held the cap: an allocation failed inside the program, which ended.",
        by_driver(used=7.9, peak=7.9, status=failed(1)),
    ),
    "sentry-never-wrote": (
        "A pod is to be held by the sentry of its node, which has never written figures.",
        without_figures(by_sentry(acts=False)),
    ),
    "ended": ("A pod did its work and ended.", after(status=DONE)),
    "gone": (
        "A pod that was stopped is deleted, and its workload has a history.",
        Situation("embed-1", beside_rag(EMBED)),
    ),
    "unknown-name": ("Nothing has this name.", Situation("trian-1", full())),
}  # fmt: skip
"""Situations in which all four commands are recorded."""
EXPLAINED = {
    "A pod was bound late, and its amount was changed.":
        with_gpu(status=NO_GPU_YET, annotations=NO_GPU | {"vramwarden.io/gpu-memory": "8GB"}),
    "A pod has got its GPU, and the kubelet has not tried again.": with_gpu(status=NO_GPU_YET),
    "A pod sees all GPUs of its node.": with_gpu(rules=SEES_ALL, annotations=NO_GPU),
    "A pod runs where others have left.": on_gpus(
        runs("embed", "16Gi", "n1", "GPU-n1-0"),
        a_gpu(79, held("embed", 16, 6)), a_gpu(79, held("x", 24)),
    ),
    "A rule gave the pod a share in place of a whole GPU.":
        with_gpu(annotations={"vramwarden.io/in-place-of": "nvidia.com/gpu"}),
    "Nothing is known of the GPU, and the log may not be read.": with_gpu(
        used=None, peak=None,
        changes=(lambda api: api.fails("/pods/rag/log", refused(403, "no"), forever=True),),
    ),
    "A pod has a slice.": sliced(SLICED),
    "A pod has a slot of time-slicing.": sliced(SLOTTED),
    "A process was stopped of a pod with two amounts.":
        stopped(stop_line(), annotations={"vramwarden.io/gpu-memory": "main=5Gi, loader=3Gi"}),
    "A process was stopped of a pod whose containers set the amounts.":
        stopped(stop_line(), annotations={"vramwarden.io/gpu-memory": None}),
    "The driver's limit came late, so the sidecar stopped a process, and the program ended.":
        by_driver("driver, late", stops=1, peak=8.4, log=stop_line(), status=failed(1)),
    "A pod was over its cap, and nothing says that anything was stopped.": with_gpu(peak=8.1),
    "Nine processes were stopped.": stopped(MANY_STOPS, 9),
    "The sidecar stopped a process before it was restarted, and its log is gone.":
        stopped(status=restarted(f"stopping a process: {STOP}\n")),
    "The sidecar reported an excess before it was restarted.":
        with_gpu(status=restarted(f"would stop a process: {STOP}\n"), peak=8.4),
    "The sentry holds the cap.": by_sentry(figures={"held_by": "sentry"}),
    "The sentry has written nothing for two minutes.":
        by_sentry(figures={"held_by": "sentry"}, node={"age_s": 130}),
    "The person may not read what the sentry writes.":
        by_sentry(changes=may_not("list gpunodes")),
    "The driver got no limit, and nothing else is known.":
        by_driver("", log=log_line(90, "warning", "not held by the driver",
                                   why="the driver has no limit for this pod")),
    "The pod requires the driver's limit, and no limiter reports.": with_gpu(
        status={"phase": "Pending", "startTime": ago(9), **NO_STATUS}, annotations=REQUIRE
    ),
    "The program ended at its cap, and no GPU has much more.": on_gpus(
        rag(status=failed(134), annotations=AUTO),
        a_gpu(9, held("rag", 8, 8, 8, held_by="driver")), limit=HOLDS,
    ),
    "The program took too much memory of the node.":
        by_driver(used=8, peak=8, status=failed(1, "OOMKilled")),
    "A pod without a sidecar ended, and its history says what it took.":
        after(RAG, rules=BY_SENTRY, status=WITHOUT_SIDECAR),
    "An earlier pod of the same name ended, and the history says what that one took.":
        after(RAG, status=WITHOUT_SIDECAR, metadata={"creationTimestamp": ago(60)}),
    "The driver denied memory, and the pod ended.":
        after(status=ended(7.9, **failed(1)), annotations=REQUIRE),
    "The node restarted, so nobody knows when the sidecar ended.": after(status=REBOOTED),
    "A pod is gone that took less than it asked for.":
        Situation("eval-9", beside_rag(write_history(EVAL))),
    "A pod is gone that took all that the driver gave it.":
        Situation("rag-1", beside_rag(FILLED_JOB)),
}  # fmt: skip
