"""What a program of a node reports in the API server: Events, and conditions of pods.

On a thread of its own with a bounded queue: whoever stops a process waits for nobody.
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
"""Reports that wait; what does not fit is in the log alone."""

OF_AN_OBJECT: Final = 10
OF_AN_OBJECT_EVERY_S: Final = 300.0
"""So many of a pod or node at once and then one in so many seconds, as kubelets bound them: a
device plugin that comes and goes, or a pod that is over its cap again and again, must not fill the
API server. The log has them all."""

MOST_OBJECTS: Final = 500
"""Of whose reports is remembered how many there were."""

RETRY_S: Final = 600.0
"""For how long one report is retried while the API server does not answer."""

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0

_INVALID: Final = 422


@dataclass(frozen=True, slots=True, kw_only=True)
class EventReport:
    """One Event, and what it is about."""

    about: Json
    """An ObjectReference, with the UID."""
    reason: EventReason
    sentence: str
    action: str
    """One word for what was done or seen."""
    condition: Json | None = None
    """A condition that the pod gets as well, without its time."""


class EventWriter:
    """Takes reports at once, and writes them as soon as the API server lets it."""

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
        """Prepare; `action` is what it does with its node, `what` is written as the log says it."""
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
        """Report something of the node, unless it was the last thing with this reason."""
        if self._last.get(reason) != sentence:
            self._last[reason] = sentence
            self.report_node(reason, sentence)

    def over(self, reason: EventReason) -> None:
        """Let `once` report the next thing with this reason, whatever the last one was."""
        self._last.pop(reason, None)

    def report_node(self, reason: EventReason, sentence: str) -> None:
        """Report something of the node."""
        about = node_reference(self.node)
        self.report(EventReport(about=about, reason=reason, sentence=sentence, action=self._action))

    def report(self, report: EventReport) -> None:
        """Report something, if it is allowed now; never waits."""
        if not self._may(report.about["uid"]):
            return
        try:
            self.waiting.put_nowait(report)
        except queue.Full:
            what = "reports are lost, except for this log"
            self._journal.once("queue", "warning", what, "the API server does not take them")

    def _may(self, uid: str) -> bool:
        while len(self._allowances) >= MOST_OBJECTS and uid not in self._allowances:
            del self._allowances[next(iter(self._allowances))]
        allowance = self._allowances.get(uid, TokenBucket(OF_AN_OBJECT, OF_AN_OBJECT_EVERY_S))
        left = allowance.take(self._clock())
        self._allowances[uid] = left or allowance
        return left is not None

    def write_all(self, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Write what is reported, forever."""
        while True:
            report = self.waiting.get()
            until_s, pause_s = self._clock() + RETRY_S, FIRST_PAUSE_S
            while self.write(report) and self._clock() < until_s:
                sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def write(self, report: EventReport) -> bool:
        """Write one report; return whether to retry it.

        The condition first: it lasts, and an Event can be lost. A pod that is gone, or another of
        its name, is of no concern any more.
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
            # Conditions are merged by their type (PodStatus in the API's types.go).
            self._kube.patch(path, body)
        except KubeError as error:
            if not error.forbidden:  # where no fence stands, we have no right: an Event does
                raise
            self._journal.once("condition", "info", "no condition is written", str(error))


def _is_another(error: KubeError) -> bool:
    """Say whether the pod is gone, or has another UID: that is answered as an invalid change."""
    return error.not_found or (error.code == _INVALID and "metadata.uid" in str(error))
