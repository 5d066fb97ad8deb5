"""Reads what `vramwarden explain` goes by, with the user's own rights.

What may not be read is left out and said. Only the pod, or the workload, has to be readable.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

from webhook.adapters.kube.client import KubeError, joined
from webhook.core.kinds.histories import read_history
from webhook.core.pod.fields import as_objects
from webhook.core.words import counted
from webhook.names import (
    ASKING_ANNOTATIONS,
    ENFORCER_CONTAINER,
    NODE_GPU_LABEL,
    SEEING_API_VERSION,
    VRAM_HISTORIES,
)
from webhook.tools.explain.judge.explain import newest_in_trouble
from webhook.tools.explain.judge.report import PodFacts, WorkloadFacts
from webhook.tools.explain.judge.stops import MOST_LINES
from webhook.tools.shared.facts import MOST, ClusterObject, part
from webhook.tools.shared.node import ClusterNode
from webhook.tools.shared.pod import ClusterPod
from webhook.tools.shared.read import read_gpu_nodes, read_pods, why_no_figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.adapters.kube.client import Kube

    Json = dict[str, Any]

T = TypeVar("T")

MOST_LOG_BYTES: Final = 2**20
_FEW_LINES: Final = 20
"""Of a log of which `MOST_LINES` are larger than that."""
MOST_PODS: Final = 500
"""Of a workload."""
_MOST_EVENTS: Final = 50
_MOST_JOBS: Final = 500
_LONGEST_PREFIX: Final = 50
_ANSWER: Final = re.compile(
    r"\S+ answers 4[0-9][0-9]: (.*?)( \(the right is missing from our role\))?", re.DOTALL
)
"""What the API server said, in the words of a KubeError."""
_NO_RIGHT: Final = "cannot create resource"
_FINISHED: Final = ("Succeeded", "Failed")


class WorkloadKind(NamedTuple):
    """A kind of workload, and where it is read."""

    name: str
    path: str
    words: tuple[str, ...]
    """How kubectl lets people write it."""


DEPLOYMENT: Final = WorkloadKind(
    "Deployment", "/apis/apps/v1", ("deployment", "deployments", "deploy", "deployment.apps")
)
REPLICA_SET: Final = WorkloadKind(
    "ReplicaSet", "/apis/apps/v1", ("replicaset", "replicasets", "rs")
)
STATEFUL_SET: Final = WorkloadKind(
    "StatefulSet", "/apis/apps/v1", ("statefulset", "statefulsets", "sts")
)
DAEMON_SET: Final = WorkloadKind("DaemonSet", "/apis/apps/v1", ("daemonset", "daemonsets", "ds"))
JOB: Final = WorkloadKind("Job", "/apis/batch/v1", ("job", "jobs", "job.batch"))
CRON_JOB: Final = WorkloadKind("CronJob", "/apis/batch/v1", ("cronjob", "cronjobs", "cj"))
KINDS: Final = (DEPLOYMENT, REPLICA_SET, STATEFUL_SET, DAEMON_SET, JOB, CRON_JOB)


class _Workload(ClusterObject):
    """A workload as it is stored."""

    kind: WorkloadKind


def read_pod_facts(
    kube: Kube, namespace: str, name: str, pod: ClusterPod | None = None
) -> PodFacts:
    """Read what is to be known of a pod, which may have been read already; raises KubeError."""
    left_out: list[str] = []
    if pod is None:
        raw = kube.find(joined("namespaces", namespace, "pods", name))
        pod = None if raw is None else ClusterPod(raw)
    nodes = _try(lambda: tuple(read_gpu_nodes(kube)), left_out, why_no_figures)
    histories = _try(
        lambda: kube.list_all(_histories(namespace), read_history)[0], [], lambda _: ""
    )
    known = tuple(one for one in histories or () if one)
    if pod is None:
        rows = _try(lambda: kube.list_rows(_path("", namespace, "pods"), _row), [], lambda _: "")
        known_names = dict(rows or ())
        left = tuple(left_out)
        return PodFacts(
            namespace, name, kube.now_s(), None, nodes, None, known_names, (), known, left
        )
    seen: dict[str, ClusterNode] | None = None
    names: dict[str, str] = {}
    log: tuple[str, ...] = ()
    if pod.managed and not pod.node:
        labels = f"{NODE_GPU_LABEL}=true"
        found = _try(
            lambda: kube.list_all(joined("nodes"), _node, labelSelector=labels)[0],
            [],
            lambda _: "",
        )
        seen = None if found is None else {one.name: one for one in found}
        pods = _try(lambda: read_pods(kube, namespace), [], lambda _: "")
        names = {one.uid: one.name for one in pods or ()}
    elif pod.managed:
        log = _log(kube, namespace, name, pod, left_out)
    return PodFacts(
        namespace,
        name,
        kube.now_s(),
        pod,
        nodes,
        seen,
        names,
        log,
        known,
        tuple(left_out),
    )


def read_workload_facts(
    kube: Kube, kind: WorkloadKind, namespace: str, name: str
) -> tuple[WorkloadFacts, ClusterPod | None]:
    """Read what is to be known of a workload, and its pod to explain; raises KubeError."""
    raw = kube.find(_path(kind.path, namespace, _plural(kind), name))
    if raw is None:
        path = _path(kind.path, namespace, _plural(kind))
        rows = _try(lambda: kube.list_rows(path, _row), [], lambda _: "")
        others = tuple(found for _, found in rows or ())
        return WorkloadFacts(kind.name, namespace, name, False, others=others), None
    left_out: list[str] = []
    asked = workload = _Workload(raw, kind=kind)
    owners = [workload.uid]
    if kind is CRON_JOB:
        newest = _newest_job(kube, namespace, workload.uid, left_out)
        if newest is None:
            facts = WorkloadFacts(
                kind.name,
                namespace,
                name,
                True,
                wanted=0,
                left_out=tuple(left_out),
                misplaced=_misplaced(asked),
                template=_template(asked),
            )
            return facts, None
        workload = newest
        owners = [workload.uid]
    elif kind is DEPLOYMENT:
        owners += _replica_sets(kube, namespace, workload, left_out)
    pods = _pods_of(kube, namespace, workload, owners, left_out)
    wanted = _wanted(workload)
    refusals, tried = _conditions(workload), False
    running = [one for one in pods if not one.ended]
    if not refusals and len(running) < wanted:
        refusals = _events(kube, namespace, owners, left_out)
        if not refusals:
            refusals = _try_one(kube, namespace, workload, left_out)
            tried = bool(refusals)
    ended, failed = _ended(workload)
    facts = WorkloadFacts(
        asked.kind.name,
        namespace,
        name,
        True,
        tuple(refusals),
        wanted,
        len(running),
        left_out=tuple(left_out),
        ended=ended,
        failed=failed,
        tried=tried,
        misplaced=_misplaced(asked),
        template=_template(asked),
    )
    # Of a Job a pod that failed is news; elsewhere it lies about until somebody deletes it.
    asked_about = pods if workload.kind is JOB else running
    return facts, newest_in_trouble(asked_about or pods)


def _log(
    kube: Kube, namespace: str, name: str, pod: ClusterPod, left_out: list[str]
) -> tuple[str, ...]:
    """Return the newest lines of the enforcer's log, before them those before its last restart."""
    status = next((one for one in pod.statuses() if one.get("name") == ENFORCER_CONTAINER), {})
    ran = part(status, "state").keys() & {"running", "terminated"}
    if not ran and not status.get("restartCount"):
        return ()
    path = joined("namespaces", namespace, "pods", name, "log")

    def read(*, previous: bool) -> list[str]:
        query = {"container": ENFORCER_CONTAINER, "limitBytes": str(MOST_LOG_BYTES)}
        if previous:
            query["previous"] = "true"
        text = kube.text(path, MOST_LOG_BYTES, tailLines=str(MOST_LINES), **query)
        if len(text.encode()) >= MOST_LOG_BYTES:  # the oldest arrive first
            text = kube.text(path, MOST_LOG_BYTES, tailLines=str(_FEW_LINES), **query)
        return text.splitlines()[-MOST_LINES:]

    lines: list[str] = []
    if status.get("restartCount"):
        lines += _try(lambda: read(previous=True), [], lambda _: "") or []
    lines += _try(lambda: read(previous=False), left_out, _why_no_log) or []
    return tuple(lines)


