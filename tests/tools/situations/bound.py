"""Pods that are bound, have ended or are gone."""

from __future__ import annotations

from dataclasses import replace

from tests.support.clusters import GIB, NOW_S, a_cluster, a_gpu, ago, gib, held
from tests.support.pods import a_container
from tests.tools.situations.scenes import (
    BY_SENTRY,
    H100,
    Situation,
    asks,
    beside_rag,
    first_rule,
    full,
    gpu_node,
    lacks_gpu,
    log_line,
    one_gpu,
    rag,
    sidecar,
    situation,
    stop,
    stop_lines,
    unseen,
    with_sentry,
)
from webhook.core.enforcement.termination_message import TerminationMessage, write_message
from webhook.core.kinds.histories import History, Run, write_history
from webhook.core.node.limits import Proof

LATE = (
    "no GPU of node n1 has 30Gi free, which this pod needs; the largest free amount is 23Gi, on "
    "GPU 0 (GPU-n1-0); it was bound while vramwarden was away, and is tried again whenever a pod "
    "ends there or the node changes"
)
ENDED = write_message(TerminationMessage(8 * GIB, {"GPU-n1-0": gib(6.1)}, 0, 7200))
HOLDS = Proof(holds=True, back_end="misc")
CANNOT = Proof(holds=False, why="driver 580.95.05 has no such call; r615 has")
REPORTS = "  - {name: team, match: {namespaces: [team-a]}, enforcement: {onExcess: Report}}\n"
LIMITED = "  - {name: team, match: {namespaces: [team-a]}, enforcement: {driverLimit: Require}}\n"


def a_run(pod: str, peak: float, stops: int = 0) -> Run:
    """Return a run that ended two hours ago."""
    return Run(
        pod=pod,
        ended_s=NOW_S - 7200,
        asked_bytes=8 * GIB,
        gpus=1,
        peak_bytes=gib(peak),
        stops=stops,
        seconds=3600.0,
    )


def failed(code: int, **more) -> dict:
    """Return the status of a container that ended and runs again."""
    ended = {"exitCode": code, "reason": "Error", "finishedAt": ago(300), **more}
    running = {"running": {"startedAt": ago(280)}}
    state = {"state": running, "lastState": {"terminated": ended}}
    return {"containerStatuses": [{"name": "main", "restartCount": 1, **state}]}


def late(**more) -> Situation:
    """Return a pod that waits for a GPU of its node."""
    status = {"phase": "Pending", "startTime": ago(240)}
    status |= lacks_gpu("initContainerStatuses", "vram-enforcer") | {"containerStatuses": []}
    notes = {"vramwarden.io/gpu-waits": LATE}
    pod = asks("late-0", "30Gi", node="n1", status=status, annotations=notes, **more)
    return Situation("late-0", full(pod))


@situation
def late_without_gpu() -> Situation:
    """A pod that was bound while vramwarden was away waits for a GPU of its node."""
    return late()


@situation
def late_with_an_owner() -> Situation:
    """The same pod belongs to a Job, which replaces it if it is deleted."""
    return late(owner="Job/late")


@situation
def image_not_pulled() -> Situation:
    """The image of a container cannot be pulled."""
    why = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "example"'}
    main = {"name": "main", "state": {"waiting": why}, "restartCount": 0}
    return Situation("rag", one_gpu(rag(status={"phase": "Pending", "containerStatuses": [main]})))


@situation
def running() -> Situation:
    """Nothing is wrong."""
    return Situation("rag", one_gpu(rag()), whole=True)


@situation
def running_on_two_gpus() -> Situation:
    """Nothing is wrong with a pod that has two GPUs, one of which is full."""
    return Situation("train-0", full())


@situation
def bound_to_a_broken_gpu() -> Situation:
    """The GPU of a running pod needs a reset."""
    gpu = a_gpu(79, held("rag", 8, 6, 6.1), healthy=False, fault="needs a reset", **H100)
    return Situation("rag", a_cluster([gpu_node("n1", gpu)], [rag()]))


@situation
def stopped_by_the_sidecar() -> Situation:
    """The sidecar stopped a process; the container runs again."""
    cluster = one_gpu(rag(status=failed(143)), peak=8.4, figures={"stops": 1})
    return Situation("rag", cluster, logs={"rag": stop_lines(8, 8.4)})


@situation
def stopped_and_ended() -> Situation:
    """The sidecar stopped a process, and the pod ended."""
    said = f"stopping a process: {stop(8, 8.4)}\n"
    last = write_message(TerminationMessage(8 * GIB, {"GPU-n1-0": gib(8.4)}, 1, 7200))
    ended = sidecar("terminated", exitCode=0, finishedAt=ago(290), message=said + last)
    main = {"exitCode": 143, "reason": "Error", "finishedAt": ago(300)}
    status = {
        "phase": "Failed",
        "initContainerStatuses": [ended],
        "containerStatuses": [{"name": "main", "state": {"terminated": main}, "restartCount": 0}],
    }
    cluster = a_cluster([gpu_node("n1", a_gpu(79, **H100))], [rag(status=status)])
    return Situation("rag", cluster)


