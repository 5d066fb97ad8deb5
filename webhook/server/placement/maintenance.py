"""Thread that maintains the assignment lists: it collects garbage and answers node agents."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.follow import JITTER
from webhook.adapters.kube.placement import PlacementApi, Question, StoredList
from webhook.core.placement.pod_state import PodState
from webhook.server.log import JsonLog
from webhook.server.placement.assignment_gc import AssignmentGC
from webhook.server.placement.assignment_lists import AssignmentLists
from webhook.server.placement.whole_gpu_answers import WholeGpuAnswers

EVERY_S: Final = 30.0
"""Interval between two checks of all lists: some pods are deleted before they are entered."""

GATHER_S: Final = 0.2
"""Seconds for which events are gathered. All pods that end meanwhile cost one write per node,
and only a node agent's last question is answered."""


class ListMaintenance:
    """Thread that collects garbage when pods end, and answers the questions of node agents."""

    def __init__(
        self,
        api: PlacementApi,
        log: JsonLog,
        lists: AssignmentLists,
        gc: AssignmentGC,
        answers: WholeGpuAnswers,
    ) -> None:
        self._api = api
        self._log = log
        self._lists = lists
        self._gc = gc
        self._answers = answers
        self._events: SimpleQueue[PodState | Question] = SimpleQueue()

    def on_ended(self, pod: PodState) -> None:
        """Queue a pod that finished or is gone; returns at once."""
        self._events.put(pod)

    def on_question(self, question: Question) -> None:
        """Queue a node agent's question; returns at once.

        The agent soon asks again, so a failed answer is not retried.
        """
        self._events.put(question)

    def start(self) -> None:
        """Start the daemon thread."""
        Thread(target=self._run, name="placement-maintenance", daemon=True).start()

    def _run(self) -> None:
        # Random intervals let one replica do most of the work for all replicas.
        next_round_s = time.monotonic() + JITTER(0, EVERY_S)
        while True:
            try:
                self._run_all(self._wait_for_work(next_round_s - time.monotonic()))
                if time.monotonic() >= next_round_s:
                    next_round_s = time.monotonic() + EVERY_S * JITTER(0.75, 1.25)
                    self.collect_all()
            except KubeError as error:
                self._log.once(
                    "tidying", "error", "lists of GPUs cannot be tidied; retrying", str(error)
                )
            except Exception:  # noqa: BLE001 - a bug must not end the thread silently
                self._log.exception("tidying failed")
                time.sleep(EVERY_S)
            else:
                self._log.over("tidying", "lists of GPUs are tidied again")

    def collect_all(self) -> None:
        """Collect garbage in all lists, and create missing lists; raises KubeError."""
        lists = self._api.list_all(self._lists.cached)
        read = {stored.node: stored for stored in lists if stored.node}
        names = sorted(self._gc.unlisted_nodes(read))
        lost = {name: StoredList(name, {}, whole=False, version="") for name in names}
        self._run_all(self._collect(read | lost))

    def _run_all(self, works: Iterable[Callable[[], None]]) -> None:
        """Run all functions, then raise the first KubeError."""
        failed: list[KubeError] = []
        for work in works:
            try:
                work()
            except KubeError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def _wait_for_work(self, within_s: float) -> list[Callable[[], None]]:
        """Wait for ended pods and questions; return functions that update the lists."""
        events: list[PodState | Question] = []
        try:
            events.append(self._events.get(timeout=max(0.0, within_s)))
            time.sleep(GATHER_S)
            while True:
                events.append(self._events.get_nowait())
        except Empty:
            pass
        asked = {event.node: event for event in events if isinstance(event, Question)}
        ended = [event for event in events if not isinstance(event, Question)]
        works = [partial(self._answers.answer, question) for question in asked.values()]
        return works + self._collect(dict.fromkeys(sorted(self._lists.nodes_with_entries(ended))))

    def _collect(self, lists: Mapping[str, StoredList | None]) -> list[Callable[[], None]]:
        return [partial(self._gc.collect, name, stored) for name, stored in lists.items()]
