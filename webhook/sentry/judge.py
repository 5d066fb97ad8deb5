"""Decides what to stop by the sidecar's `step`, but later than the sidecar for pods by Sidecar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from webhook.core.enforcement.driver_limit import judged_bytes
from webhook.core.enforcement.model import (
    Action,
    Cap,
    Observation,
    Process,
    StepState,
    Usage,
    VictimOrder,
)
from webhook.core.enforcement.step import step
from webhook.core.placement.cap_terms import CapTerms
from webhook.core.pod.gpus import EnforceBy
from webhook.sentry.assignments import NodeAssignments, covers_gpu
from webhook.sentry.scanner import GpuProcess, ProcessScan

CountBytes = Callable[[str, str, int], int | None]

LATER_S: Final = 5.0
"""Additional delay compared with a healthy sidecar, in seconds, so that the sidecar acts first."""

HELD_ON_S: Final = 1.0
"""Time for which an ended process may stay listed, in seconds, since the driver needs a moment
to free its memory. Afterwards, other processes are assumed to keep the memory."""

ALWAYS: Final = -1
"""Threshold in bytes that any memory in use exceeds, so that the process list is always read."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Result of judging a scan."""

    actions: tuple[tuple[str, Action], ...] = ()
    """Actions, each with the UID of its pod."""
    active: frozenset[str] = frozenset()
    """UIDs of pods that are not idle: they have an excess or a process that is being stopped."""
    is_ending: bool = False
    """True while memory of a killed process has not been freed."""


class Judge:
    """Remembers the state of `step` of each pod whose cap is judged."""

    def __init__(self, counted_bytes: CountBytes = lambda *_: None, *, acts: bool = True) -> None:
        """`acts` is False if the sentry must not stop anything.

        `counted_bytes` is a function of UID, GPU and cap. It returns the bytes that the driver
        counts for the pod, or None if the driver does not limit the pod to at most this cap.
        """
        self._counted = counted_bytes
        self._acts = acts
        self._states: dict[str, StepState] = {}
        self._dead_since_s: dict[Process, float] = {}
        self._rejected: dict[str, set[Process]] = {}

    def reject(self, uid: str, process: Process) -> None:
        """Record that a process may not be signalled, for the next observation."""
        self._rejected.setdefault(uid, set()).add(process)

    def judge(self, scan: ProcessScan, assignments: NodeAssignments, now_s: float) -> Judgement:
        """Return the actions that follow from a scan.

        An idle pod within its cap is skipped: `step` would only record a peak, and a later excess
        is higher. A pod with a reported excess is not skipped, since `step` must observe the end of
        the excess.
        """
        terms = assignments.terms
        self._states = {uid: state for uid, state in self._states.items() if uid in terms}
        self._rejected = {
            uid: processes for uid, processes in self._rejected.items() if uid in terms
        }
        held = _processes_by_pod(scan, assignments)
        self._note_dead(scan, now_s)
        actions: list[tuple[str, Action]] = []
        for uid, pod_terms in terms.items():
            processes = held.get(uid, [])
            state = self._states.get(uid, StepState())
            followed = not is_idle(state) or state.reported
            if not followed and not self._is_over(uid, pod_terms, processes):
                continue
            observation = self._observation(uid, pod_terms, processes, scan, now_s)
            dead = frozenset(
                process.owner.process.pid
                for _, process in processes
                if process.owner and process.dead
            )
            cap = cap_from_terms(pod_terms, dead, acts=self._acts)
            self._states[uid], chosen = step(state, observation, cap, now_s)
            actions += ((uid, action) for action in chosen)
        victims = (victim for state in self._states.values() for victim in state.victims)
        return Judgement(
            tuple(actions),
            frozenset(uid for uid, state in self._states.items() if not is_idle(state)),
            any(victim.killed_at_s is not None for victim in victims),
        )

    def _is_over(self, uid: str, terms: CapTerms, held: list[tuple[str, GpuProcess]]) -> bool:
        """Return True if a pod is over its cap on a GPU; a process without a figure counts as 0."""
        ceiling_bytes = terms.ceiling_bytes
        figures: dict[str, list[int]] = {}
        for gpu, process in held:
            figures.setdefault(gpu, []).append(process.used_bytes or 0)
        for gpu, listed in figures.items():
            if sum(listed) > ceiling_bytes:
                counted_bytes = self._counted(uid, gpu, terms.cap_bytes)
                if judged_bytes(listed, counted_bytes, terms.cap_bytes) > ceiling_bytes:
                    return True
        return False

    def _observation(
        self,
        uid: str,
        terms: CapTerms,
        held: list[tuple[str, GpuProcess]],
        scan: ProcessScan,
        now_s: float,
    ) -> Observation:
        usages = (
            Usage(gpu, process.owner.process, process.used_bytes)
            for gpu, process in held
            if process.owner is not None
        )
        long_dead = {
            process
            for process, since_s in self._dead_since_s.items()
            if now_s - since_s >= HELD_ON_S
        }
        rejected = long_dead | self._rejected.pop(uid, set())
        counted_bytes = {gpu: self._counted(uid, gpu, terms.cap_bytes) for gpu, _ in held}
        return Observation(
            tuple(usages),
            scan.failed,
            frozenset(rejected),
            dict.fromkeys(scan.lists, now_s),
            {gpu: figure for gpu, figure in counted_bytes.items() if figure is not None},
        )

    def _note_dead(self, scan: ProcessScan, now_s: float) -> None:
        """Record when each process was first seen as ended but still listed."""
        dead = {
            process.owner.process
            for held in scan.lists.values()
            for process in held
            if process.dead and process.owner is not None
        }
        self._dead_since_s = {process: self._dead_since_s.get(process, now_s) for process in dead}


