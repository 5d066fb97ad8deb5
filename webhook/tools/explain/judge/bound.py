"""What a pod that is bound does: waits for a GPU, starts, runs, was stopped, ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.enforcement.log_messages import LogMessage
from webhook.core.enforcement.sufficient_request import sufficient_request
from webhook.core.enforcement.termination_message import read_message
from webhook.core.kinds.nodes import read_time
from webhook.core.placement.fit import Denial, place
from webhook.core.pod.fields import part, text_of
from webhook.core.words import amount, exactly, named, span
from webhook.names import GATE_VARIABLE
from webhook.tools.explain.judge.enforcer_log import (
    find_history,
    find_run,
    held_words,
    history_notes,
    line_for,
    peak_words,
    read_log,
    stops_words,
)
from webhook.tools.explain.judge.held import (
    denied_by_driver,
    held_from_outside,
    held_notes,
    without_limit,
    without_sentry,
)
from webhook.tools.explain.judge.report import Cause, Enough, OtherReason, Report, Severity, State
from webhook.tools.explain.judge.room import Blocker, advertised
from webhook.tools.explain.judge.waiting import demand_words, old_figures, unreadable
from webhook.tools.snapshot.node import SAID
from webhook.tools.snapshot.pod import AWAY, is_container_gated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from webhook.core.enforcement.termination_message import TerminationMessage
    from webhook.core.kinds.nodes import GpuFigures, NodeFigures, PodFigures
    from webhook.core.placement.assignments import PodState
    from webhook.tools.explain.judge.enforcer_log import EnforcerLog, LogEntry
    from webhook.tools.explain.judge.report import PodFacts
    from webhook.tools.snapshot.pod import ClusterPod

    Mine = Sequence[tuple[GpuFigures, PodFigures]]

WOULD_DO: Final = "would do"
_SELF_TEST_FAILED: Final = 70
_GATED: Final = (
    "until then the kubelet creates no container of it with VRAM, and reports "
    f"CreateContainerConfigError: missing value for {GATE_VARIABLE}. That is no fault of the pod"
)
_ORDINARY: Final = {"ContainerCreating", "PodInitializing"}


def explain_bound(facts: PodFacts, pod: ClusterPod, state: PodState) -> Report:
    """Explain a pod that has a node, or ended.

    | its GPUs | something was stopped | it can be measured | the pod | state |
    | --- | --- | --- | --- | --- |
    | are to come | any | any | any | waiting |
    | any | yes | any | any | stopped |
    | any | no | no | has not ended | blind |
    | any | no | yes | has ended | ended |
    | any | no | yes | starts | starting |
    | any | no | yes | runs | running |
    """
    now_s, ended = facts.now_s, pod.enforcer_ended()
    failed = ended.exit_code == _SELF_TEST_FAILED
    log = read_log(facts.log, ended.message, self_test_failed=failed)
    node = next((one for one in facts.nodes or () if one.name == state.node), None)
    mine = [(gpu, one) for gpu in (node.gpus if node else ()) for one in gpu.pods]
    mine = [(gpu, one) for gpu, one in mine if one.uid == state.uid]
    figures, words = [one for _, one in mine], read_message(ended.message)
    stops = max([words.stops if words else 0, *(one.stops or 0 for one in figures)])
    peaks = _peaks(words, log, figures)
    cap_bytes = state.hold.cap_bytes if state.hold else 0
    largest_bytes = max([cap_bytes, *peaks])
    newest = log.stops[-1].message if log.stops else None
    # A pod may also have to restart since it could not be measured.
    was_over = stops or largest_bytes > cap_bytes or newest is not LogMessage.ENDING_POD
    run_bytes = sufficient_request(largest_bytes) if peaks and was_over else None
    fix = "" if run_bytes is None else line_for(pod, run_bytes, facts.nodes)
    outside = [*held_from_outside(pod, fix, now_s)]
    causes = [*_stopped(log, 0 if outside else stops, fix, now_s), *outside]
    run_bytes = run_bytes if causes or log.reports else None
    what, headline = _headline(facts, pod, state, node, mine)
    if causes and what is not State.WAITING:
        what = State.STOPPED
    elif not causes:
        causes += denied_by_driver(facts, pod, state, figures, peaks)
    causes += _reported(log, fix, now_s)
    if log.blind and not state.finished:
        fix = "kubectl logs, container vram-enforcer, says more; or ask your platform team"
        detail = f"{LogMessage.BLIND}: {log.blind}"
        causes.append(Cause(Severity.ERROR, LogMessage.BLIND, detail, fix))
        if what in {State.STARTING, State.RUNNING}:
            what = State.BLIND
    if what is State.WAITING:
        causes = [*_without_gpu(pod, state), *causes]
    elif not state.finished:
        causes += _broken(node, state)
        if state.unreadable and not state.uuids:
            causes.insert(0, unreadable(state.unreadable))
        causes += _waiting_containers(pod, state)
        causes += without_limit(facts, pod, what, node, figures, log.not_held)
        causes += without_sentry(facts, pod, node)
    notes = list(_enough_notes(run_bytes, mine))
    notes += [] if state.finished else held_notes(facts, pod, state, node, figures)
    if state.need:
        history = find_history(facts.histories, pod.workload)
        notes += history_notes(history, state.need.memory_bytes, facts.nodes, pod)
    left_out, remarks = list(facts.left_out), []
    if not state.finished:
        remarks = [*_why_those(node, state, mine), *old_figures([node] if node else [], now_s)]
        seen = (facts.seen or {}).get(state.node)
        if seen is not None and seen.said:
            remarks.append(
                f"the amounts of {state.node} are {SAID}: nobody knows what pods use there"
            )
        elif node is None and facts.nodes is not None:
            left_out.append(f"figures of node {state.node}: its sentry has written none")
    return facts.report(
        what,
        headline,
        causes,
        enough=Enough(run_bytes=run_bytes),
        notes=tuple(notes),
        remarks=tuple(remarks),
        left_out=tuple(left_out),
    )


def _headline(
    facts: PodFacts, pod: ClusterPod, state: PodState, node: NodeFigures | None, mine: Mine
) -> tuple[State, str]:
    """Return what a pod does, and the first sentence of it."""
    name, status = facts.title, pod.part("status")
    if state.finished:
        return State.ENDED, f"{name} {_ended(facts, pod)}"
    since_s = read_time(status.get("startTime"))
    passed = "" if since_s is None else span(facts.now_s - since_s)
    asks = demand_words(state, pod.rule)
    if state.waits is not None:
        waits = f"has waited {passed}" if passed else "waits"
        return State.WAITING, f"{name} is bound to {state.node} and {waits} for a GPU. {asks}"
    on, since = _gpus(node, state), f" since {passed}" if passed else ""
    if pod.part("metadata").get("deletionTimestamp"):
        since += " and is being deleted"
    if status.get("phase") != "Running":
        return State.STARTING, f"{name} starts on {state.node}{since}: {on}. {asks}"
    return State.RUNNING, f"{name} runs on {state.node}{since}: {on}, {_figures(state, mine)}."


def _ended(facts: PodFacts, pod: ClusterPod) -> str:
    """Return when a pod ended and its peak: by its sidecar, else by its workload's history."""
    status = pod.part("status")
    at_s = [
        found
        for one in pod.statuses()
        if (found := read_time(part(one, "state", "terminated").get("finishedAt"))) is not None
    ]
    ago = f" {span(facts.now_s - max(at_s))} ago" if at_s else ""
    phase = text_of(status, "phase")
    words = read_message(pod.enforcer_ended().message)
    run = find_run(facts.histories, facts.name, pod.created_s or 0.0)
    if words:
        held = f"{peak_words(words.peak_bytes, words.cap_bytes)}, {stops_words(words.stops)}"
    elif run:
        held = held_words(run[0])
    else:
        return f"ended{ago} ({phase}); nobody says what it held."
    return f"ended{ago} ({phase}): {held}."