@situation
def stopped_by_the_sentry() -> Situation:
    """The sentry stopped a process, and says so in a condition of the pod."""
    condition = {
        "type": "vramwarden.io/CapHeld", "status": "False", "reason": "VRAMCapExceeded",
        "message": stop(8, 8.4), "lastTransitionTime": ago(180),
    }  # fmt: skip
    ready = {"type": "Ready", "status": "True"}
    rule = first_rule(BY_SENTRY)
    pod = rag(status={"conditions": [ready, condition], "initContainerStatuses": []}, rule=rule)
    cluster = one_gpu(pod, peak=8.4, figures={"stops": 1, "held_by": "sentry"})
    nodes = tuple(map(with_sentry, cluster.nodes))
    return Situation("rag", replace(cluster, nodes=nodes), rules=BY_SENTRY)


@situation
def only_reported() -> Situation:
    """A pod is over its cap, and the policy only reports it."""
    would = {"would_stop": 3, "would_stop_since_s": NOW_S - 7200}
    said = stop_lines(8, 8.4, "would stop a process")
    pod = rag(rule=first_rule(REPORTS))
    cluster = one_gpu(pod, used=8.4, peak=8.4, figures=would)
    return Situation("rag", cluster, rules=REPORTS, logs={"rag": said})


@situation
def blind() -> Situation:
    """The sidecar cannot measure the pod."""
    why = "the driver gives no figure of process 12"
    log = log_line(100, "error", "cannot measure", why=why)
    cluster = one_gpu(rag(), used=None, peak=None)
    return Situation("rag", cluster, logs={"rag": log})


@situation
def waits_for_the_drivers_limit() -> Situation:
    """The pod requires the driver's limit, and does not start before it has one."""
    rule = first_rule(LIMITED)
    notes = {"vramwarden.io/driver-limit": "Require"}
    waiting = {"reason": "PodInitializing"}
    main = {"name": "main", "state": {"waiting": waiting}, "restartCount": 0}
    status = {
        "phase": "Pending",
        "initContainerStatuses": [sidecar() | {"started": False}],
        "containerStatuses": [main],
    }
    pod = rag(rule=rule, annotations=notes, status=status)
    why = "the driver has no limit for this pod on GPU GPU-n1-0"
    log = log_line(90, "warning", "waiting for the driver's limit", why=why)
    cluster = one_gpu(pod, used=0, peak=0, limit=HOLDS)
    return Situation("rag", cluster, rules=LIMITED, logs={"rag": log})


@situation
def driver_limit_lost() -> Situation:
    """The driver was to hold the cap, and cannot any longer; the sidecar holds it."""
    notes = {"vramwarden.io/driver-limit": "Auto"}
    cluster = one_gpu(rag(annotations=notes), figures={"held_by": "sidecar"}, limit=CANNOT)
    return Situation("rag", cluster)


@situation
def denied_by_the_driver() -> Situation:
    """The driver held the cap: an allocation failed inside the program, which ended."""
    notes = {"vramwarden.io/driver-limit": "Auto"}
    pod = rag(annotations=notes, status=failed(1))
    cluster = one_gpu(pod, used=7.9, peak=7.9, figures={"held_by": "driver"}, limit=HOLDS)
    return Situation("rag", cluster)


@situation
def sentry_never_wrote() -> Situation:
    """A pod is to be held by the sentry of its node, which has never written figures."""
    pod = rag(status={"initContainerStatuses": []}, rule=first_rule(BY_SENTRY))
    cluster = one_gpu(pod)
    nodes = tuple(replace(one, figures=None) for one in cluster.nodes)
    return Situation("rag", replace(cluster, nodes=nodes), rules=BY_SENTRY)


@situation
def ended() -> Situation:
    """A pod did its work and ended."""
    last = sidecar("terminated", exitCode=0, finishedAt=ago(7200), message=ENDED)
    done = {"exitCode": 0, "reason": "Completed", "finishedAt": ago(7200)}
    main = {"name": "main", "state": {"terminated": done}, "restartCount": 0}
    status = {"phase": "Succeeded", "initContainerStatuses": [last], "containerStatuses": [main]}
    cluster = a_cluster([gpu_node("n1", a_gpu(79, **H100))], [rag(status=status)])
    return Situation("rag", cluster)


@situation
def gone() -> Situation:
    """A pod that was stopped is deleted, and its workload has a history."""
    history = History("team-a", "Job", "embed", (a_run("embed-1", 10.4, 2),))
    return Situation("embed-1", beside_rag(more=(write_history(history),)))


@situation
def unknown_name() -> Situation:
    """Nothing has this name."""
    return Situation("trian-1", full())


@situation
def no_demand() -> Situation:
    """A pod asks for no GPU memory."""
    return Situation("web", beside_rag(asks("web", node="n1")))


@situation
def idiom_of_another_product() -> Situation:
    """A pod asks for GPU memory as HAMi reads it."""
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}
    return Situation(
        "hami", beside_rag(asks("hami", containers=[a_container(resources={"limits": limits})]))
    )


@situation
def created_before_the_policy() -> Situation:
    """A pod that asks for memory was created before vramwarden was installed, and runs."""
    return Situation("old", beside_rag(unseen("old", "8Gi", node="n1", age_s=90_000)))


@situation
def static_pod() -> Situation:
    """A kubelet runs a static pod that asks for memory."""
    mirror = {
        "kubernetes.io/config.mirror": "0123", "kubernetes.io/config.hash": "0123",
        "kubernetes.io/config.source": "file", "vramwarden.io/gpu-memory": "8Gi",
    }  # fmt: skip
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1", "controller": True}
    pod = unseen("driver-n1", node="n1", annotations=mirror,
                 metadata={"ownerReferences": [owner]})  # fmt: skip
    return Situation("driver-n1", beside_rag(pod))
