"""Removes from the nodes' lists what no pod uses any more."""

from __future__ import annotations

import time
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Final

from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.follow import SPREAD
from webhook.adapters.kube.placement import Stored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.adapters.kube.placement import PlacementApi
    from webhook.core.placement.assignments import PodState
    from webhook.server.log import JsonLog
    from webhook.server.placement.binder import Binder

EVERY_S: Final = 30.0
"""All lists are checked this often: some pods are deleted before they are entered."""

GATHER_S: Final = 0.2
"""Pods that end within this time of each other cost one write per node."""


class Tidying:
    """A thread that keeps the lists short."""

    def __init__(self, api: PlacementApi, log: JsonLog) -> None:
        self._api = api
        self._log = log
        self._ended: SimpleQueue[PodState] = SimpleQueue()

    def ended(self, pod: PodState) -> None:
        """Record that a pod finished or is gone; returns at once."""
        self._ended.put(pod)

    def start(self, binder: Binder) -> None:
        """Begin on a daemon thread."""
        run = Thread(target=self._run, args=(binder,), name="placement-tidying", daemon=True)
        run.start()

    def _run(self, binder: Binder) -> None:
        # Replicas take turns, more or less, so that one of them does the work of all.
        next_round_s = time.monotonic() + SPREAD(0, EVERY_S)
        while True:
            try:
                names = self._nodes_to_tidy(binder, next_round_s - time.monotonic())
                self._tidy(binder, dict.fromkeys(names))
                if time.monotonic() >= next_round_s:
                    next_round_s = time.monotonic() + EVERY_S * SPREAD(0.75, 1.25)
                    self.round(binder)
            except KubeError as error:
                self._log.once(
                    "tidying", "error", "lists of GPUs cannot be tidied; retrying", str(error)
                )
            except Exception:  # noqa: BLE001 - a bug must not end the thread silently
                self._log.exception("tidying failed")
                time.sleep(EVERY_S)
            else:
                self._log.over("tidying", "lists of GPUs are tidied again")

    def round(self, binder: Binder) -> None:
        """Tidy the lists of all nodes, also those that should be there; raises KubeError."""
        lists = self._api.all_assignments(binder.copy)
        read = {stored.node: stored for stored in lists if stored.node}
        names = sorted(binder.unlisted(read))
        lost = {name: Stored(name, {}, whole=False, version="") for name in names}
        self._tidy(binder, read | lost)

    def _tidy(self, binder: Binder, lists: Mapping[str, Stored | None]) -> None:
        """Tidy some lists; raises the first KubeError, after all were tried."""
        failed: list[KubeError] = []
        for name, stored in lists.items():
            try:
                binder.tidy(name, stored)
            except KubeError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def _nodes_to_tidy(self, binder: Binder, within_s: float) -> list[str]:
        """Wait for pods that end; return the nodes in whose lists they are entered."""
        ended: list[PodState] = []
        try:
            ended.append(self._ended.get(timeout=max(0.0, within_s)))
            time.sleep(GATHER_S)
            while True:
                ended.append(self._ended.get_nowait())
        except Empty:
            pass
        return sorted(binder.nodes_of(ended))