def _gpus(node: NodeFigures | None, state: PodState) -> str:
    """Name a pod's GPUs: `GPU 1 (H100-80GB, GPU-5c2...)`."""
    if not state.uuids:
        return "no GPU" if state.at_binding else f"all GPUs of {state.node}"
    known = {gpu.uuid: gpu for gpu in node.gpus} if node else {}
    said = []
    for uuid in state.uuids:
        gpu = known.get(uuid)
        product = f"{gpu.product}, " if gpu and gpu.product else ""
        said.append(f"GPU {gpu.index} ({product}{uuid})" if gpu else uuid)
    return named(said, 4)


def _figures(state: PodState, mine: Mine) -> str:
    """Say cap, use and peak, on the GPU on which each is largest."""
    cap = state.hold.cap_bytes if state.hold else 0
    several = state.need is not None and state.need.gpu_count > 1
    parts = [f"cap {exactly(cap)}" + (" on each" if several else "")]
    used = [one.used_bytes for _, one in mine if one.used_bytes is not None]
    peaks = [one.peak_bytes for _, one in mine if one.peak_bytes is not None]
    if used:
        parts.append(f"uses {amount(max(used))}" + (" on one" if several else ""))
    if peaks:
        parts.append(f"peak {amount(max(peaks))}")
    return ", ".join(parts if used else [*parts, "what it uses is not known"])


def _stopped(log: EnforcerLog, stops: int, fix: str, now_s: float) -> Iterator[Cause]:
    """Yield the newest stop, and how many there were; of none in the log, only that."""
    if log.stops:
        detail = _newest(log.stops, stops, now_s)
        yield Cause(Severity.WARNING, log.stops[-1].message, detail, fix)
    elif stops:
        detail = f"{stops_words(stops)} for what the pod held"
        yield Cause(Severity.WARNING, LogMessage.STOPPING, detail, fix)


def _reported(log: EnforcerLog, fix: str, now_s: float) -> Iterator[Cause]:
    """Yield the newest excess for which the policy has nothing stopped, and how many there were."""
    if log.reports:
        detail = f"reported only, {_newest(log.reports, 0, now_s)}"
        yield Cause(Severity.INFO, LogMessage.WOULD_STOP, detail, fix)


