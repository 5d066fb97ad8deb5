"""Diagnosis of one pod that is pending or bound, has ended, or has no GPU memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from webhook.core.formatting import format_amount, format_duration, format_exact, join_names
from webhook.core.kinds.nodes import NodeFigures, read_time
from webhook.core.nvidia.device_plugin import MIG_PREFIX
from webhook.core.placement.fit import Need
from webhook.core.pod.fields import find_object, find_string
from webhook.names import IN_PLACE_OF_ANNOTATION
from webhook.tools.explain import report
from webhook.tools.explain.report import Diagnosis, State
from webhook.tools.problems.bound_pod import (
    BoundPod,
    find_excess_reports,
    find_late_assignment,
    find_running_problems,
    find_stops,
)
from webhook.tools.problems.capacity import add_newer_pods, find_fits, nodes_as_single_gpus
from webhook.tools.problems.creation import find_foreign_requests, seems_to_request_vram
from webhook.tools.problems.enforcer_log import read_log
from webhook.tools.problems.pending_pod import Room, find_pending, room_notes, unreadable_demand
from webhook.tools.problems.problem import Code, Problem, ProblemSubject, Severity
from webhook.tools.snapshot.namespace import NamespaceSnapshot
from webhook.tools.snapshot.node import CONFIGURED
from webhook.tools.snapshot.objects import POD
from webhook.tools.snapshot.pod import ClusterPod

_SELF_TEST_FAILED: Final = 70
"""Exit code of a sidecar whose self-test failed."""
_SLICE: Final = (
    "a slice (MIG) has memory of its own, to which the GPU holds it; the node's labels "
    "nvidia.com/mig-<profile>.memory say how much"
)
_SLOT: Final = (
    "its GPU is shared by time-slicing: its sidecar holds it to its cap, and that memory is not "
    "kept free, so other pods may take it first"
)


def diagnose_pod(snapshot: NamespaceSnapshot, pod: ClusterPod) -> Diagnosis:
    """Diagnose a pod. Malformed fields never raise an exception."""
    if pod.state.need is None:
        return _diagnose_without_request(snapshot, pod)
    judge = _diagnose_bound if pod.state.node or pod.state.finished else _diagnose_pending
    found = judge(snapshot, pod)
    if instead := find_string(pod.annotations, IN_PLACE_OF_ANNOTATION):
        text = f"{instead}, which the pod asked for: its rule has translateWholeGPU"
        found = replace(found, notes=(("GPU memory in place of", text), *found.notes))
    return found


def _diagnose_without_request(snapshot: NamespaceSnapshot, pod: ClusterPod) -> Diagnosis:
    """Diagnose a pod without VRAM that may have tried to request some."""
    found = Diagnosis(
        subject=ProblemSubject(POD.name, pod.name, snapshot.namespace),
        state=State.NO_DEMAND,
        sentence="asks for no VRAM.",
    )
    if pod.has_ended or not seems_to_request_vram(pod):
        return replace(found, problems=[*find_foreign_requests(pod)])
    # Imported here, because policies are slow to load and few pods need them.
    from webhook.tools.problems.recreation import PodOutcome, decide_recreation, find_not_mutated  # noqa: PLC0415
    from webhook.tools.snapshot.admission_rules import read_rules_in_force  # noqa: PLC0415

    trial = snapshot.attempt(
        partial(snapshot.dry_run_create, snapshot.namespace, pod.name, pod.as_created()),
        "whether a pod like it gets its GPU memory",
    )
    outcome, decision = decide_recreation(pod, read_rules_in_force(snapshot))
    exempt = outcome is PodOutcome.EXEMPT
    problems = [*find_not_mutated(pod, trial, decision, exempt=exempt)]
    return replace(found, sentence="asks for VRAM, and has none.", problems=problems)


def _describe_request(pod: ClusterPod) -> str:
    """Describe the request of a pod: `It asks for 30Gi on 1 GPU (rule "team").`."""
    need = pod.state.need or Need(0)
    on = "1 GPU" if need.gpu_count == 1 else f"each of {need.gpu_count} GPUs"
    whose = f" (rule {pod.rule})" if pod.rule else ""
    return f"It asks for {format_exact(need.memory_bytes)} on {on}{whose}."


def _diagnose_pending(snapshot: NamespaceSnapshot, pod: ClusterPod) -> Diagnosis:
    state = pod.state
    nodes = snapshot.attempt(lambda: snapshot.gpu_nodes, "figures of GPUs")
    now_s, created_s = snapshot.now_s, pod.created_s
    waited = f" for {format_duration(now_s - created_s)}" if created_s is not None else ""
    headline = f"has waited{waited}. {_describe_request(pod)}"
    problems: list[Problem] = []
    room = None
    if pod.plugin_devices:
        headline += f" That is {pod.plugin_devices}, given by NVIDIA's device plugin."
    elif state.unreadable:
        problems.append(unreadable_demand(state.unreadable))
    elif state.at_binding and nodes == ():
        detail = "no node shows a GPU (kubectl get gpunodes)"
        fix = "see whether vramwarden's sentry and node agent run (vramwarden check)"
        problems.append(Problem(Code.GPUS_UNKNOWN, Severity.ERROR, detail, fix))
    else:
        room = _read_room(snapshot, pod, nodes)
    if not state.at_binding and snapshot.attempt(lambda: snapshot.shared_nodes) == {}:
        detail, fix = "no node shares its GPUs", "on a new node wait a minute; else"
        fix += " see why (vramwarden check)"
        problems.append(Problem(Code.GPUS_UNKNOWN, Severity.ERROR, detail, fix))
    problems += find_pending(pod, room, explained=bool(problems))
    is_blocked = any(problem.code is Code.UNSCHEDULABLE for problem in problems)
    pod_notes = [] if room is None or is_blocked else [*room_notes(room)]
    pod_notes += _history_note(snapshot, pod, nodes)
    pod_notes += _accounting_note(snapshot, pod)
    pod_notes += report.stale_note(room.nodes if room else (), now_s)
    fits = room.fits if room and not room.summed_gpus else ()
    return Diagnosis(
        subject=ProblemSubject(POD.name, pod.name, snapshot.namespace),
        state=State.PENDING,
        sentence=headline,
        problems=problems,
        nodes=fits,
        notes=pod_notes,
    )


def _read_room(
    snapshot: NamespaceSnapshot, pod: ClusterPod, nodes: Sequence[NodeFigures] | None
) -> Room | None:
    """Return the nodes and their free capacity for a pod; None if free memory is unknown."""
    need, whole = pod.state.need or Need(0), 0
    if pod.state.at_binding and nodes is None:
        return None
    shared = snapshot.attempt(
        lambda: snapshot.shared_nodes,
        "labels and taints of nodes, so some of those above may not take the pod",
    )
    own = snapshot.attempt(lambda: snapshot.pods) or ()
    figures = add_newer_pods(nodes or (), own)
    if not pod.state.at_binding:
        every = snapshot.attempt(lambda: snapshot.pods_of_all_namespaces) if shared else None
        sums = None if every is None else nodes_as_single_gpus(shared or {}, every, snapshot.now_s)
        if not sums:
            return None
        whole, figures = need.gpu_count, tuple(sums)
        need = Need(need.memory_bytes * need.gpu_count)
    return Room(
        need=need,
        nodes=figures,
        fits=find_fits(pod, need, figures, shared, snapshot.now_s),
        own_pods={pod.uid: pod for pod in own},
        reads_nodes=shared is not None,
        summed_gpus=whole,
    )


def _history_note(
    snapshot: NamespaceSnapshot, pod: ClusterPod, nodes: Sequence[NodeFigures] | None
) -> Iterator[tuple[str, str]]:
    if pod.state.need:
        histories = snapshot.attempt(lambda: snapshot.histories) or ()
        owner = (pod.workload.kind, pod.workload.name)
        found = next(
            (history for history in histories if (history.kind, history.workload) == owner), None
        )
        yield from report.history_note(found, pod.state.need.memory_bytes, nodes, pod)


def _accounting_note(snapshot: NamespaceSnapshot, pod: ClusterPod) -> Iterator[tuple[str, str]]:
    """Yield notes on how the pod's memory is counted if vramwarden does not choose its GPUs."""
    if pod.plugin_devices:
        yield "accounting", _SLICE if MIG_PREFIX in pod.plugin_devices else _SLOT
    elif not pod.state.at_binding:
        yield (
            "accounting",
            "its rule chooses no GPU; a node counts by what all its GPUs have free together",
        )
        nodes = snapshot.attempt(lambda: snapshot.shared_nodes) or {}
        if names := [node.name for node in nodes.values() if node.is_configured]:
            yield "amounts", f"those of {join_names(names)} are {CONFIGURED}"


