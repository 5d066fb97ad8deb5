"""Histories of workloads: kept from what pods say as they end, and known for warnings.

Nothing waits for any of this: what is heard goes into a bounded queue, and a thread of its own asks
and writes. Each replica hears of the same pods; the write under `resourceVersion`, and that a pod
is counted once, make one run of it.

Pods that run for weeks have no run until they end.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, Full, Queue
from threading import Lock, Thread
from typing import Any, Final

from webhook.adapters.kube.bounded_json import Json
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.follow import SPREAD
from webhook.adapters.kube.histories import HistoriesApi, StoredHistory
from webhook.core.kinds.endings import Ending, read_ending, run_of
from webhook.core.kinds.histories import MOST_RUNS, History, Run, append, has_run, is_over, warn
from webhook.core.kinds.nodes import NodeFigures
from webhook.core.kinds.workloads import Workload, workload_itself, workload_of
from webhook.core.placement.pod_state import PodState
from webhook.core.pod.gpus import Gpu
from webhook.core.pod.request import Request
from webhook.server.bounds import MOST_HELD, MOST_KNOWN, MOST_OF_NAMESPACE, MOST_SAID
from webhook.server.log import JsonLog
from webhook.server.metrics import HistoryMetrics
from webhook.server.mirror import Mirror

Key = tuple[str, Workload]
_Kept = tuple[dict[Key, StoredHistory], Counter[str]]
"""Histories, and how many of them a namespace has."""

EVERY_S: Final = 60.0
"""A workload's history is written this often at most; further runs wait."""
GATHER_S: Final = 2.0
"""Pods of a workload that end within this time cost one write; another replica may have done it."""
SWEEP_S: Final = 3_600.0
"""Between searches for histories that are over."""
TRIES: Final = 5
"""Of a write that others get ahead of."""
GIVE_UP_S: Final = 900.0
"""A run that cannot be written for so long is dropped."""
FIGURES_S: Final = 5.0
"""How old the sentry's figures may be where several pods of a node end together."""
FRESH_S: Final = 600.0
"""A pod that ended longer ago is not in its sentry's figures any more."""


class HistoryCache:
    """The histories as a watch reports them; may be read from any thread."""

    def __init__(self, api: HistoriesApi, log: JsonLog) -> None:
        """Send no request yet."""
        self._kept: _Kept = {}, Counter()
        self.mirror = Mirror(
            "histories", api.all, self._replace, self._change, log, level="warning"
        )

    def get(self, namespace: str, workload: Workload) -> History | None:
        """Return what is known of a workload; None while the watch is behind."""
        stored = self._kept[0].get((namespace, workload)) if self.mirror.is_current else None
        return stored.history if stored else None

    def has_room(self, namespace: str) -> bool:
        """Say whether a namespace may have one history more, as far as is known."""
        return _has_room(self._kept, namespace)

    def gives_way(self, namespace: str) -> StoredHistory | None:
        """Return the history that goes so that a namespace can have one more; None for no such.

        Whoever has several namespaces would otherwise leave others nothing for `OLDEST_S`.
        """
        histories, counts = self._kept[0], dict(self._kept[1])  # a copy: the watch changes them
        most = max(counts, key=counts.__getitem__, default="")
        own = counts.get(namespace, 0)
        if own >= MOST_OF_NAMESPACE or len(histories) < MOST_KNOWN or counts[most] < own + 2:
            return None
        theirs = [one for key, one in list(histories.items()) if key[0] == most]
        return min(theirs, key=_last_end_s, default=None)

    def over(self, now_s: float) -> list[StoredHistory]:
        """Return those whose last run ended too long ago."""
        return [one for one in list(self._kept[0].values()) if is_over(one.history, now_s)]

    def _replace(self, found: Sequence[StoredHistory | None]) -> None:
        kept: _Kept = {}, Counter()
        for stored in filter(None, found):
            _keep(kept, stored)
        self._kept = kept

    def _change(self, kind: str, stored: StoredHistory | None) -> None:
        if stored is None:
            return
        if kind == "DELETED":
            _forget(self._kept, stored)
        else:
            _keep(self._kept, stored)


_WRITES: Final = "histories written"


def _key(stored: StoredHistory) -> Key:
    history = stored.history
    return history.namespace, Workload(history.kind, history.workload)


def _last_end_s(stored: StoredHistory) -> float:
    runs = stored.history.runs
    return runs[-1].ended_s if runs else 0.0


def _has_room(kept: _Kept, namespace: str) -> bool:
    histories, counts = kept
    return len(histories) < MOST_KNOWN and counts[namespace] < MOST_OF_NAMESPACE


def _keep(kept: _Kept, stored: StoredHistory) -> None:
    """Keep a history where there is room; one that is kept already is replaced."""
    histories, counts = kept
    key = _key(stored)
    if key in histories or _has_room(kept, key[0]):
        counts[key[0]] += key not in histories
        histories[key] = stored


def _forget(kept: _Kept, stored: StoredHistory) -> None:
    histories, counts = kept
    key = _key(stored)
    if histories.pop(key, None):
        counts -= Counter([key[0]])  # drops a namespace that has none


