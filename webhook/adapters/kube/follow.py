"""Follow objects of the API server forever: list, watch, and start again where that ends.

Source: Kubernetes API concepts, "Efficient detection of changes".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import SystemRandom
from typing import Final, Generic, NoReturn, TypeVar
from urllib.parse import quote

from webhook.adapters.kube.bounded_json import Json
from webhook.adapters.kube.client import Kube
from webhook.adapters.kube.errors import KubeError

T = TypeVar("T")

WATCH_S: Final = 60.0
"""A watch is renewed this often, so that a connection that died silently costs no more."""

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 15.0
"""Between retries; doubled from the first to the longest."""

SPREAD: Final = SystemRandom().uniform
"""Draws from the kernel, so that threads leave the process' one generator to whoever seeds it."""

LONGEST_ASKED_S: Final = 60.0
"""An API server that is overloaded may ask for a longer pause (`Retry-After`), up to this."""

ANY: Final = "0"
"""A watch from this version begins with what exists. Without one, API servers of 1.36 wait until
their cache is as new as etcd, which older etcds and kine never report, and answer 504."""


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """All objects that exist now; any other is gone."""

    things: Sequence[T]
    watched: bool = True
    """Whether changes will be reported; where not, all are listed again after a pause."""


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """An object that was added, modified or deleted; it may be reported twice."""

    kind: str
    """`ADDED`, `MODIFIED` or `DELETED`."""
    thing: T


@dataclass(frozen=True, slots=True)
class Failed:
    """Nothing can be reported for now; `Listed` follows as soon as something can."""

    error: Exception
    """A KubeError, or any other exception for a bug in `Collection.project` or in `report`."""


Report = Listed[T] | Changed[T] | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection(Generic[T]):
    """Objects of one kind: those with some labels, or the one of a name.

    | which | rights | read |
    | --- | --- | --- |
    | `labels="key=value"`, `fields`, all | list, watch | at first, and where no watch can go on |
    | `name="one"` | get, watch; for this name alone, where that is wanted | before each watch |

    Reading one object costs next to nothing, and makes up for whatever a watch missed.
    """

    kube: Kube
    path: str
    """The collection's, as `/api/v1/nodes`, also where one object is named."""
    project: Callable[[Json], T]
    """What is kept of each object; the rest of it is freed at once."""
    labels: str = ""
    name: str = ""
    fields: str = ""
    """A field selector, beside or in place of `labels`."""

    def read(self) -> tuple[list[T], str]:
        """Return all objects that exist now, and the version from which to watch."""
        if not self.name:
            return self.kube.list_versioned(self.path, self.project, **self._selected())
        found = self.kube.find(f"{self.path}/{quote(self.name, safe='')}")
        return ([self.project(found)], _version(found)) if found else ([], ANY)

    def watch(self, version: str, lasting_s: float) -> Iterator[tuple[str, Json]]:
        """Begin to watch; see `Kube.watch`."""
        query = {"allowWatchBookmarks": "true", **self._selected()}
        if self.name:  # with this selector a right for the name alone is enough
            query = {"fieldSelector": f"metadata.name={self.name}"}
        return self.kube.watch(self.path, lasting_s=lasting_s, **query, resourceVersion=version)

    def _selected(self) -> dict[str, str]:
        selectors = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {key: value for key, value in selectors.items() if value}


def follow(
    collection: Collection[T],
    report: Callable[[Report[T]], None],
    *,
    watch_s: float = WATCH_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    spread: Callable[[float, float], float] = SPREAD,
) -> NoReturn:
    """Report what exists, each change of it, and each failure, forever.

        follow(Collection(kube, "/api/v1/pods", read_pod, labels="managed=true"), report)
        follow(Collection(kube, "/api/v1/namespaces/x/secrets", version, name="tls"), report)

    | a watch | what follows |
    | --- | --- |
    | ends after `watch_s` | another from the last event or bookmark; one object is read before |
    | ends early without an event | all are read: the version may be too old |
    | ends with 410, or is answered so | likewise, after a pause |
    | fails | `Failed`; all are read, after a pause |

    Pauses double until a try succeeds, and last as long as the API server asks for (`Retry-After`).
    They vary, as do watches, by a quarter: many follow one API server, and began together. A bug is
    reported as `Failed`, too, and costs the longest pause; what `report` then raises ends it all.
    """
    pause_s, version, too_old = FIRST_PAUSE_S, "", ""
    while True:
        asked_s = 0.0
        try:
            things: list[T] | None = None
            if not version:
                things, version = collection.read()
                if version == too_old:  # of one object that did not change since
                    version = ANY
            started_s, silent = clock(), True
            lasting_s = watch_s * spread(0.75, 1.0)
            events = _begin(collection, things, version, lasting_s, report)
            del things
            for kind, thing in events:
                silent, version = False, _version(thing)
                if kind != "BOOKMARK":
                    report(Changed(kind, collection.project(thing)))
                del thing  # it may be large, and the next event a minute away
        except KubeError as error:
            asked_s = min(error.retry_after_s, LONGEST_ASKED_S)
            if error.expired and version:
                too_old = version
            else:
                report(Failed(error))
        except Exception as error:  # noqa: BLE001 - a bug must not end the thread silently
            report(Failed(error))
            pause_s = LONGEST_PAUSE_S
        else:
            lasted_s = clock() - started_s
            if collection.name or (silent and lasted_s < watch_s / 2):
                version = ""
            pause_s = FIRST_PAUSE_S
            sleep(max(0.0, FIRST_PAUSE_S - lasted_s))
            continue
        version = ""
        sleep(max(pause_s * spread(0.75, 1.0), asked_s * spread(1.0, 1.25)))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _begin(
    collection: Collection[T],
    things: list[T] | None,
    version: str,
    watch_s: float,
    report: Callable[[Report[T]], None],
) -> Iterator[tuple[str, Json]]:
    """Begin to watch; then report what was read, and whether it is watched."""
    try:
        events = collection.watch(version, watch_s)
    except KubeError:
        if things is not None:
            report(Listed(things, watched=False))
        raise
    if things is not None:
        report(Listed(things))
    return events


def _version(thing: Json) -> str:
    return str((thing.get("metadata") or {}).get("resourceVersion", ""))
