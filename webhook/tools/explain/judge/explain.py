"""Why a pod waits, was denied, was stopped or has the GPU that it has, and what would be enough.

| the pod | state | said by |
| --- | --- | --- |
| does not exist, and a history knows it | gone | `VRAMHistory` |
| does not exist otherwise | unknown | |
| asks NVIDIA's device plugin, under a rule of ours | see `plugins` | the scheduler's condition |
| asks for nothing | no-demand | |
| has no node | pending | our own `place`, then the scheduler's condition |
| has a node | see `bound` | `GPUNode`, the enforcer's log, the pod's conditions |

The first row that fits counts. Events are gone after an hour and may never be written, so nothing
rests on them alone.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from webhook.core.admission.rules.hints import candidates, near_miss
from webhook.core.bounds import MOST_ENTRIES
from webhook.core.enforcement.bounds import LONGEST_MESSAGE
from webhook.core.placement.assignments import read_pod_state
from webhook.core.pod.demand import asks_for_vram
from webhook.core.pod.fields import as_objects
from webhook.core.pod.findings import GUIDANCE, MalformedObjectError, Reason
from webhook.core.pod.foreign import FOREIGN_RESOURCES
from webhook.core.pod.quantity import QuantityError, parse_vram
from webhook.core.words import named, span
from webhook.names import (
    CAP_HELD_CONDITION,
    GPU_MEMORY_ANNOTATION,
    IN_PLACE_OF_ANNOTATION,
    LONGEST_NAME,
    PREFIX,
    VRAM_RESOURCE,
)
from webhook.tools.explain.judge.bound import explain_bound
from webhook.tools.explain.judge.plugins import explain_by_plugin
from webhook.tools.explain.judge.report import Cause, Enough, OtherReason, Report, Severity, State
from webhook.tools.explain.judge.stops import (
    Said,
    enough_for,
    history_notes,
    line_for,
    peak_words,
    stops_words,
)
from webhook.tools.explain.judge.waiting import explain_pending
from webhook.tools.shared.bounds import MOST_NAMES
from webhook.tools.shared.facts import bounded, part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from webhook.tools.explain.judge.report import PodFacts, WorkloadFacts
    from webhook.tools.shared.pod import ClusterPod

MOST_REFUSALS: Final = 3
_LIKE: Final = 0.5

_DENIED: Final = re.compile(r'admission webhook "[a-z]+\.vramwarden\.io" denied the request: ')
_FINDING: Final = re.compile(f"(?:^|; )({'|'.join(Reason)}): ")
_REASONS: Final = {one.value: one for one in Reason}
_BOUND: Final = re.compile(r"allows at most ([0-9]{1,18}[KMGTPE]?i?)(?![0-9A-Za-z])")


def explain_pod(facts: PodFacts) -> Report:
    """Explain one pod; never fails, whatever its owner stored."""
    if facts.pod is None:
        return _without_pod(facts)
    state = read_pod_state(facts.pod.raw)
    if state.need is None:
        given = explain_by_plugin(facts, facts.pod, state)
        return given or _without_demand(facts, facts.pod)
    is_pending = not state.node and not state.finished
    report = (explain_pending if is_pending else explain_bound)(facts, facts.pod, state)
    asked = bounded(facts.pod.annotations.get(IN_PLACE_OF_ANNOTATION), LONGEST_NAME)
    if not asked:
        return report
    text = f"{asked}, which the pod asked for: its rule has translateWholeGPU"
    return replace(report, notes=(("A share in place of", text), *report.notes))


def explain_workload(facts: WorkloadFacts, pod: Report | None) -> Report:
    """Explain a workload: why its pods are not created, then one of its pods."""
    kind, namespace, name = facts.kind, facts.namespace, facts.name
    if not facts.exists:
        return _not_found(kind, namespace, name, facts.others, facts.left_out)
    refusals = list(dict.fromkeys(facts.refusals))[:MOST_REFUSALS]
    causes = tuple(dict.fromkeys(one for text in refusals for one in _refusal(text)))
    of = "" if facts.wanted is None else f" of {facts.wanted}"
    has = f"{facts.pods}{of} pods"
    if causes:
        how = "a pod of it, tried as you and not stored, is" if facts.tried else "pods of it are"
        state, headline = State.REFUSED, f"has {has}: {how} denied."
    elif facts.ended:
        state, headline = pod.state if pod else State.ENDED, f"{facts.ended}."
    elif pod is None:
        state = State.PENDING if facts.wanted else State.ENDED
        headline = f"has {has}" + (", and nobody says why." if state is State.PENDING else " now.")
    else:
        state, headline = pod.state, f"has {has}."
    admit = [bound for cause in causes if (bound := _bound_in(cause.detail))]
    return Report(
        kind=kind,
        namespace=namespace,
        name=name,
        state=state,
        headline=f"{kind} {namespace}/{name} {headline}",
        causes=(*causes, *_failed(facts), *_misplaced(facts)),
        enough=Enough(admit_bytes=min(admit, default=None)),
        left_out=facts.left_out,
        pod=pod,
    )


def newest_in_trouble(pods: Sequence[ClusterPod]) -> ClusterPod | None:
    """Return the newest pod that waits, failed, was stopped or is not ready, else the newest."""

    def key(pod: ClusterPod) -> tuple[bool, float, str]:
        return not _is_well(pod), pod.created_s or 0.0, bounded(pod.name, LONGEST_NAME)

    return max(pods, key=key, default=None)


def _is_well(pod: ClusterPod) -> bool:
    held = pod.condition(CAP_HELD_CONDITION)
    if held and held.status == "False":
        return False
    if pod.phase == "Succeeded":
        return True
    return pod.ready and not any(one.get("restartCount") for one in pod.statuses())


def _refusal(text: str) -> Iterator[Cause]:
    """Yield what a denial says: each of our findings with its cure, others' text as it is."""
    text = bounded(text, LONGEST_MESSAGE)
    denied = _DENIED.search(text)
    if denied is None:
        yield Cause(Severity.ERROR, OtherReason.CREATION_DENIED, text)
        return
    said, _, guidance = text[denied.end() :].partition(f". {GUIDANCE}")
    starts = list(_FINDING.finditer(said))
    if not starts:
        yield Cause(Severity.ERROR, OtherReason.CREATION_DENIED, said)
    for found, end in zip(starts, [*(one.start() for one in starts[1:]), len(said)], strict=True):
        reason = _REASONS[found[1]]
        yield Cause(Severity.ERROR, reason, said[found.end() : end], reason.cure)
    if guidance:
        yield Cause(Severity.INFO, OtherReason.CREATION_DENIED, f"{GUIDANCE}{guidance}")


