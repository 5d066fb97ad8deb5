"""Why a pod waits, was denied, was stopped or has the GPU that it has, and what would be enough.

| the pod | state | said by |
| --- | --- | --- |
| does not exist, and a history knows it | gone | `VRAMHistory` |
| does not exist otherwise | unknown | |
| asks NVIDIA's device plugin, under a rule of ours | see `plugins` | the scheduler's condition |
| has no VRAM | no-demand, see `untranslated` | a dry run, and the policy |
| has no node | pending | our own `place`, then the scheduler's condition |
| has a node | see `bound` | `GPUNode`, the enforcer's log, the pod's conditions |

The first row that fits counts. Events are gone after an hour and may never be written, so nothing
rests on them alone.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from webhook.core.enforcement.log_messages import LogMessage
from webhook.core.enforcement.sufficient_request import sufficient_request
from webhook.core.kinds.histories import held_bytes
from webhook.core.placement.assignments import read_pod_state
from webhook.core.pod.fields import text_of
from webhook.core.pod.quantity import QuantityError, parse_vram
from webhook.core.words import counted, named, span
from webhook.names import CAP_HELD_CONDITION, IN_PLACE_OF_ANNOTATION
from webhook.tools.explain.judge.bound import explain_bound
from webhook.tools.explain.judge.enforcer_log import (
    find_run,
    held_words,
    history_notes,
    line_for,
    stops_words,
)
from webhook.tools.explain.judge.held import filled
from webhook.tools.explain.judge.plugins import explain_by_plugin
from webhook.tools.explain.judge.report import Cause, Enough, OtherReason, Report, Severity, State
from webhook.tools.explain.judge.untranslated import refusal, without_demand
from webhook.tools.explain.judge.waiting import explain_pending
from webhook.tools.explain.kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from webhook.tools.explain.judge.report import PodFacts, WorkloadFacts
    from webhook.tools.snapshot.pod import ClusterPod

MOST_REFUSALS: Final = 3
_LIKE: Final = 0.5
_LIKE_KIND: Final = 0.85
"""Between `deploymnet` and `deployment`, but not between `jobset` and `jobs`."""
_MOST_NEAR: Final = 3

_BOUND: Final = re.compile(r"allows at most ([0-9]{1,18}[KMGTPE]?i?)(?![0-9A-Za-z])")


def explain_pod(facts: PodFacts) -> Report:
    """Explain one pod; never fails, whatever its owner stored."""
    if facts.pod is None:
        return _without_pod(facts)
    state = read_pod_state(facts.pod.raw)
    if state.need is None:
        given = explain_by_plugin(facts, facts.pod, state)
        return given or without_demand(facts, facts.pod)
    is_pending = not state.node and not state.finished
    report = (explain_pending if is_pending else explain_bound)(facts, facts.pod, state)
    asked = text_of(facts.pod.annotations, IN_PLACE_OF_ANNOTATION)
    if not asked:
        return report
    text = f"{asked}, which the pod asked for: its rule has translateWholeGPU"
    return replace(report, notes=(("GPU memory in place of", text), *report.notes))


def explain_workload(facts: WorkloadFacts, pod: Report | None) -> Report:
    """Explain a workload: why its pods are not created, then one of its pods."""
    kind, namespace, name = facts.kind, facts.namespace, facts.name
    if not facts.exists:
        found = _not_found(kind, namespace, name, _near(name, facts.others), facts.left_out)
        return _no_pods_of(found, has_kind=bool(facts.others)) if facts.by_owner else found
    refusals = list(dict.fromkeys(facts.refusals))[:MOST_REFUSALS]
    causes = tuple(dict.fromkeys(one for text in refusals for one in refusal(text)))
    has = counted(facts.pods, "pod")
    if facts.wanted is not None:
        has = f"{facts.pods} of {facts.wanted} pods"
    if causes:
        how = "a pod of it, tried as you and not stored, is" if facts.tried else "pods of it are"
        state, headline = State.REFUSED, f"has {has}: {how} denied."
    elif facts.ended:
        state, headline = pod.state if pod else State.ENDED, f"{facts.ended}."
    elif pod is None:
        state = State.PENDING if facts.wanted else State.ENDED
        headline = f"has {has}" + ("." if state is State.PENDING else " now.")
    else:
        state, headline = pod.state, f"has {has}."
    admit = [bound for cause in causes if (bound := _bound_in(cause.detail))]
    return Report(
        kind=kind,
        namespace=namespace,
        name=name,
        state=state,
        headline=f"{kind} {namespace}/{name} {headline}",
        causes=(*causes, *_failed(facts), *_misplaced(facts), *_silent(facts, state, pod)),
        enough=Enough(admit_bytes=min(admit, default=None)),
        left_out=facts.left_out,
        pod=pod,
    )


def newest_in_trouble(pods: Sequence[ClusterPod]) -> ClusterPod | None:
    """Return the newest pod that waits, failed, was stopped or is not ready, else the newest."""

    def key(pod: ClusterPod) -> tuple[bool, float, str]:
        return not _is_well(pod), pod.created_s or 0.0, pod.name

    return max(pods, key=key, default=None)


def _is_well(pod: ClusterPod) -> bool:
    held = pod.condition(CAP_HELD_CONDITION)
    if held and held.status == "False":
        return False
    if pod.phase == "Succeeded":
        return True
    return pod.ready and not any(one.get("restartCount") for one in pod.statuses())


def _failed(facts: WorkloadFacts) -> Iterator[Cause]:
    if facts.failed:
        yield Cause(Severity.ERROR, OtherReason.JOB_FAILED, facts.failed)


def _silent(facts: WorkloadFacts, state: State, pod: Report | None) -> Iterator[Cause]:
    """Yield that it has no pods, where neither it nor an Event says why."""
    if pod is None and state is State.PENDING:
        see = f"kubectl describe {facts.kind.lower()} {facts.name} -n {facts.namespace}"
        detail = "nobody says why it has no pods; does its controller run?"
        yield Cause(Severity.ERROR, OtherReason.NO_PODS, detail, see)


def _misplaced(facts: WorkloadFacts) -> Iterator[Cause]:
    if facts.misplaced:
        where = f"{facts.template}.metadata.annotations"
        names = named(facts.misplaced)
        detail = f"{names} stands on the {facts.kind}, where nothing reads it"
        yield Cause(Severity.WARNING, OtherReason.NOT_READ, detail, f"move it to {where}")


def _bound_in(detail: str) -> int | None:
    found = _BOUND.search(detail)
    try:
        return parse_vram(found[1]) if found else None
    except QuantityError:
        return None


def _without_pod(facts: PodFacts) -> Report:
    """Explain a pod that does not exist: by its last run, where a history has it."""
    found = find_run(facts.histories, facts.name)
    if found is None:
        near = _near(facts.name, [*facts.names.values(), *facts.workloads])
        return _not_found("Pod", facts.namespace, facts.name, near, facts.left_out)
    run, history = found
    ago = span(facts.now_s - run.ended_s)
    headline = f"{facts.title} is gone; it ended {ago} ago: {held_words(run)}."
    causes = tuple(filled(facts, run))
    enough = None
    if run.stops:
        enough = sufficient_request(held_bytes(run) or 0)
        fix = line_for(None, enough, facts.nodes)
        detail = f"{stops_words(run.stops)} for what the pod held"
        causes = (Cause(Severity.WARNING, LogMessage.STOPPING, detail, fix),)
    notes = tuple(history_notes(history, run.asked_bytes, facts.nodes, None))
    return facts.report(State.GONE, headline, causes, enough=Enough(run_bytes=enough), notes=notes)


def _near(name: str, names: Sequence[str]) -> list[str]:
    """Return a few names like one: what is made of it, as `llama-7c9f`, and `deployment/llama`."""
    near = [one for one in names if one.rpartition("/")[2] == name]
    near += [one for one in names if one.startswith(f"{name}-")][:_MOST_NEAR]
    near += difflib.get_close_matches(name, names, _MOST_NEAR, _LIKE)
    return list(dict.fromkeys(near))[:_MOST_NEAR]


def _not_found(
    kind: str, namespace: str, name: str, near: Sequence[str], left_out: tuple[str, ...]
) -> Report:
    meant = f"did you mean {named(near)}?" if near else ""
    detail = f"there is no {kind} {name} in namespace {namespace}"
    cause = Cause(Severity.ERROR, OtherReason.NOT_FOUND, detail, meant)
    return Report(
        kind=kind,
        namespace=namespace,
        name=name,
        state=State.UNKNOWN,
        headline=f"{kind} {namespace}/{name} does not exist.",
        causes=(cause,),
        left_out=left_out,
    )


def _no_pods_of(found: Report, *, has_kind: bool) -> Report:
    """Report that an object has no pods, or that no pod belongs to one of its kind."""
    kind, name, namespace = found.kind, found.name, found.namespace
    fix = (
        found.causes[0].fix
        or f"see what it says itself: kubectl describe {kind.lower()} {name} -n {namespace}"
    )
    detail = f"no pod in namespace {namespace} belongs to {kind} {name}"
    headline = f"{kind} {namespace}/{name} has no pods."
    if not has_kind:
        known = [one.name.lower() for one in KINDS]
        near = difflib.get_close_matches(kind, known, 1, _LIKE_KIND)
        headline = f"No pod in namespace {namespace} belongs to a {kind}."
        kinds = named(known, len(known))
        detail = f"the known kinds are {kinds}; pods of any other kind are found by their owners"
        fix = f"did you mean {near[0]}/{name}?" if near else fix
    return replace(
        found, headline=headline, causes=(replace(found.causes[0], detail=detail, fix=fix),)
    )
