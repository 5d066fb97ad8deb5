"""The node's assignments as one immutable value, replaced after each list and each scan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from webhook.adapters.kube.node_objects import AssignmentsSeen
from webhook.core.node.cgroups import comparable_uid
from webhook.core.placement.assignments import Assignment, Assignments
from webhook.core.placement.cap_terms import CONFIRMING_S, CapTerms
from webhook.core.pod.gpus import EVERY_GPU, EnforceBy
from webhook.sentry.scanner import GpuProcess

UNREAD: Final = "the list of who was promised what has not been read yet"
MALFORMED: Final = "it is malformed; entries that cannot be read stay as they were"

MOST_KEPT: Final = 256
"""Maximum number of pods that keep their entries although a malformed list does not name them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAssignments:
    """The node's assignments; UIDs are in the form of `comparable_uid`."""

    listed: Assignments = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """`namespace/name` of the pods on the list, keyed by UID, in the order of the list."""
    is_read: bool = False
    """True once a list was read, complete or not."""
    unread: str = UNREAD
    """Reason why no complete list has been read; empty once one has."""
    followed_since_s: float | None = None
    """Monotonic time since which changes of the list are reported; None while they are not."""
    capped: Assignments = field(default_factory=dict)
    """Assignments of the pods whose caps are judged, keyed by UID: pods that the sentry stops or
    reports, and `departed`."""
    terms: Mapping[str, CapTerms] = field(default_factory=dict)
    poll_s: float = inf
    """Shortest poll interval of pods by Sentry that may be stopped, in seconds; `inf` without
    such pods. Sidecars poll pods by Sidecar."""
    departed: frozenset[str] = frozenset()
    """UIDs in `capped` of pods that left the list and still hold memory. Their last assignment
    counts. A pod that is deleted by force leaves the list, and runs on for its grace period
    without a kubelet that would restart its sidecar."""
    holders: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """UIDs in `capped` of pods that hold memory, keyed by GPU, from the GPU's last process list."""

    def with_list(self, report: AssignmentsSeen, now_s: float) -> NodeAssignments:
        """Return the value after a list was read; entries without valid terms count as missing."""
        listed = {comparable_uid(uid): assignment for uid, assignment in report.assignments.items()}
        if report.complete:
            since_s = now_s if self.followed_since_s is None else self.followed_since_s
            followed = replace(
                self, unread="", followed_since_s=since_s if report.watched else None
            )
        else:
            listed = keep_last_entries(listed, self.listed)
            followed = self.without_watch(MALFORMED)
        held = frozenset[str]().union(*self.holders.values())
        departed = held - {uid for uid, assignment in listed.items() if assignment.terms}
        kept = {uid: assignment for uid, assignment in self.capped.items() if uid in departed}
        capped = kept | {
            uid: assignment for uid, assignment in listed.items() if _is_judged(assignment.terms)
        }
        names = {uid: assignment.pod for uid, assignment in listed.items()}
        return _with_capped(
            replace(followed, listed=listed, names=names, is_read=True), capped, departed
        )

    def without_watch(self, why: str) -> NodeAssignments:
        """Return the value while changes of the list cannot be reported."""
        unread = self.unread and f"{UNREAD}: {why}"
        return replace(self, unread=unread, followed_since_s=None)

    def after_scan(self, lists: Mapping[str, tuple[GpuProcess, ...]]) -> NodeAssignments:
        """Return the value after a scan, which drops departed pods once they hold no memory.

        A GPU without a process list in this scan keeps its holders.
        """
        found = {
            gpu: frozenset(
                process.owner.place.pod for process in processes if process.owner is not None
            )
            & self.capped.keys()
            for gpu, processes in lists.items()
        }
        scanned = replace(self, holders={**self.holders, **found})
        departed = self.departed & frozenset[str]().union(*scanned.holders.values())
        if departed == self.departed:
            return scanned
        ended = self.departed - departed
        capped = {uid: assignment for uid, assignment in self.capped.items() if uid not in ended}
        return _with_capped(scanned, capped, departed)


def covers_gpu(assignment: Assignment, gpu: str) -> bool:
    """Return True if an assignment gives this GPU to its pod."""
    return gpu in assignment.uuids or EVERY_GPU in assignment.uuids


def keep_last_entries(read: Assignments, before: Assignments) -> Assignments:
    """Return a malformed list, completed with entries of the previous list.

    | the malformed list has of a pod | the pod's entry is |
    | --- | --- |
    | GPUs and terms | as read |
    | GPUs, and malformed terms | as read, with the pod's previous terms |
    | nothing | the previous one: its line may be malformed |

    Pods that ended keep their entries until a list is complete, so only the last `MOST_KEPT` are
    kept.
    """
    missing = [uid for uid in before if uid not in read][-MOST_KEPT:]
    return {uid: before[uid] for uid in missing} | {
        uid: replace(assignment, terms=before[uid].terms)
        if assignment.terms is None and uid in before
        else assignment
        for uid, assignment in read.items()
    }


def _with_capped(
    assignments: NodeAssignments, capped: Assignments, departed: frozenset[str]
) -> NodeAssignments:
    """Return the value with other pods to judge, and with the fields derived from them."""
    return replace(
        assignments,
        capped=capped,
        terms={uid: assignment.terms for uid, assignment in capped.items() if assignment.terms},
        poll_s=min(map(_poll_s, capped.values()), default=inf),
        departed=departed & capped.keys(),
    )


def _is_judged(terms: CapTerms | None) -> bool:
    return terms is not None and (terms.enforce or terms.reports)


def _poll_s(assignment: Assignment) -> float:
    """Return the poll interval of a pod by Sentry that may be stopped, `inf` for any other pod.

    It is the pod's delay without the time to confirm an excess, but at least half of the delay.
    """
    terms = assignment.terms
    if terms is None or not terms.enforce or terms.by is not EnforceBy.SENTRY:
        return inf
    return max(terms.delay_s / 2, terms.delay_s - CONFIRMING_S)