def list_thresholds(assignments: NodeAssignments, active: frozenset[str]) -> dict[str, int]:
    """Return the bytes in use above which a process list must be read, keyed by GPU.

    The entry of `EVERY_GPU` is for all GPUs. The smaller of two thresholds counts.

    | the GPU is assigned to | its process list is read |
    | --- | --- |
    | a pod that is not idle | always |
    | pods whose caps are judged | above the smallest ceiling: within it no pod is over its cap |
    | no such pod | never |
    """
    thresholds: dict[str, int] = {}
    for uid, assignment in assignments.capped.items():
        above_bytes = ALWAYS if uid in active else assignments.terms[uid].ceiling_bytes
        for gpu in assignment.uuids:
            thresholds[gpu] = min(thresholds.get(gpu, above_bytes), above_bytes)
    return thresholds


def _processes_by_pod(
    scan: ProcessScan, assignments: NodeAssignments
) -> dict[str, list[tuple[str, GpuProcess]]]:
    held: dict[str, list[tuple[str, GpuProcess]]] = {}
    for gpu, processes in scan.lists.items():
        for process in processes:
            uid = process.owner.place.pod if process.owner else ""
            assignment = assignments.capped.get(uid)
            if assignment is not None and covers_gpu(assignment, gpu):
                held.setdefault(uid, []).append((gpu, process))
    return held


def cap_from_terms(terms: CapTerms, protected: frozenset[int], *, acts: bool = True) -> Cap:
    """Return a pod's cap for `step`: the largest process is stopped first, then the whole pod."""
    by_sentry = terms.by is EnforceBy.SENTRY
    return Cap(
        cap_bytes=terms.cap_bytes,
        tolerance_bytes=terms.tolerance_bytes,
        grace_s=terms.grace_s if by_sentry else 0.0,
        blind_after_s=float("inf"),
        terminate_when_blind=False,
        protected=protected,
        delay_s=terms.delay_s if by_sentry else terms.delay_s + LATER_S,
        order=VictimOrder.LARGEST,
        container_after=None,
        pod_after=1,
        reports_only=not (acts and terms.enforce),
    )


def is_idle(state: StepState) -> bool:
    """Return True if no excess and no stop is in progress.

    A reported excess that continues does not count: its pod is measured as rarely as a pod within
    its cap.
    """
    waiting = any(
        (late.over_s > 0 or late.over) and not (late.over and gpu in state.reported)
        for gpu, late in state.timers.items()
    )
    return not (waiting or state.victims or any(state.over.values()))
