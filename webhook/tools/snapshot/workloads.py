"""Workloads, their pods, and denials of these pods.

Only the workload itself must be readable.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from webhook.core.formatting import format_count
from webhook.core.kinds.workloads import Workload
from webhook.core.pod.fields import find_string
from webhook.tools.snapshot.namespace import NamespaceSnapshot, read_owner_row
from webhook.tools.snapshot.objects import (
    CRON_JOB,
    DAEMON_SET,
    DEPLOYMENT,
    JOB,
    POD,
    REPLICA_SET,
    STATEFUL_SET,
    ClusterObject,
    FactUnavailable,
    WorkloadKind,
)
from webhook.tools.snapshot.pod import ClusterPod

Json = dict[str, Any]

MOST_BETWEEN: Final = 16
"""Maximum number of owners read between pods and the workload."""
MOST_READ: Final = 20
"""Maximum number of pods that are read whole; the newest are."""
MOST_FAILED: Final = 100
"""Maximum number of workloads read because an Event reports a denial."""
_CONTROLLERS: Final = (REPLICA_SET, STATEFUL_SET, DAEMON_SET, JOB)
_DEEPEST: Final = 5
"""Maximum length of a chain of owners."""
_VERSION: Final = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?v[a-z0-9]{1,30}")
_DENIED: Final = " denied the request: "
_FAILED_CREATE: Final = "reason=FailedCreate"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadState:
    """A workload and its pods."""

    kind: str
    """Kind, such as `Deployment`."""
    name: str
    namespace: str = ""
    raw: Json | None = None
    """The workload's object; None if only pods or Events were read."""
    pods: tuple[ClusterPod, ...] = ()
    """Pods that have not ended; for a Job, all pods."""
    running: int = 0
    """Number of pods that have not ended."""
    desired: int | None = None
    """Desired number of pods; None if unknown."""
    denial: str = ""
    """Reason why pods cannot be created, from its condition, an Event or a dry run."""
    from_dry_run: bool = False
    """True if `denial` is the response to a dry run."""
    end_state: str = ""
    """State of a Job that creates no more pods, such as `is complete: 1 pod succeeded, 0
    failed`."""
    failure: str = ""
    """Reason why a Job failed; empty if it did not."""

    @property
    def missing(self) -> int:
        """Number of missing pods; 0 if unknown."""
        return max(0, (self.desired or 0) - self.running)


def read_denied_workloads(
    snapshot: NamespaceSnapshot, is_relevant: Callable[[str], bool]
) -> list[WorkloadState]:
    """Return the workloads that lack pods because of a denial for which `is_relevant`, sorted.

    | controller | source of the denial | source of the number of missing pods |
    | --- | --- | --- |
    | a ReplicaSet | its condition ReplicaFailure | its status |
    | another Kubernetes kind | its newest Event FailedCreate | its status |
    | a kind of another product, or unreadable | its newest Event FailedCreate | the same Event |
    | a ReplicaSet, if these cannot be listed | its newest Event FailedCreate | its status |

    Unreadable lists are recorded in the snapshot.
    """

    def keep_replica_set(raw: Json) -> WorkloadState | None:
        failure = ClusterObject(raw).condition("ReplicaFailure", "True")
        return (
            _if_pods_missing(raw, REPLICA_SET) if failure and is_relevant(failure.message) else None
        )

    replica_sets = snapshot.attempt(
        partial(snapshot.list_objects, REPLICA_SET, keep_replica_set),
        "ReplicaSets that cannot create pods",
    )

    def find_controller(event: Json) -> tuple[str, str, str] | None:
        involved_object = ClusterObject({"metadata": event.get("involvedObject")})
        kind = find_string(event, "involvedObject", "kind")
        is_listed = kind == REPLICA_SET.name and replica_sets is not None
        is_named = involved_object.name.strip(".") and not is_listed
        return (involved_object.namespace, kind, involved_object.name) if is_named else None

    events = partial(snapshot.newest_event_messages, _FAILED_CREATE, find_controller)
    message_by_controller = (
        snapshot.attempt(events, "other workloads that cannot create pods") or {}
    )
    denied = [
        WorkloadState(kind=kind, name=name, namespace=namespace, denial=message)
        for (namespace, kind, name), message in message_by_controller.items()
        if is_relevant(message)
    ]
    with_status = (_with_status(snapshot, workload) for workload in denied[:MOST_FAILED])
    total: dict[tuple[str, str, str], WorkloadState] = {}
    for workload in (*(replica_sets or ()), *filter(None, with_status), *denied[MOST_FAILED:]):
        key = workload.namespace, workload.kind, workload.name
        wanted, running = workload.desired or 0, workload.running
        if before := total.get(key):
            wanted, running = wanted + (before.desired or 0), running + before.running
        total[key] = replace(workload, desired=wanted, running=running)
    return [total[key] for key in sorted(total)]


