"""Writer of Events and pod conditions, with a separate thread.

The queue is bounded, and reporting never waits for the API server.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from webhook.adapters.journal import Journal
from webhook.adapters.kube.bounded_json import Json
from webhook.adapters.kube.client import Kube, core_path
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.events import Events, node_reference
from webhook.core.node.events import EventReason, TokenBucket

WAITING: Final = 200
"""Maximum length of the queue. If it is full, a report is only logged."""

OF_AN_OBJECT: Final = 10
OF_AN_OBJECT_EVERY_S: Final = 300.0
"""Interval between reports about one pod or node, in seconds, after a burst of `OF_AN_OBJECT`;
kubelets limit Events in the same way. A pod that exceeds its cap again and again must not
fill the API server. All reports are logged."""

MOST_OBJECTS: Final = 500
"""Maximum number of objects whose reports are counted."""

RETRY_S: Final = 600.0

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0

_INVALID: Final = 422


@dataclass(frozen=True, slots=True, kw_only=True)
class EventReport:
    """Event, with an optional pod condition."""

    about: Json
    reason: EventReason
    sentence: str
    action: str
    """Value of the Event's field `action`: one word."""
    condition: Json | None = None
    """Condition for the pod, without a time; None for no condition."""


class EventWriter:
    """Queue of reports, and the thread that writes them."""

    def __init__(
        self,
        kube: Kube,
        journal: Journal,
        *,
        node: str,
        reporter: str,
        instance: str,
        action: str,
        what: str = "events of the node",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`action` is used for Events about the node, `what` names the reports in the log."""
        self.node = node
        self._kube = kube
        self._journal = journal
        self._events = Events(kube, reporter, instance)
        self._action = action
        self._what = what
        self._clock = clock
        self._allowances: dict[str, TokenBucket] = {}
        self._last: dict[EventReason, str] = {}
        self.waiting: queue.Queue[EventReport] = queue.Queue(WAITING)

    def once(self, reason: EventReason, sentence: str) -> None:
        """Report about the node, unless the last report with this reason was the same."""
        if self._last.get(reason) != sentence:
            self._last[reason] = sentence
            self.report_node(reason, sentence)

    def over(self, reason: EventReason) -> None:
        """Forget the last report with this reason, so that `once` reports the next one."""
        self._last.pop(reason, None)

    def report_node(self, reason: EventReason, sentence: str) -> None:
        """Report about the node."""
        about = node_reference(self.node)
        self.report(EventReport(about=about, reason=reason, sentence=sentence, action=self._action))

    def report(self, report: EventReport) -> None:
        """Queue a report, unless there were too many about its object; never waits."""
        if not self._take_allowance(report.about["uid"]):
            return
        try:
            self.waiting.put_nowait(report)
        except queue.Full:
            what = "reports are lost, except for this log"
            self._journal.once("queue", "warning", what, "the API server does not take them")

    def _take_allowance(self, uid: str) -> bool:
        while len(self._allowances) >= MOST_OBJECTS and uid not in self._allowances:
            del self._allowances[next(iter(self._allowances))]
        allowance = self._allowances.get(uid, TokenBucket(OF_AN_OBJECT, OF_AN_OBJECT_EVERY_S))
        left = allowance.take(self._clock())
        self._allowances[uid] = left or allowance
        return left is not None

    def write_all(self, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Write queued reports until the program ends."""
        while True:
            report = self.waiting.get()
            until_s, pause_s = self._clock() + RETRY_S, FIRST_PAUSE_S
            while self.write(report) and self._clock() < until_s:
                sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def write(self, report: EventReport) -> bool:
        """Write one report; return True if it should be retried.

        The condition is written first, since it lasts and an Event can be lost. A report is dropped
        if its pod is gone or was replaced by another pod of that name.
        """
        try:
            if report.condition:
                self._write_condition(report.about, report.condition)
            self._events.write(
                report.about,
                report.reason,
                report.sentence,
                action=report.action,
                warning=report.reason.warning,
            )
        except KubeError as error:
            if report.about["kind"] == "Pod" and _is_another(error):
                return False
            what = f"{self._what} cannot be written"
            self._journal.once("events", "warning", what, str(error))
            return error.retryable
        self._journal.over("events", f"{self._what} can be written")
        self._journal.forget("queue")
        return False

    def _write_condition(self, pod: Json, condition: Json) -> None:
        at = datetime.fromtimestamp(self._kube.now_s(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        conditions = [condition | {"lastTransitionTime": at}]
        body = {"metadata": {"uid": pod["uid"]}, "status": {"conditions": conditions}}
        path = core_path("namespaces", pod["namespace"], "pods", pod["name"], "status")
        try:
            # The API server merges conditions by type (PodStatus in the API's types.go).
            self._kube.patch(path, body)
        except KubeError as error:
            if not error.forbidden:  # missing without a fence; the Event suffices
                raise
            self._journal.once("condition", "info", "no condition is written", str(error))


def _is_another(error: KubeError) -> bool:
    """Return True if the pod is gone or has another UID, which the API reports as invalid."""
    return error.not_found or (error.code == _INVALID and "metadata.uid" in str(error))
