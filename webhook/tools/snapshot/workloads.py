"""Workloads, their pods and why these were denied; only the workload itself has to be readable."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from webhook.core.formatting import format_count
from webhook.core.kinds.workloads import Workload
from webhook.core.pod.fields import find_string
from webhook.tools.snapshot.cluster import ClusterSnapshot, read_row
from webhook.tools.snapshot.kinds import (
    CRON_JOB,
    DAEMON_SET,
    DEPLOYMENT,
    JOB,
    POD,
    REPLICA_SET,
    STATEFUL_SET,
    WorkloadKind,
)
from webhook.tools.snapshot.objects import ClusterObject, FactUnavailable
from webhook.tools.snapshot.pod import ClusterPod

Json = dict[str, Any]

MOST_BETWEEN: Final = 16
"""Maximum number of owners that are read between pods and the object."""
MOST_READ: Final = 20
"""Maximum number of pods that are read whole, the newest."""
MOST_FAILED: Final = 100
"""Maximum number of workloads that are read because an Event reports a denial."""
_CONTROLLERS: Final = (REPLICA_SET, STATEFUL_SET, DAEMON_SET, JOB)
_DEEPEST: Final = 5
"""Maximum number of owners above each other."""
_VERSION: Final = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?v[a-z0-9]{1,30}")
_DENIED: Final = " denied the request: "
_FAILED_CREATE: Final = "reason=FailedCreate"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadState:
    """A workload and its pods."""

    kind: str
    """Kind as Kubernetes writes it: `Deployment`."""
    name: str
    namespace: str = ""
    raw: Json | None = None
    """The object; None if only its pods or Events were read."""
    pods: tuple[ClusterPod, ...] = ()
    """Its pods that have not ended; of a Job all."""
    running: int = 0
    """Number of pods that have not ended."""
    wanted: int | None = None
    """Number of pods that there should be; None if unknown."""
    denial: str = ""
    """Reason why pods cannot be created: of its condition, else of an Event, else of a dry run."""
    tried: bool = False
    """True if the denial is the answer to a dry run."""
    ended: str = ""
    """State of a Job that creates no more pods: `is complete: 1 pod succeeded, 0 failed`."""
    failed: str = ""
    """Reason why a Job has failed; empty if it has not."""

    @property
    def missing(self) -> int:
        """Number of pods that it lacks; 0 if unknown."""
        return max(0, (self.wanted or 0) - self.running)


def read_denied_workloads(
    snapshot: ClusterSnapshot, is_meant: Callable[[str], bool]
) -> list[WorkloadState]:
    """Return the workloads that lack pods because of a denial that `is_meant`, sorted.

    | its controller is | denied, by | lacks pods, by |
    | --- | --- | --- |
    | a ReplicaSet | its condition ReplicaFailure | its status |
    | another of Kubernetes | its newest Event FailedCreate | its status |
    | of another product, or cannot be read | its newest Event FailedCreate | the same Event |
    | a ReplicaSet, and these cannot be listed | its newest Event FailedCreate | its status |

    Lists that cannot be read are noted in the snapshot.
    """

    def of_set(raw: Json) -> WorkloadState | None:
        failure = ClusterObject(raw).condition("ReplicaFailure", "True")
        return _lacking(raw, REPLICA_SET) if failure and is_meant(failure.message) else None

    sets = snapshot.attempt(
        partial(snapshot.collect, REPLICA_SET, of_set), "ReplicaSets that cannot create pods"
    )

    def controller_of(event: Json) -> tuple[str, str, str] | None:
        about = ClusterObject({"metadata": event.get("involvedObject")})
        kind = find_string(event, "involvedObject", "kind")
        is_listed = kind == REPLICA_SET.name and sets is not None
        is_named = about.name.strip(".") and not is_listed
        return (about.namespace, kind, about.name) if is_named else None

    events = partial(snapshot.newest_events, _FAILED_CREATE, controller_of)
    newest = snapshot.attempt(events, "other workloads that cannot create pods") or {}
    denied = [
        WorkloadState(kind=kind, name=name, namespace=namespace, denial=message)
        for (namespace, kind, name), message in newest.items()
        if is_meant(message)
    ]
    read = (_with_status(snapshot, one) for one in denied[:MOST_FAILED])
    total: dict[tuple[str, str, str], WorkloadState] = {}
    for one in (*(sets or ()), *filter(None, read), *denied[MOST_FAILED:]):
        whose = one.namespace, one.kind, one.name
        wanted, running = one.wanted or 0, one.running
        if before := total.get(whose):
            wanted, running = wanted + (before.wanted or 0), running + before.running
        total[whose] = replace(one, wanted=wanted, running=running)
    return [total[whose] for whose in sorted(total)]


def _with_status(snapshot: ClusterSnapshot, found: WorkloadState) -> WorkloadState | None:
    """Return a controller that an Event names by its status; None if it lacks no pods now."""
    kind = next((one for one in _CONTROLLERS if one.name == found.kind), None)
    if kind is None:
        return found
    try:
        raw = ClusterSnapshot(snapshot.kube, found.namespace).find(kind, found.name)
    except FactUnavailable:
        return found
    return _lacking(raw, kind, found.denial) if raw else None


def _lacking(raw: Json, kind: WorkloadKind, denial: str = "") -> WorkloadState | None:
    """Return a controller that lacks pods, under its owner's name if it has one; else None."""
    found = _read_controller(raw, kind)
    if not found.missing:
        return None
    owner, denial = ClusterObject(raw).owner or found, denial or found.denial
    return replace(found, kind=owner.kind, name=owner.name, denial=denial, raw=None)


