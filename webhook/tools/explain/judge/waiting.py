"""Why a pod has no node yet: which nodes have room, then what the scheduler says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from webhook.core.kinds.nodes import STALE_S
from webhook.core.pod.findings import Reason
from webhook.core.words import amount, counted, exactly, named, span
from webhook.names import GPU_COUNT_ANNOTATION, GPU_MEMORY_ANNOTATION, VRAM_RESOURCE
from webhook.tools.explain.judge.eligible import Mismatch
from webhook.tools.explain.judge.enforcer_log import find_history, history_notes
from webhook.tools.explain.judge.report import Cause, Enough, OtherReason, Report, Severity, State
from webhook.tools.explain.judge.room import Blocker, find_room, would_make_room
from webhook.tools.explain.judge.whole_node import COUNTED, whole_nodes, why_no_whole_node
from webhook.tools.snapshot.node import SAID
from webhook.tools.snapshot.pod import scheduler_says

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from webhook.core.kinds.nodes import NodeFigures
    from webhook.core.placement.assignments import PodState
    from webhook.core.placement.fit import Need
    from webhook.tools.explain.judge.report import PodFacts
    from webhook.tools.explain.judge.room import Making, Room
    from webhook.tools.explain.judge.whole_node import WholeNode
    from webhook.tools.snapshot.pod import ClusterPod

START_NOW: Final = "would start now"
START_WHEN: Final = "would start when"
_MOST_MAKING: Final = 2
"""Named of the user's own pods; others are one word more."""
_BINDING_DENIED: Final = re.compile(r'"bind\.vramwarden\.io" denied the request: (.*)', re.DOTALL)
_OURS: Final = f"Insufficient {VRAM_RESOURCE}"
_SELECTION: Final = (
    "node(s) didn't match Pod's node affinity/selector",
    "untolerated taint",
    "node(s) had taint",
    "node(s) were unschedulable",
)
"""What is judged here, too, where the user may read nodes."""


