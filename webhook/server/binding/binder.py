"""Decides a binding: which GPUs, entered under the node's list before the API server may go on.

What makes this safe is the write: the list's `resourceVersion` must be the one that was decided on,
so of two replicas, or of a replica and an old watch, only one can succeed. The rest saves requests.
"""

from __future__ import annotations

import time
from threading import Lock
from typing import TYPE_CHECKING, Final

from webhook.adapters.kube import KubeError
from webhook.adapters.kube_placement import GpuNode, Stored
from webhook.core.assignments import adopt, plan, settle, to_ask
from webhook.core.binding import BindingOutcome, BindingReason, Verdict
from webhook.core.placement import Refusal, unknown_gpus

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.adapters.kube_placement import PlacementApi
    from webhook.core.assignments import Assignments, Plan, PodState
    from webhook.core.binding import Binding
    from webhook.server.binding.tracker import Tracker
    from webhook.server.metrics import PlacementMetrics

TRIES: Final = 20
"""Of writing a list that others write, too; each loser's loss is another's success."""

_UNTOUCHED: Final = BindingOutcome.UNTOUCHED


class Binder:
    """Answers bindings, and takes out of the lists what no pod uses; safe from any thread."""

    def __init__(
        self,
        api: PlacementApi,
        tracker: Tracker,
        metrics: PlacementMetrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Decide by what `tracker` knows and `api` stores; `clock` gives Unix time in seconds."""
        self._api = api
        self._tracker = tracker
        self._clock = clock
        self._copies: dict[str, Stored] = {}
        self._locks: dict[str, Lock] = {}
        self._metrics = metrics
        metrics.entries.set_function(self._entries)

    def bind(self, binding: Binding, *, dry_run: bool = False) -> Verdict:
        """Decide a binding; never raises KubeError: without the API server it is refused.

        | the pod | the node | answer |
        | --- | --- | --- |
        | unknown here | without GPUs, as far as known | untouched, without a request |
        | without a demand, or it sees all GPUs | any | untouched, after one request at most |
        | finished or gone | any | untouched; the API server refuses it itself |
        | with a demand | without GPUs, as it says itself | refused |
        | with a demand | with GPUs | placed or refused (`plan`) |
        """
        try:
            return self._decide(binding, dry_run=dry_run)
        except KubeError as error:
            sentence = (
                f"no GPU of node {binding.node} can be chosen for this pod now: {error}; "
                "the scheduler tries again"
            )
            return Verdict(
                BindingOutcome.UNAVAILABLE, BindingReason.API_SERVER_AWAY, sentence=sentence
            )

    def _decide(self, binding: Binding, *, dry_run: bool) -> Verdict:
        node = self._tracker.node(binding.node)
        pod = self._tracker.pod(binding.uid)
        if pod is None:
            known = node or self._tracker.has(binding.pod) or self._tracker.obstacle()
            if not known:
                return Verdict(_UNTOUCHED, BindingReason.NO_DEMAND)
            pod = self._api.pod(binding.namespace, binding.name)
        if pod is None or pod.finished or binding.uid not in {"", pod.uid}:
            return Verdict(_UNTOUCHED, BindingReason.NO_SUCH_POD)
        if pod.unreadable:
            sentence = f"the pod's demand cannot be read: {pod.unreadable}; create the pod again"
            return Verdict(BindingOutcome.REFUSED, BindingReason.UNREADABLE_DEMAND, sentence)
        if pod.need is None or not pod.at_binding:
            return Verdict(_UNTOUCHED, BindingReason.NO_DEMAND)
        node = node or self._api.node(binding.node)
        if node is None or not node.gpus:
            sentence = unknown_gpus(binding.node).sentence
            return Verdict(BindingOutcome.REFUSED, BindingReason.GPUS_UNKNOWN, sentence)
        with self._lock(node.name):
            return self._place(node, pod, dry_run=dry_run)

    def _place(self, node: GpuNode, pod: PodState, *, dry_run: bool) -> Verdict:
        """Plan on the list that was last seen, and write it; on what is stored where that is old.

        Raises KubeError, also where others are always faster.
        """
        stored = self._copies.get(node.name)
        for _ in range(TRIES):
            fresh = stored is None
            stored = stored or self._read(node)
            made = self._plan(node, pod, stored)
            if isinstance(made, Refusal):
                if fresh:
                    return Verdict(BindingOutcome.REFUSED, BindingReason.NO_GPU_FITS, made.sentence)
                stored = None
                continue
            if dry_run or not made.changed:
                return Verdict(BindingOutcome.PLACED, uuids=made.uuids)
            if self._store(node, made.assignments, stored.version):
                return Verdict(BindingOutcome.PLACED, uuids=made.uuids)
            stored = None
        raise KubeError(f"the list of node {node.name} was written by others all the time")

    def _plan(self, node: GpuNode, pod: PodState, stored: Stored) -> Plan | Refusal:
        pods = self._tracker.relevant(node.name, stored.assignments)
        return plan(node.name, node.gpus, stored.assignments, pods, pod, self._clock())

    def _read(self, node: GpuNode) -> Stored:
        """Read a node's list; where it is missing or spoilt, enter what its pods have already."""
        stored = self._api.assignments(node.name)
        if stored.whole:
            self._copies[node.name] = stored
            return stored
        there = self._api.pods_on(node.name)
        adopted = adopt(node.name, stored.assignments, there, self._clock())
        return Stored(node.name, adopted, whole=True, version=stored.version)

    def _store(self, node: GpuNode, assignments: Assignments, version: str) -> bool:
        """Write a list; say whether nobody else was faster."""
        try:
            self._copies[node.name] = self._api.store(node, assignments, version)
        except KubeError as error:
            self._copies.pop(node.name, None)
            if not error.conflict and not error.not_found:
                raise
            self._metrics.conflicts.inc()
            return False
        return True

    def tidy(self, name: str, *, fresh: bool = False) -> None:
        """Take out of a node's list what no pod uses any more; raises KubeError.

        With `fresh` the stored list is read; without, the last seen one has to do.
        """
        with self._lock(name):
            stored = None if fresh else self._copies.get(name)
            stored = stored or self._api.assignments(name)
            if not stored.whole:
                return  # the next binding reads the node's pods; what is missing has to come back
            pods = self._tracker.relevant(name, stored.assignments)
            now_s = self._clock()
            asked = to_ask(stored.assignments, pods, now_s)
            answers = {uid: self._api.pod(*one.pod.split("/", 1)) for uid, one in asked.items()}
            left = settle(name, stored.assignments, pods, answers, now_s)
            if len(left) < len(stored.assignments):
                node = self._tracker.node(name) or self._api.node(name)
                if node is not None:
                    self._store(node, left, stored.version)

    def nodes_of(self, uid: str) -> list[str]:
        """Return the nodes in whose lists, as last seen here, a pod is entered."""
        return [name for name, stored in list(self._copies.items()) if uid in stored.assignments]

    def _entries(self) -> int:
        return sum(len(stored.assignments) for stored in list(self._copies.values()))

    def _lock(self, node: str) -> Lock:
        """Return the lock by which this replica does not compete with itself for a node."""
        return self._locks.setdefault(node, Lock())
