"""Events about objects, as `kubectl describe` shows them: `events.k8s.io/v1`.

What the API server demands of one is in pkg/apis/core/validation/events.go; after its creation only
its series may change. Few are written: the log says everything.
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

OF_NODES: Final = "default"
"""The namespace in which events of objects without one are."""

LONGEST_NOTE: Final = 1024
"""Bytes, of an event's note."""

SERIES_S: Final = 600.0
"""Events that say the same of the same object within so long are one, with a count."""

OF_AN_OBJECT: Final = 25
OF_AN_OBJECT_EVERY_S: Final = 300.0
"""So many of one object at once and then one in so many seconds, as client-go bounds them
(tools/record/events_cache.go)."""

BURST: Final = 25
EVERY_S: Final = 0.2
"""Of all objects together: so many at once, and five a second for long."""

MOST_REMEMBERED: Final = 1000
"""Objects and series of which is remembered what was written."""

_LONGEST_PREFIX: Final = 240  # of a generated name, which the API server adds to
_LONGEST_INSTANCE: Final = 128


@dataclass(slots=True)
class _Series:
    """An event that was written, and how often it happened."""

    path: str
    count: int = 1
    last_s: float = 0.0


class Events:
    """Writes the events of one program; several threads may share it.

    | the same was written of the same object | allowed now | then |
    | --- | --- | --- |
    | any time | no: `OF_AN_OBJECT`, or `BURST` of all | nothing: the log has it |
    | never, or `SERIES_S` ago | yes | a new event |
    | since then | yes | the event's series counts on |
    | since then, and somebody deleted the event | yes | a new event |
    """

    def __init__(
        self,
        kube: Kube,
        reporter: str,
        instance: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; `reporter` is a qualified name as `vramwarden.io/agent`, `instance` ours."""
        self._kube = kube
        ours = _cut_bytes(instance, _LONGEST_INSTANCE)
        self._by = {"reportingController": reporter, "reportingInstance": ours}
        self._clock = clock
        self._lock = threading.Lock()
        self._all = TokenBucket(BURST, EVERY_S)
        self._of: dict[str, TokenBucket] = {}
        self._series: dict[Key, _Series] = {}

    def write(
        self, regarding: Json, reason: str, note: str, *, action: str, warning: bool = True
    ) -> None:
        """Write an event about an object, given as an ObjectReference; raises KubeError.

        `reason` is one word in UpperCamelCase, `action` one for what was done or seen. Whoever
        calls it logs a failure and forgets the event.
        """
        note = _cut_bytes(note, LONGEST_NOTE)
        about = str(regarding.get("uid") or regarding["name"])
        key = about, reason, note
        with self._lock:
            now_s = self._clock()
            if not all(one.take(now_s) for one in (self._all, self._allowance_of(about))):
                return
            known = self._series.get(key)
            if known is not None and now_s - known.last_s >= SERIES_S:
                known = None
        if known is None or not known.path or not self._count_on(known):
            kind = "Warning" if warning else "Normal"
            said = {"reason": reason, "note": note, "action": action, "type": kind}
            known = _Series(self._create(regarding, said))
        known.last_s = now_s
        with self._lock:
            self._spend(about, now_s)
            _remember(self._series, key, known)

    def _count_on(self, known: _Series) -> bool:
        """Count an event once more; return whether it is still there."""
        series = {"count": known.count + 1, "lastObservedTime": self._at()}
        try:
            self._kube.merge(known.path, {"series": series})
        except KubeError as error:
            if error.not_found:
                return False
            raise
        known.count += 1
        return True

    def _create(self, regarding: Json, said: Json) -> str:
        """Create an event; return its path, nothing where it has no name."""
        namespace = regarding.get("namespace") or OF_NODES
        collection = f"/apis/events.k8s.io/v1/namespaces/{quote(namespace, safe='')}/events"
        name = f"{regarding['name'][:_LONGEST_PREFIX].rstrip('.-')}-"
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"generateName": name, "namespace": namespace},
            "eventTime": self._at(),
            "regarding": {"apiVersion": "v1", **regarding},
            **said,
            **self._by,
        }
        stored = self._kube.create(collection, event)
        made = str((stored.get("metadata") or {}).get("name") or "")
        return f"{collection}/{quote(made, safe='')}" if made else ""

    def _at(self) -> str:
        """Return the time of now as the API has it in events: to the microsecond."""
        at = datetime.fromtimestamp(self._kube.now_s(), UTC)
        return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def _spend(self, about: str, now_s: float) -> None:
        """Count what was written; what failed costs nothing, and is its writer's to bound."""
        self._all = self._all.take(now_s) or self._all
        ours = self._allowance_of(about)
        _remember(self._of, about, ours.take(now_s) or ours)

    def _allowance_of(self, about: str) -> TokenBucket:
        return self._of.get(about, TokenBucket(OF_AN_OBJECT, OF_AN_OBJECT_EVERY_S))


def node_reference(name: str) -> Json:
    """Name a node as kubelets do in their events: its name stands for its UID, too."""
    return {"kind": "Node", "name": name, "uid": name}


def _remember(known: dict[K, V], key: K, value: V) -> None:
    """Remember something as the newest; of too much, the oldest goes."""
    known.pop(key, None)
    known[key] = value
    while len(known) > MOST_REMEMBERED:
        del known[next(iter(known))]


def _cut_bytes(text: str, most: int) -> str:
    """Return as much of a text as has so many bytes."""
    return text.encode()[:most].decode(errors="ignore")