def explain_pending(facts: PodFacts, pod: ClusterPod, state: PodState) -> Report:
    """Explain a pod without a node."""
    need, left_out = state.need, list(facts.left_out)
    if need is None:
        raise ValueError("the pod has no demand")
    created_s = pod.created_s
    waited = f" for {span(facts.now_s - created_s)}" if created_s is not None else ""
    headline = f"{facts.title} has waited{waited}. {demand_words(state, pod.rule)}"
    causes: list[Cause] = []
    notes: list[tuple[str, str]] = []
    remarks: list[str] = []
    room = whole = None
    if not state.at_binding:
        whole = _whole_nodes(facts, pod)
        cause = why_no_whole_node(need, whole or (), facts.names)
        if facts.seen is not None and not facts.seen:
            detail, fix = "no node shares its GPUs", "on a new node wait a minute; else"
            fix += " see why (vramwarden check)"
            cause = Cause(Severity.ERROR, Blocker.GPUS_UNKNOWN, detail, fix)
        causes += [cause] if cause else []
        remarks += _of_whole_nodes(facts)
    elif state.unreadable:
        causes.append(unreadable(state.unreadable))
    elif facts.nodes:
        room = find_room(pod, need, facts.nodes, facts.seen, facts.now_s)
        causes += _no_room(need, room)
        notes += _notes(facts, facts.nodes, need, room)
        if room.cause in {Blocker.GPUS_SPLIT, Blocker.NODES_SPLIT}:
            pieces = f"together {amount(room.together_bytes, down=True)} are free, in pieces"
            remarks.append(f"{pieces}; a pod cannot use pieces of several GPUs")
        remarks += old_figures(facts.nodes, facts.now_s)
        if facts.seen is None:
            left_out.append(
                "labels and taints of nodes: you may not read nodes, so some of those above may "
                "be none that the pod selects"
            )
    elif facts.nodes is not None:
        detail = "no node shows a GPU (kubectl get gpunodes)"
        fix = "see whether vramwarden's sentry and node agent run (vramwarden check)"
        causes.append(Cause(Severity.ERROR, Blocker.GPUS_UNKNOWN, detail, fix))
    causes += of_scheduler(pod, room, judged=facts.seen is not None, explained=bool(causes))
    history = find_history(facts.histories, pod.workload)
    notes += history_notes(history, need.memory_bytes, facts.nodes, pod)
    start = room.start_now if room else None
    start_now = start.largest_bytes if start else None
    if whole and (free_bytes := whole[0].free_bytes // need.gpu_count):
        start_now = free_bytes
    enough = Enough(
        start_now_bytes=start_now,
        start_now_node=start.name if start else whole[0].name if whole and start_now else "",
    )
    return facts.report(
        State.PENDING,
        headline,
        causes,
        nodes=room.nodes if room else (),
        enough=enough,
        notes=tuple(notes),
        remarks=tuple(remarks),
        left_out=tuple(left_out),
    )


def _whole_nodes(facts: PodFacts, pod: ClusterPod) -> list[WholeNode] | None:
    if facts.seen is None or facts.pods is None:
        return None
    return whole_nodes(pod, facts.seen, facts.pods, facts.now_s)


def _of_whole_nodes(facts: PodFacts) -> Iterator[str]:
    yield COUNTED
    said = [one.name for one in (facts.seen or {}).values() if one.said]
    if said:
        yield f"the amounts of {named(said)} are {SAID}"


def unreadable(said: str) -> Cause:
    """Return the cause of a pod that no binding gets a GPU: it bypassed admission."""
    reason = next((one for one in Reason if said.startswith(f"{one}: ")), Reason.UNMUTATED)
    return Cause(Severity.ERROR, reason, said.removeprefix(f"{reason}: "))


def demand_words(state: PodState, rule: str) -> str:
    """Say what a pod asks for: `It asks for 30Gi on 1 GPU (rule "team").`."""
    need = state.need
    if need is None:
        return "It asks for nothing."
    on = "1 GPU" if need.gpu_count == 1 else f"each of {need.gpu_count} GPUs"
    whose = f" (rule {rule})" if rule else ""
    return f"It asks for {exactly(need.memory_bytes)} on {on}{whose}."


def old_figures(nodes: Iterable[NodeFigures], now_s: float) -> Iterator[str]:
    """Say whose figures are old."""
    ages = {one.name: now_s - one.observed_s for one in nodes}
    old = {name: age_s for name, age_s in sorted(ages.items()) if age_s > STALE_S}
    if old:
        whose = named(old)
        are = f"are {span(min(old.values()))} old" + (" or older" if len(old) > 1 else "")
        its = "its sentry" if len(old) == 1 else "their sentry"
        yield f"the figures of {whose} {are}; does {its} run? (vramwarden check)"


def _no_room(need: Need, room: Room) -> Iterator[Cause]:
    """Yield why no node has room; nothing where one has."""
    asks, cause = exactly(need.memory_bytes), room.cause
    matching = [node for node in room.nodes if node.matches]
    large = sum(
        sum(gpu.usable_bytes >= need.memory_bytes for gpu in node.gpus) >= need.gpu_count
        for node in matching
    )
    aside = f"{large:,} of {counted(len(room.nodes), 'node')} have GPUs that are large enough"
    if len(room.nodes) == 1:
        aside = "the one node with GPUs is large enough"
    most = max((gpu.usable_bytes for node in matching for gpu in node.gpus), default=0)
    less = "ask for less, or wait until a pod ends"
    if room.start_now:
        less = f"ask for {amount(room.start_now.largest_bytes, down=True)} or less, or wait"
    if cause is None:
        return
    if isinstance(cause, Mismatch):
        yield _no_match(room, cause)
    elif cause is Blocker.GPUS_UNKNOWN:
        detail = "what is free on the GPUs is not known"
        fix = "see whether vramwarden's sentry runs on those nodes (vramwarden check)"
        yield Cause(Severity.ERROR, cause, detail, fix)
    elif cause is Blocker.UNHEALTHY:
        fix = "the log of vramwarden's node agent there says why"
        yield Cause(Severity.ERROR, cause, "no GPU is healthy now", fix)
    elif cause is Blocker.TOO_LARGE:
        has = amount(most, down=True)
        detail = f"no GPU has {asks}: the largest has {has}, so this pod will never start"
        fix = f"ask for {has} or less ({GPU_MEMORY_ANNOTATION})"
        yield Cause(Severity.ERROR, cause, detail, fix, aside if large else "")
    elif cause is Blocker.TOO_FEW_GPUS:
        detail = f"no node has {need.gpu_count} GPUs with {asks} or more, so it will never start"
        yield Cause(Severity.ERROR, cause, detail, f"ask for fewer GPUs ({GPU_COUNT_ANNOTATION})")
    else:
        detail = f"no GPU has {asks} free now"
        if need.gpu_count > 1:
            detail = f"no node has {need.gpu_count} GPUs with {asks} free each now"
        if cause is Blocker.NO_ROOM:
            detail += f"; on all together {amount(room.together_bytes, down=True)} are free"
        yield Cause(Severity.ERROR, cause, detail, less, aside)


def _no_match(room: Room, cause: Mismatch) -> Cause:
    many = len(room.nodes) != 1
    of = f"none of {counted(len(room.nodes), 'node')} with GPUs" if many else "the one GPU node"
    detail = f"the pod may run on {of}" if many else f"the pod may not run on {of}"
    fix = {
        Mismatch.NO_DEVICE_NAMES: "the log of vramwarden's node agent there says what to change",
        Mismatch.NO_ENFORCEMENT: "the log of vramwarden's node agent there says why",
        Mismatch.NO_SENTRY: "ask your platform team to see to the sentry there (vramwarden check)",
        Mismatch.NO_DRIVER_LIMIT: (
            "it selects nodes whose driver holds caps (driverLimit: Require): ask your platform "
            "team for one, with driver r615 and the limiter, or for driverLimit: Auto"
        ),
        Mismatch.NOT_SHARED: "vramwarden check says why, to whoever may read nodes",
        Mismatch.HELD: "ask your platform team to do what the node says",
        Mismatch.CORDONED: "wait for maintenance to end, or ask your platform team",
        Mismatch.TAINT: "ask your platform team for a toleration in the rule, or another node",
    }.get(cause, "change the pod's nodeSelector, affinity or gpu-class")
    return Cause(Severity.ERROR, cause, detail, fix)


def _notes(
    facts: PodFacts, nodes: tuple[NodeFigures, ...], need: Need, room: Room
) -> Iterator[tuple[str, str]]:
    if room.cause is None or isinstance(room.cause, Mismatch):
        return
    start = room.start_now
    if start:
        most = amount(start.largest_bytes, down=True)
        on = "" if need.gpu_count == 1 else f" on each of {need.gpu_count} GPUs"
        old = f", by figures of {span(start.age_s)} ago" if start.age_s > STALE_S else ""
        yield START_NOW, f"{most}{on} (on {start.name}{old})"
    else:
        yield START_NOW, "nothing"
    making = _making(facts, list(would_make_room(need, nodes, room)))
    if making:
        yield START_WHEN, ", or ".join(making)


def _making(facts: PodFacts, pods: Sequence[Making]) -> list[str]:
    """Name pods of the user's namespace, those that free least first; others by their node."""
    own, others = [], []
    for one in pods:
        name = facts.names.get(one.uid)
        if name is None:
            # Without any name, not even its own, the namespace's pods could not be listed.
            whose = "a pod of another namespace" if facts.names else "another pod"
            others.append(f"{whose} on {one.node} ends")
        else:
            gpus = f"GPU {one.gpus[0]}" if len(one.gpus) == 1 else f"{len(one.gpus)} GPUs"
            own.append(f"{name} ends ({exactly(one.cap_bytes)} on {gpus} of {one.node})")
    return own[:_MOST_MAKING] + others[:1]


def of_scheduler(
    pod: ClusterPod, room: Room | None, *, judged: bool, explained: bool = False
) -> Iterator[Cause]:
    """Yield what the scheduler says besides VRAM; its condition stands as long as the pod waits.

    `judged` says whether labels and taints were judged here, `explained` whether it is known why.
    """
    scheduled = pod.condition("PodScheduled")
    gates = pod.part("spec").get("schedulingGates")
    if (scheduled and scheduled.reason == "SchedulingGated") or gates:
        detail = "the pod has scheduling gates, which whoever set them has to remove"
        yield Cause(Severity.ERROR, OtherReason.GATED, detail)
        return
    message = scheduled.message if scheduled and scheduled.status == "False" else ""
    denied = _BINDING_DENIED.search(message)
    if denied:
        detail = f"the scheduler tried a node, and vramwarden denied that binding: {denied[1]}"
        severity = Severity.ERROR if room is None else Severity.INFO  # else the figures say it
        yield Cause(severity, OtherReason.BINDING_DENIED, detail)
        return
    fits = bool(room) and room is not None and room.cause is None
    others = [one for one in scheduler_says(message) if not _is_ours(one, judged=judged)]
    if others:
        alone = fits or (room is None and not explained)
        severity = Severity.ERROR if alone else Severity.WARNING
        detail = f"the scheduler says: {', '.join(others)}"
        yield Cause(severity, OtherReason.UNSCHEDULABLE, detail)
    elif message and room is None and not explained:
        detail = f"the scheduler says: {', '.join(scheduler_says(message))}"
        ask = "ask for less, or wait until pods end" if _OURS in message else ""
        yield Cause(Severity.ERROR, OtherReason.UNSCHEDULABLE, detail, ask)
    elif fits and room is not None:
        has = named(node.name for node in room.nodes if node.fits)
        said = "has said nothing yet" if not message else f"said: {message}"
        detail = f"there is room for it on {has}, and the scheduler {said}"
        yield Cause(Severity.INFO, OtherReason.NOT_SCHEDULED_YET, detail)


def _is_ours(said: str, *, judged: bool) -> bool:
    if said.endswith(_OURS):
        return True
    return judged and any(one in said for one in _SELECTION)
