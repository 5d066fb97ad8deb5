"""Queues of those who wait for the same node: who comes first works for all, on one thread.

Who waits holds no thread. While the first of a queue is being worked for, others gather, and are
then worked for together: what would cost each of them a write costs one (group commit).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class NodeQueue(Generic[T]):
    """A queue per name; one exists only while somebody is in it. Safe from any thread."""

    def __init__(
        self,
        work: Callable[[str, list[T]], None],
        run: Callable[[Callable[[], None]], object],
    ) -> None:
        """Let `work` do what all of a queue wait for; it never raises.

        `run` starts a function on another thread, and does not wait for it.
        """
        self._work = work
        self._run = run
        self._lock = Lock()
        self._queues: dict[str, list[T]] = {}

    def join(self, name: str, *items: T) -> None:
        """Put somebody into a queue, or several who are worked for together; returns at once."""
        with self._lock:
            queue = self._queues.get(name)
            if queue is not None:
                queue += items
                return
            self._queues[name] = [*items]
        self._run(partial(self._serve, name))

    def _serve(self, name: str) -> None:
        while True:
            with self._lock:
                gathered = self._queues[name]
                if not gathered:
                    del self._queues[name]
                    return
                self._queues[name] = []
            self._work(name, gathered)
