"""Problems of a pod without a node: free capacity, and the scheduler's message."""

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
    find_best_fit,
    find_no_room,
    find_pods_to_free,
    no_room_code,
)
from webhook.tools.problems.problem import Code, Problem, Severity
from webhook.tools.snapshot.pod import ClusterPod, scheduler_reasons

_MOST_TO_FREE: Final = 2
"""Maximum number of the user's pods to name."""
_BINDING_DENIED: Final = re.compile(r'"bind\.vramwarden\.io" denied the request: (.*)', re.DOTALL)
_INSUFFICIENT_VRAM: Final = f"Insufficient {VRAM_RESOURCE}"
_SELECTION: Final = (
    "node(s) didn't match Pod's node affinity/selector",
    "untolerated taint",
    "node(s) had taint",
    "node(s) were unschedulable",
)
"""Scheduler reasons that `eligibility` also finds if the user may read nodes."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """Nodes and their free capacity for a pending pod."""

    need: Need
    """Request of the pod; if `summed_gpus` is set, the sum of its requests as if on one GPU."""
    nodes: Sequence[NodeFigures]
    fits: Sequence[NodeFit]
    own_pods: Mapping[str, ClusterPod]
    """Pods of the namespace keyed by UID; empty if they cannot be listed."""
    reads_nodes: bool
    summed_gpus: int = 0
    """Number of requested GPUs if `nodes` come from `nodes_as_single_gpus`; else 0."""

    @cached_property
    def code(self) -> Code | None:
        """Code of the reason why the pod fits on no node, or None if it fits on one."""
        return no_room_code(self.need, self.fits)

    @cached_property
    def to_free(self) -> list[PodToFree]:
        """Pods that each free enough memory when they end."""
        return find_pods_to_free(self.need, self.nodes, self.fits)


def other_scheduler_reasons(message: str) -> list[str]:
    """Return the scheduler's reasons that are about neither VRAM nor node selection.

    Return none if vramwarden denied a binding, since that reason is about VRAM.
    """
    if _BINDING_DENIED.search(message):
        return []
    judged = (_INSUFFICIENT_VRAM, *_SELECTION)
    return [
        scheduler_reason
        for scheduler_reason in scheduler_reasons(message)
        if not any(text in scheduler_reason for text in judged)
    ]


def find_pending(pod: ClusterPod, room: Room | None, *, explained: bool) -> Iterator[Problem]:
    """Yield the reasons why a pod has no node.

    `room` is None if the nodes are unknown. `explained` is True if another problem is the cause.
    Scheduler reasons that are not about VRAM come first, since free memory does not help.
    """
    scheduled = pod.condition("PodScheduled")
    if (scheduled and scheduled.reason == Code.GATED) or pod.part("spec").get("schedulingGates"):
        detail = "the pod has scheduling gates, which the controller that set them has to remove"
        yield Problem(Code.GATED, Severity.ERROR, detail)
        return
    message = pod.scheduler_message
    denied = _BINDING_DENIED.search(message)
    if denied:
        detail = f"the scheduler tried a node, and vramwarden denied that binding: {denied[1]}"
        message = ""
    others = other_scheduler_reasons(message)
    code = room.code if room else None
    if room is None and message and not explained:
        detail = f"the scheduler says: {', '.join(scheduler_reasons(message))}"
        fix = "ask for less, or wait until pods end" if _INSUFFICIENT_VRAM in message else ""
        yield Problem(Code.UNSCHEDULABLE, Severity.ERROR, detail, fix)
    elif others:
        detail = f"the scheduler says: {', '.join(others)}"
        yield Problem(Code.UNSCHEDULABLE, Severity.ERROR, detail)
    if room and (found := find_no_room(room.need, room.fits, room.summed_gpus)):
        blocked = [*_find_blocked(pod, room)]
        if any(problem.code is Code.BLOCKED_ROLLOUT for problem in blocked):
            found = replace(
                found, fix=""
            )  # waiting does not help: the pod waits for its own rollout
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
    selects = [
        scheduler_reason
        for scheduler_reason in scheduler_reasons(message)
        if any(text in scheduler_reason for text in _SELECTION)
    ]
    if selects and not room.reads_nodes:
        detail = f"the scheduler says: {', '.join(selects)}"
        return Problem(Code.UNSCHEDULABLE, Severity.ERROR, detail)
    old = f", by figures of {format_duration(age_s)} ago" if age_s >= 1 else ""
    reported = f"said: {message}" if message else "has said nothing yet"
    detail = f"there is room for it on {has}{old}, and the scheduler {reported}"
    severity = Severity.WARNING if message else Severity.INFO
    return Problem(Code.NOT_SCHEDULED_YET, severity, detail)


def _find_blocked(pod: ClusterPod, room: Room) -> Iterator[Problem]:
    """Yield a problem if a rollout blocks itself or the scheduler does not preempt pods."""
    to_free = room.to_free
    own = [room.own_pods[pod.uid] for pod in to_free if pod.uid in room.own_pods]
    older = [
        other
        for other in own
        if other.workload == pod.workload and other.owner_uid != pod.owner_uid
    ]
    if older and pod.workload.kind == "Deployment":
        detail = (
            f"{join_names(pod.name for pod in older)} would make room by ending, and an older pod "
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
        pods = " or ".join(pod.name for pod in own[:_MOST_TO_FREE])
        fix = f"delete {pods} yourself, if it matters less" if own else ""
        yield Problem(Code.NOT_PREEMPTED, Severity.WARNING, detail, fix)


def unreadable_demand(sentence: str) -> Problem:
    """Return the problem of a pod that bypassed admission and therefore gets no GPU."""
    reason = next(
        (reason for reason in Reason if sentence.startswith(f"{reason}: ")), Reason.UNMUTATED
    )
    return Problem(reason, Severity.ERROR, sentence.removeprefix(f"{reason}: "))


def room_notes(room: Room) -> Iterator[tuple[str, str]]:
    """Yield the request that would start now, and the pods that would free enough memory.

    Yield nothing if the pod fits, or may not run on any node.
    """
    eligible = any(node.is_eligible for node in room.fits)
    if room.code is None or not eligible:
        return
    found, parts = find_best_fit(room.fits), room.summed_gpus or 1
    if found and (largest := found.largest_bytes // parts):
        gpus = room.summed_gpus or room.need.gpu_count
        on = "" if gpus == 1 else f" on each of {gpus} GPUs"
        old = f", by figures of {format_duration(found.age_s)} ago" if found.age_s >= 1 else ""
        yield "would start now", f"{format_amount(largest, down=True)}{on} (on {found.name}{old})"
    else:
        yield "would start now", "nothing"
    own, others = [], []
    for pod in room.to_free:
        if pod.uid in room.own_pods:
            gpus_of = f"GPU {pod.gpus[0]}" if len(pod.gpus) == 1 else f"{len(pod.gpus)} GPUs"
            on = pod.node if room.summed_gpus else f"{gpus_of} of {pod.node}"
            cap = format_exact(pod.cap_bytes)
            own.append(f"{room.own_pods[pod.uid].name} ends ({cap} on {on})")
        else:
            whose = "a pod of another namespace" if room.own_pods else "another pod"
            others.append(f"{whose} on {pod.node} ends")
    if own or others:
        yield "would start when", ", or ".join(own[:_MOST_TO_FREE] + others[:1])
