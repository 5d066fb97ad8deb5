"""Writer of the node's status as its `GPUNode`, with a separate thread.

Only the newest status is written. The object stored by the previous sentry is first read and passed
to the main thread, since its peaks are stored nowhere else.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

from webhook.adapters.journal import Journal
from webhook.adapters.kube.client import Kube
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.node_objects import OwnNode, read_figures, read_own_node, write_figures
from webhook.core.kinds.node_write_delay import MIN_INTERVAL_S, get_write_delay_s
from webhook.core.kinds.nodes import NodeFigures

LONGEST_PAUSE_S: Final = 60.0
"""Maximum pause after a failed write, in seconds; it starts at `MIN_INTERVAL_S` and doubles."""

UNKNOWN_KIND_S: Final = 300.0
"""Interval between attempts while the cluster has no `GPUNode` CRD, in seconds."""

NODE_EVERY_S: Final = 60.0
"""Interval between reads of the Node, in seconds, for its agent's verdict and the faults of GPUs.

It is shorter after a start, when the agent may also have just started.
"""


class GpuNodeWriter:
    """Writes the newest figures after `get_write_delay_s`; `step` is one step of its thread."""

    def __init__(
        self,
        kube: Kube,
        node: str,
        journal: Journal,
        jitter_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`jitter_s` is this node's part of `JITTER_S`, so that nodes write at different times."""
        self._kube = kube
        self._node = node
        self._journal = journal
        self._jitter_s = jitter_s
        self._clock = clock
        self._offered = threading.Event()
        self._newest: NodeFigures | None = None
        self._written: NodeFigures | None = None
        self._stored: NodeFigures | None = None
        """Status written by the previous sentry, until the first status is compared with it."""
        self._exists = False
        self._tried_s = self._next_s = self._node_next_s = float("-inf")
        self._pause_s = self._node_pause_s = MIN_INTERVAL_S
        self.own = OwnNode("", "")
        """The Node as last read; its fields are empty before the first read."""
        self._is_read = False

    def offer(self, figures: NodeFigures) -> None:
        """Set the status to write next, replacing one that was not written; never waits."""
        self._newest = figures
        self._offered.set()

    def write_all(self, send: Callable[[NodeFigures], None]) -> None:
        """Write offered statuses until the program ends; first pass the stored status to `send`.

        If none is stored, `send` gets a status without GPUs.
        """
        while True:
            wait_s = self.step(send)
            self._offered.wait(wait_s)
            self._offered.clear()

    def step(self, send: Callable[[NodeFigures], None]) -> float | None:
        """Do what is due; return the time until the next step, None if it needs another offer.

        A status is written at most once, so `observedAt` is the time of its scan.
        """
        now_s = self._clock()
        if now_s < self._next_s:
            return self._next_s - now_s
        try:
            if not self._is_read:
                self._read_stored(send, now_s)
                if now_s < self._next_s:
                    return self._next_s - now_s
            newest = self._newest
            if newest is None or newest is self._written or not (newest.gpus or self._exists):
                return None
            self._read_node(now_s)
            self._go_on_from_stored(newest, now_s)
            left_s = (
                self._tried_s + get_write_delay_s(self._written, newest, self._jitter_s) - now_s
            )
            if left_s > 0:
                return left_s
            self._write(newest)
        except KubeError as error:
            return self._fail(error)
        return 0.0

    def write_last(self) -> None:
        """Write the newest status once when the sentry ends, so that it stays valid longer."""
        newest = self._newest
        if self._exists and newest is not None and newest is not self._written:
            with contextlib.suppress(KubeError):
                write_figures(self._kube, newest, self.own.uid)

    def _read_stored(self, send: Callable[[NodeFigures], None], now_s: float) -> None:
        """Read the stored object, whose peaks must not be overwritten by unknown ones."""
        stored = read_figures(self._kube, self._node)
        self._read_node(now_s)
        self._is_read = True
        self._exists = stored is not None
        self._stored, self._tried_s = stored, now_s
        if stored is not None:
            self._next_s = now_s + MIN_INTERVAL_S
        send(
            stored
            or NodeFigures(name=self._node, observed_s=0.0, driver_version="", enforcement="")
        )

    def _go_on_from_stored(self, newest: NodeFigures, now_s: float) -> None:
        """Use the stored status as the last write.

        So a sentry that restarts repeatedly writes no more often than one that keeps running. The
        age is based on the node's clock, which may have changed, so nothing is written within
        `MIN_INTERVAL_S` of the start in any case.
        """
        if stored := self._stored:
            self._stored, self._written = None, stored
            self._tried_s = now_s - max(0.0, newest.observed_s - stored.observed_s)

    def _read_node(self, now_s: float) -> None:
        """Read the Node if a read is due, for the object's owner and the agent's verdict."""
        if now_s < self._node_next_s:
            return
        self._node_next_s = now_s + self._node_pause_s
        self._node_pause_s = min(2 * self._node_pause_s, NODE_EVERY_S)
        try:
            self.own = read_own_node(self._kube, self._node)
        except KubeError as error:
            what = "the Node cannot be read; its GPUNode does not go with it"
            self._journal.once("own node", "warning", what, str(error))
        else:
            self._journal.over("own node", "the Node can be read")

    def _write(self, figures: NodeFigures) -> None:
        try:
            write_figures(self._kube, figures, self.own.uid)
        finally:
            self._tried_s = self._clock()  # also after an error, since the write may have succeeded
        self._written, self._exists = figures, True
        self._pause_s = MIN_INTERVAL_S
        self._journal.over("gpu node", "what is seen here can be written as a GPUNode")

    def _fail(self, error: KubeError) -> float:
        if error.not_found:
            what = "the cluster knows no GPUNode; is its CRD installed (crds.install)?"
            pause_s = UNKNOWN_KIND_S
        else:
            what = "what is seen here cannot be written as a GPUNode; retrying"
            pause_s = self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._journal.once("gpu node", "warning", what, str(error))
        self._node_next_s = float("-inf")
        self._next_s = self._clock() + pause_s
        return pause_s
