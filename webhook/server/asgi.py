"""The TLS port: the ASGI callable that takes reviews, with bounds on what any caller can cost.

The port has no authentication: any pod that reaches it can post, so nothing is trusted until read.
Specification: ASGI 3.0, HTTP connection scope.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from webhook.server.reviews import PHASES, Answer, PodReviews, Review, rejection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from webhook.server.metrics import Metrics
    from webhook.server.placement.reviews import BindingReviews

    Message = dict[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

MAX_BODY_BYTES: Final = 8 * 2**20
"""The API server accepts objects of 3 MiB; a review holds the object, the old one and options."""

MAX_BINDING_BYTES: Final = 256 * 2**10
"""A Binding is a name, a node and annotations, which the API server bounds at 256 KiB."""

MAX_BUFFERED_BYTES: Final = 64 * 2**20
"""Bodies being received or waiting at once; callers beyond that are asked to retry."""

READ_BYTES_PER_BYTE: Final = 32
"""The most memory that a byte of JSON takes once it is read: `{"a":{}}` took 28."""

BODY_TIMEOUT_S: Final = 10.0
"""The API server's own time-out for a webhook is at most 30 s, and 10 s where nobody set it."""

BIND_PATH: Final = "/bind"
PATHS: Final = (*PHASES, BIND_PATH)

MAX_WAITING_BINDINGS: Final = 1024
"""Far more than kube-scheduler sends at once (its client's default is 50 requests per second)."""


class BodyError(Exception):
    """A body cannot be accepted; carries the answer to send."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class ReviewApplication:
    """Serves POST /mutate, /validate and /bind; rejects everything else in one sentence."""

    def __init__(
        self,
        reviews: PodReviews,
        bindings: BindingReviews,
        metrics: Metrics,
        *,
        on_start: Callable[[], None] = lambda: None,
        draining: Callable[[], bool] = lambda: False,
        body_timeout_s: float = BODY_TIMEOUT_S,
        max_buffered_bytes: int = MAX_BUFFERED_BYTES,
    ) -> None:
        self._reviews = reviews
        self._bindings = bindings
        self._metrics = metrics
        self._on_start = on_start
        self._draining = draining
        self._body_timeout_s = body_timeout_s
        self._max_buffered_bytes = max_buffered_bytes
        self._buffered_bytes = 0
        self._waiting_bindings = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one connection scope: the server's life span, or one request."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            with self._metrics.in_flight.track_inprogress():
                answer = await self._answer(scope, receive)
            await _send(answer, send, close=self._draining())

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._on_start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _answer(self, scope: Message, receive: Receive) -> Answer:
        path = scope["path"]
        rejected = _rejected(scope)
        if path not in PATHS or rejected:
            answer = rejected or rejection(404, f"reviews go to {_or(PATHS)}")
            self._metrics.count_refused(answer.status)
            return answer
        try:
            body = await self._body(receive, _limit(path))
        except BodyError as error:
            self._metrics.count_refused(error.answer.status)
            return error.answer
        if path == BIND_PATH:
            return await self._bound(body)
        return self._reviews.answer(PHASES[path], body)

    async def _bound(self, body: bytes) -> Answer:
        """Answer a Binding: at once from memory, else when its turn has come."""
        review = self._bindings.read(body)
        if isinstance(review, Answer):
            return review
        answer = self._bindings.at_once(review)
        return answer or await self._waited(review, READ_BYTES_PER_BYTE * len(body))

    async def _waited(self, review: Review, size: int) -> Answer:
        full = self._buffered_bytes + size > self._max_buffered_bytes
        if full or self._waiting_bindings >= MAX_WAITING_BINDINGS:
            self._metrics.count_refused(_OVERLOADED.status)
            return _OVERLOADED
        self._waiting_bindings += 1
        self._buffered_bytes += size
        try:
            return await self._bindings.answer(review)
        finally:
            self._buffered_bytes -= size
            self._waiting_bindings -= 1

    async def _body(self, receive: Receive, limit: int) -> bytes:
        """Receive a body; raises BodyError: too large, too slow, or too many at once."""
        message = await receive()
        first: bytes = message.get("body", b"")
        if not message.get("more_body"):
            if len(first) > limit:
                raise BodyError(_TOO_LARGE[limit])
            return first
        try:
            async with asyncio.timeout(self._body_timeout_s):
                return await self._rest_of_body(first, receive, limit)
        except TimeoutError:
            sentence = f"the body did not arrive within {self._body_timeout_s:g} s"
            raise BodyError(rejection(408, sentence)) from None

    async def _rest_of_body(self, first: bytes, receive: Receive, limit: int) -> bytes:
        chunks, size, counted = [first], len(first), 0
        try:
            while True:
                self._buffered_bytes += size - counted
                counted = size
                if size > limit:
                    raise BodyError(_TOO_LARGE[limit])
                if self._buffered_bytes > self._max_buffered_bytes:
                    raise BodyError(_OVERLOADED)
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise BodyError(rejection(400, "the body ended before it was complete"))
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                if not message.get("more_body"):
                    break
        finally:
            self._buffered_bytes -= counted
        if size > limit:
            raise BodyError(_TOO_LARGE[limit])
        return b"".join(chunks)


_TOO_LARGE: Final = {
    MAX_BODY_BYTES: rejection(413, f"the body is larger than {MAX_BODY_BYTES // 2**20} MiB"),
    MAX_BINDING_BYTES: rejection(413, f"the body is larger than {MAX_BINDING_BYTES // 2**10} KiB"),
}
_OVERLOADED: Final = rejection(503, "too many reviews at once; retry in a second")


def _rejected(scope: Message) -> Answer | None:
    """Check method, content type and announced length."""
    if scope["method"] != "POST":
        return rejection(405, f"reviews are posted: POST {_or(PATHS)}")
    content_type, length = _headers(scope["headers"])
    if content_type.split(b";", 1)[0].strip().lower() != b"application/json":
        return rejection(415, "the content type must be application/json")
    limit = _limit(scope["path"])
    return _TOO_LARGE[limit] if length > limit else None


def _limit(path: str) -> int:
    return MAX_BINDING_BYTES if path == BIND_PATH else MAX_BODY_BYTES


def _or(paths: tuple[str, ...]) -> str:
    return f"{', '.join(paths[:-1])} or {paths[-1]}"


def _headers(headers: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, int]:
    content_type, length = b"", 0
    for name, value in headers:
        if name == b"content-type":
            content_type = value
        elif name == b"content-length":
            # The HTTP server has checked that it is a number.
            length = int(value)
    return content_type, length


async def _send(answer: Answer, send: Send, *, close: bool) -> None:
    headers = [
        (b"content-type", answer.content_type),
        (b"content-length", str(len(answer.body)).encode()),
    ]
    if close:
        headers.append((b"connection", b"close"))
    if answer.status == _OVERLOADED.status:
        headers.append((b"retry-after", b"1"))
    if answer.status == 405:  # noqa: PLR2004 - RFC 9110 section 15.5.6
        headers.append((b"allow", b"POST"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
