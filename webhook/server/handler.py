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
    """Return a response that rejects a request with a sentence of plain text."""
    return Answer(status, f"{sentence}\n".encode(), b"text/plain; charset=utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Answers all requests of one kind."""

    max_bytes: int
    """Maximum size of a request body, in bytes."""
    answer: Callable[[bytes, Peer], Answer | Coroutine[Any, Any, Answer]]
    """Returns the response to a body from an address, or a coroutine if it takes time."""
    too_large: Callable[[bytes], Answer]
    """Answers a body that is too large, given its first bytes (`prefix_bytes`)."""
    prefix_bytes: int = 0
    is_secret: bool = False
    """True if the address of a client that requests this endpoint becomes trusted."""


class Handler(Protocol):
    """Decides how requests are answered."""

    def route(self, method: bytes, path: bytes, content_type: bytes) -> Endpoint | Answer:
        """Return a request's endpoint, or the response if there is no endpoint."""

    def count_rejected(self, code: int, /) -> None:
        """Count a request that the HTTP server rejected. An interrupted request counts as 400."""

    def overloaded(self) -> Answer:
        """Return the response if the memory for bodies or the address's time is used up."""

    def failed(self) -> Answer:
        """Return the response after the handler failed; called while the exception is handled."""
