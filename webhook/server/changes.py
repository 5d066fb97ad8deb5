"""Wake whoever keeps an object of the API server as it should be, when that object changes."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING, Final

from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.follow import Failed, follow

if TYPE_CHECKING:
    from threading import Event

    from webhook.adapters.kube.follow import Collection, Report
    from webhook.server.log import JsonLog

WATCH_S: Final = 300.0
"""A watch is only renewed this often: who is woken reads the object from time to time as well."""


def wake(changed: Event, followed: Collection[None], log: JsonLog, name: str) -> None:
    """Set `changed` at each change, forever, on a daemon thread of this name; returns at once.

    Nothing is said of a failure of the API server: who is woken reads, and reports the same.
    """

    def hear(report: Report[None]) -> None:
        if not isinstance(report, Failed):
            changed.set()
        elif not isinstance(report.error, KubeError):
            log.exception("watching failed", thread=name)  # noqa: LOG004 - `follow` handles it now

    settings = {"watch_s": WATCH_S}
    Thread(target=follow, args=(followed, hear), kwargs=settings, name=name, daemon=True).start()
