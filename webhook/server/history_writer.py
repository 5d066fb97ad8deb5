"""Appends the runs of ended pods to the histories of their workloads.

Nothing waits for these writes: ended pods are put into a bounded queue, and a separate thread sends
all requests. Every replica sees the same pods, but each run is written once: a write names the
`resourceVersion` that it is based on, and a history counts each pod once.

A pod that runs for weeks has no run until it ends.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, Full, Queue
from threading import Lock, Thread
from typing import Final

from webhook.adapters.kube.bounded_json import Json
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.follow import JITTER
from webhook.adapters.kube.histories import HistoriesApi
from webhook.core.kinds.ended_pods import EndedPod, build_run, read_ended_pod
from webhook.core.kinds.histories import MAX_RUNS, Run, append, has_run, is_expired
from webhook.core.kinds.nodes import NodeFigures
from webhook.core.placement.pod_state import PodState
from webhook.core.pod.gpus import Gpu
from webhook.server.bounds import MAX_QUEUED
from webhook.server.histories import HistoryCache, HistoryKey, history_key
from webhook.server.log import JsonLog
from webhook.server.metrics import HistoryMetrics

WRITE_INTERVAL_S: Final = 60.0
"""Minimum time in seconds between two writes of one history. Further runs wait."""
GATHER_S: Final = 2.0
"""Mean delay of the first write. Pods of a workload that end together then need one write, and
another replica may have written their runs already."""
SWEEP_INTERVAL_S: Final = 3_600.0
"""Mean time between two searches for expired histories, in seconds."""
MAX_ATTEMPTS: Final = 5
"""Maximum number of attempts of a write that conflicts with another replica's write."""
GIVE_UP_S: Final = 900.0
"""Time after which runs that cannot be written are dropped."""
MAX_FIGURES_AGE_S: Final = 5.0
"""Maximum age of a node's cached figures, which are shared by pods that end together."""
MAX_END_AGE_S: Final = 600.0
"""Time in seconds after which an ended pod is no longer in the figures of its node's sentry."""

_WRITES: Final = "histories written"


@dataclass(slots=True)
class _PendingRuns:
    """Runs of one workload that are still to be written."""

    due_s: float
    runs: dict[str, tuple[EndedPod, Run]] = field(default_factory=dict)
    """Runs keyed by pod UID, in the order in which the pods ended."""
    failing_since_s: float | None = None


