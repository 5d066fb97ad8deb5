"""The diagnosis of a pod or a workload: why it waits, was denied or was stopped, and what would do.

| the pod | state | from |
| --- | --- | --- |
| does not exist, and a history knows it | gone | `VRAMHistory` |
| does not exist otherwise | unknown | |
| has no VRAM | no-demand, see `creation` | a dry run, and the policy |
| has no node | pending, see `pending_pod` | `place`, then the scheduler's condition |
| has a node | see `bound_pod` | `GPUNode`, the sidecar's log, the pod's conditions |

The first row that fits counts. Events are gone after an hour and may never be written, so nothing
depends on them alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Final

from webhook.core.admission.stray_keys import find_stray_keys
from webhook.core.enforcement.messages import sufficient_request
from webhook.core.enforcement.termination_message import stops_in_words
from webhook.core.formatting import (
    format_amount,
    format_count,
    format_duration,
    format_exact,
    join_names,
)
from webhook.core.kinds.histories import filled_driver_cap, peak_or_cap_bytes
from webhook.core.kinds.nodes import NodeFigures, read_time
from webhook.core.nvidia.device_plugin import MIG_PREFIX
from webhook.core.placement.fit import Need
from webhook.core.pod.fields import find_object, find_string
from webhook.core.pod.template_search import find_templates
from webhook.names import CAP_HELD_CONDITION, IN_PLACE_OF_ANNOTATION
from webhook.tools.explain import notes
from webhook.tools.problems.bound_pod import (
    BoundPod,
    find_late,
    find_reports,
    find_running,
    find_stops,
    line_for,
)
from webhook.tools.problems.capacity import NodeFit, find_fits, node_sums, with_newer_pods
from webhook.tools.problems.creation import (
    find_denial,
    find_foreign_requests,
    find_not_mutated,
    seems_to_ask,
)
from webhook.tools.problems.enforcer_log import read_log
from webhook.tools.problems.pending_pod import Room, find_pending, room_notes, unreadable_demand
from webhook.tools.problems.problem import Code, Problem, ProblemSubject, Severity
from webhook.tools.snapshot.cluster import ClusterSnapshot
from webhook.tools.snapshot.kinds import KINDS, POD, WorkloadKind
from webhook.tools.snapshot.node import SAID
from webhook.tools.snapshot.pod import ClusterPod
from webhook.tools.snapshot.workloads import (
    WorkloadState,
    owners_of_kind,
    read_owned,
    read_workload,
)

_SELF_TEST_FAILED: Final = 70
"""Exit code of the sidecar."""
_LIKE: Final = 0.5
_LIKE_KIND: Final = 0.85
"""Between `deploymnet` and `deployment`, but not between `jobset` and `jobs`."""
_MOST_NEAR: Final = 3
_SLICE: Final = (
    "a slice (MIG) has memory of its own, to which the GPU holds it; the node's labels "
    "nvidia.com/mig-<profile>.memory say how much"
)
_SLOT: Final = (
    "its GPU is shared by time-slicing: its sidecar holds it to its cap, and that memory is not "
    "kept free, so other pods may take it first"
)


class State(StrEnum):
    """State of a pod, or of a workload by one of its pods."""

    PENDING = "pending"
    """It has no node."""
    REFUSED = "refused"
    """Its pods are not created."""
    WAITING = "waiting"
    """It has a node, and no GPU yet."""
    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    """Something of it was stopped for what it held; the rest may run on."""
    BLIND = "blind"
    """Its memory cannot be measured."""
    ENDED = "ended"
    GONE = "gone"
    """It does not exist any more; its last run is known."""
    NO_DEMAND = "no-demand"
    """It requests no VRAM."""
    UNKNOWN = "unknown"
    """No object has that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Answer of `explain` about one object."""

    subject: ProblemSubject
    state: State
    sentence: str
    """Sentence that continues the kind and the name."""
    problems: Sequence[Problem] = ()
    nodes: Sequence[NodeFit] = ()
    notes: Sequence[tuple[str, str]] = ()
    """Labels and texts."""
    left_out: Sequence[str] = ()
    """Facts that could not be read, and why, also those of `pod`."""
    pod: Diagnosis | None = None
    """Newest pod of a workload with a problem, else its newest."""

    @property
    def headline(self) -> str:
        """First line: `Pod team-a/eval-4 has waited for 3m.`."""
        return f"{self.subject.kind} {self.subject} {self.sentence}"

    @property
    def is_trouble(self) -> bool:
        """True if it has a problem that is not only information, or its pod has one."""
        mine = any(one.severity is not Severity.INFO for one in self.problems)
        return mine or bool(self.pod and self.pod.is_trouble)


def diagnose(snapshot: ClusterSnapshot, kind: WorkloadKind, name: str) -> Diagnosis:
    """Explain a pod, or what creates pods; raises FactUnavailable or KubeError if unreadable."""
    if kind is POD:
        pod = snapshot.find_pod(name)
        said = _diagnose_pod(snapshot, pod) if pod else _missing_pod(snapshot, name)
    else:
        found = (read_workload if kind.path else read_owned)(snapshot, kind, name)
        said = _diagnose_workload(snapshot, found) if found else _not_found(snapshot, kind, name)
    return replace(said, left_out=[f"{what}: {why}" for what, why in snapshot.left_out.items()])


def newest_with_problem(pods: Sequence[ClusterPod]) -> ClusterPod | None:
    """Return the newest pod that waits, failed, was stopped or is not ready, else the newest."""

    def key(pod: ClusterPod) -> tuple[bool, float, str]:
        is_well = pod.ready and not any(one.get("restartCount") for one in pod.statuses())
        was_stopped = pod.condition(CAP_HELD_CONDITION, "False") is not None
        has_problem = was_stopped or not (is_well or pod.phase == "Succeeded")
        return has_problem, pod.created_s or 0.0, pod.name

    return max(pods, key=key, default=None)


def _diagnose_workload(snapshot: ClusterSnapshot, found: WorkloadState) -> Diagnosis:
    """Explain a workload: why its pods are not created, then one of its pods."""
    newest = newest_with_problem(found.pods)
    pod = _diagnose_pod(snapshot, newest) if newest else None
    templates = find_templates(found.raw, found.kind, "") if found.raw else []
    template = ClusterPod(templates[0].pod) if templates and templates[0].pod else None
    problems = [*find_denial(found.denial, template)] if found.denial else []
    has = format_count(found.running, "pod")
    if found.wanted is not None:
        has = f"{found.running} of {found.wanted} pods"
    if problems:
        how = "a pod of it, tried as you and not stored, is" if found.tried else "pods of it are"
        state, headline = State.REFUSED, f"has {has}: {how} denied."
    elif found.ended:
        state, headline = pod.state if pod else State.ENDED, f"{found.ended}."
    elif pod is None:
        state = State.PENDING if found.wanted else State.ENDED
        headline = f"has {has}" + ("." if state is State.PENDING else " now.")
    else:
        state, headline = pod.state, f"has {has}."
    if found.failed:
        problems.append(Problem(Code.JOB_FAILED, Severity.ERROR, found.failed))
    strays = find_stray_keys(found.raw, found.kind, templates) if found.raw else ()
    misplaced = dict.fromkeys(one.key for one in strays if one.templates and one.key == one.meant)
    if misplaced:
        detail = f"{join_names(misplaced)} is on the {found.kind}, where nothing reads it"
        fix = f"move it to {templates[0].shown('metadata.annotations')}"
        problems.append(Problem(Code.NOT_READ, Severity.WARNING, detail, fix))
    if pod is None and state is State.PENDING:
        detail = "neither it nor an Event states why it has no pods; does its controller run?"
        see = f"kubectl describe {found.kind.lower()} {found.name} -n {snapshot.namespace}"
        problems.append(Problem(Code.NO_PODS, Severity.ERROR, detail, see))
    subject = ProblemSubject(found.kind, found.name, snapshot.namespace)
    return Diagnosis(subject=subject, state=state, sentence=headline, problems=problems, pod=pod)


def _not_found(snapshot: ClusterSnapshot, kind: WorkloadKind, name: str) -> Diagnosis:
    """Report that an object does not exist, or that one of another product has no pods."""
    place, title = f"in namespace {snapshot.namespace}", kind.name
    headline, detail, fix = "does not exist.", f"there is no {title} {name} {place}", ""
    names: Iterable[str]
    if kind is POD:
        rows = snapshot.attempt(lambda: snapshot.pod_rows) or []
        owners = {f"{one.workload.kind.lower()}/{one.workload.name}" for one in rows if one.owner}
        names = [*(one.name for one in rows), *owners]
    elif kind.path:
        names = snapshot.attempt(partial(snapshot.names, kind)) or ()
    else:
        names = others = owners_of_kind(snapshot, kind)
        title = next(iter(others.values()), title)
        headline, detail = "has no pods.", f"no pod {place} belongs to {title} {name}"
        fix = f"see kubectl describe {kind.name.lower()} {name} -n {snapshot.namespace}"
        if not others:
            known = [one.name.lower() for one in KINDS]
            detail = (
                f"the known kinds are {join_names(known, len(known))}; pods of any other kind are "
            )
            detail += "found by their owners"
            for like in difflib.get_close_matches(kind.name, known, 1, _LIKE_KIND):
                fix = f"did you mean {like}/{name}?"
    if near := _near(name, [*names]):
        fix = f"did you mean {join_names(near)}?"
    problem = Problem(Code.NOT_FOUND, Severity.ERROR, detail, fix)
    subject = ProblemSubject(title, name, snapshot.namespace)
    return Diagnosis(subject=subject, state=State.UNKNOWN, sentence=headline, problems=[problem])


def _near(name: str, names: Sequence[str]) -> list[str]:
    """Return a few names like one: what is made of it, as `llama-7c9f`, and `deployment/llama`."""
    near = [one for one in names if one.rpartition("/")[2] == name]
    near += [one for one in names if one.startswith(f"{name}-")][:_MOST_NEAR]
    near += difflib.get_close_matches(name, names, _MOST_NEAR, _LIKE)
    return list(dict.fromkeys(near))[:_MOST_NEAR]


def _diagnose_pod(snapshot: ClusterSnapshot, pod: ClusterPod) -> Diagnosis:
    """Explain one pod; never fails, whatever its owner stored."""
    if pod.state.need is None:
        return _without_demand(snapshot, pod)
    judge = _bound if pod.state.node or pod.state.finished else _pending
    found = judge(snapshot, pod)
    if instead := find_string(pod.annotations, IN_PLACE_OF_ANNOTATION):
        text = f"{instead}, which the pod asked for: its rule has translateWholeGPU"
        found = replace(found, notes=(("GPU memory in place of", text), *found.notes))
    return found


def _missing_pod(snapshot: ClusterSnapshot, name: str) -> Diagnosis:
    """Explain a pod that does not exist: by its last run, if a history has it."""
    histories = snapshot.attempt(lambda: snapshot.histories) or ()
    nodes = snapshot.attempt(lambda: snapshot.gpu_nodes)
    last = notes.find_run(histories, name)
    if last is None:
        return _not_found(snapshot, POD, name)
    run, history = last
    ago = format_duration(snapshot.now_s - run.ended_s)
    held = notes.held_words(run.peak_bytes, run.requested_bytes, run.stops)
    headline = f"is gone; it ended {ago} ago: {held}."
    fix = line_for(None, sufficient_request(peak_or_cap_bytes(run) or 0), nodes)
    problems = []
    if run.stops:
        detail = f"{stops_in_words(run.stops)} for what the pod held"
        problems.append(Problem(Code.STOPPED, Severity.WARNING, detail, fix))
    elif filled_driver_cap(run):
        detail = "it filled its cap, beyond which the driver denies memory: that may be too small"
        problems.append(Problem(Code.CAP_HIT, Severity.INFO, detail, fix))
    subject = ProblemSubject(POD.name, name, snapshot.namespace)
    past = [*notes.history_note(history, run.requested_bytes, nodes, None)]
    return Diagnosis(
        subject=subject, state=State.GONE, sentence=headline, problems=problems, notes=past
    )


def _without_demand(snapshot: ClusterSnapshot, pod: ClusterPod) -> Diagnosis:
    """Explain a pod that takes no VRAM, though it may seem to ask for some."""
    found = Diagnosis(
        subject=ProblemSubject(POD.name, pod.name, snapshot.namespace),
        state=State.NO_DEMAND,
        sentence="asks for no VRAM.",
    )
    if pod.ended or not seems_to_ask(pod):
        return replace(found, problems=[*find_foreign_requests(pod)])
    # Imported here: policies are slow to load, and few pods need them.
    from webhook.tools.problems.recreation import PodOutcome, judge_recreation  # noqa: PLC0415
    from webhook.tools.snapshot.release import read_rules_in_force  # noqa: PLC0415

    trial = snapshot.attempt(
        partial(snapshot.try_create, snapshot.namespace, pod.name, pod.as_created()),
        "whether a pod like it gets its GPU memory",
    )
    outcome, decision = judge_recreation(pod, read_rules_in_force(snapshot))
    exempt = outcome is PodOutcome.EXEMPT
    problems = [*find_not_mutated(pod, trial, decision, exempt=exempt)]
    return replace(found, sentence="asks for VRAM, and has none.", problems=problems)


def _demand_words(pod: ClusterPod) -> str:
    """Return the request of a pod: `It asks for 30Gi on 1 GPU (rule "team").`."""
    need = pod.state.need or Need(0)
    on = "1 GPU" if need.gpu_count == 1 else f"each of {need.gpu_count} GPUs"
    whose = f" (rule {pod.rule})" if pod.rule else ""
    return f"It asks for {format_exact(need.memory_bytes)} on {on}{whose}."


def _pending(snapshot: ClusterSnapshot, pod: ClusterPod) -> Diagnosis:
    """Explain a pod without a node."""
    state = pod.state
    nodes = snapshot.attempt(lambda: snapshot.gpu_nodes, "figures of GPUs")
    now_s, created_s = snapshot.now_s, pod.created_s
    waited = f" for {format_duration(now_s - created_s)}" if created_s is not None else ""
    headline = f"has waited{waited}. {_demand_words(pod)}"
    problems: list[Problem] = []
    room = None
    if pod.plugin:
        headline += f" That is {pod.plugin}, given by NVIDIA's device plugin."
    elif state.unreadable:
        problems.append(unreadable_demand(state.unreadable))
    elif state.at_binding and nodes == ():
        detail = "no node shows a GPU (kubectl get gpunodes)"
        fix = "see whether vramwarden's sentry and node agent run (vramwarden check)"
        problems.append(Problem(Code.GPUS_UNKNOWN, Severity.ERROR, detail, fix))
    else:
        room = _room(snapshot, pod, nodes)
    if not state.at_binding and snapshot.attempt(lambda: snapshot.shared_nodes) == {}:
        detail, fix = "no node shares its GPUs", "on a new node wait a minute; else"
        fix += " see why (vramwarden check)"
        problems.append(Problem(Code.GPUS_UNKNOWN, Severity.ERROR, detail, fix))
    problems += find_pending(pod, room, explained=bool(problems))
    is_blocked = any(one.code is Code.UNSCHEDULABLE for one in problems)
    lines = [] if room is None or is_blocked else [*room_notes(room)]
    lines += _history(snapshot, pod, nodes)
    lines += _about_accounting(snapshot, pod)
    lines += notes.stale_note(room.nodes if room else (), now_s)
    fits = room.fits if room and not room.whole_nodes else ()
    return Diagnosis(
        subject=ProblemSubject(POD.name, pod.name, snapshot.namespace),
        state=State.PENDING,
        sentence=headline,
        problems=problems,
        nodes=fits,
        notes=lines,
    )


def _room(
    snapshot: ClusterSnapshot, pod: ClusterPod, nodes: Sequence[NodeFigures] | None
) -> Room | None:
    """Return the nodes as a pod finds them; None if their free memory is unknown."""
    need, whole = pod.state.need or Need(0), 0
    if pod.state.at_binding and nodes is None:
        return None
    shared = snapshot.attempt(
        lambda: snapshot.shared_nodes,
        "labels and taints of nodes, so some of those above may not take the pod",
    )
    own = snapshot.attempt(lambda: snapshot.pods) or ()
    figures = with_newer_pods(nodes or (), own)
    if not pod.state.at_binding:
        every = snapshot.attempt(lambda: snapshot.pods_of_all_namespaces) if shared else None
        sums = None if every is None else node_sums(shared or {}, every, snapshot.now_s)
        if not sums:
            return None
        whole, figures = need.gpu_count, tuple(sums)
        need = Need(need.memory_bytes * need.gpu_count)
    return Room(
        need=need,
        nodes=figures,
        fits=find_fits(pod, need, figures, shared, snapshot.now_s),
        names={one.uid: one for one in own},
        reads_nodes=shared is not None,
        whole_nodes=whole,
    )


def _history(
    snapshot: ClusterSnapshot, pod: ClusterPod, nodes: Sequence[NodeFigures] | None
) -> Iterator[tuple[str, str]]:
    if pod.state.need:
        histories = snapshot.attempt(lambda: snapshot.histories) or ()
        owner = (pod.workload.kind, pod.workload.name)
        found = next((one for one in histories if (one.kind, one.workload) == owner), None)
        yield from notes.history_note(found, pod.state.need.memory_bytes, nodes, pod)


def _about_accounting(snapshot: ClusterSnapshot, pod: ClusterPod) -> Iterator[tuple[str, str]]:
    """Yield how a pod is counted that gets no GPU of vramwarden's choice."""
    if pod.plugin:
        yield "accounting", _SLICE if MIG_PREFIX in pod.plugin else _SLOT
    elif not pod.state.at_binding:
        yield (
            "accounting",
            "its rule chooses no GPU; a node counts by what all its GPUs have free together",
        )
        nodes = snapshot.attempt(lambda: snapshot.shared_nodes) or {}
        if said := [one.name for one in nodes.values() if one.said]:
            yield "amounts", f"those of {join_names(said)} are {SAID}"