def _with_status(snapshot: NamespaceSnapshot, found: WorkloadState) -> WorkloadState | None:
    """Return a controller with numbers from its status, or None if it lacks no pods now."""
    kind = next((controller for controller in _CONTROLLERS if controller.name == found.kind), None)
    if kind is None:
        return found
    try:
        raw = NamespaceSnapshot(snapshot.kube, found.namespace).find(kind, found.name)
    except FactUnavailable:
        return found
    return _if_pods_missing(raw, kind, found.denial) if raw else None


def _if_pods_missing(raw: Json, kind: WorkloadKind, denial: str = "") -> WorkloadState | None:
    """Return a controller that lacks pods, under its owner's name if it has one; else None."""
    found = _read_controller(raw, kind)
    if not found.missing:
        return None
    owner, denial = ClusterObject(raw).owner or found, denial or found.denial
    return replace(found, kind=owner.kind, name=owner.name, denial=denial, raw=None)


def read_workload(
    snapshot: NamespaceSnapshot, kind: WorkloadKind, name: str
) -> WorkloadState | None:
    """Return a workload of a built-in kind, or None if it does not exist.

    Raises FactUnavailable or KubeError if the workload is unreadable.
    """
    raw = snapshot.find(kind, name)
    if raw is None:
        return None
    workload, controller_kind = ClusterObject(raw), kind
    if kind is CRON_JOB:
        jobs = snapshot.attempt(
            partial(snapshot.list_owned, JOB, [workload.uid]), "the Jobs of this CronJob"
        )
        newest = max(jobs or (), key=lambda job: job.created_s or 0.0, default=None)
        if newest is None:
            return WorkloadState(kind=kind.name, name=name, raw=raw, desired=0)
        workload, controller_kind = newest, JOB
    owners = [workload.uid]
    equal = workload.part("spec", "selector", "matchLabels")
    labels = ",".join(f"{key}={value}" for key, value in equal.items())
    if kind is DEPLOYMENT:
        replica_sets = snapshot.attempt(
            partial(snapshot.list_owned, REPLICA_SET, owners, labels),
            "the ReplicaSets of this Deployment",
        )
        owners = [*owners, *(replica_set.uid for replica_set in replica_sets or ())]
    pods: list[ClusterPod] = []
    if labels:
        pods = snapshot.attempt(partial(snapshot.list_owned, POD, owners, labels), "its pods") or []
    running = [pod for pod in pods if not pod.has_ended]
    # Failed pods stay until they are deleted, unless their controller is a Job.
    shown = tuple(pods if controller_kind is JOB else running or pods)
    found = _read_controller(workload.raw, controller_kind)
    found = replace(found, kind=kind.name, name=name, raw=raw, pods=shown, running=len(running))
    if found.denial or not found.missing:
        return found

    def is_about_it(event: Json) -> bool | None:
        return find_string(event, "involvedObject", "uid") in owners or None

    events = partial(snapshot.newest_event_messages, _FAILED_CREATE, is_about_it)
    if denial := (snapshot.attempt(events, "Events") or {}).get(True):
        return replace(found, denial=denial)
    # Events expire after an hour, and only they state why a Job has no pods. The dry run is a
    # request by the user, so a policy that depends on the user may decide differently.
    template = workload.part("spec", "template")
    trial = snapshot.attempt(
        partial(snapshot.dry_run_create, snapshot.namespace, workload.name, template),
        "whether its pods are denied",
    )
    denial = trial.denial if trial else ""
    return replace(found, denial=denial, from_dry_run=bool(denial))


def _read_controller(raw: Json, kind: WorkloadKind) -> WorkloadState:
    """Return a controller with numbers from its status.

    Unlike an Event, a failure in the status is current.
    """
    found = ClusterObject(raw)
    spec, status, ended, failed = found.part("spec"), found.part("status"), "", ""
    failure = found.condition("ReplicaFailure", "True")
    if kind is DAEMON_SET:
        running, wanted = status.get("currentNumberScheduled"), status.get("desiredNumberScheduled")
    elif kind is JOB:
        ended, failed = _end_state(found)
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
        desired=_count(wanted, 0),
        denial=failure.message if failure else "",
        end_state=ended,
        failure=failed,
    )


