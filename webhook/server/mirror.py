"""Objects of the API server as watches report them: the one place that takes their reports."""

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

TRIGGER_WATCH_S: Final = 300.0
"""A watch is only renewed this often: who is woken reads the object from time to time as well."""


class Mirror(Generic[T]):
    """Follows objects on a thread of its own; who made it keeps them.

    | the API server says | kept | `is_current` | `is_settled` |
    | --- | --- | --- | --- |
    | nothing yet | nothing | no | no |
    | what exists, and each change | that | yes | yes |
    | what exists, but the watch failed | that | no | yes |
    | that we may not read it | as before, so at first nothing | no | yes |
    | nothing more | as before | no | as before |
    """

    def __init__(
        self,
        what: str,
        collection: Collection[T],
        on_list: Callable[[Sequence[T]], None],
        on_change: Callable[[str, T], None],
        log: JsonLog,
        *,
        on_watch: Callable[[str], None] | None = None,
        level: str = "error",
    ) -> None:
        """Send no request yet; `what` names the objects in the log.

        `on_list` gets all objects that exist, `on_change` the type of an event and its object.
        `on_watch` gets why they cannot be followed, or nothing as soon as they are; by default the
        log says so, at this `level`.
        """
        self._what = what
        self._about = f"{what}, watch"
        self._collection = collection
        self._on_list = on_list
        self._on_change = on_change
        self._log = log
        self._on_watch = on_watch or self._log_watch
        self._level = level
        self._is_forbidden = False
        self.is_listed = False
        self.is_current = False
        self.is_over = False

    @property
    def is_settled(self) -> bool:
        """Whether its objects are known, or cannot be."""
        return self.is_listed or self._is_forbidden

    def start(self) -> None:
        """Begin to follow on a daemon thread."""
        Thread(target=self.run, name=self._about, daemon=True).start()

    def stop(self) -> None:
        """Have nothing kept any more; the thread ends with its watch at the latest."""
        self.is_over = True

    def run(self) -> None:
        """Follow them until it is stopped."""
        with suppress(_OverError):
            follow(self._collection, self.on_report, sleep=self._sleep)

    def on_report(self, report: Report[T]) -> None:
        """Take a report of `follow`."""
        self._end_if_over()
        match report:
            case Listed(things, watched):
                self._on_list(things)
                self.is_listed, self.is_current = True, watched
                if watched:
                    self._on_watch("")
            case Changed(kind, thing):
                self._on_change(kind, thing)
            case Failed(KubeError() as error):
                self.is_current = False
                self._is_forbidden = self._is_forbidden or error.forbidden
                self._on_watch(str(error))
            case Failed():
                self.is_current = False
                self._log.exception(f"following {self._what} failed")

    def _log_watch(self, why: str) -> None:
        if why:
            self._log.once(self._about, self._level, f"{self._what} cannot be followed", why)
        else:
            self._log.over(self._about, f"{self._what} are followed again")

    def _sleep(self, pause_s: float) -> None:
        """Sleep, which `follow` does after every watch."""
        time.sleep(pause_s)
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self.is_over:
            raise _OverError


class _OverError(Exception):
    """Ends what follows objects for which nobody asks any more."""


def trigger(changed: Event, followed: Collection[None], log: JsonLog, name: str) -> None:
    """Set `changed` at each change, forever, on a daemon thread of this name; returns at once.

    Nothing is said of a failure of the API server: who is woken reads, and reports the same.
    """

    def on_report(report: Report[None]) -> None:
        if not isinstance(report, Failed):
            changed.set()
        elif not isinstance(report.error, KubeError):
            log.exception("watching failed", thread=name)  # noqa: LOG004 - `follow` handles it now

    settings = {"watch_s": TRIGGER_WATCH_S}
    followed_by = (followed, on_report)
    Thread(target=follow, args=followed_by, kwargs=settings, name=name, daemon=True).start()