def _bound(snapshot: ClusterSnapshot, pod: ClusterPod) -> Diagnosis:
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
    nodes = snapshot.attempt(lambda: snapshot.gpu_nodes, "figures of GPUs")
    lines = snapshot.attempt(lambda: snapshot.log(pod), "the log of container vram-enforcer")
    ended = pod.enforcer_ended()
    failed = ended.get("exitCode") == _SELF_TEST_FAILED
    log = read_log(lines or (), find_string(ended, "message"), self_test_failed=failed)
    bound, state = BoundPod(pod=pod, log=log, nodes=nodes, now_s=snapshot.now_s), pod.state
    stops, reports = [*find_stops(bound)], [*find_reports(bound)]
    phase, headline = _headline(snapshot, bound)
    problems = [*stops, *reports]
    if phase is State.WAITING:
        problems = [*find_late(bound), *problems]
    else:
        if not state.finished:
            problems += find_running(bound)
        if any(one.severity is Severity.WARNING and one.code is not Code.CAP_HIT for one in stops):
            phase = State.STOPPED
        elif any(one.code is Code.BLIND for one in reports):
            phase = State.BLIND
    said = [*notes.bound_notes(bound), *_history(snapshot, pod, nodes)]
    if pod.plugin:
        said += _about_accounting(snapshot, pod)
    elif not (state.finished or bound.node):
        node = snapshot.attempt(lambda: snapshot.node(state.node))
        if node and node.said:
            said.append(("amounts", f"those of {state.node} are {SAID}; use is not measured there"))
        elif nodes is not None:
            snapshot.left_out[f"figures of node {state.node}"] = "its sentry has written none"
    subject = ProblemSubject(POD.name, pod.name, snapshot.namespace)
    return Diagnosis(subject=subject, state=phase, sentence=headline, problems=problems, notes=said)