class Advisor:
    """Says in a sentence that a new pod asks for too much or too little; sends no request."""

    def __init__(self, known: HistoryCache, largest: Callable[[], int | None]) -> None:
        """Let `largest` return what the largest GPU of the cluster has, where that is known."""
        self._known = known
        self._largest = largest
        self._said: dict[tuple[Key, int], tuple[History, int | None, str]] = {}
        """What was said, and of which history: a controller creates many pods of one template."""

    def warn(self, namespace: str, metadata: Mapping[str, Any], asked_bytes: int) -> str:
        """Return the sentence for a pod that asks for so much per GPU; empty where none is due."""
        return self._warn((namespace, workload_of(metadata)), asked_bytes)

    def warn_author(self, request: Request, pod: Mapping[str, Any], asked_bytes: int) -> str:
        """Return it for the author of a workload, given the metadata of its template."""
        kind = request.kind.rpartition("/")[2]
        workload = workload_itself(kind, request.name, pod)
        return self._warn((request.namespace, workload), asked_bytes)

    def _warn(self, key: Key, asked_bytes: int) -> str:
        history, largest_bytes = self._known.get(*key), self._largest()
        if history is None:
            return warn(None, asked_bytes, largest_bytes)
        said = self._said.get((key, asked_bytes))
        if said and said[0] is history and said[1] == largest_bytes:
            return said[2]
        sentence = warn(history, asked_bytes, largest_bytes)
        if len(self._said) >= MOST_SAID:
            self._said.clear()
        self._said[key, asked_bytes] = history, largest_bytes, sentence
        return sentence


@dataclass(slots=True)
class _Waiting:
    """Runs of a workload that wait to be written."""

    due_s: float
    runs: dict[str, tuple[Ending, Run]] = field(default_factory=dict)
    """By the pod's UID, in the order of their ends."""
    failing_since_s: float | None = None


