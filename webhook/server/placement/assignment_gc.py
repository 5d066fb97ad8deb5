"""Garbage collection of assignment lists: remove unused entries, and add missing ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.placement import PlacementApi, StoredList
from webhook.core.placement.assignments import AS_READ, FindTerms, complete_terms, unlisted_pods
from webhook.core.placement.garbage import entries_to_verify, prune
from webhook.core.placement.pod_state import PodState
from webhook.server.placement.assignment_lists import AssignmentLists
from webhook.server.placement.node_queue import CollectRequest
from webhook.server.placement.tracker import Tracker

ADOPTED_AT_ONCE: Final = 64
"""Maximum number of pods with GPUs but without an entry that one run verifies and enters."""


class AssignmentGC:
    """Removes stale entries from the nodes' assignment lists, and adds missing ones."""

    def __init__(
        self,
        api: PlacementApi,
        tracker: Tracker,
        lists: AssignmentLists,
        find_terms: FindTerms = AS_READ,
    ) -> None:
        self._api = api
        self._tracker = tracker
        self._lists = lists
        self._find_terms = find_terms

    def collect(self, name: str, stored: StoredList | None = None) -> None:
        """Remove the entries that no pod uses any more from a node's list; raises KubeError.

        `stored` is the list as it was just read; without it, the cached list is used. Single pods
        are read from the API server before the request is queued, so that bindings do not wait. A
        damaged or lost list is restored. Pods with GPUs but without an entry are entered, and terms
        are completed (`complete_terms`). The empty list of a deleted node is deleted.
        """
        stored = stored or self._lists.cached(name) or self._api.read_list(name)
        pods = self._tracker.pods_for(name, stored.assignments)
        asked = entries_to_verify(stored.assignments, pods, self._api.now_s())
        answers = self._api.read_pods(asked)
        left = prune(name, stored.assignments, pods, answers, self._api.now_s())
        if not left and stored.version and self._is_gone(name):
            self._lists.forget(name)
            self._delete(stored)
            return
        leaving = {
            uid: assignment for uid, assignment in stored.assignments.items() if uid not in left
        }
        unlisted = unlisted_pods(name, stored.assignments, pods)
        # An incomplete list is rebuilt when it is read (`AssignmentLists._read`).
        joining = self._reread_pods(unlisted[:ADOPTED_AT_ONCE]) if stored.whole else []
        is_lost = not stored.whole and (stored.version or unlisted)
        if (
            leaving
            or joining
            or is_lost
            or complete_terms(left, pods, self._find_terms) is not left
        ):
            request = CollectRequest(leaving=leaving, joining=joining)
            self._lists.submit(name, request)
            self._lists.wait(request.answer)

    def unlisted_nodes(self, listed: Iterable[str]) -> set[str]:
        """Return GPU nodes whose list is missing although pods with a demand are bound to them.

        `listed` are the nodes with a list. Nodes without GPUs are ignored, because a pod that
        bypasses admission can name any node.
        """
        nodes = self._tracker.nodes_with_pods().difference(listed)
        return {name for name in nodes if self._tracker.node(name)}

    def _reread_pods(self, pods: Iterable[PodState]) -> list[PodState]:
        """Return these pods as the API server has them now, since a watch may be stale."""
        found = ((pod, self._api.pod(*pod.name.split("/"))) for pod in pods)
        return [now for pod, now in found if now is not None and now.uid == pod.uid]

    def _is_gone(self, name: str) -> bool:
        return self._tracker.node(name) is None and self._api.node(name) is None

    def _delete(self, stored: StoredList) -> None:
        """Delete a list, unless another replica wrote or deleted it first."""
        try:
            self._api.delete_list(stored)
        except KubeError as error:
            if not error.conflict and not error.not_found:
                raise
