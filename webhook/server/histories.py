"""The histories of workloads that a watch reports, and the advice for new pods based on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from webhook.adapters.kube.histories import HistoriesApi, StoredHistory
from webhook.core.kinds.histories import History, is_expired, warn
from webhook.core.kinds.workloads import Workload, find_workload, predict_workload
from webhook.core.pod.request import Request
from webhook.server.bounds import MAX_CACHED_ADVICE, MAX_HISTORIES, MAX_HISTORIES_PER_NAMESPACE
from webhook.server.informer import Informer
from webhook.server.log import JsonLog

HistoryKey = tuple[str, Workload]


def history_key(stored: StoredHistory) -> HistoryKey:
    """Return a history's namespace and workload."""
    history = stored.history
    return history.namespace, Workload(history.kind, history.workload)


class _Contents:
    """Histories keyed by namespace and workload, and their number per namespace."""

    def __init__(self) -> None:
        self.histories: dict[HistoryKey, StoredHistory] = {}
        self.counts: Counter[str] = Counter()

    def has_room(self, namespace: str) -> bool:
        is_full = len(self.histories) >= MAX_HISTORIES
        return not is_full and self.counts[namespace] < MAX_HISTORIES_PER_NAMESPACE

    def put(self, stored: StoredHistory) -> None:
        """Replace a history, or add it if there is room."""
        key = history_key(stored)
        if key in self.histories or self.has_room(key[0]):
            self.counts[key[0]] += key not in self.histories
            self.histories[key] = stored

    def remove(self, stored: StoredHistory) -> None:
        """Remove a history if it is present."""
        key = history_key(stored)
        if self.histories.pop(key, None):
            self.counts -= Counter([key[0]])  # also drops a namespace without histories


class HistoryCache:
    """Caches the histories that a watch reports; may be read from any thread."""

    def __init__(self, api: HistoriesApi, log: JsonLog) -> None:
        self._contents = _Contents()
        self.informer = Informer(
            "histories", api.all, self._replace, self._change, log, level="warning"
        )

    def get(self, namespace: str, workload: Workload) -> History | None:
        """Return a workload's history, or None if it is missing or not reported yet."""
        if not self.informer.is_current:
            return None
        stored = self._contents.histories.get((namespace, workload))
        return stored.history if stored else None

    def has_room(self, namespace: str) -> bool:
        """Return True if another history may be created in the namespace."""
        return self._contents.has_room(namespace)

    def find_replaceable(self, namespace: str) -> StoredHistory | None:
        """Return the history to delete so that the namespace can get a new one, or None.

        Otherwise a user with several namespaces could leave other users no history for `MAX_AGE_S`.
        """
        histories = self._contents.histories
        counts = dict(self._contents.counts)  # copied: the watch changes it
        largest = max(counts, key=counts.__getitem__, default="")
        count = counts.get(namespace, 0)
        if (
            count >= MAX_HISTORIES_PER_NAMESPACE
            or len(histories) < MAX_HISTORIES
            or counts[largest] < count + 2
        ):
            return None
        candidates = [stored for key, stored in list(histories.items()) if key[0] == largest]
        return min(candidates, key=_last_end_s, default=None)

    def expired(self, now_s: float) -> list[StoredHistory]:
        """Return the histories whose last run ended too long ago."""
        histories = list(self._contents.histories.values())
        return [stored for stored in histories if is_expired(stored.history, now_s)]

    def _replace(self, listed: Sequence[StoredHistory | None]) -> None:
        contents = _Contents()
        for stored in filter(None, listed):
            contents.put(stored)
        self._contents = contents

    def _change(self, event_type: str, stored: StoredHistory | None) -> None:
        if stored is None:
            return
        if event_type == "DELETED":
            self._contents.remove(stored)
        else:
            self._contents.put(stored)


def _last_end_s(stored: StoredHistory) -> float:
    runs = stored.history.runs
    return runs[-1].ended_s if runs else 0.0


class Advisor:
    """Warns that a new pod requests too much or too little VRAM; sends no requests."""

    def __init__(self, cache: HistoryCache, largest_gpu_bytes: Callable[[], int | None]) -> None:
        """Store the cache; `largest_gpu_bytes` returns None if no GPU is known."""
        self._cache = cache
        self._largest_gpu_bytes = largest_gpu_bytes
        self._cached: dict[tuple[HistoryKey, int], tuple[History, int | None, str]] = {}
        """Cached warnings with their inputs: a controller creates many pods from one template."""

    def warn(self, namespace: str, metadata: Mapping[str, Any], requested_bytes: int) -> str:
        """Return the warning for a pod that requests this amount per GPU, or an empty string."""
        return self._warn((namespace, find_workload(metadata)), requested_bytes)

    def warn_author(self, request: Request, pod: Mapping[str, Any], requested_bytes: int) -> str:
        """Return the warning for a workload's author, based on the metadata of its pod template."""
        kind = request.kind.rpartition("/")[2]
        workload = predict_workload(kind, request.name, pod)
        return self._warn((request.namespace, workload), requested_bytes)

    def _warn(self, key: HistoryKey, requested_bytes: int) -> str:
        history, largest_bytes = self._cache.get(*key), self._largest_gpu_bytes()
        if history is None:
            return warn(None, requested_bytes, largest_bytes)
        cached = self._cached.get((key, requested_bytes))
        if cached and cached[0] is history and cached[1] == largest_bytes:
            return cached[2]
        sentence = warn(history, requested_bytes, largest_bytes)
        if len(self._cached) >= MAX_CACHED_ADVICE:
            self._cached.clear()
        self._cached[key, requested_bytes] = history, largest_bytes, sentence
        return sentence
