"""What the sentry reports in the API server: Events, and a condition of the pod.

On a thread of its own with a bounded queue: whoever stops a process waits for nobody.
"""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from webhook.adapters.kube.client import KubeError, joined
from webhook.adapters.kube.events import Events, node_reference
from webhook.core.node.allowance import Allowance, take
from webhook.names import (
    CAP_EXCEEDED_REASON,
    CAP_HELD_CONDITION,
    SENTRY_REPORTER,
    UNMANAGED_REASON,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.adapters.journal import Journal
    from webhook.adapters.kube.client import Kube

WAITING: Final = 200
"""Reports that wait; what does not fit is in the log alone."""

OF_A_POD: Final = 10
OF_A_POD_EVERY_S: Final = 300.0
OF_THE_NODE: Final = 10
OF_THE_NODE_EVERY_S: Final = 300.0
"""So many at once and then one in so many seconds, as agents and kubelets bound them: who starts
again and again over the cap must not fill the API server. The log has them all."""

MOST_PODS: Final = 500
"""Of whose reports is remembered how many there were."""

RETRY_S: Final = 600.0
"""For how long one report is retried while the API server does not answer."""

_INVALID: Final = 422

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class OfPod:
    """A pod was over its cap."""

    pod: str
    """`namespace/name`."""
    uid: str
    """As the API server has it."""
    sentence: str
    stopped: bool
    """Whether something was stopped; otherwise it is only an Event."""


@dataclass(frozen=True, slots=True)
class OfNode:
    """Memory of the node's GPUs is held without a promise."""

    sentence: str


class Teller:
    """Takes reports at once, and writes them as soon as the API server lets it."""

    def __init__(self, kube: Kube, node: str, instance: str, journal: Journal) -> None:
        """Prepare; `instance` is our pod's name, which stands in each Event."""
        self._kube = kube
        self._node = node
        self._events = Events(kube, SENTRY_REPORTER, instance)
        self._journal = journal
        self._of_node = Allowance(OF_THE_NODE, OF_THE_NODE_EVERY_S)
        self._of_pods: dict[str, Allowance] = {}
        self.waiting: queue.Queue[OfPod | OfNode] = queue.Queue(WAITING)

    def tell(self, report: OfPod | OfNode, now_s: float) -> None:
        """Report something, if it is allowed now; never waits."""
        if self._may(report, now_s):
            try:
                self.waiting.put_nowait(report)
            except queue.Full:
                what = "reports are lost, except for this log"
                self._journal.once("queue", "warning", what, "the API server does not take them")

    def write_all(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Write what is reported, forever."""
        while True:
            report = self.waiting.get()
            until_s, pause_s = clock() + RETRY_S, FIRST_PAUSE_S
            while self.write(report) and clock() < until_s:
                sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def write(self, report: OfPod | OfNode) -> bool:
        """Write one report; return whether to retry it.

        A pod that is gone, or another of its name, is of no concern any more.
        """
        try:
            if isinstance(report, OfPod):
                self._write_of_pod(report)
            else:
                about = node_reference(self._node)
                self._events.write(about, UNMANAGED_REASON, report.sentence, action="Audit")
        except KubeError as error:
            if isinstance(report, OfPod) and _is_another(error):
                return False
            what = "Events and conditions cannot be written"
            self._journal.once("telling", "warning", what, str(error))
            return error.retryable
        self._journal.over("telling", "Events and conditions can be written")
        self._journal.forget("queue")
        return False

    def _write_of_pod(self, report: OfPod) -> None:
        """Write the condition first: it lasts, and an Event can be lost."""
        namespace, _, name = report.pod.partition("/")
        if report.stopped:
            at = datetime.fromtimestamp(self._kube.now_s(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            condition = {
                "type": CAP_HELD_CONDITION,
                "status": "False",
                "reason": CAP_EXCEEDED_REASON,
                "message": report.sentence,
                "lastTransitionTime": at,
            }
            body = {"metadata": {"uid": report.uid}, "status": {"conditions": [condition]}}
            try:
                # Conditions are merged by their type (PodStatus in the API's types.go).
                self._kube.patch(joined("namespaces", namespace, "pods", name, "status"), body)
            except KubeError as error:
                if not error.forbidden:  # where no fence stands, we have no right: an Event does
                    raise
                self._journal.once("condition", "info", "no condition is written", str(error))
        about = {"kind": "Pod", "namespace": namespace, "name": name, "uid": report.uid}
        action = "Stop" if report.stopped else "Report"
        self._events.write(about, CAP_EXCEEDED_REASON, report.sentence, action=action)

    def _may(self, report: OfPod | OfNode, now_s: float) -> bool:
        if isinstance(report, OfNode):
            left = take(self._of_node, now_s)
            self._of_node = left or self._of_node
            return left is not None
        while len(self._of_pods) >= MOST_PODS and report.uid not in self._of_pods:
            del self._of_pods[next(iter(self._of_pods))]
        left = take(self._of_pods.get(report.uid, Allowance(OF_A_POD, OF_A_POD_EVERY_S)), now_s)
        if left is not None:
            self._of_pods[report.uid] = left
        return left is not None


def _is_another(error: KubeError) -> bool:
    """Say whether the pod is gone, or has another UID: that is answered as an invalid change."""
    return error.not_found or (error.code == _INVALID and "metadata.uid" in str(error))
