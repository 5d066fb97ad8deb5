"""Queue of requests against a node's assignment list.

Requests that arrive while the list is being written are served together by the next write (group
commit). A waiting caller holds no thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from webhook.core.placement.assignment_codec import WholeGpuPods
from webhook.core.placement.assignments import Assignment
from webhook.core.placement.binding_review import BindingVerdict
from webhook.core.placement.pod_state import PodState

T = TypeVar("T")


def resolve(answer: Future[T], result: T) -> None:
    """Set the result, unless the request was already cancelled or answered."""
    if not answer.done() and answer.set_running_or_notify_cancel():
        answer.set_result(result)


def fail(answer: Future[Any], error: Exception) -> None:
    """Set an exception, unless the request was already cancelled or answered."""
    if not answer.done() and answer.set_running_or_notify_cancel():
        answer.set_exception(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class BindRequest:
    """Request to enter a pod in a node's list, with GPUs unless the pod sees all of them."""

    pod: PodState
    dry_run: bool = False
    """True if nothing is written for this pod."""
    answer: Future[BindingVerdict] = field(default_factory=Future)
    """Cancelled when the caller times out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectRequest:
    """Request to correct a node's list: remove and add entries, and complete terms."""

    leaving: Mapping[str, Assignment]
    """Entries to remove, keyed by pod UID, unless they were renewed meanwhile."""
    joining: Sequence[PodState]
    """Pods to enter, which already have GPUs of the node."""
    answer: Future[None] = field(default_factory=Future)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """Request to write the answer to a node agent's question, unless already answered."""

    whole: WholeGpuPods
    answer: Future[None] = field(default_factory=Future)


ListRequest = BindRequest | CollectRequest | AnswerRequest
"""A queued request against one node's assignment list."""


class NodeQueue:
    """One queue per node, which exists only while it has requests. Safe from any thread."""

    def __init__(
        self,
        serve: Callable[[str, list[ListRequest]], None],
        run: Callable[[Callable[[], None]], object],
    ) -> None:
        """Serve all queued requests of a node with one call of `serve`, which never raises.

        `run` starts a function on another thread and returns at once.
        """
        self._serve = serve
        self._run = run
        self._lock = Lock()
        self._queues: dict[str, list[ListRequest]] = {}

    def submit(self, node: str, *requests: ListRequest) -> None:
        """Queue requests so that they are served together; returns at once."""
        with self._lock:
            queue = self._queues.get(node)
            if queue is not None:
                queue += requests
                return
            self._queues[node] = [*requests]
        self._run(partial(self._drain, node))

    def _drain(self, node: str) -> None:
        while True:
            with self._lock:
                requests = self._queues[node]
                if not requests:
                    del self._queues[node]
                    return
                self._queues[node] = []
            self._serve(node, requests)
