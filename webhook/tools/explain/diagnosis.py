"""Diagnosis of a pod or workload: why it waits, was denied or was stopped, and what to change.

| the pod | state | sources |
| --- | --- | --- |
| does not exist, and is in a history | gone | `VRAMHistory` |
| does not exist, and is in no history | unknown | |
| has no VRAM | no-demand, see `recreation` | a dry run, and the policy |
| has no node | pending, see `pending_pod` | `place`, then the scheduler's condition |
| has a node | see `bound_pod` | `GPUNode`, the sidecar's log, the pod's conditions |

The first matching row applies. Events expire after an hour and may be missing, so no diagnosis
depends on them alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from webhook.core.enforcement.messages import sufficient_request
from webhook.core.enforcement.termination_message import stops_in_words
from webhook.core.formatting import format_count, format_duration, join_names
from webhook.core.kinds.histories import filled_driver_cap, peak_or_cap_bytes
from webhook.names import CAP_HELD_CONDITION
from webhook.tools.explain import report
from webhook.tools.explain.pods import diagnose_pod
from webhook.tools.explain.report import Diagnosis, State
from webhook.tools.problems.bound_pod import suggest_request
from webhook.tools.problems.creation import parse_denial
from webhook.tools.problems.problem import Code, Problem, ProblemSubject, Severity
from webhook.tools.snapshot.namespace import NamespaceSnapshot
from webhook.tools.snapshot.objects import KINDS, POD, WorkloadKind
from webhook.tools.snapshot.pod import ClusterPod
from webhook.tools.snapshot.workloads import (
    WorkloadState,
    list_owners,
    read_workload,
    read_workload_by_pods,
)

_LIKE: Final = 0.5
"""Minimum similarity of names, from 0 to 1; see `difflib.get_close_matches`."""
_LIKE_KIND: Final = 0.85
"""Minimum similarity of kinds: accepts `deploymnet` for `deployment`, not `jobset` for `jobs`."""
_MOST_NEAR: Final = 3


def diagnose(snapshot: NamespaceSnapshot, kind: WorkloadKind, name: str) -> Diagnosis:
    """Diagnose a pod or workload.

    Raises FactUnavailable or KubeError if the object is unreadable.
    """
    if kind is POD:
        pod = snapshot.find_pod(name)
        diagnosis = diagnose_pod(snapshot, pod) if pod else _diagnose_missing_pod(snapshot, name)
    else:
        found = (read_workload if kind.path else read_workload_by_pods)(snapshot, kind, name)
        diagnosis = (
            _diagnose_workload(snapshot, found) if found else _not_found(snapshot, kind, name)
        )
    return replace(
        diagnosis, left_out=[f"{what}: {why}" for what, why in snapshot.left_out.items()]
    )


def newest_with_problem(pods: Sequence[ClusterPod]) -> ClusterPod | None:
    """Return the newest pod that has a problem, else the newest pod, or None without pods.

    A pod has a problem if it waits, failed, was stopped, restarted or is not ready.
    """

    def key(pod: ClusterPod) -> tuple[bool, float, str]:
        is_well = pod.ready and not any(
            status.get("restartCount") for status in pod.container_statuses()
        )
        was_stopped = pod.condition(CAP_HELD_CONDITION, "False") is not None
        has_problem = was_stopped or not (is_well or pod.phase == "Succeeded")
        return has_problem, pod.created_s or 0.0, pod.name

    return max(pods, key=key, default=None)


def _diagnose_workload(snapshot: NamespaceSnapshot, found: WorkloadState) -> Diagnosis:
    # Imported here, because they load admission rules, which the diagnosis of a pod does not need.
    from webhook.core.admission.stray_keys import find_stray_keys  # noqa: PLC0415
    from webhook.core.pod.template_search import find_templates  # noqa: PLC0415

    newest = newest_with_problem(found.pods)
    pod = diagnose_pod(snapshot, newest) if newest else None
    templates = find_templates(found.raw, found.kind, "") if found.raw else []
    template = ClusterPod(templates[0].pod) if templates and templates[0].pod else None
    problems = [*parse_denial(found.denial, template)] if found.denial else []
    counts = format_count(found.running, "pod")
    if found.desired is not None:
        counts = f"{found.running} of {found.desired} pods"
    if problems:
        how = (
            "a pod of it, tried as you and not stored, is"
            if found.from_dry_run
            else "pods of it are"
        )
        state, headline = State.REFUSED, f"has {counts}: {how} denied."
    elif found.end_state:
        state, headline = pod.state if pod else State.ENDED, f"{found.end_state}."
    elif pod is None:
        state = State.PENDING if found.desired else State.ENDED
        headline = f"has {counts}" + ("." if state is State.PENDING else " now.")
    else:
        state, headline = pod.state, f"has {counts}."
    if found.failure:
        problems.append(Problem(Code.JOB_FAILED, Severity.ERROR, found.failure))
    strays = find_stray_keys(found.raw, found.kind, templates) if found.raw else ()
    misplaced_keys = dict.fromkeys(
        stray.key for stray in strays if stray.templates and stray.key == stray.intended
    )
    if misplaced_keys:
        detail = f"{join_names(misplaced_keys)} is on the {found.kind}, where nothing reads it"
        fix = f"move it to {templates[0].shown('metadata.annotations')}"
        problems.append(Problem(Code.NOT_READ, Severity.WARNING, detail, fix))
    if pod is None and state is State.PENDING:
        detail = "neither it nor an Event states why it has no pods; does its controller run?"
        fix = f"kubectl describe {found.kind.lower()} {found.name} -n {snapshot.namespace}"
        problems.append(Problem(Code.NO_PODS, Severity.ERROR, detail, fix))
    subject = ProblemSubject(found.kind, found.name, snapshot.namespace)
    return Diagnosis(subject=subject, state=state, sentence=headline, problems=problems, pod=pod)


def _not_found(snapshot: NamespaceSnapshot, kind: WorkloadKind, name: str) -> Diagnosis:
    """Report that an object does not exist, or that one of another product's kind has no pods."""
    place, title = f"in namespace {snapshot.namespace}", kind.name
    headline, detail, fix = "does not exist.", f"there is no {title} {name} {place}", ""
    names: Iterable[str]
    if kind is POD:
        rows = snapshot.attempt(lambda: snapshot.pod_rows) or []
        owners = {f"{row.workload.kind.lower()}/{row.workload.name}" for row in rows if row.owner}
        names = [*(row.name for row in rows), *owners]
    elif kind.path:
        names = snapshot.attempt(partial(snapshot.list_names, kind)) or ()
    else:
        names = kinds_by_owner = list_owners(snapshot, kind)
        title = next(iter(kinds_by_owner.values()), title)
        headline, detail = "has no pods.", f"no pod {place} belongs to {title} {name}"
        fix = f"see kubectl describe {kind.name.lower()} {name} -n {snapshot.namespace}"
        if not kinds_by_owner:
            known = [kind.name.lower() for kind in KINDS]
            detail = (
                f"the known kinds are {join_names(known, len(known))}; pods of any other kind are "
            )
            detail += "found by their owners"
            for like in difflib.get_close_matches(kind.name, known, 1, _LIKE_KIND):
                fix = f"did you mean {like}/{name}?"
    if near := _similar_names(name, [*names]):
        fix = f"did you mean {join_names(near)}?"
    problem = Problem(Code.NOT_FOUND, Severity.ERROR, detail, fix)
    subject = ProblemSubject(title, name, snapshot.namespace)
    return Diagnosis(subject=subject, state=State.UNKNOWN, sentence=headline, problems=[problem])


