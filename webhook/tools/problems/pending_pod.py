"""Problems of a pod that has no node yet: room on the nodes, and what the scheduler reports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from webhook.core.formatting import format_amount, format_duration, format_exact, join_names
from webhook.core.kinds.nodes import NodeFigures
from webhook.core.placement.fit import Need
from webhook.core.pod.findings import Reason
from webhook.names import VRAM_RESOURCE
from webhook.tools.problems.capacity import (
    NodeFit,
    PodToFree,
    best,
    find_no_room,
    no_room_code,
    pods_to_free,
)
from webhook.tools.problems.problem import Code, Problem, Severity
from webhook.tools.snapshot.pod import ClusterPod, scheduler_says

_MOST_TO_FREE: Final = 2
"""Number of the user's pods that are named; other pods are one word more."""
_BINDING_DENIED: Final = re.compile(r'"bind\.vramwarden\.io" denied the request: (.*)', re.DOTALL)
_INSUFFICIENT_VRAM: Final = f"Insufficient {VRAM_RESOURCE}"
_SELECTION: Final = (
    "node(s) didn't match Pod's node affinity/selector",
    "untolerated taint",
    "node(s) had taint",
    "node(s) were unschedulable",
)
"""Reasons of the scheduler that `capacity` judges as well if the user may read nodes."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """Nodes as a pod without a node finds them."""

    need: Need
    """Request of the pod; with `whole_nodes` the sum of its GPUs, on one."""
    nodes: Sequence[NodeFigures]
    fits: Sequence[NodeFit]
    names: Mapping[str, ClusterPod]
    """The user's pods by UID; empty if they cannot be listed."""
    reads_nodes: bool
    whole_nodes: int = 0
    """Number of GPUs that the pod requests, if it is counted on a node as a whole; else 0."""

    @cached_property
    def code(self) -> Code | None:
        """Reason why no node has room; None if one has."""
        return no_room_code(self.need, self.fits)

    @cached_property
    def to_free(self) -> list[PodToFree]:
        """Pods of which each alone makes room by ending."""
        return pods_to_free(self.need, self.nodes, self.fits)


def other_reasons(message: str) -> list[str]:
    """Return the scheduler's reasons that are neither about VRAM nor about which node it may be.

    None of a binding that vramwarden denied: that is about VRAM.
    """
    if _BINDING_DENIED.search(message):
        return []
    judged = (_INSUFFICIENT_VRAM, *_SELECTION)
    return [one for one in scheduler_says(message) if not any(text in one for text in judged)]


def find_pending(pod: ClusterPod, room: Room | None, *, explained: bool) -> Iterator[Problem]:
    """Yield why a pod has no node.

    `room` is None if nothing is known of the nodes; `explained` if another problem says why. A
    reason of the scheduler's that is not about VRAM comes first: more memory would not help.
    """
    scheduled = pod.condition("PodScheduled")
    if (scheduled and scheduled.reason == Code.GATED) or pod.part("spec").get("schedulingGates"):
        detail = "the pod has scheduling gates, which the controller that set them has to remove"
        yield Problem(Code.GATED, Severity.ERROR, detail)
        return
    message = pod.unscheduled
    denied = _BINDING_DENIED.search(message)
    if denied:
        detail = f"the scheduler tried a node, and vramwarden denied that binding: {denied[1]}"
        message = ""
    others = other_reasons(message)
    code = room.code if room else None
    if room is None and message and not explained:
        detail = f"the scheduler says: {', '.join(scheduler_says(message))}"
        fix = "ask for less, or wait until pods end" if _INSUFFICIENT_VRAM in message else ""
        yield Problem(Code.UNSCHEDULABLE, Severity.ERROR, detail, fix)
    elif others:
        detail = f"the scheduler says: {', '.join(others)}"
        yield Problem(Code.UNSCHEDULABLE, Severity.ERROR, detail)
    if room and (found := find_no_room(room.need, room.fits, room.whole_nodes)):
        blocked = [*_blocked(pod, room)]
        if any(one.code is Code.BLOCKED_ROLLOUT for one in blocked):
            found = replace(found, fix="")  # it would wait for itself
        yield found
        yield from blocked
    if denied:
        severity = Severity.ERROR if room is None else Severity.INFO if code else Severity.WARNING
        yield Problem(Code.BINDING_DENIED, severity, detail)
    elif room and code is None and not others:
        yield _not_scheduled_yet(room, message)


