"""Following objects of the API server: list, watch, and start again when the watch ends.

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
"""Duration of a watch, in seconds. A connection that dies silently is noticed after at most this
time."""

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 15.0
"""Pauses between retries, in seconds. They double from `FIRST_PAUSE_S` to `LONGEST_PAUSE_S`."""

JITTER: Final = SystemRandom().uniform
"""Random numbers from the kernel, which do not depend on seeds of the process's generator."""

LONGEST_RETRY_AFTER_S: Final = 60.0
"""Maximum pause requested by an overloaded API server (`Retry-After`), in seconds."""

ANY_VERSION: Final = "0"
"""Version from which a watch begins with the existing objects. Without a version, API servers of
1.36 wait until their cache is as new as etcd. They respond 504 if the store never reports its
version, as old etcd and kine do not."""


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """All existing objects; any object that is not listed does not exist."""

    items: Sequence[T]
    watched: bool = True
    """True if changes will be reported; otherwise the objects are listed again after a pause."""


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """An object that was added, modified or deleted; a change may be reported twice."""

    kind: str
    item: T


@dataclass(frozen=True, slots=True)
class Failed:
    """The objects cannot be read at present. `Listed` follows once they can be."""

    error: Exception
    """A KubeError; any other exception is a bug in `Collection.project` or in `report`."""


Report = Listed[T] | Changed[T] | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection(Generic[T]):
    """Objects of one kind, selected by labels or fields, or one object by name.

    | selection | required verbs | read |
    | --- | --- | --- |
    | `labels="key=value"`, `fields`, none | list, watch | first, and if a watch cannot continue |
    | `name="web"` | get, watch; `resourceNames` may restrict them | before each watch |

    Reading one object is cheap, and corrects anything that a watch missed.
    """

    kube: Kube
    path: str
    """Path of the collection, such as `/api/v1/nodes`, also if only one object is followed."""
    project: Callable[[Json], T]
    """Function applied to each object. Only its result is kept; the object is freed immediately."""
    labels: str = ""
    name: str = ""
    fields: str = ""
    """Field selector; can be combined with `labels`."""

    def read(self) -> tuple[list[T], str]:
        """Return all existing objects, and the version from which to watch."""
        if not self.name:
            return self.kube.list_versioned(self.path, self.project, **self._selectors())
        found = self.kube.find(f"{self.path}/{quote(self.name, safe='')}")
        return ([self.project(found)], _version(found)) if found else ([], ANY_VERSION)

    def watch(self, version: str, lasting_s: float) -> Iterator[tuple[str, Json]]:
        """Start a watch; see `Kube.watch`."""
        query = {"allowWatchBookmarks": "true", **self._selectors()}
        if self.name:  # `resourceNames` authorizes this selector
            query = {"fieldSelector": f"metadata.name={self.name}"}
        return self.kube.watch(self.path, lasting_s=lasting_s, **query, resourceVersion=version)

    def _selectors(self) -> dict[str, str]:
        selectors = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {key: value for key, value in selectors.items() if value}


def follow(
    collection: Collection[T],
    report: Callable[[Report[T]], None],
    *,
    watch_s: float = WATCH_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    jitter: Callable[[float, float], float] = JITTER,
) -> NoReturn:
    """Report the existing objects, each change, and each failure, forever.

        follow(Collection(kube, "/api/v1/pods", read_pod, labels="managed=true"), report)
        follow(Collection(kube, "/api/v1/namespaces/x/secrets", version, name="tls"), report)

    | a watch | what follows |
    | --- | --- |
    | ends after `watch_s` | another from the last event or bookmark; one object is read before |
    | ends early without an event | all are read: the version may be too old |
    | begins or ends with 410 | all are read, after a pause |
    | fails | `Failed`; all are read, after a pause |

    Pauses double until an attempt succeeds, and are at least as long as the API server requests
    (`Retry-After`). Pauses and watches vary by a quarter, since many clients start together. A bug
    is reported as `Failed`, too, followed by the longest pause; an exception of `report` for it
    ends the function.
    """
    pause_s, version, too_old = FIRST_PAUSE_S, "", ""
    while True:
        retry_after_s = 0.0
        try:
            items: list[T] | None = None
            if not version:
                items, version = collection.read()
                if version == too_old:  # a single object that has not changed
                    version = ANY_VERSION
            started_s, silent = clock(), True
            lasting_s = watch_s * jitter(0.75, 1.0)
            events = _begin(collection, items, version, lasting_s, report)
            del items
            for kind, item in events:
                silent, version = False, _version(item)
                if kind != "BOOKMARK":
                    report(Changed(kind, collection.project(item)))
                del item  # it may be large, and the next event may be a minute away
        except KubeError as error:
            retry_after_s = min(error.retry_after_s, LONGEST_RETRY_AFTER_S)
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
        sleep(max(pause_s * jitter(0.75, 1.0), retry_after_s * jitter(1.0, 1.25)))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _begin(
    collection: Collection[T],
    items: list[T] | None,
    version: str,
    watch_s: float,
    report: Callable[[Report[T]], None],
) -> Iterator[tuple[str, Json]]:
    """Start a watch; then report the objects that were read, and whether they are watched."""
    try:
        events = collection.watch(version, watch_s)
    except KubeError:
        if items is not None:
            report(Listed(items, watched=False))
        raise
    if items is not None:
        report(Listed(items))
    return events


def _version(item: Json) -> str:
    return str((item.get("metadata") or {}).get("resourceVersion", ""))
