"""The interface between the HTTP server and the handler that answers its requests."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from webhook.server.connections import Peer


@dataclass(slots=True)
class Answer:
    """An HTTP response; immutable by convention."""

    status: int
    body: bytes
    content_type: bytes = b"application/json"


def build_rejection(status: int, sentence: str) -> Answer:
    """Return an answer that rejects a request with one sentence of plain text."""
    return Answer(status, f"{sentence}\n".encode(), b"text/plain; charset=utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Answers all requests of one kind."""

    max_bytes: int
    """Maximum size of a body."""
    answer: Callable[[bytes, Peer], Answer | Coroutine[Any, Any, Answer]]
    """Answers a body from an address, at once if possible."""
    too_large: Callable[[bytes], Answer]
    """Answers a body that is too large, given its first `prefix_bytes`."""
    prefix_bytes: int = 0
    is_secret: bool = False
    """An address that requests this endpoint becomes trusted."""


class Handler(Protocol):
    """Decides how requests are answered."""

    def route(self, method: bytes, path: bytes, content_type: bytes) -> Endpoint | Answer:
        """Return the endpoint of a request, or its answer if there is none."""

    def count_rejected(self, code: int, /) -> None:
        """Count a request that the HTTP server rejects, or that is cut off (400)."""

    def overloaded(self) -> Answer:
        """Answer a request if memory for its body or time of its address is used up."""

    def failed(self) -> Answer:
        """Answer a request on which the handler failed; called while the exception is handled."""