def _headline(snapshot: ClusterSnapshot, bound: BoundPod) -> tuple[State, str]:
    """Return the state of a pod, and the first sentence about it."""
    pod, state, status = bound.pod, bound.pod.state, bound.pod.part("status")
    if state.finished:
        return State.ENDED, _ended(snapshot, bound)
    since_s = read_time(status.get("startTime"))
    passed = "" if since_s is None else format_duration(bound.now_s - since_s)
    asks = _demand_words(pod)
    if state.pending is not None:
        waits = f"has waited {passed}" if passed else "waits"
        return State.WAITING, f"is bound to {state.node} and {waits} for a GPU. {asks}"
    since = f" since {passed}" if passed else ""
    if pod.part("metadata").get("deletionTimestamp"):
        since += " and is being deleted"
    runs = pod.phase == "Running"
    where = f"{'runs' if runs else 'starts'} on {state.node}{since}"
    phase = State.RUNNING if runs else State.STARTING
    if pod.plugin:
        return phase, f"{where}: {pod.plugin}, given by NVIDIA's device plugin. {asks}"
    end = f", {_use(bound)}." if runs else f". {asks}"
    return phase, f"{where}: {_gpus(bound)}{end}"


def _ended(snapshot: ClusterSnapshot, bound: BoundPod) -> str:
    """Return when a pod ended and its peak: by its sidecar, else by its workload's history."""
    pod, message = bound.pod, bound.message
    states = (find_object(one, "state", "terminated") for one in pod.statuses())
    times = (read_time(one.get("finishedAt")) for one in states)
    ended_s = max((at_s for at_s in times if at_s is not None), default=None)
    when = "" if ended_s is None else f" {format_duration(bound.now_s - ended_s)} ago"
    ended = f"ended{when} ({pod.phase})"
    if message:
        words = notes.held_words(message.peak_bytes, message.cap_bytes, message.stops)
        return f"{ended}: {words}."
    histories = snapshot.attempt(lambda: snapshot.histories) or ()
    found = notes.find_run(histories, pod.name, pod.created_s or 0.0)
    if found is None:
        return f"{ended}; its peak is not known."
    run = found[0]
    return f"{ended}: {notes.held_words(run.peak_bytes, run.requested_bytes, run.stops)}."