class HistoryWriter:
    """Appends runs to histories; its callbacks may be called from any thread."""

    def __init__(
        self,
        api: HistoriesApi,
        cache: HistoryCache,
        find_gpus: Callable[[str], Sequence[Gpu]],
        metrics: HistoryMetrics,
        log: JsonLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the settings without sending requests; `find_gpus` returns a node's known GPUs."""
        self._api = api
        self._cache = cache
        self._find_gpus = find_gpus
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._lock = Lock()
        self._queue: Queue[EndedPod] = Queue(MAX_QUEUED)
        self._terminating: dict[str, EndedPod] = {}
        """Last state of terminating pods, keyed by UID."""
        self._ended: dict[str, None] = {}
        """UIDs of the pods that were queued last, oldest first."""
        self._ended_order: deque[str] = deque()
        self._pending: dict[HistoryKey, _PendingRuns] = {}
        self._written_at_s: dict[HistoryKey, float] = {}
        self._figures: dict[str, tuple[float, NodeFigures | None]] = {}
        self._sweep_due_s = clock() + JITTER(0, SWEEP_INTERVAL_S)

    def start(self) -> None:
        """Start the daemon thread."""
        Thread(target=self._run, name="histories", daemon=True).start()

    def on_pod(self, raw: Json, state: PodState) -> None:
        """Handle the current state of a pod; returns at once.

        The state of a terminating pod is kept for `on_end`, because its node may never report how
        it ended.
        """
        ending = read_ended_pod(raw, state)
        if ending is None:
            return
        with self._lock:
            if ending.is_over:
                self._terminating.pop(ending.uid, None)
            elif ending.uid in self._terminating or len(self._terminating) < MAX_QUEUED:
                self._terminating[ending.uid] = ending
        if ending.is_over:
            self._enqueue(ending)

    def on_end(self, pod: PodState) -> None:
        """Handle a pod that has finished or is deleted; returns at once."""
        if pod.gone:
            with self._lock:
                ending = self._terminating.pop(pod.uid, None)
            if ending:
                self._enqueue(ending)

    def _enqueue(self, ending: EndedPod) -> None:
        with self._lock:
            if ending.uid in self._ended:
                return
            self._ended[ending.uid] = None
            self._ended_order.append(ending.uid)
            if len(self._ended_order) > MAX_QUEUED:
                del self._ended[self._ended_order.popleft()]
        try:
            self._queue.put_nowait(ending)
        except Full:
            self._metrics.runs.labels("dropped").inc()

    def _run(self) -> None:
        while True:
            try:
                self.step()
            except Exception:  # noqa: BLE001 - a bug must not end the thread silently
                self._log.exception("keeping histories failed")
                time.sleep(WRITE_INTERVAL_S)

    def step(self, timeout_s: float = 1.0) -> None:
        """Process the queue, waiting at most `timeout_s`, and write due histories."""
        try:
            ending = self._queue.get(timeout=timeout_s)
            while True:
                self._add_run(ending)
                ending = self._queue.get_nowait()
        except Empty:
            pass
        now_s = self._clock()
        for key in [key for key, pending in self._pending.items() if pending.due_s <= now_s]:
            try:
                self._write_pending(key, now_s)
            except Exception:  # noqa: BLE001 - a failure for one workload must not affect others
                self._log.exception("keeping a history failed")
                self._metrics.runs.labels("dropped").inc(len(self._pending.pop(key).runs))
        self._written_at_s = {
            key: written_at_s
            for key, written_at_s in self._written_at_s.items()
            if now_s - written_at_s < WRITE_INTERVAL_S
        }
        if now_s >= self._sweep_due_s:
            self._sweep_due_s = now_s + SWEEP_INTERVAL_S * JITTER(0.75, 1.25)
            self._delete_expired()

    def _add_run(self, ending: EndedPod) -> None:
        """Add an ended pod's run to the pending runs, with the sentry's current figures."""
        key = ending.namespace, ending.workload
        history = self._cache.get(*key)
        if history and has_run(history, ending.pod, ending.began_s):
            return
        now_s = self._clock()
        pending = self._pending.get(key)
        if pending is None:
            if len(self._pending) >= MAX_QUEUED:
                self._metrics.runs.labels("dropped").inc()
                return
            written_at_s = self._written_at_s.get(key, now_s - WRITE_INTERVAL_S)
            gathered_s = now_s + GATHER_S * JITTER(0.5, 1.5)
            due_s = max(gathered_s, written_at_s + WRITE_INTERVAL_S)
            pending = self._pending[key] = _PendingRuns(due_s)
        figures = self._read_figures(ending, now_s)
        run = build_run(ending, self._find_gpus(ending.node), figures)
        pending.runs[ending.uid] = ending, run
        if len(pending.runs) > MAX_RUNS:
            oldest = min(pending.runs, key=lambda uid: pending.runs[uid][1].ended_s)
            del pending.runs[oldest]

    def _read_figures(self, ending: EndedPod, now_s: float) -> NodeFigures | None:
        if self._api.now_s() - ending.ended_s > MAX_END_AGE_S:
            return None
        never_s = now_s - 2 * MAX_FIGURES_AGE_S
        read_at_s, figures = self._figures.get(ending.node, (never_s, None))
        if now_s - read_at_s >= MAX_FIGURES_AGE_S:
            try:
                figures = self._api.figures(ending.node)
            except KubeError:  # without the sentry's figures the run is still written
                figures = None
            self._figures = {
                node: cached
                for node, cached in self._figures.items()
                if now_s - cached[0] < MAX_FIGURES_AGE_S
            }
            self._figures[ending.node] = now_s, figures
        return figures

    def _write_pending(self, key: HistoryKey, now_s: float) -> None:
        pending = self._pending[key]
        try:
            has_written = self._append_runs(key, [*pending.runs.values()])
        except KubeError as error:
            self._metrics.writes.labels("failed").inc()
            self._log.once(_WRITES, "warning", "histories cannot be written; retrying", str(error))
            pending.due_s = now_s + WRITE_INTERVAL_S
            since_s = pending.failing_since_s
            pending.failing_since_s = now_s if since_s is None else since_s
            if now_s - pending.failing_since_s < GIVE_UP_S:
                return
            self._metrics.runs.labels("dropped").inc(len(pending.runs))
        except Exception:  # noqa: BLE001 - a bad history of one workload must not delay others
            self._log.exception("keeping a history failed")
            self._metrics.runs.labels("dropped").inc(len(pending.runs))
        else:
            if has_written:
                self._written_at_s[key] = now_s
                self._log.over(_WRITES, "histories are written again")
        del self._pending[key]

    def _append_runs(self, key: HistoryKey, runs: Sequence[tuple[EndedPod, Run]]) -> bool:
        """Append runs to a stored history; return True if it changed. Raises KubeError.

        The stored history is always read first, because the cache of a new replica is empty.
        """
        history = self._cache.get(*key)
        if history and all(has_run(history, ending.pod, ending.began_s) for ending, _ in runs):
            return False
        for attempt in range(MAX_ATTEMPTS):
            stored = self._api.read(*key)
            if history_key(stored) != key:  # the object's name belongs to another workload
                self._metrics.runs.labels("dropped").inc(len(runs))
                return False
            if not stored.version and not self._can_create(key[0]):
                self._metrics.runs.labels("dropped").inc(len(runs))
                reason = f"namespace {key[0]} has as many histories as it may"
                self._log.once(key[0], "warning", "a history is not begun", reason)
                return False
            history, now_s = stored.history, self._api.now_s()
            added = 0
            for ending, run in runs:
                if not has_run(history, ending.pod, ending.began_s):
                    longer = append(history, run, now_s)
                    added += longer is not history
                    history = longer
            if history is stored.history:
                return False
            try:
                self._api.store(history, stored.version)
            except KubeError as error:
                if not error.conflict or attempt == MAX_ATTEMPTS - 1:
                    raise
                self._metrics.writes.labels("conflict").inc()
                continue
            self._metrics.writes.labels("written").inc()
            self._metrics.runs.labels("kept").inc(added)
            return True
        return False

    def _can_create(self, namespace: str) -> bool:
        """Return True if the namespace may get a history; delete another history if necessary.

        Raises KubeError.
        """
        if self._cache.has_room(namespace):
            return True
        replaceable = self._cache.find_replaceable(namespace)
        stored = replaceable and self._api.read(*history_key(replaceable))
        if not stored or not stored.version:  # deleted, but not reported by the watch yet
            return False
        self._api.remove(stored)
        self._metrics.writes.labels("deleted").inc()
        return True

    def _delete_expired(self) -> None:
        """Delete the expired histories, after reading each again."""
        now_s = self._api.now_s()
        for cached in self._cache.expired(now_s):
            try:
                stored = self._api.read(*history_key(cached))
                if stored.version and is_expired(stored.history, now_s):
                    self._api.remove(stored)
                    self._metrics.writes.labels("deleted").inc()
            except KubeError as error:
                if not (error.conflict or error.not_found):
                    reason = str(error)
                    self._log.once(
                        _WRITES, "warning", "histories cannot be swept; retrying", reason
                    )
                    return
