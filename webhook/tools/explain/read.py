"""Reads what `vramwarden explain` goes by, with the user's own rights.

What may not be read is left out and said. Only the pod, or the workload, has to be readable.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

from webhook.adapters.kube.client import KubeError, joined
from webhook.adapters.kube.histories import HistoriesApi
from webhook.core.bounds import MOST_ENTRIES
from webhook.core.pod.fields import as_objects
from webhook.core.words import counted
from webhook.names import (
    ASKING_ANNOTATIONS,
    ENFORCER_CONTAINER,
    NODE_GPU_LABEL,
)
from webhook.tools.explain.judge.explain import newest_in_trouble
from webhook.tools.explain.judge.report import PodFacts, WorkloadFacts
from webhook.tools.shared.bounds import MOST_EVENTS, MOST_LOG_BYTES, MOST_LOG_LINES, MOST_OWNED
from webhook.tools.shared.facts import ClusterObject, part
from webhook.tools.shared.node import ClusterNode
from webhook.tools.shared.pod import ClusterPod
from webhook.tools.shared.read import read_gpu_nodes, read_pods, why_no_figures

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from webhook.adapters.kube.client import Kube

    Json = dict[str, Any]

T = TypeVar("T")

_FEW_LINES: Final = 20
"""Of a log of which `MOST_LOG_LINES` are larger than that."""
_LONGEST_PREFIX: Final = 50
_ANSWER: Final = re.compile(
    r"\S+ answers 4[0-9][0-9]: (.*?)( \((?:you lack|the right is missing)[^()]*\))?", re.DOTALL
)
"""What the API server said, in the words of a KubeError."""
_NO_RIGHT: Final = "cannot create resource"


class WorkloadKind(NamedTuple):
    """A kind of workload, or of what belongs to one, and where it is read."""

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
POD: Final = WorkloadKind("Pod", "/api/v1", ("pod", "pods", "po"))
EVENT: Final = WorkloadKind("Event", "/api/v1", ())
KINDS: Final = (DEPLOYMENT, REPLICA_SET, STATEFUL_SET, DAEMON_SET, JOB, CRON_JOB)


class _Workload(ClusterObject):
    """A workload as it is stored."""

    kind: WorkloadKind


def read_pod_facts(
    kube: Kube, namespace: str, name: str, pod: ClusterPod | None = None
) -> PodFacts:
    """Read what is to be known of a pod, which may have been read already; raises KubeError."""
    reader = _ExplainReader(kube, namespace)
    if pod is None:
        raw = kube.find(reader.path(POD, name))
        pod = None if raw is None else ClusterPod(raw)
    nodes = reader.tried(lambda: tuple(read_gpu_nodes(kube)), why_no_figures)
    histories = reader.tried(lambda: HistoriesApi(kube).of(namespace))
    seen: dict[str, ClusterNode] | None = None
    names: dict[str, str] = {}
    log: list[str] = []
    if pod is None:
        names = reader.names(POD)
    elif pod.managed and not pod.node:
        labels = f"{NODE_GPU_LABEL}=true"
        with_gpus = partial(kube.list_all, joined("nodes"), _node, labelSelector=labels)
        found = reader.tried(with_gpus)
        seen = None if found is None else {one.name: one for one in found[0]}
        pods = reader.tried(lambda: read_pods(kube, namespace))
        names = {one.uid: one.name for one in pods or ()}
    elif pod.managed:
        log = reader.log(pod, name)
    return PodFacts(
        namespace=namespace,
        name=name,
        now_s=kube.now_s(),
        pod=pod,
        nodes=nodes,
        seen=seen,
        names=names,
        log=tuple(log),
        histories=tuple(histories or ()),
        left_out=tuple(reader.left_out),
    )


def read_workload_facts(
    kube: Kube, kind: WorkloadKind, namespace: str, name: str
) -> tuple[WorkloadFacts, ClusterPod | None]:
    """Read what is to be known of a workload, and its pod to explain; raises KubeError."""
    reader = _ExplainReader(kube, namespace)
    facts = WorkloadFacts(kind=kind.name, namespace=namespace, name=name, exists=False)
    raw = kube.find(reader.path(kind, name))
    if raw is None:
        return replace(facts, others=tuple(reader.names(kind).values())), None
    workload = _Workload(raw, kind=kind)
    template = _template(workload)
    facts = replace(facts, exists=True, misplaced=_misplaced(workload), template=template)
    if kind is CRON_JOB:
        jobs = reader.owned(JOB, "the Jobs of this CronJob", [workload.uid])
        newest = max(jobs, key=lambda one: one.created_s or 0.0, default=None)
        if newest is None:
            return replace(facts, wanted=0, left_out=tuple(reader.left_out)), None
        workload = _Workload(newest.raw, kind=JOB)
    owners, labels = [workload.uid], _selector(workload)
    if kind is DEPLOYMENT:
        of = "the ReplicaSets of this Deployment"
        owners += [one.uid for one in reader.owned(REPLICA_SET, of, owners, labels)]
    pods = reader.owned(POD, "its pods", owners, labels) if labels else []
    wanted = _wanted(workload)
    refusals, tried = _conditions(workload), False
    running = [one for one in pods if not one.ended]
    if not refusals and len(running) < wanted:
        refusals = reader.events(owners)
        if not refusals:
            refusals = reader.try_one(workload)
            tried = bool(refusals)
    ended, failed = _ended(workload)
    facts = replace(
        facts,
        refusals=tuple(refusals),
        wanted=wanted,
        pods=len(running),
        left_out=tuple(reader.left_out),
        ended=ended,
        failed=failed,
        tried=tried,
    )
    # Of a Job a pod that failed is news; elsewhere it lies about until somebody deletes it.
    asked_about = pods if workload.kind is JOB else running
    return facts, newest_in_trouble(asked_about or pods)


class _ExplainReader:
    """Reads objects of a namespace, and remembers what could not be read, with why."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self.left_out: list[str] = []

    def path(self, kind: WorkloadKind, *rest: str) -> str:
        parts = ("namespaces", self._namespace, f"{kind.name.lower()}s", *rest)
        return "/".join((kind.path, *(quote(one, safe="") for one in parts)))

    def tried(
        self, read: Callable[[], T], why: Callable[[KubeError], str] | None = None
    ) -> T | None:
        """Return what was read; None where that failed, which `why` says where it matters."""
        try:
            return read()
        except KubeError as error:
            if why is not None:
                self.left_out.append(why(error))
            return None

    def names(self, kind: WorkloadKind) -> dict[str, str]:
        """Return the names of all objects of a kind, by UID."""
        return dict(self.tried(lambda: self._kube.list_rows(self.path(kind), _row)) or ())

    def owned(
        self, kind: WorkloadKind, what: str, owners: Sequence[str], labels: str = ""
    ) -> list[ClusterPod]:
        """Return the objects of a kind that these own, none of which has to be a pod."""

        def of_ours(raw: Json) -> ClusterPod | None:
            found = ClusterPod(raw)
            return found if found.owner_uid in owners else None

        found = self.tried(
            lambda: self._kube.list_first(
                self.path(kind), of_ours, MOST_OWNED, labelSelector=labels
            ),
            lambda error: f"{what}: {error}",
        )
        return [one for one in found or () if one]

    def log(self, pod: ClusterPod, name: str) -> list[str]:
        """Return the newest lines of the enforcer's log, with those before its last restart."""
        status = next((one for one in pod.statuses() if one.get("name") == ENFORCER_CONTAINER), {})
        ran = part(status, "state").keys() & {"running", "terminated"}
        if not ran and not status.get("restartCount"):
            return []

        def read(**query: str) -> list[str]:
            path = self.path(POD, name, "log")
            query |= {"container": ENFORCER_CONTAINER, "limitBytes": str(MOST_LOG_BYTES)}
            text = self._kube.text(path, MOST_LOG_BYTES, tailLines=str(MOST_LOG_LINES), **query)
            if len(text.encode()) >= MOST_LOG_BYTES:  # the oldest arrive first
                text = self._kube.text(path, MOST_LOG_BYTES, tailLines=str(_FEW_LINES), **query)
            return text.splitlines()[-MOST_LOG_LINES:]

        before = self.tried(lambda: read(previous="true")) if status.get("restartCount") else None
        return [*(before or ()), *(self.tried(read, _why_no_log) or ())]

    def events(self, uids: Sequence[str]) -> list[str]:
        """Return the newest message of FailedCreate: no condition of others says it."""
        found: list[tuple[str, str]] = []
        for uid in uids[-3:]:
            fields = f"involvedObject.uid={uid},reason=FailedCreate"
            read = partial(self._kube.list_first, self.path(EVENT), _said, MOST_EVENTS)
            asked = partial(read, fieldSelector=fields)
            found += self.tried(asked, lambda error: f"Events: {error}") or []
        return [max(found)[1]] if found else []

    def try_one(self, workload: _Workload) -> list[str]:
        """Return how a pod of a workload's template is denied, which is tried without storing it.

        Events are gone after an hour, and of a Job nothing else says why it has no pods. As the
        user, so a policy that goes by who asks may answer its controller otherwise.
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
            self._kube.create(self.path(POD), body, dry_run=True)
        except KubeError as error:
            found = _ANSWER.fullmatch(str(error))
            if found is None or _NO_RIGHT in found[1]:
                self.left_out.append(
                    "whether its pods are denied: you may not try one (create pods)"
                )
                return []
            return [found[1]]
        return []


def _why_no_log(error: KubeError) -> str:
    if error.forbidden:
        return "the log of container vram-enforcer: you may not read pods/log here"
    return f"the log of container vram-enforcer: {error}"


def _conditions(workload: _Workload) -> list[str]:
    """Return what a controller says in the status: as long as it holds, so better than an Event."""
    return [
        str(one.get("message") or "")
        for one in as_objects(workload.part("status").get("conditions"), MOST_ENTRIES)
        if one.get("type") == "ReplicaFailure" and one.get("status") == "True"
    ]


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
        for one in as_objects(status.get("conditions"), MOST_ENTRIES)
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
