"""Informers, which list and watch objects of the API server on separate threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import Final, Generic, TypeVar

from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.follow import Changed, Collection, Failed, Listed, Report, follow
from webhook.server.log import JsonLog

T = TypeVar("T")

CHANGE_WATCH_S: Final = 300.0
"""Duration of a watch in `set_on_change`. The woken thread also reads the object at intervals."""


class Informer(Generic[T]):
    """Lists and watches objects on a separate thread; the callbacks store them.

    | from the API server | stored | `is_current` | `is_settled` |
    | --- | --- | --- | --- |
    | nothing yet | nothing | no | no |
    | a list, and then each change | the objects | yes | yes |
    | a list, but the watch has failed | the objects of the list | no | yes |
    | read permission is missing | as before, at first nothing | no | yes |
    | no response any more | as before | no | as before |
    """

    def __init__(
        self,
        title: str,
        collection: Collection[T],
        on_list: Callable[[Sequence[T]], None],
        on_change: Callable[[str, T], None],
        log: JsonLog,
        *,
        on_watch: Callable[[str], None] | None = None,
        level: str = "error",
    ) -> None:
        """Store the settings; send no requests. `title` names the objects in log lines.

        `on_list` receives all objects, `on_change` the type of an event and its object. `on_watch`
        receives the error if the objects cannot be watched, and an empty string when they are
        watched again. By default both are logged, the error at this `level`.
        """
        self._title = title
        self._log_key = f"{title}, watch"
        self._collection = collection
        self._on_list = on_list
        self._on_change = on_change
        self._log = log
        self._on_watch = on_watch or self._log_watch
        self._level = level
        self._is_forbidden = False
        self.is_listed = False
        self.is_current = False
        self.is_stopped = False

    @property
    def is_settled(self) -> bool:
        """Return True if the objects were listed, or if reading them is forbidden."""
        return self.is_listed or self._is_forbidden

    def start(self) -> None:
        """Start the daemon thread."""
        Thread(target=self.run, name=self._log_key, daemon=True).start()

    def stop(self) -> None:
        """Stop calling the callbacks; the thread ends when the current watch ends, or earlier."""
        self.is_stopped = True

    def run(self) -> None:
        """List and watch the objects until `stop` is called."""
        with suppress(_InformerStoppedError):
            follow(self._collection, self.on_report, sleep=self._sleep)

    def on_report(self, report: Report[T]) -> None:
        """Handle a report of `follow`."""
        self._raise_if_stopped()
        match report:
            case Listed(objects, watched):
                self._on_list(objects)
                self.is_listed, self.is_current = True, watched
                if watched:
                    self._on_watch("")
            case Changed(event_type, changed):
                self._on_change(event_type, changed)
            case Failed(KubeError() as error):
                self.is_current = False
                self._is_forbidden = self._is_forbidden or error.forbidden
                self._on_watch(str(error))
            case Failed():
                self.is_current = False
                self._log.exception(f"following {self._title} failed")

    def _log_watch(self, error: str) -> None:
        if error:
            self._log.once(self._log_key, self._level, f"{self._title} cannot be followed", error)
        else:
            self._log.over(self._log_key, f"{self._title} are followed again")

    def _sleep(self, pause_s: float) -> None:
        """Sleep; called by `follow` after every watch."""
        time.sleep(pause_s)
        self._raise_if_stopped()

    def _raise_if_stopped(self) -> None:
        if self.is_stopped:
            raise _InformerStoppedError


class _InformerStoppedError(Exception):
    """Ends the thread of a stopped informer."""


def set_on_change(changed: Event, followed: Collection[None], log: JsonLog, name: str) -> None:
    """Start a daemon thread that sets `changed` whenever a watched object changes; it never ends.

    API server failures are not logged here: the woken thread reads the object and logs them.
    """

    def on_report(report: Report[None]) -> None:
        if not isinstance(report, Failed):
            changed.set()
        elif not isinstance(report.error, KubeError):
            log.exception("watching failed", thread=name)  # noqa: LOG004 - `follow` handles it now

    settings = {"watch_s": CHANGE_WATCH_S}
    arguments = (followed, on_report)
    Thread(target=follow, args=arguments, kwargs=settings, name=name, daemon=True).start()
