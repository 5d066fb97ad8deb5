"""Reads what `explain` goes by of a workload of Kubernetes' own, and its pod to explain."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from webhook.core.admission.stray_keys import find_stray_keys
from webhook.core.pod.fields import as_objects
from webhook.core.pod.templates import find_templates
from webhook.core.words import counted
from webhook.tools.explain.judge.explain import newest_in_trouble
from webhook.tools.explain.judge.report import WorkloadFacts
from webhook.tools.explain.kinds import (
    CRON_JOB,
    DAEMON_SET,
    DEPLOYMENT,
    JOB,
    POD,
    REPLICA_SET,
    WorkloadKind,
)
from webhook.tools.explain.read.reader import ExplainReader
from webhook.tools.snapshot.objects import ClusterObject

if TYPE_CHECKING:
    from webhook.adapters.kube.client import Kube
    from webhook.tools.snapshot.pod import ClusterPod

    Json = dict[str, Any]


class _Workload(ClusterObject):
    """A workload as it is stored."""

    kind: WorkloadKind


def read_workload_facts(
    kube: Kube, kind: WorkloadKind, namespace: str, name: str
) -> tuple[WorkloadFacts, ClusterPod | None]:
    """Read what is to be known of a workload, and its pod to explain; raises KubeError."""
    reader = ExplainReader(kube, namespace)
    facts = WorkloadFacts(kind=kind.name, namespace=namespace, name=name, exists=False)
    raw = kube.find(reader.path(kind, name))
    if raw is None:
        return replace(facts, others=tuple(reader.names(kind).values())), None
    workload = _Workload(raw, kind=kind)
    (template,) = find_templates(raw, kind.name, "")
    strays = find_stray_keys(raw, kind.name, [template])
    misplaced = tuple(
        dict.fromkeys(one.key for one in strays if one.templates and one.key == one.meant)
    )
    facts = replace(facts, exists=True, misplaced=misplaced, template=template.field)
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
            refusals = _try_one(reader, workload)
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


def _try_one(reader: ExplainReader, workload: _Workload) -> list[str]:
    """Return how a pod of a workload's template is denied, which is tried without storing it.

    Events are gone after an hour, and of a Job nothing else says why it has no pods. As the user,
    so a policy that goes by who asks may answer its controller otherwise.
    """
    template = workload.part("spec", "template")
    trial = reader.try_create(workload.name, template, "its pods are denied")
    return [trial.denial] if trial and trial.denial else []


def _conditions(workload: _Workload) -> list[str]:
    """Return what a controller says in the status: as long as it holds, so better than an Event."""
    return [
        str(one.get("message") or "")
        for one in as_objects(workload.part("status").get("conditions"))
        if one.get("type") == "ReplicaFailure" and one.get("status") == "True"
    ]


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
        for one in as_objects(status.get("conditions"))
        if one.get("status") == "True"
    }
    for kind in ("Failed", "FailureTarget"):
        if kind in held:
            said = (str(held[kind].get(key) or "") for key in ("reason", "message"))
            return f"has failed: {counts}", ": ".join(filter(None, said))
    if "Complete" in held or status.get("completionTime"):
        return f"is complete: {counts}", ""
    return (f"is suspended: {counts}", "") if spec.get("suspend") is True else ("", "")


def _count(value: object, default: int) -> int:
    return value if type(value) is int and value >= 0 else default


def _selector(workload: _Workload) -> str:
    """Write a workload's selector as a query; expressions of it only narrow it, so they may miss.

    Whose a pod is, its owner says.
    """
    labels = workload.part("spec", "selector", "matchLabels")
    return ",".join(f"{key}={value}" for key, value in labels.items())
