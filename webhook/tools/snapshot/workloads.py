"""Workloads, their pods and why these were denied; only the workload itself has to be readable."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from webhook.core.kinds.workloads import Workload
from webhook.core.pod.fields import text_of
from webhook.core.words import counted
from webhook.tools.snapshot.cluster import ClusterSnapshot, event_time, read_row
from webhook.tools.snapshot.kinds import (
    CRON_JOB,
    DAEMON_SET,
    DEPLOYMENT,
    EVENT,
    JOB,
    POD,
    REPLICA_SET,
    STATEFUL_SET,
    WorkloadKind,
)
from webhook.tools.snapshot.objects import ClusterObject, FactUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadState:
    """A workload and its pods."""

    kind: str
    """Kind as Kubernetes writes it: `Deployment`."""
    name: str
    raw: Json | None = None
    """The object; None if only its pods were read."""
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


class CreationFailure(NamedTuple):
    """A workload that lacks pods because they are denied."""

    namespace: str
    workload: Workload
    """The controller that failed, or its owner if that is known."""
    message: str = ""
    """The API server's denial."""
    missing: int = 0
    """Number of pods that it lacks; 0 if unknown."""


def read_creation_failures(
    snapshot: ClusterSnapshot, is_meant: Callable[[str], bool]
) -> list[CreationFailure]:
    """Return the workloads that lack pods because of a denial that `is_meant`, sorted.

    | its controller is | denied, by | lacks pods, by |
    | --- | --- | --- |
    | a ReplicaSet | its condition ReplicaFailure | its status |
    | another of Kubernetes | its newest Event FailedCreate | its status |
    | of another product, or cannot be read | its newest Event FailedCreate | the same Event |
    | a ReplicaSet, and these cannot be listed | its newest Event FailedCreate | its status |

    Lists that cannot be read are noted in the snapshot.
    """

    def of_set(raw: Json) -> CreationFailure | None:
        message = _failure(ClusterObject(raw))
        return _creation_failure(raw, REPLICA_SET, message) if is_meant(message) else None

    sets = snapshot.attempt(
        partial(snapshot.collect, REPLICA_SET, of_set), "ReplicaSets that cannot create pods"
    )
    newest: dict[CreationFailure, tuple[str, str]] = {}

    def add(event: Json) -> None:
        about = ClusterObject({"metadata": event.get("involvedObject")})
        workload = Workload(text_of(event, "involvedObject", "kind"), about.name)
        is_listed = workload.kind == REPLICA_SET.name and sets is not None
        if about.name.strip(".") and not is_listed:
            key, message = CreationFailure(about.namespace, workload), text_of(event, "message")
            found = event_time(event), message if is_meant(message) else ""
            newest[key] = max(newest.get(key, found), found)

    events = partial(snapshot.collect, EVENT, add, fieldSelector="reason=FailedCreate")
    snapshot.attempt(events, "other workloads that cannot create pods")
    denied = [key._replace(message=message) for key, (_, message) in newest.items() if message]
    read = (_with_status(snapshot, one) for one in denied[:MOST_FAILED])
    total: dict[tuple[str, str], CreationFailure] = {}
    for one in (*(sets or ()), *filter(None, read), *denied[MOST_FAILED:]):
        whose = one.namespace, str(one.workload)
        others = total[whose].missing if whose in total else 0
        total[whose] = one._replace(missing=one.missing + others)
    return [total[whose] for whose in sorted(total)]


def _with_status(snapshot: ClusterSnapshot, failure: CreationFailure) -> CreationFailure | None:
    """Return a failure that an Event reports by its status; None if that is over."""
    kind = next((one for one in _CONTROLLERS if one.name == failure.workload.kind), None)
    if kind is None:
        return failure
    try:
        raw = ClusterSnapshot(snapshot.kube, failure.namespace).find(kind, failure.workload.name)
    except FactUnavailable:
        return failure
    return _creation_failure(raw, kind, failure.message) if raw else None


def _creation_failure(raw: Json, kind: WorkloadKind, message: str) -> CreationFailure | None:
    """Return the failure of a controller that lacks pods by its status; else None."""
    found = ClusterObject(raw)
    created = {JOB: "active", DAEMON_SET: "currentNumberScheduled"}.get(kind, "replicas")
    missing = _wanted(found, kind) - _count(found.part("status").get(created), 0)
    workload = found.owner or Workload(kind.name, found.name)
    return CreationFailure(found.namespace, workload, message, missing) if missing > 0 else None


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
    wanted, (ended, failed) = _wanted(workload, made_by), _ended(workload, made_by)
    denial, tried = _failure(workload), False
    if not denial and len(running) < wanted:
        read = partial(
            snapshot.newest_event,
            "reason=FailedCreate",
            lambda event: text_of(event, "involvedObject", "uid") in owners,
        )
        denial = snapshot.attempt(read, "Events") or ""
        if not denial:
            # Events are gone after an hour, and nothing else states why a Job has no pods. The dry
            # run is the user's, so a policy that depends on the user may answer otherwise.
            trial = snapshot.attempt(
                partial(
                    snapshot.try_create,
                    snapshot.namespace,
                    workload.name,
                    workload.part("spec", "template"),
                ),
                "whether its pods are denied",
            )
            denial = trial.denial if trial else ""
            tried = bool(denial)
    # A failed pod of a Job is news; other controllers' failed pods stay until they are deleted.
    return WorkloadState(
        kind=kind.name,
        name=name,
        raw=workload.raw if made_by is kind else raw,
        pods=tuple(pods if made_by is JOB else running or pods),
        running=len(running),
        wanted=wanted,
        denial=denial,
        tried=tried,
        ended=ended,
        failed=failed,
    )