def _why_no_log(error: KubeError) -> str:
    if error.forbidden:
        return "the log of container vram-enforcer: you may not read pods/log here"
    return f"the log of container vram-enforcer: {error}"


def _newest_job(kube: Kube, namespace: str, uid: str, left_out: list[str]) -> _Workload | None:
    path = _path(JOB.path, namespace, _plural(JOB))

    def of_ours(raw: Json) -> ClusterObject | None:
        job = ClusterObject(raw)
        return job if job.owner_uid == uid else None

    found = _try(
        lambda: kube.list_first(path, of_ours, _MOST_JOBS),
        left_out,
        lambda error: f"the Jobs of this CronJob: {error}",
    )
    jobs = [one for one in found or () if one]
    newest = max(jobs, key=lambda one: one.created_s or 0.0, default=None)
    return None if newest is None else _Workload(newest.raw, kind=JOB)


def _replica_sets(
    kube: Kube, namespace: str, workload: _Workload, left_out: list[str]
) -> list[str]:
    path = _path(REPLICA_SET.path, namespace, _plural(REPLICA_SET))
    labels = _selector(workload)

    def uid_of_ours(raw: Json) -> str:
        found = ClusterObject(raw)
        return found.uid if found.owner_uid == workload.uid else ""

    found = _try(
        lambda: kube.list_first(path, uid_of_ours, MOST_PODS, labelSelector=labels),
        left_out,
        lambda error: f"the ReplicaSets of this Deployment: {error}",
    )
    return [one for one in found or () if one]


