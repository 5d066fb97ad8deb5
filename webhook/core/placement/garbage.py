"""Garbage collection of a node's assignment list: finds entries that no pod uses any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from webhook.core.placement.assignments import Assignment, Assignments
from webhook.core.placement.pod_state import PodState, may_use_gpus

UNBOUND_S: Final = 120.0
"""Maximum age in seconds of an entry whose pod is not bound. The API server aborts a request
after 60 s (`--request-timeout`), and replicas' clocks may differ."""


def entries_to_verify(
    assignments: Assignments, pods: Mapping[str, PodState], now_s: float
) -> dict[str, Assignment]:
    """Return the entries to verify with the API server before they are removed."""
    to_verify = {}
    for uid, assignment in assignments.items():
        pod = pods.get(uid)
        if pod is None or (not pod.node and now_s - assignment.since_s > UNBOUND_S):
            to_verify[uid] = assignment
    return to_verify | entries_of_missing_pods(assignments, pods)


def entries_of_missing_pods(
    assignments: Assignments, pods: Mapping[str, PodState]
) -> dict[str, Assignment]:
    """Return the entries of pods that a watch reported as deleted: removal may free memory."""
    entries = ((uid, assignment, pods.get(uid)) for uid, assignment in assignments.items())
    return {
        uid: assignment for uid, assignment, pod in entries if pod and pod.gone and not pod.finished
    }


def prune(
    node: str,
    assignments: Assignments,
    pods: Mapping[str, PodState],
    answers: Mapping[str, PodState | None],
    now_s: float,
) -> Assignments:
    """Return the entries that stay, given the API server's responses for single pods.

    | the pod | its entry |
    | --- | --- |
    | is bound here and not finished | stays |
    | is finished, or bound elsewhere | removed |
    | is gone, as a watch reported, and was not verified | stays |
    | is gone, as the API server reported; another may have its name | removed |
    | is not bound, as the API server reported, and its entry is older than `UNBOUND_S` | removed |
    | is not bound, and the entry is younger | stays: its binding may be in progress |
    | is not known, and was not verified | stays |
    """

    def stays(uid: str, assignment: Assignment) -> bool:
        if uid not in answers:
            return may_use_gpus(pods.get(uid), node)
        pod = answers[uid]
        if pod is None or pod.uid != uid or not may_use_gpus(pod, node):
            return False
        return bool(pod.node) or now_s - assignment.since_s <= UNBOUND_S

    return {uid: assignment for uid, assignment in assignments.items() if stays(uid, assignment)}