def _similar_names(name: str, names: Sequence[str]) -> list[str]:
    """Return a few similar names, such as `llama-7c9f` or `deployment/llama` for `llama`."""
    near = [candidate for candidate in names if candidate.rpartition("/")[2] == name]
    near += [candidate for candidate in names if candidate.startswith(f"{name}-")][:_MOST_NEAR]
    near += difflib.get_close_matches(name, names, _MOST_NEAR, _LIKE)
    return list(dict.fromkeys(near))[:_MOST_NEAR]


def _diagnose_missing_pod(snapshot: NamespaceSnapshot, name: str) -> Diagnosis:
    """Diagnose a pod that does not exist, using its last run if a history has one."""
    histories = snapshot.attempt(lambda: snapshot.histories) or ()
    nodes = snapshot.attempt(lambda: snapshot.gpu_nodes)
    last = report.find_run(histories, name)
    if last is None:
        return _not_found(snapshot, POD, name)
    run, history = last
    ago = format_duration(snapshot.now_s - run.ended_s)
    peak = report.describe_peak(run.peak_bytes, run.requested_bytes, run.stops)
    headline = f"is gone; it ended {ago} ago: {peak}."
    fix = suggest_request(None, sufficient_request(peak_or_cap_bytes(run) or 0), nodes)
    problems = []
    if run.stops:
        detail = f"{stops_in_words(run.stops)} for what the pod held"
        problems.append(Problem(Code.STOPPED, Severity.WARNING, detail, fix))
    elif filled_driver_cap(run):
        detail = "it filled its cap, beyond which the driver denies memory: that may be too small"
        problems.append(Problem(Code.CAP_HIT, Severity.INFO, detail, fix))
    subject = ProblemSubject(POD.name, name, snapshot.namespace)
    history_notes = [*report.history_note(history, run.requested_bytes, nodes, None)]
    return Diagnosis(
        subject=subject, state=State.GONE, sentence=headline, problems=problems, notes=history_notes
    )