def _failure(workload: ClusterObject) -> str:
    """Return the failure in the status: it holds as long as it stays there, unlike an Event."""
    found = workload.condition("ReplicaFailure")
    return found.message if found and found.status == "True" else ""


def _wanted(workload: ClusterObject, kind: WorkloadKind) -> int:
    spec, status = workload.part("spec"), workload.part("status")
    if kind is DAEMON_SET:
        return _count(status.get("desiredNumberScheduled"), 0)
    if kind is not JOB:
        return _count(spec.get("replicas"), 1)
    if _ended(workload, kind)[0]:
        return 0
    at_once = _count(spec.get("parallelism"), 1)
    left = _count(spec.get("completions"), at_once) - _count(status.get("succeeded"), 0)
    return max(0, min(at_once, left))


def _ended(workload: ClusterObject, kind: WorkloadKind) -> tuple[str, str]:
    """Return the state of a Job that creates no more pods, and why it failed; else empty texts.

    Source: JobStatus in kubernetes/api/batch/v1.
    """
    if kind is not JOB:
        return "", ""
    status = workload.part("status")
    succeeded, failed = (_count(status.get(key), 0) for key in ("succeeded", "failed"))
    counts = f"{counted(succeeded, 'pod')} succeeded, {failed} failed"
    for name in ("Failed", "FailureTarget"):
        condition = workload.condition(name)
        if condition and condition.status == "True":
            said = ": ".join(filter(None, (condition.reason, condition.message)))
            return f"has failed: {counts}", said
    complete = workload.condition("Complete")
    if (complete and complete.status == "True") or status.get("completionTime"):
        return f"is complete: {counts}", ""
    suspended = workload.part("spec").get("suspend") is True
    return (f"is suspended: {counts}", "") if suspended else ("", "")


def _count(value: object, default: int) -> int:
    return value if type(value) is int and value >= 0 else default


def read_owned(
    snapshot: ClusterSnapshot, kind: WorkloadKind, name: str
) -> WorkloadState | dict[str, str]:
    """Return an object of any kind by its pods, else the kinds of similar ones by name.

    The object itself is not read, since rights to other products' kinds are rare: a pod names its
    owner, and that its own. Raises FactUnavailable if pods cannot be listed.
    """
    singular = kind.name.lower().partition(".")[0]
    kinds = frozenset({singular, *_singulars(singular)})
    rows = snapshot.pod_rows
    find_owner = _owner_finder(snapshot, kinds, name)
    owned = [(owner, row) for row in rows if (owner := find_owner(row))]
    known = {
        one.name: one.kind
        for row in rows
        for one in (row.owner, row.workload)
        if one and one.kind.lower() in kinds
    }

    def is_denial(event: Json) -> bool:
        kind = text_of(event, "involvedObject", "kind")
        return kind.lower() in kinds and _DENIED in text_of(event, "message")

    denial = ""
    if not owned:
        fields = f"involvedObject.name={name},type=Warning"
        events = partial(snapshot.newest_event, fields, is_denial)
        denial = snapshot.attempt(events, "Events") or ""
        if not denial:
            return known
    pods_of = [row for _, row in owned]
    newest = sorted(pods_of, key=lambda one: one.created_s or 0.0, reverse=True)[:MOST_READ]
    read = [snapshot.attempt(partial(snapshot.find_pod, one.name)) for one in newest]
    pods = [one for one in read if one]
    running = [one for one in pods if not one.ended]
    return WorkloadState(
        kind=owned[0][0].kind if owned else known.get(name) or min(kinds, key=len),
        name=name,
        pods=tuple(running or pods),
        running=len(running) if len(owned) <= MOST_READ else len(owned),
        denial=denial,
    )


def _singulars(word: str) -> Iterator[str]:
    """Yield possible singulars of a plural: `pytorchjobs`, `classes`, `policies`."""
    for ending, one in (("s", ""), ("es", ""), ("ies", "y")):
        if word.endswith(ending) and len(word) > len(ending) + 1:
            yield word.removesuffix(ending) + one


def _owner_finder(
    snapshot: ClusterSnapshot, kinds: frozenset[str], name: str
) -> Callable[[ClusterPod], Workload | None]:
    """Return a function that finds, by what it owns, an object of these kinds and this name.

    Owners in between are read, each once and few in all, if they begin with the name, as nearly all
    do.
    """
    between: dict[str, ClusterPod | None] = {}

    def read_owner(found: ClusterPod) -> ClusterPod | None:
        version, owner = found.owner_version, found.owner
        if owner is None or not owner.name.startswith(name) or not _VERSION.fullmatch(version):
            return None
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        kind = WorkloadKind(owner.kind, root)
        path = snapshot.path(kind, owner.name)
        if path not in between and len(between) < MOST_BETWEEN:
            raw = snapshot.attempt(partial(snapshot.find, kind, owner.name))
            between[path] = None if raw is None else read_row(raw)
        return between.get(path)

    def find_owner(row: ClusterPod) -> Workload | None:
        found: ClusterPod | None = row
        for _ in range(_DEEPEST):
            owners = (found.owner, found.workload) if found else ()
            mine = [one for one in owners if one and one.kind.lower() in kinds]
            if mine or found is None:
                return next((one for one in mine if one.name == name), None)
            found = read_owner(found)
        return None

    return find_owner