def _gpus(bound: BoundPod) -> str:
    """Return a pod's GPUs: `GPU 1 (H100-80GB, GPU-5c2...)`."""
    if not bound.pod.state.uuids:
        return "no GPU" if bound.pod.state.at_binding else f"all GPUs of {bound.pod.state.node}"
    known = {gpu.uuid: gpu for gpu in bound.node.gpus} if bound.node else {}
    said = []
    for uuid in bound.pod.state.uuids:
        gpu = known.get(uuid)
        product = f"{gpu.product}, " if gpu and gpu.product else ""
        said.append(f"GPU {gpu.index} ({product}{uuid})" if gpu else uuid)
    return join_names(said, 4)


def _use(bound: BoundPod) -> str:
    """Return cap, use and peak, on the GPU on which each is largest."""
    several = bound.pod.state.need is not None and bound.pod.state.need.gpu_count > 1
    cap = f"cap {format_exact(bound.cap_bytes)}" + (" on each" if several else "")
    used = [one.used_bytes for one in bound.figures if one.used_bytes is not None]
    peaks = [one.peak_bytes for one in bound.figures if one.peak_bytes is not None]
    if not used:
        return f"{cap}, what it uses is not known"
    uses = f"{cap}, uses {format_amount(max(used))}" + (" on one" if several else "")
    return f"{uses}, peak {format_amount(max(peaks))}" if peaks else uses