def read_workload(snapshot: ClusterSnapshot, kind: WorkloadKind, name: str) -> WorkloadState | None:
    """Return a workload of a kind of Kubernetes; None if it does not exist.

    Raises FactUnavailable or KubeError if it cannot be read.
    """
    raw = snapshot.find(kind, name)
    if raw is None:
        return None
    workload, made_by = ClusterObject(raw), kind
    if kind is CRON_JOB:
        jobs = snapshot.attempt(
            partial(snapshot.owned, JOB, [workload.uid]), "the Jobs of this CronJob"
        )
        newest = max(jobs or (), key=lambda one: one.created_s or 0.0, default=None)
        if newest is None:
            return WorkloadState(kind=kind.name, name=name, raw=raw, wanted=0)
        workload, made_by = newest, JOB
    owners = [workload.uid]
    equal = workload.part("spec", "selector", "matchLabels")
    labels = ",".join(f"{key}={value}" for key, value in equal.items())
    if kind is DEPLOYMENT:
        sets = snapshot.attempt(
            partial(snapshot.owned, REPLICA_SET, owners, labels),
            "the ReplicaSets of this Deployment",
        )
        owners = [*owners, *(one.uid for one in sets or ())]
    pods: list[ClusterPod] = []
    if labels:
        pods = snapshot.attempt(partial(snapshot.owned, POD, owners, labels), "its pods") or []
    running = [one for one in pods if not one.ended]
    # A failed pod of a Job is news; other controllers' failed pods stay until they are deleted.
    shown = tuple(pods if made_by is JOB else running or pods)
    found = _read_controller(workload.raw, made_by)
    found = replace(found, kind=kind.name, name=name, raw=raw, pods=shown, running=len(running))
    if found.denial or not found.missing:
        return found

    def is_about_it(event: Json) -> bool | None:
        return find_string(event, "involvedObject", "uid") in owners or None

    events = partial(snapshot.newest_events, _FAILED_CREATE, is_about_it)
    if denial := (snapshot.attempt(events, "Events") or {}).get(True):
        return replace(found, denial=denial)
    # Events are gone after an hour, and nothing else states why a Job has no pods. The dry run is
    # the user's, so a policy that depends on the user may answer otherwise.
    template = workload.part("spec", "template")
    trial = snapshot.attempt(
        partial(snapshot.try_create, snapshot.namespace, workload.name, template),
        "whether its pods are denied",
    )
    denial = trial.denial if trial else ""
    return replace(found, denial=denial, tried=bool(denial))


def _read_controller(raw: Json, kind: WorkloadKind) -> WorkloadState:
    """Return a controller by its object alone: its pods are counted by its status.

    A failure in its status holds as long as it is there, unlike an Event.
    """
    found = ClusterObject(raw)
    spec, status, ended, failed = found.part("spec"), found.part("status"), "", ""
    failure = found.condition("ReplicaFailure", "True")
    if kind is DAEMON_SET:
        running, wanted = status.get("currentNumberScheduled"), status.get("desiredNumberScheduled")
    elif kind is JOB:
        ended, failed = _ended(found)
        at_once = _count(spec.get("parallelism"), 1)
        left = _count(spec.get("completions"), at_once) - _count(status.get("succeeded"), 0)
        running, wanted = status.get("active"), 0 if ended else max(0, min(at_once, left))
    else:
        running, wanted = status.get("replicas"), _count(spec.get("replicas"), 1)
    return WorkloadState(
        kind=kind.name,
        name=found.name,
        namespace=found.namespace,
        raw=raw,
        running=_count(running, 0),
        wanted=_count(wanted, 0),
        denial=failure.message if failure else "",
        ended=ended,
        failed=failed,
    )