def _diagnose_bound(snapshot: NamespaceSnapshot, pod: ClusterPod) -> Diagnosis:
    """Diagnose a pod that has a node or has ended.

    | GPUs | a stop occurred | memory is measurable | the pod | state |
    | --- | --- | --- | --- | --- |
    | not yet assigned | any | any | any | waiting |
    | any | yes | any | any | stopped |
    | any | no | no | has not ended | blind |
    | any | no | yes | has ended | ended |
    | any | no | yes | starts | starting |
    | any | no | yes | runs | running |
    """
    nodes = snapshot.attempt(lambda: snapshot.gpu_nodes, "figures of GPUs")
    log_lines = snapshot.attempt(
        lambda: snapshot.read_enforcer_log(pod), "the log of container vram-enforcer"
    )
    ended = pod.enforcer_termination()
    failed = ended.get("exitCode") == _SELF_TEST_FAILED
    log = read_log(log_lines or (), find_string(ended, "message"), self_test_failed=failed)
    bound, state = BoundPod(pod=pod, log=log, nodes=nodes, now_s=snapshot.now_s), pod.state
    stops, reports = [*find_stops(bound)], [*find_excess_reports(bound)]
    phase, headline = _headline(snapshot, bound)
    problems = [*stops, *reports]
    if phase is State.WAITING:
        problems = [*find_late_assignment(bound), *problems]
    else:
        if not state.finished:
            problems += find_running_problems(bound)
        if any(
            stop.severity is Severity.WARNING and stop.code is not Code.CAP_HIT for stop in stops
        ):
            phase = State.STOPPED
        elif any(report.code is Code.BLIND for report in reports):
            phase = State.BLIND
    pod_notes = [*report.bound_notes(bound), *_history_note(snapshot, pod, nodes)]
    if pod.plugin_devices:
        pod_notes += _accounting_note(snapshot, pod)
    elif not (state.finished or bound.node):
        node = snapshot.attempt(lambda: snapshot.node(state.node))
        if node and node.is_configured:
            pod_notes.append(
                (
                    "amounts",
                    f"those of {state.node} are {CONFIGURED}; use is not measured there",
                )
            )
        elif nodes is not None:
            snapshot.left_out[f"figures of node {state.node}"] = "its sentry has written none"
    subject = ProblemSubject(POD.name, pod.name, snapshot.namespace)
    return Diagnosis(
        subject=subject, state=phase, sentence=headline, problems=problems, notes=pod_notes
    )


