"""Kubernetes Events (`events.k8s.io/v1`) about pods and nodes, as `kubectl describe` shows them.

pkg/apis/core/validation/events.go validates them. After an Event is created, only its series may
change. The number of Events is limited, but the log is complete.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar
from urllib.parse import quote

from webhook.adapters.kube.bounded_json import Json
from webhook.adapters.kube.client import Kube
from webhook.adapters.kube.errors import KubeError
from webhook.core.node.events import TokenBucket

Key = tuple[str, str, str]

K = TypeVar("K")
V = TypeVar("V")

CLUSTER_SCOPED_NAMESPACE: Final = "default"
"""Namespace of events about cluster-scoped objects."""

LONGEST_NOTE: Final = 1024

SERIES_S: Final = 600.0
"""Time within which equal Events of an object form one series with a count, in seconds."""

OBJECT_BURST: Final = 25
OBJECT_INTERVAL_S: Final = 300.0
"""Interval between Events about one object, in seconds, after a burst of `OBJECT_BURST`, as in
client-go (tools/record/events_cache.go)."""

BURST: Final = 25
INTERVAL_S: Final = 0.2
"""Interval between Events about all objects, in seconds, after a burst of `BURST`."""

MOST_REMEMBERED: Final = 1000
"""Maximum number of objects, and of series, that are remembered."""

_LONGEST_PREFIX: Final = 240  # the API server appends a suffix when it generates a name
_LONGEST_INSTANCE: Final = 128


@dataclass(slots=True)
class _Series:
    path: str
    count: int = 1
    last_s: float = 0.0


class Events:
    """Writer for the Events of one program; several threads can share it.

    | last equal Event of the object | within the limits | action |
    | --- | --- | --- |
    | any | no: `OBJECT_BURST`, or `BURST` in total | write nothing: the log has it |
    | none, or older than `SERIES_S` | yes | create an Event |
    | newer | yes | increment the count of the Event's series |
    | newer, but the Event was deleted | yes | create an Event |
    """

    def __init__(
        self,
        kube: Kube,
        reporter: str,
        instance: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`reporter` is a qualified name such as `vramwarden.io/agent`, `instance` its pod."""
        self._kube = kube
        instance = _truncate(instance, _LONGEST_INSTANCE)
        self._reporter = {"reportingController": reporter, "reportingInstance": instance}
        self._clock = clock
        self._lock = threading.Lock()
        self._all = TokenBucket(BURST, INTERVAL_S)
        self._by_object: dict[str, TokenBucket] = {}
        self._series: dict[Key, _Series] = {}

    def write(
        self, regarding: Json, reason: str, note: str, *, action: str, warning: bool = True
    ) -> None:
        """Write an Event about an object, given as an ObjectReference; raises KubeError.

        `reason` is one word in UpperCamelCase. `action` is one word for what was done or observed.
        The caller logs a failure and does not retry.
        """
        note = _truncate(note, LONGEST_NOTE)
        about = str(regarding.get("uid") or regarding["name"])
        key = about, reason, note
        with self._lock:
            now_s = self._clock()
            if not (self._all.take(now_s) and self._object_allowance(about).take(now_s)):
                return
            series = self._series.get(key)
            if series is not None and now_s - series.last_s >= SERIES_S:
                series = None
        if series is None or not series.path or not self._increment(series):
            kind = "Warning" if warning else "Normal"
            content = {"reason": reason, "note": note, "action": action, "type": kind}
            series = _Series(self._create(regarding, content))
        series.last_s = now_s
        with self._lock:
            self._spend(about, now_s)
            _remember(self._series, key, series)

    def _increment(self, series: _Series) -> bool:
        """Increment the count of an event; return False if the event no longer exists."""
        update = {"count": series.count + 1, "lastObservedTime": self._format_now()}
        try:
            self._kube.merge(series.path, {"series": update})
        except KubeError as error:
            if error.not_found:
                return False
            raise
        series.count += 1
        return True

    def _create(self, regarding: Json, content: Json) -> str:
        """Create an Event; return its path, or an empty string if the response has no name."""
        namespace = regarding.get("namespace") or CLUSTER_SCOPED_NAMESPACE
        collection = f"/apis/events.k8s.io/v1/namespaces/{quote(namespace, safe='')}/events"
        name = f"{regarding['name'][:_LONGEST_PREFIX].rstrip('.-')}-"
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"generateName": name, "namespace": namespace},
            "eventTime": self._format_now(),
            "regarding": {"apiVersion": "v1", **regarding},
            **content,
            **self._reporter,
        }
        stored = self._kube.create(collection, event)
        generated = str((stored.get("metadata") or {}).get("name") or "")
        return f"{collection}/{quote(generated, safe='')}" if generated else ""

    def _format_now(self) -> str:
        now = datetime.fromtimestamp(self._kube.now_s(), UTC)
        return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def _spend(self, about: str, now_s: float) -> None:
        """Count a written Event. Failed writes do not count; their caller limits them."""
        self._all = self._all.take(now_s) or self._all
        allowance = self._object_allowance(about)
        _remember(self._by_object, about, allowance.take(now_s) or allowance)

    def _object_allowance(self, about: str) -> TokenBucket:
        return self._by_object.get(about, TokenBucket(OBJECT_BURST, OBJECT_INTERVAL_S))


def node_reference(name: str) -> Json:
    """Return a reference to a node as kubelets write it in Events, with the name as UID."""
    return {"kind": "Node", "name": name, "uid": name}


def _remember(entries: dict[K, V], key: K, value: V) -> None:
    """Store an entry as the newest; remove the oldest ones if there are too many."""
    entries.pop(key, None)
    entries[key] = value
    while len(entries) > MOST_REMEMBERED:
        del entries[next(iter(entries))]


def _truncate(text: str, most: int) -> str:
    return text.encode()[:most].decode(errors="ignore")