def _newest(entries: Sequence[LogEntry], known: int, now_s: float) -> str:
    """Return when the newest entry was written, how many there are or are known of, and it."""
    newest, count = entries[-1], max(known, len(entries))
    when = "before" if newest.at_s is None else f"{span(now_s - newest.at_s)} ago"
    return f"{when}{'' if count == 1 else f' ({count} times so far)'}: {newest.why}"


def _broken(node: NodeFigures | None, state: PodState) -> Iterator[Cause]:
    """Yield those of its GPUs that are lost or broken: its programs may fail for that."""
    for gpu in node.gpus if node else ():
        if gpu.uuid in state.uuids and not gpu.healthy:
            why = f": {gpu.fault}" if gpu.fault else ""
            detail = f"its GPU {gpu.index} is lost or unhealthy{why}"
            fix = "once it has saved its work, delete it, so that another GPU is chosen"
            yield Cause(Severity.WARNING, Blocker.UNHEALTHY, detail, fix)


def _without_gpu(pod: ClusterPod, state: PodState) -> Iterator[Cause]:
    """Yield why a bound pod has no GPU yet, when it gets one, and what the kubelet reports."""
    told = state.waits.told if state.waits else ""
    fix = "wait: vramwarden assigns a GPU within seconds once it is back (vramwarden check)"
    if told:
        fix = "wait: vramwarden assigns a GPU of the node as soon as one has room; "
        fix += (
            "after 5 minutes without room it deletes the pod, and its controller creates another"
            if state.waits and state.waits.owned
            else "or delete the pod and create it again, so that it may go to another node"
        )
    yield Cause(Severity.ERROR, OtherReason.WAITS_FOR_GPU, told or AWAY, fix)
    if pod.is_gated:
        yield Cause(Severity.INFO, OtherReason.CONTAINER_WAITS, _GATED)


def _waiting_containers(pod: ClusterPod, state: PodState) -> Iterator[Cause]:
    """Yield the first container that the kubelet cannot start."""
    for one in pod.statuses():
        waits = part(one, "state", "waiting")
        if is_container_gated(one) and not state.uuids:
            continue
        if is_container_gated(one):
            detail = "it has its GPU now, and the kubelet creates its containers within 10 s"
            yield Cause(Severity.INFO, OtherReason.CONTAINER_WAITS, detail)
            return
        reason = text_of(waits, "reason")
        if reason and reason not in _ORDINARY:
            said = text_of(waits, "message")
            detail = f"container {text_of(one, 'name')}: {reason}"
            yield Cause(
                Severity.ERROR, OtherReason.CONTAINER_WAITS, f"{detail}: {said}" if said else detail
            )
            return


def _peaks(
    words: TerminationMessage | None, log: EnforcerLog, figures: Iterable[PodFigures]
) -> list[int]:
    """Return the known peaks: by the sentry, in the sidecar's last message, and in its log."""
    peaks = [one.peak_bytes for one in figures if one.peak_bytes]
    peaks += [entry.peak_bytes for entry in (*log.stops, *log.reports) if entry.peak_bytes]
    return peaks + (list(words.peaks.values()) if words else [])


def _enough_notes(run_bytes: int | None, mine: Mine) -> Iterator[tuple[str, str]]:
    if run_bytes is None:
        return
    said = exactly(run_bytes)
    if len(mine) == 1:
        gpu, own = mine[0]
        if gpu.free_bytes is not None:
            left = gpu.free_bytes + own.cap_bytes
            fits = "fits" if left >= run_bytes else "does not fit"
            said += (
                f"     free on that GPU: {amount(max(0, gpu.free_bytes), down=True)}, so a new pod "
                f"of {exactly(run_bytes)} {fits} there once this one ends"
            )
    yield WOULD_DO, said


def _why_those(node: NodeFigures | None, state: PodState, mine: Mine) -> Iterator[str]:
    """Say by which rule the GPUs were chosen, and today's figures where these still show it."""
    if node is None or not mine or not state.uuids or state.need is None:
        return
    own = {gpu.uuid: one.cap_bytes for gpu, one in mine}
    gpus, free = advertised(node)
    without = {uuid: free[uuid] + own.get(uuid, 0) for uuid in free}
    again = place(node.name, gpus, without, state.need)
    shown = []
    for gpu in sorted(gpus, key=lambda one: one.index):
        left = amount(max(0, without[gpu.uuid]), down=True)
        pod = " without this pod" if gpu.uuid in own else ""
        shown.append(f"GPU {gpu.index} {'would have' if pod else 'has'} {left}{pod}")
    indices = sorted(gpu.index for gpu, _ in mine)
    many = len(indices) > 1
    which = f"GPUs {', '.join(map(str, indices))}" if many else f"GPU {indices[0]}"
    rule = f"the GPU{'s' if many else ''} with the least free memory that fit"
    rule += " are" if many else "s is"
    same = not isinstance(again, Denial) and {*again} == own.keys()
    today = f"; today {named(shown, 8)}" if same else ", by what was free when it was bound"
    yield f"Why {which} of {node.name}: {rule} taken{today}."