def _headline(snapshot: NamespaceSnapshot, bound: BoundPod) -> tuple[State, str]:
    """Return the state of a bound pod and the first sentence about the pod."""
    pod, state, status = bound.pod, bound.pod.state, bound.pod.part("status")
    if state.finished:
        return State.ENDED, _describe_end(snapshot, bound)
    since_s = read_time(status.get("startTime"))
    passed = "" if since_s is None else format_duration(bound.now_s - since_s)
    asks = _describe_request(pod)
    if state.pending is not None:
        waits = f"has waited {passed}" if passed else "waits"
        return State.WAITING, f"is bound to {state.node} and {waits} for a GPU. {asks}"
    since = f" since {passed}" if passed else ""
    if pod.part("metadata").get("deletionTimestamp"):
        since += " and is being deleted"
    runs = pod.phase == "Running"
    where = f"{'runs' if runs else 'starts'} on {state.node}{since}"
    phase = State.RUNNING if runs else State.STARTING
    if pod.plugin_devices:
        return phase, f"{where}: {pod.plugin_devices}, given by NVIDIA's device plugin. {asks}"
    end = f", {_describe_use(bound)}." if runs else f". {asks}"
    return phase, f"{where}: {_describe_gpus(bound)}{end}"


def _describe_end(snapshot: NamespaceSnapshot, bound: BoundPod) -> str:
    """Describe when a pod ended, and its peak from its sidecar or its workload's history."""
    pod, message = bound.pod, bound.message
    states = (find_object(status, "state", "terminated") for status in pod.container_statuses())
    times = (read_time(state.get("finishedAt")) for state in states)
    ended_s = max((at_s for at_s in times if at_s is not None), default=None)
    when = "" if ended_s is None else f" {format_duration(bound.now_s - ended_s)} ago"
    ended = f"ended{when} ({pod.phase})"
    if message:
        words = report.describe_peak(message.peak_bytes, message.cap_bytes, message.stops)
        return f"{ended}: {words}."
    histories = snapshot.attempt(lambda: snapshot.histories) or ()
    found = report.find_run(histories, pod.name, pod.created_s or 0.0)
    if found is None:
        return f"{ended}; its peak is not known."
    run = found[0]
    return f"{ended}: {report.describe_peak(run.peak_bytes, run.requested_bytes, run.stops)}."


def _describe_gpus(bound: BoundPod) -> str:
    """Describe the GPUs of a pod: `GPU 1 (H100-80GB, GPU-5c2...)`."""
    if not bound.pod.state.uuids:
        return "no GPU" if bound.pod.state.at_binding else f"all GPUs of {bound.pod.state.node}"
    gpus_by_uuid = {gpu.uuid: gpu for gpu in bound.node.gpus} if bound.node else {}
    descriptions = []
    for uuid in bound.pod.state.uuids:
        gpu = gpus_by_uuid.get(uuid)
        product = f"{gpu.product}, " if gpu and gpu.product else ""
        descriptions.append(f"GPU {gpu.index} ({product}{uuid})" if gpu else uuid)
    return join_names(descriptions, 4)


def _describe_use(bound: BoundPod) -> str:
    """Describe cap, use and peak. Use and peak are those of the GPU with the largest value."""
    several = bound.pod.state.need is not None and bound.pod.state.need.gpu_count > 1
    cap = f"cap {format_exact(bound.cap_bytes)}" + (" on each" if several else "")
    used = [figure.used_bytes for figure in bound.figures if figure.used_bytes is not None]
    peaks = [figure.peak_bytes for figure in bound.figures if figure.peak_bytes is not None]
    if not used:
        return f"{cap}, what it uses is not known"
    uses = f"{cap}, uses {format_amount(max(used))}" + (" on one" if several else "")
    return f"{uses}, peak {format_amount(max(peaks))}" if peaks else uses