def _not_scheduled_yet(room: Room, message: str) -> Problem:
    fits = [node for node in room.fits if node.code is None]
    has, age_s = join_names(node.name for node in fits), max(node.age_s for node in fits)
    selects = [one for one in scheduler_says(message) if any(text in one for text in _SELECTION)]
    if selects and not room.reads_nodes:
        detail = f"the scheduler says: {', '.join(selects)}"
        return Problem(Code.UNSCHEDULABLE, Severity.ERROR, detail)
    old = f", by figures of {format_duration(age_s)} ago" if age_s >= 1 else ""
    said = f"said: {message}" if message else "has said nothing yet"
    detail = f"there is room for it on {has}{old}, and the scheduler {said}"
    severity = Severity.WARNING if message else Severity.INFO
    return Problem(Code.NOT_SCHEDULED_YET, severity, detail)


def _blocked(pod: ClusterPod, room: Room) -> Iterator[Problem]:
    """Yield that a rollout blocks itself, or that the scheduler will not preempt for this pod."""
    to_free = room.to_free
    own = [room.names[one.uid] for one in to_free if one.uid in room.names]
    older = [one for one in own if one.workload == pod.workload and one.owner_uid != pod.owner_uid]
    if older and pod.workload.kind == "Deployment":
        detail = (
            f"{join_names(one.name for one in older)} would make room by ending, and an older pod "
        )
        detail += "of a Deployment ends only once a new one is ready: the rollout blocks itself"
        fix = f"set strategy: Recreate in Deployment {pod.workload.name}, or rollingUpdate with "
        fix += "maxSurge: 0 and maxUnavailable: 1"
        yield Problem(Code.BLOCKED_ROLLOUT, Severity.ERROR, detail, fix)
    priority = pod.part("spec").get("priority")
    split = room.code is Code.GPUS_SPLIT
    if split and type(priority) is int and priority > 0 and not older:
        detail = "its priority does not help: the scheduler counts the memory of a node as one sum"
        detail += ", sees enough there, and preempts no pod"
        pods = " or ".join(one.name for one in own[:_MOST_TO_FREE])
        fix = f"delete {pods} yourself, if it matters less" if own else ""
        yield Problem(Code.NOT_PREEMPTED, Severity.WARNING, detail, fix)


def unreadable_demand(sentence: str) -> Problem:
    """Return the problem of a pod that no binding gives a GPU, since it bypassed admission."""
    reason = next((one for one in Reason if sentence.startswith(f"{one}: ")), Reason.UNMUTATED)
    return Problem(reason, Severity.ERROR, sentence.removeprefix(f"{reason}: "))


def room_notes(room: Room) -> Iterator[tuple[str, str]]:
    """Yield with which request the pod would start now, and which pods would make room.

    Nothing if it fits, or may run on no node.
    """
    eligible = any(node.is_eligible for node in room.fits)
    if room.code is None or not eligible:
        return
    found, parts = best(room.fits), room.whole_nodes or 1
    if found and (largest := found.largest_bytes // parts):
        gpus = room.whole_nodes or room.need.gpu_count
        on = "" if gpus == 1 else f" on each of {gpus} GPUs"
        old = f", by figures of {format_duration(found.age_s)} ago" if found.age_s >= 1 else ""
        yield "would start now", f"{format_amount(largest, down=True)}{on} (on {found.name}{old})"
    else:
        yield "would start now", "nothing"
    own, others = [], []
    for one in room.to_free:
        if one.uid in room.names:
            gpus_of = f"GPU {one.gpus[0]}" if len(one.gpus) == 1 else f"{len(one.gpus)} GPUs"
            on = one.node if room.whole_nodes else f"{gpus_of} of {one.node}"
            own.append(f"{room.names[one.uid].name} ends ({format_exact(one.cap_bytes)} on {on})")
        else:
            whose = "a pod of another namespace" if room.names else "another pod"
            others.append(f"{whose} on {one.node} ends")
    if own or others:
        yield "would start when", ", or ".join(own[:_MOST_TO_FREE] + others[:1])