class HistoryWriter:
    """Appends to histories what pods say as they end; hears of them from any thread."""

    def __init__(
        self,
        api: HistoriesApi,
        known: HistoryCache,
        gpus_of: Callable[[str], Sequence[Gpu]],
        metrics: HistoryMetrics,
        log: JsonLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Let `gpus_of` return the GPUs of a node, as far as they are known."""
        self._api = api
        self._known = known
        self._gpus_of = gpus_of
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._lock = Lock()
        self._heard: Queue[Ending] = Queue(MOST_HELD)
        self._ending: dict[str, Ending] = {}
        self._done: dict[str, None] = {}
        self._order: deque[str] = deque()
        self._waiting: dict[Key, _Waiting] = {}
        self._written_s: dict[Key, float] = {}
        self._figures: dict[str, tuple[float, NodeFigures | None]] = {}
        self._sweep_s = clock() + SPREAD(0, SWEEP_S)

    def start(self) -> None:
        """Begin on a daemon thread."""
        Thread(target=self._run, name="histories", daemon=True).start()

    def on_pod(self, raw: Json, state: PodState) -> None:
        """Take a pod as it is stored now; returns at once.

        One that is about to end is kept in mind, for `gone`: its node may never say how it ended.
        """
        ending = read_ending(raw, state)
        if ending is None:
            return
        with self._lock:
            if ending.over:
                self._ending.pop(ending.uid, None)
            elif ending.uid in self._ending or len(self._ending) < MOST_HELD:
                self._ending[ending.uid] = ending
        if ending.over:
            self._add(ending)

    def on_end(self, pod: PodState) -> None:
        """Take that a pod finished or is gone; returns at once."""
        if pod.gone:
            with self._lock:
                ending = self._ending.pop(pod.uid, None)
            if ending:
                self._add(ending)

    def _add(self, ending: Ending) -> None:
        with self._lock:
            if ending.uid in self._done:
                return
            self._done[ending.uid] = None
            self._order.append(ending.uid)
            if len(self._order) > MOST_HELD:
                del self._done[self._order.popleft()]
        try:
            self._heard.put_nowait(ending)
        except Full:
            self._metrics.runs.labels("dropped").inc()

    def _run(self) -> None:
        while True:
            try:
                self.step()
            except Exception:  # noqa: BLE001 - a bug must not end the thread silently
                self._log.exception("keeping histories failed")
                time.sleep(EVERY_S)

    def step(self, within_s: float = 1.0) -> None:
        """Take what was heard within a time, and write what is due."""
        try:
            ending = self._heard.get(timeout=within_s)
            while True:
                self._note(ending)
                ending = self._heard.get_nowait()
        except Empty:
            pass
        now_s = self._clock()
        for key in [key for key, one in self._waiting.items() if one.due_s <= now_s]:
            try:
                self._try_to_write(key, now_s)
            except Exception:  # noqa: BLE001 - what one workload's runs meet is not the others'
                self._log.exception("keeping a history failed")
                self._metrics.runs.labels("dropped").inc(len(self._waiting.pop(key).runs))
        self._written_s = {
            key: at_s for key, at_s in self._written_s.items() if now_s - at_s < EVERY_S
        }
        if now_s >= self._sweep_s:
            self._sweep_s = now_s + SWEEP_S * SPREAD(0.75, 1.25)
            self._sweep()

    def _note(self, ending: Ending) -> None:
        """Make a run of an ending, with the sentry's figures as they are now, and let it wait."""
        key = ending.namespace, ending.workload
        known = self._known.get(*key)
        if known and has_run(known, ending.pod, ending.began_s):
            return
        now_s = self._clock()
        waiting = self._waiting.get(key)
        if waiting is None:
            if len(self._waiting) >= MOST_HELD:
                self._metrics.runs.labels("dropped").inc()
                return
            written_s = self._written_s.get(key, now_s - EVERY_S)
            due_s = max(now_s + GATHER_S * SPREAD(0.5, 1.5), written_s + EVERY_S)
            waiting = self._waiting[key] = _Waiting(due_s)
        figures = self._figures_of(ending, now_s)
        run = run_of(ending, self._gpus_of(ending.node), figures)
        waiting.runs[ending.uid] = ending, run
        if len(waiting.runs) > MOST_RUNS:
            oldest = min(waiting.runs, key=lambda uid: waiting.runs[uid][1].ended_s)
            del waiting.runs[oldest]

    def _figures_of(self, ending: Ending, now_s: float) -> NodeFigures | None:
        if self._api.now_s() - ending.ended_s > FRESH_S:
            return None
        read_s, figures = self._figures.get(ending.node, (now_s - 2 * FIGURES_S, None))
        if now_s - read_s >= FIGURES_S:
            try:
                figures = self._api.figures(ending.node)
            except KubeError:  # the sentry's figures are no must
                figures = None
            self._figures = {
                node: one for node, one in self._figures.items() if now_s - one[0] < FIGURES_S
            }
            self._figures[ending.node] = now_s, figures
        return figures

    def _try_to_write(self, key: Key, now_s: float) -> None:
        waiting = self._waiting[key]
        try:
            written = self._write(key, [*waiting.runs.values()])
        except KubeError as error:
            self._metrics.writes.labels("failed").inc()
            self._log.once(_WRITES, "warning", "histories cannot be written; retrying", str(error))
            waiting.due_s = now_s + EVERY_S
            since_s = waiting.failing_since_s
            waiting.failing_since_s = now_s if since_s is None else since_s
            if now_s - waiting.failing_since_s < GIVE_UP_S:
                return
            self._metrics.runs.labels("dropped").inc(len(waiting.runs))
        except Exception:  # noqa: BLE001 - what one workload stored must not keep others waiting
            self._log.exception("keeping a history failed")
            self._metrics.runs.labels("dropped").inc(len(waiting.runs))
        else:
            if written:
                self._written_s[key] = now_s
                self._log.over(_WRITES, "histories are written again")
        del self._waiting[key]

    def _write(self, key: Key, runs: Sequence[tuple[Ending, Run]]) -> bool:
        """Append to what is stored; return whether that changed it. Raises KubeError.

        What is stored is read first, always: a replica that has just begun knows nothing.
        """
        known = self._known.get(*key)
        if known and all(has_run(known, one.pod, one.began_s) for one, _ in runs):
            return False
        for attempt in range(TRIES):
            stored = self._api.read(*key)
            if _key(stored) != key:  # its object is another's, which must not shrink
                self._metrics.runs.labels("dropped").inc(len(runs))
                return False
            if not stored.version and not self._may_begin(key[0]):
                self._metrics.runs.labels("dropped").inc(len(runs))
                why = f"namespace {key[0]} has as many histories as it may"
                self._log.once(key[0], "warning", "a history is not begun", why)
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
                if not error.conflict or attempt == TRIES - 1:
                    raise
                self._metrics.writes.labels("conflict").inc()
                continue
            self._metrics.writes.labels("written").inc()
            self._metrics.runs.labels("kept").inc(added)
            return True
        return False

    def _may_begin(self, namespace: str) -> bool:
        """Return True if a namespace may have one more history, for which another's may go.

        Raises KubeError.
        """
        if self._known.has_room(namespace):
            return True
        known = self._known.gives_way(namespace)
        stored = known and self._api.read(*_key(known))
        if not stored or not stored.version:  # the watch has not seen yet that it is gone
            return False
        self._api.remove(stored)
        self._metrics.writes.labels("deleted").inc()
        return True

    def _sweep(self) -> None:
        """Delete histories whose last run ended too long ago, as they are stored now."""
        now_s = self._api.now_s()
        for known in self._known.over(now_s):
            try:
                stored = self._api.read(*_key(known))
                if stored.version and is_over(stored.history, now_s):
                    self._api.remove(stored)
                    self._metrics.writes.labels("deleted").inc()
            except KubeError as error:
                if not (error.conflict or error.not_found):
                    why = str(error)
                    self._log.once(_WRITES, "warning", "histories cannot be swept; retrying", why)
                    return