def _failed(facts: WorkloadFacts) -> Iterator[Cause]:
    if facts.failed:
        yield Cause(Severity.ERROR, OtherReason.JOB_FAILED, bounded(facts.failed, LONGEST_MESSAGE))


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
    found = [
        (run.ended_s, number, run, history)
        for number, history in enumerate(facts.histories)
        for run in history.runs
        if run.pod == facts.name
    ]
    if not found:
        names = tuple(facts.names.values())
        return _not_found("Pod", facts.namespace, facts.name, names, facts.left_out)
    ended_s, _, run, history = max(found)
    held = f"{peak_words(run.peak_bytes, run.asked_bytes)}, {stops_words(run.stops)}"
    ago = span(facts.now_s - ended_s)
    headline = f"{facts.title} is gone; it ended {ago} ago: {held}."
    causes: tuple[Cause, ...] = ()
    enough = None
    if run.stops:
        enough = None if run.peak_bytes is None else enough_for(run.peak_bytes)
        fix = line_for(None, enough) if enough else ""
        detail = f"{stops_words(run.stops)} for what the pod held"
        causes = (Cause(Severity.WARNING, Said.STOPPING, detail, fix),)
    notes = tuple(history_notes(history, run.asked_bytes, facts.nodes, None))
    return facts.report(State.GONE, headline, causes, enough=Enough(run_bytes=enough), notes=notes)


def _not_found(
    kind: str, namespace: str, name: str, names: Sequence[str], left_out: tuple[str, ...]
) -> Report:
    near = difflib.get_close_matches(name[:LONGEST_NAME], names[:MOST_NAMES], 3, _LIKE)
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


def _without_demand(facts: PodFacts, pod: ClusterPod) -> Report:
    """Explain a pod that takes no VRAM, though it may seem to ask for some."""
    headline, causes = f"{facts.title} asks for no VRAM.", []
    try:
        asks = asks_for_vram(pod.raw)
    except MalformedObjectError:
        asks = False
    if asks:
        headline = f"{facts.title} asks for VRAM, and has none."
        detail = (
            "nothing in its resources is counted: vramwarden did not see it when it was created, "
            "or leaves its namespace alone"
        )
        causes.append(Cause(Severity.WARNING, Reason.UNMUTATED, detail, Reason.UNMUTATED.cure))
    elif idioms := dict(_idioms(pod)):
        line = next(filter(None, idioms.values()), f"{GPU_MEMORY_ANNOTATION}: 8Gi, for example")
        fix = f"{line}, as an annotation of the pod"
        detail = f"vramwarden does not read {named(idioms)}"
        causes.append(Cause(Severity.INFO, OtherReason.NOT_READ, detail, fix))
    return facts.report(State.NO_DEMAND, headline, causes)


def _idioms(pod: ClusterPod) -> Iterator[tuple[str, str]]:
    """Yield what seems to ask for GPU memory, and the line to write instead where it is clear."""
    for field in ("annotations", "labels"):
        entries = pod.part("metadata", field)
        for key in candidates(islice(entries, MOST_ENTRIES)):
            line = "" if key.startswith(PREFIX) else near_miss(key, bounded(entries[key], 64))
            if line:
                yield f"the {field.removesuffix('s')} {bounded(key, 100)}", line
    for container in as_objects(pod.part("spec").get("containers"), MOST_ENTRIES):
        for key in islice(part(container, "resources", "limits"), MOST_ENTRIES):
            if key in FOREIGN_RESOURCES or (key.startswith(PREFIX) and key != VRAM_RESOURCE):
                yield f"the resource {bounded(key, 100)}", ""