def _end_state(job: ClusterObject) -> tuple[str, str]:
    """Return the state of a Job that creates no more pods, and its failure, or empty strings.

    Source: JobStatus in kubernetes/api/batch/v1.
    """
    status = job.part("status")
    succeeded, failed = (_count(status.get(key), 0) for key in ("succeeded", "failed"))
    counts = f"{format_count(succeeded, 'pod')} succeeded, {failed} failed"
    for name in ("Failed", "FailureTarget"):
        if condition := job.condition(name, "True"):
            reason = ": ".join(filter(None, (condition.reason, condition.message)))
            return f"has failed: {counts}", reason
    if job.condition("Complete", "True") or status.get("completionTime"):
        return f"is complete: {counts}", ""
    suspended = job.part("spec").get("suspend") is True
    return (f"is suspended: {counts}", "") if suspended else ("", "")


def _count(value: object, default: int) -> int:
    return value if type(value) is int and value >= 0 else default


def read_workload_by_pods(
    snapshot: NamespaceSnapshot, kind: WorkloadKind, name: str
) -> WorkloadState | None:
    """Return a workload of any kind, from its pods or from an Event that denies them, or None.

    The object is not read, since users rarely have permissions for other products' kinds. Owners
    are followed from the pods upwards. Raises FactUnavailable if pods cannot be listed.
    """
    find_owner = _owner_finder(snapshot, kind, name)
    owned = [(owner, row) for row in snapshot.pod_rows if (owner := find_owner(row))]
    if not owned:

        def denied_kind(event: Json) -> str | None:
            found = find_string(event, "involvedObject", "kind")
            is_denial = _is_kind(kind, found) and _DENIED in find_string(event, "message")
            return found if is_denial else None

        fields = f"involvedObject.name={name},type=Warning"
        events = snapshot.attempt(
            partial(snapshot.newest_event_messages, fields, denied_kind), "Events"
        )
        states = (
            WorkloadState(kind=item, name=name, denial=why) for item, why in (events or {}).items()
        )
        return next(states, None)
    rows = [row for _, row in owned]
    newest = sorted(rows, key=lambda row: row.created_s or 0.0, reverse=True)[:MOST_READ]
    pods_or_none = [snapshot.attempt(partial(snapshot.find_pod, row.name)) for row in newest]
    pods = [pod for pod in pods_or_none if pod]
    running = [pod for pod in pods if not pod.has_ended]
    return WorkloadState(
        kind=owned[0][0].kind,
        name=name,
        pods=tuple(running or pods),
        running=len(running) if len(owned) <= MOST_READ else len(owned),
    )


def list_owners(snapshot: NamespaceSnapshot, kind: WorkloadKind) -> dict[str, str]:
    """Return the kind of each owner of pods that may be of this kind, keyed by name."""
    owners = (owner for row in snapshot.pod_rows for owner in (row.owner, row.workload))
    return {owner.name: owner.kind for owner in owners if owner and _is_kind(kind, owner.kind)}


def _is_kind(kind: WorkloadKind, found: str) -> bool:
    """Return True if a word such as `pytorchjobs` names the kind that was found."""
    return WorkloadKind(found, "").is_called(kind.name.partition(".")[0])


def _owner_finder(
    snapshot: NamespaceSnapshot, kind: WorkloadKind, name: str
) -> Callable[[ClusterPod], Workload | None]:
    """Return a function that finds a pod's owner of this kind and name.

    Owners in between are read if their names begin with the name, which is usual. Each is read
    once, and at most `MOST_BETWEEN` are read.
    """
    owners_by_path: dict[str, ClusterPod | None] = {}

    def read_owner(found: ClusterPod) -> ClusterPod | None:
        version, owner = found.owner_version, found.owner
        if owner is None or not owner.name.startswith(name) or not _VERSION.fullmatch(version):
            return None
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        above = WorkloadKind(owner.kind, root)
        path = snapshot.path(above, owner.name)
        if path not in owners_by_path and len(owners_by_path) < MOST_BETWEEN:
            raw = snapshot.attempt(partial(snapshot.find, above, owner.name))
            owners_by_path[path] = None if raw is None else read_owner_row(raw)
        return owners_by_path.get(path)

    def find_owner(row: ClusterPod) -> Workload | None:
        found: ClusterPod | None = row
        for _ in range(_DEEPEST):
            owners = (found.owner, found.workload) if found else ()
            matching = [owner for owner in owners if owner and _is_kind(kind, owner.kind)]
            if matching or found is None:
                return next((owner for owner in matching if owner.name == name), None)
            found = read_owner(found)
        return None

    return find_owner