def _ended(job: ClusterObject) -> tuple[str, str]:
    """Return the state of a Job that creates no more pods, and why it failed; else empty texts.

    Source: JobStatus in kubernetes/api/batch/v1.
    """
    status = job.part("status")
    succeeded, failed = (_count(status.get(key), 0) for key in ("succeeded", "failed"))
    counts = f"{format_count(succeeded, 'pod')} succeeded, {failed} failed"
    for name in ("Failed", "FailureTarget"):
        if condition := job.condition(name, "True"):
            said = ": ".join(filter(None, (condition.reason, condition.message)))
            return f"has failed: {counts}", said
    if job.condition("Complete", "True") or status.get("completionTime"):
        return f"is complete: {counts}", ""
    suspended = job.part("spec").get("suspend") is True
    return (f"is suspended: {counts}", "") if suspended else ("", "")


def _count(value: object, default: int) -> int:
    return value if type(value) is int and value >= 0 else default


def read_owned(snapshot: ClusterSnapshot, kind: WorkloadKind, name: str) -> WorkloadState | None:
    """Return an object of any kind by its pods, or an Event that denies them; None without any.

    The object itself is not read, since rights to other products' kinds are rare: a pod names its
    owner, and that its own. Raises FactUnavailable if pods cannot be listed.
    """
    find_owner = _owner_finder(snapshot, kind, name)
    owned = [(owner, row) for row in snapshot.pod_rows if (owner := find_owner(row))]
    if not owned:

        def denied_kind(event: Json) -> str | None:
            found = find_string(event, "involvedObject", "kind")
            is_denial = _is_of(kind, found) and _DENIED in find_string(event, "message")
            return found if is_denial else None

        fields = f"involvedObject.name={name},type=Warning"
        events = snapshot.attempt(partial(snapshot.newest_events, fields, denied_kind), "Events")
        states = (
            WorkloadState(kind=one, name=name, denial=why) for one, why in (events or {}).items()
        )
        return next(states, None)
    pods_of = [row for _, row in owned]
    newest = sorted(pods_of, key=lambda one: one.created_s or 0.0, reverse=True)[:MOST_READ]
    read = [snapshot.attempt(partial(snapshot.find_pod, one.name)) for one in newest]
    pods = [one for one in read if one]
    running = [one for one in pods if not one.ended]
    return WorkloadState(
        kind=owned[0][0].kind,
        name=name,
        pods=tuple(running or pods),
        running=len(running) if len(owned) <= MOST_READ else len(owned),
    )


def owners_of_kind(snapshot: ClusterSnapshot, kind: WorkloadKind) -> dict[str, str]:
    """Return the kinds of the objects that own pods and that a word may mean, by their names."""
    owners = (one for row in snapshot.pod_rows for one in (row.owner, row.workload))
    return {one.name: one.kind for one in owners if one and _is_of(kind, one.kind)}


def _is_of(kind: WorkloadKind, found: str) -> bool:
    """Return True if a word for a kind of another product, as `pytorchjobs`, means this kind."""
    return WorkloadKind(found, "").is_called(kind.name.partition(".")[0])


def _owner_finder(
    snapshot: ClusterSnapshot, kind: WorkloadKind, name: str
) -> Callable[[ClusterPod], Workload | None]:
    """Return a function that finds, by what it owns, an object of this kind and name.

    Owners in between are read, each once and few in all, if they begin with the name, as nearly all
    do.
    """
    between: dict[str, ClusterPod | None] = {}

    def read_owner(found: ClusterPod) -> ClusterPod | None:
        version, owner = found.owner_version, found.owner
        if owner is None or not owner.name.startswith(name) or not _VERSION.fullmatch(version):
            return None
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        above = WorkloadKind(owner.kind, root)
        path = snapshot.path(above, owner.name)
        if path not in between and len(between) < MOST_BETWEEN:
            raw = snapshot.attempt(partial(snapshot.find, above, owner.name))
            between[path] = None if raw is None else read_row(raw)
        return between.get(path)

    def find_owner(row: ClusterPod) -> Workload | None:
        found: ClusterPod | None = row
        for _ in range(_DEEPEST):
            owners = (found.owner, found.workload) if found else ()
            mine = [one for one in owners if one and _is_of(kind, one.kind)]
            if mine or found is None:
                return next((one for one in mine if one.name == name), None)
            found = read_owner(found)
        return None

    return find_owner