def _pods_of(
    kube: Kube, namespace: str, workload: _Workload, owners: list[str], left_out: list[str]
) -> list[ClusterPod]:
    path, labels = _path("", namespace, "pods"), _selector(workload)

    def of_ours(raw: Json) -> ClusterPod | None:
        pod = ClusterPod(raw)
        return pod if pod.owner_uid in owners else None

    if not labels:
        return []
    found = _try(
        lambda: kube.list_first(path, of_ours, MOST_PODS, labelSelector=labels),
        left_out,
        lambda error: f"its pods: {error}",
    )
    return [one for one in found or () if one]


def _conditions(workload: _Workload) -> list[str]:
    """Return what a controller says in the status: as long as it holds, so better than an Event."""
    return [
        str(one.get("message") or "")
        for one in as_objects(workload.part("status").get("conditions"), MOST)
        if one.get("type") == "ReplicaFailure" and one.get("status") == "True"
    ]


def _events(kube: Kube, namespace: str, uids: list[str], left_out: list[str]) -> list[str]:
    """Return the newest message of FailedCreate: no condition of others says it."""
    path = _path("", namespace, "events")
    found: list[tuple[str, str]] = []
    for uid in uids[-3:]:
        fields = f"involvedObject.uid={uid},reason=FailedCreate"
        found += (
            _try(
                lambda fields=fields: kube.list_first(  # type: ignore[misc]
                    path, _said, _MOST_EVENTS, fieldSelector=fields
                ),
                left_out,
                lambda error: f"Events: {error}",
            )
            or []
        )
    return [max(found)[1]] if found else []


def _try_one(kube: Kube, namespace: str, workload: _Workload, left_out: list[str]) -> list[str]:
    """Return how a pod of a workload's template is denied, which is tried without storing it.

    Events are gone after an hour, and of a Job nothing else says why it has no pods. As the user,
    so a policy that looks at who asks may answer its controller otherwise.
    """
    template = workload.part("spec", "template")
    name = workload.name[:_LONGEST_PREFIX]
    metadata = {key: part(template, "metadata", key) for key in ("labels", "annotations")}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "generateName": f"{name}-"},
        "spec": part(template, "spec"),
    }
    try:
        kube.create(_path("", namespace, "pods"), body, dry_run=True)
    except KubeError as error:
        found = _ANSWER.fullmatch(str(error))
        if found is None or _NO_RIGHT in found[1]:
            left_out.append("whether its pods are denied: you may not try one (create pods)")
            return []
        return [found[1]]
    return []


