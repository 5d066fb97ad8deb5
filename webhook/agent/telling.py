"""What the agent has to say about its node, as Events for `kubectl describe node`."""

from __future__ import annotations

import contextlib
import queue
import time
from typing import TYPE_CHECKING, Final

from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.events import Events, node_reference
from webhook.core.node.allowance import Allowance, take
from webhook.names import AGENT_REPORTER

if TYPE_CHECKING:
    from webhook.adapters.journal import Journal
    from webhook.adapters.kube.client import Kube

    Told = tuple[str, str, bool]

EVENTS: Final = 10
EVENT_EVERY_S: Final = 300.0
"""So many Events at once and then one in so many seconds: a device plugin that keeps coming and
going must not fill the API server. The log has them all."""


class NodeEvents:
    """Events of one node, one per change; written by a thread, so that nobody waits for them."""

    def __init__(self, kube: Kube, node: str, journal: Journal) -> None:
        self.node = node
        self._events = Events(kube, AGENT_REPORTER, node)
        self._about = node_reference(node)
        self._journal = journal
        self._allowance = Allowance(EVENTS, EVENT_EVERY_S)
        self._told: dict[str, str] = {}
        self.waiting: queue.Queue[Told] = queue.Queue(EVENTS)

    def tell(self, reason: str, sentence: str, *, warning: bool = True) -> None:
        """Write an Event, unless it was the last one with this reason, which is one word."""
        if self._told.get(reason) == sentence:
            return
        self._told[reason] = sentence
        with contextlib.suppress(queue.Full):  # the API server does not answer; the log says it all
            self.waiting.put_nowait((reason, sentence, warning))

    def over(self, reason: str) -> None:
        """Let the next Event with this reason be written, whatever the last one was."""
        self._told.pop(reason, None)

    def write_all(self, _send: object = None) -> None:
        """Write what is told, forever."""
        while True:
            self.write(self.waiting.get(), time.monotonic())

    def write(self, told: Told, now_s: float) -> None:
        """Write one Event, where one is allowed; a failure is logged once."""
        left = take(self._allowance, now_s)
        if left is None:
            return
        self._allowance = left
        reason, sentence, warning = told
        try:
            self._events.write(self._about, reason, sentence, action="Advertise", warning=warning)
        except KubeError as error:
            what = "events of the node cannot be written"
            self._journal.once("events", "warning", what, str(error))
        else:
            self._journal.over("events", "events of the node can be written")
