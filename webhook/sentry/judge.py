"""The sidecar's judgement, for each pod of the node's list; for pods by Sidecar it comes later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Final

from webhook.core.enforcement.limits import judged_bytes
from webhook.core.enforcement.step import (
    Action,
    Cap,
    First,
    Observation,
    Process,
    StepState,
    Usage,
    step,
)
from webhook.core.placement.assignments import Assignment, Assignments
from webhook.core.placement.cap_terms import CONFIRMING_S, CapTerms
from webhook.core.pod.gpus import EnforceBy
from webhook.sentry.holdings import gives
from webhook.sentry.scanner import GpuProcess, ProcessScan

Counted = Callable[[str, str, int], int | None]

LATER_S: Final = 5.0
"""Time in addition to that of a healthy sidecar, so that the sentry acts only if that does not."""

HELD_ON_S: Final = 1.0
"""How long a process that has ended may stay listed before its memory counts as kept by others: the
driver takes a moment to give it back."""

ALWAYS: Final = -1
"""No use is as small."""

MOST_KEPT: Final = 256
"""Maximum number of pods that a malformed list does not name and that keep their entries."""


class Judge:
    """Remembers of each pod what `step` does, for as long as the list has it."""

    def __init__(self, counted: Counted = lambda *_: None, *, acts: bool = True) -> None:
        """Prepare; `acts` is whether anything may be stopped at all.

        `counted` returns what the driver counts of a pod on a GPU on which it holds the pod to this
        cap; None where it does not.
        """
        self._counted = counted
        self._acts = acts
        self.promises: Mapping[str, Assignment] = {}
        """What pods that are judged were promised, by UID as it is compared."""
        self.terms: Mapping[str, CapTerms] = {}
        """Terms of these pods, by UID."""
        self._states: dict[str, StepState] = {}
        self._dead_since_s: dict[Process, float] = {}
        self._rejected: dict[str, set[Process]] = {}
        self._holding: dict[str, set[str]] = {}
        """Who holds memory, by GPU."""
        self._left: set[str] = set()
        """Who is no longer on the list, and is judged by its last assignment."""

    def on_list(self, promises: Assignments) -> None:
        """Go by a list; what is remembered of pods that are no longer on it goes.

        Except of those that hold memory still: who deletes a pod by force takes it off the list,
        while its kubelet grants it the seconds that it asked for, and nobody starts its sidecar
        again. Until it holds nothing its last assignment counts. An entry whose terms cannot be
        read counts as missing.
        """
        read = {uid: one for uid, one in promises.items() if one.terms}
        kept = set().union(*self._holding.values()) - read.keys()
        self.promises = {uid: one for uid, one in self.promises.items() if uid in kept} | {
            uid: one
            for uid, one in read.items()
            if one.terms and (one.terms.enforce or one.terms.reports)
        }
        self._left = kept & self.promises.keys()
        self._forget_others()

    def _forget_others(self) -> None:
        self.terms = {uid: one.terms for uid, one in self.promises.items() if one.terms}
        self._states = {uid: one for uid, one in self._states.items() if uid in self.promises}
        self._rejected = {uid: one for uid, one in self._rejected.items() if uid in self.promises}

    def above(self, gpu: str) -> int | None:
        """Return above which use of a GPU who holds it must be known, in bytes; None: never.

        | the GPU is | |
        | --- | --- |
        | of a pod that is not calm | always |
        | of pods that are judged | the smallest ceiling: within it none of them is over |
        | of no such pod | never |
        """
        judged = self.judged()
        ceilings = [
            ALWAYS if uid in judged else ceiling_of(self.terms[uid])
            for uid, promise in self.promises.items()
            if gives(promise, gpu)
        ]
        return min(ceilings, default=None)

    def judged(self) -> frozenset[str]:
        """Return the pods of which something is still to be seen: they are not calm."""
        return frozenset(uid for uid, state in self._states.items() if not is_calm(state))

    def poll_s(self) -> float:
        """Return the shortest poll interval of pods by Sentry that may be stopped, `inf` for none.

        That of pods by sidecar is the sidecar's.
        """
        polls = (
            poll_of(one)
            for one in self.terms.values()
            if one.enforce and one.by is EnforceBy.SENTRY
        )
        return min(polls, default=inf)

    def is_ending(self) -> bool:
        """Return True if memory of a killed process has yet to come back."""
        victims = (one for state in self._states.values() for one in state.victims)
        return any(one.killed_at_s is not None for one in victims)

    def reject(self, uid: str, process: Process) -> None:
        """Note that a process may not be signalled."""
        self._rejected.setdefault(uid, set()).add(process)

    def judge(self, scan: ProcessScan, now_s: float) -> list[tuple[str, Action]]:
        """Return what to do about whom.

        A pod that is calm and within its cap is left out, which changes nothing: `step` remembers
        of it only a peak, and one over the cap is higher. Except where its excess was reported:
        that is over now.
        """
        held = self._held(scan)
        self._note_dead(scan, now_s)
        self._note_who_holds(scan)
        judged = self.judged()
        actions: list[tuple[str, Action]] = []
        for uid, terms in self.terms.items():
            theirs = held.get(uid, [])
            state = self._states.get(uid, StepState())
            followed = uid in judged or state.reported
            if not followed and not self._is_over(uid, terms, theirs):
                continue
            observation = self._observation(uid, terms, theirs, scan, now_s)
            dead = frozenset(one.owner.process.pid for _, one in theirs if one.owner and one.dead)
            cap = cap_of(terms, dead, acts=self._acts)
            self._states[uid], chosen = step(state, observation, cap, now_s)
            actions += ((uid, action) for action in chosen)
        return actions

    def _held(self, scan: ProcessScan) -> dict[str, list[tuple[str, GpuProcess]]]:
        """Return what each pod holds on the GPUs that its line names: GPU and process."""
        held: dict[str, list[tuple[str, GpuProcess]]] = {}
        for gpu, processes in scan.lists.items():
            for one in processes:
                if one.owner is None:
                    continue
                promise = self.promises.get(one.owner.place.pod)
                if promise is not None and gives(promise, gpu):
                    held.setdefault(one.owner.place.pod, []).append((gpu, one))
        return held

    def _is_over(self, uid: str, terms: CapTerms, held: list[tuple[str, GpuProcess]]) -> bool:
        """Return True if a pod is over on one GPU; a process without a figure adds nothing."""
        ceiling_bytes = ceiling_of(terms)
        figures: dict[str, list[int]] = {}
        for gpu, one in held:
            figures.setdefault(gpu, []).append(one.used_bytes or 0)
        for gpu, listed in figures.items():
            if sum(listed) > ceiling_bytes:
                counted = self._counted(uid, gpu, terms.cap_bytes)
                if judged_bytes(listed, counted, terms.cap_bytes) > ceiling_bytes:
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
            Usage(gpu, one.owner.process, one.used_bytes)
            for gpu, one in held
            if one.owner is not None
        )
        long_dead = {
            process
            for process, since_s in self._dead_since_s.items()
            if now_s - since_s >= HELD_ON_S
        }
        rejected = long_dead | self._rejected.pop(uid, set())
        counted = {gpu: self._counted(uid, gpu, terms.cap_bytes) for gpu, _ in held}
        return Observation(
            tuple(usages),
            scan.failed,
            frozenset(rejected),
            dict.fromkeys(scan.lists, now_s),
            {gpu: one for gpu, one in counted.items() if one is not None},
        )

    def _note_who_holds(self, scan: ProcessScan) -> None:
        """Remember who holds memory on which GPU, and let go of who left the list and holds none.

        A GPU that could not be seen this time is as it was.
        """
        for gpu, held in scan.lists.items():
            pods = {one.owner.place.pod for one in held if one.owner is not None}
            self._holding[gpu] = pods & self.promises.keys()
        if over := self._left - set().union(*self._holding.values()):
            self._left -= over
            self.promises = {
                uid: promise for uid, promise in self.promises.items() if uid not in over
            }
            self._forget_others()

    def _note_dead(self, scan: ProcessScan, now_s: float) -> None:
        """Remember since when processes that ended are still listed."""
        dead = {
            one.owner.process
            for held in scan.lists.values()
            for one in held
            if one.dead and one.owner is not None
        }
        self._dead_since_s = {one: self._dead_since_s.get(one, now_s) for one in dead}


def with_last_terms(read: Assignments, before: Assignments) -> Assignments:
    """Return a malformed list, completed from the one before.

    | of a pod, the malformed list has | its entry is |
    | --- | --- |
    | GPUs and terms | as read |
    | GPUs, and terms that cannot be read | as read, with the terms that it had before |
    | nothing | the one before: its line may be malformed |

    Pods that ended keep their entries until a list is complete, so the last `MOST_KEPT` count.
    """
    missing = [uid for uid in before if uid not in read][-MOST_KEPT:]
    return {uid: before[uid] for uid in missing} | {
        uid: replace(one, terms=before[uid].terms) if one.terms is None and uid in before else one
        for uid, one in read.items()
    }


def cap_of(terms: CapTerms, protected: frozenset[int], *, acts: bool = True) -> Cap:
    """Return what the sentry holds a pod to: the largest process first, then all of the pod."""
    by_sentry = terms.by is EnforceBy.SENTRY
    return Cap(
        cap_bytes=terms.cap_bytes,
        tolerance_bytes=terms.tolerance_bytes,
        grace_s=terms.grace_s if by_sentry else 0.0,
        blind_after_s=float("inf"),
        terminate_when_blind=False,
        protected=protected,
        delay_s=terms.delay_s if by_sentry else terms.delay_s + LATER_S,
        first=First.LARGEST,
        container_after=None,
        pod_after=1,
        reports_only=not (acts and terms.enforce),
    )


def poll_of(terms: CapTerms) -> float:
    """Return the poll interval of a pod by Sentry, in seconds: `delay_s` less the confirmation."""
    return max(terms.delay_s / 2, terms.delay_s - CONFIRMING_S)


def ceiling_of(terms: CapTerms) -> int:
    """Return above which sum a pod is over, in bytes."""
    return terms.cap_bytes + terms.tolerance_bytes


def is_calm(state: StepState) -> bool:
    """Say whether nothing of the past says anything about the next scan.

    An excess that was reported and lasts is waited for as that of a pod within its cap.
    """
    waiting = any(
        (late.over_s > 0 or late.over) and not (late.over and gpu in state.reported)
        for gpu, late in state.lateness.items()
    )
    return not (waiting or state.victims or any(state.over.values()))