def _said(event: Json) -> tuple[str, str]:
    at = event.get("lastTimestamp") or event.get("eventTime") or ""
    return str(at), str(event.get("message") or "")


def _wanted(workload: _Workload) -> int:
    spec, status = workload.part("spec"), workload.part("status")
    if workload.kind is DAEMON_SET:
        return _count(status.get("desiredNumberScheduled"), 0)
    if workload.kind is not JOB:
        return _count(spec.get("replicas"), 1)
    if _ended(workload)[0]:
        return 0
    at_once = _count(spec.get("parallelism"), 1)
    left = _count(spec.get("completions"), at_once) - _count(status.get("succeeded"), 0)
    return max(0, min(at_once, left))


def _ended(workload: _Workload) -> tuple[str, str]:
    """Say what became of a Job that makes no more pods, and why it failed; else two empty texts.

    Source: JobStatus in kubernetes/api/batch/v1.
    """
    if workload.kind is not JOB:
        return "", ""
    spec, status = workload.part("spec"), workload.part("status")
    succeeded, failed = (_count(status.get(key), 0) for key in ("succeeded", "failed"))
    counts = f"{counted(succeeded, 'pod')} succeeded, {failed} failed"
    held = {
        one.get("type"): one
        for one in as_objects(status.get("conditions"), MOST)
        if one.get("status") == "True"
    }
    for kind in ("Failed", "FailureTarget"):
        if kind in held:
            said = (str(held[kind].get(key) or "") for key in ("reason", "message"))
            return f"has failed: {counts}", ": ".join(filter(None, said))
    if "Complete" in held or status.get("completionTime"):
        return f"is complete: {counts}", ""
    return (f"is suspended: {counts}", "") if spec.get("suspend") is True else ("", "")


def _template(workload: _Workload) -> str:
    """Return the path of the template of a workload's pods."""
    return "spec.jobTemplate.spec.template" if workload.kind is CRON_JOB else "spec.template"


def _misplaced(workload: _Workload) -> tuple[str, ...]:
    """Return those of our annotations that a workload has itself, and not on its template."""
    template = workload.part(*_template(workload).split("."), "metadata", "annotations")
    own = workload.annotations
    return tuple(key for key in ASKING_ANNOTATIONS if key in own and key not in template)


def _count(value: object, default: int) -> int:
    return value if type(value) is int and value >= 0 else default


def _selector(workload: _Workload) -> str:
    """Write a workload's selector as a query; expressions of it only narrow it, so they may miss.

    Whose a pod is, its owner says.
    """
    labels = workload.part("spec", "selector", "matchLabels")
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _node(raw: Json) -> ClusterNode:
    return ClusterNode(raw).keep("name", "labels", "taints", "unschedulable")


def _row(row: Json) -> tuple[str, str]:
    """Return UID and name of a row of a table, or of a whole object."""
    metadata = part(row, "object", "metadata") or part(row, "metadata")
    return str(metadata.get("uid")), str(metadata.get("name"))


def _histories(namespace: str) -> str:
    return _path(f"/apis/{SEEING_API_VERSION}", namespace, VRAM_HISTORIES)


def _path(group: str, namespace: str, plural: str, *rest: str) -> str:
    named = (quote(one, safe="") for one in ("namespaces", namespace, plural, *rest))
    return "/".join((group or "/api/v1", *named))


def _plural(kind: WorkloadKind) -> str:
    return kind.name.lower() + "s"


def _try(read: Callable[[], T], left_out: list[str], why: Callable[[KubeError], str]) -> T | None:
    """Return what was read; None where that failed, with a sentence of why."""
    try:
        return read()
    except KubeError as error:
        said = why(error)
        if said:
            left_out.append(said)
        return None
