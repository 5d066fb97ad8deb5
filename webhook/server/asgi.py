"""The TLS port: the ASGI callable that takes reviews, with bounds on what any caller can cost.

The port has no authentication: any pod that reaches it can post, so nothing is trusted until read.
Small reviews are answered where they arrive, on the event loop, since that costs less than any
hand-over. Large ones take their turn on one thread, so that the loop goes on answering the others.
Decoding holds the interpreter, for 25 ms at most (`review_json.MAX_VALUES`); deciding shares it.
Specification: ASGI 3.0, HTTP connection scope.
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from webhook.server.reviews import (
    PHASES,
    PREFIX_BYTES,
    SMALL_BODY_BYTES,
    Answer,
    PodReviews,
    Review,
    rejection,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from webhook.core.admission.decide import Phase
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
"""Bindings waiting at once; the scheduler is asked to retry beyond that."""

MAX_LARGE_BYTES: Final = 24 * 2**20
"""Large bodies being received or waiting at once; callers beyond that are asked to retry.

Small ones are bounded by the number of connections, and always pass.
"""

READ_BYTES_PER_BYTE: Final = 32
"""The most memory that a byte of JSON takes once it is read: `{"a":{}}` took 28."""

BODY_TIMEOUT_S: Final = 5.0
"""Our webhooks are registered with `timeoutSeconds: 5` at most: afterwards nobody waits."""

WAIT_S: Final = 4.0
"""A large review waits for its turn, and is answered, within this time, so that a caller who still
waits learns that it may retry."""

PREFIX_S: Final = 1.0
"""How long the beginning of a body that is too large may take; it comes with the headers."""


MAX_WAITING_BINDINGS: Final = 1024
"""Far more than kube-scheduler sends at once (its client's default is 50 requests per second)."""


class BodyError(Exception):
    """A body cannot be accepted; carries the answer, and whether more of the body is to come."""

    def __init__(self, answer: Answer, *, more: bool) -> None:
        super().__init__(answer.status)
        self.answer = answer
        self.more = more


class ReviewApplication:
    """Serves POST /mutate, /validate and bindings; rejects everything else in one sentence."""

    def __init__(
        self,
        reviews: PodReviews,
        bindings: BindingReviews,
        metrics: Metrics,
        *,
        binds_at: Callable[[str], bool],
        on_start: Callable[[], None] = lambda: None,
        draining: Callable[[], bool] = lambda: False,
        body_timeout_s: float = BODY_TIMEOUT_S,
        wait_s: float = WAIT_S,
        max_buffered_bytes: int = MAX_BUFFERED_BYTES,
        max_large_bytes: int = MAX_LARGE_BYTES,
    ) -> None:
        """Take bindings at the paths for which `binds_at` holds (`bind_path`)."""
        self._binds_at = binds_at
        self._reviews = reviews
        self._bindings = bindings
        # One: two would decode at the same time, and hold up the event loop twice as long.
        self._large_reviews = ThreadPoolExecutor(1, "large-review")
        self._metrics = metrics
        self._on_start = on_start
        self._draining = draining
        self._body_timeout_s = body_timeout_s
        self._wait_s = wait_s
        self._max_buffered_bytes = max_buffered_bytes
        self._buffered_bytes = 0
        self._max_large_bytes = max_large_bytes
        self._large_bytes = 0
        self._waiting_bindings = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one connection scope: the server's life span, or one request."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            closing = False
            with self._metrics.in_flight.track_inprogress():
                try:
                    answer = await self._answer(scope, receive)
                except BodyError as error:
                    answer, closing = error.answer, error.more
            # What the caller still sends is received and dropped by uvloop until the answer is out
            # (sslproto.pyx, FLUSHING), so nobody's write fails; `connections` bounds how long.
            await _send(answer, send, close=closing or self._draining())

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
        phase = PHASES.get(path)
        rejected, length = _rejected(scope)
        unknown = phase is None and not self._binds_at(path)
        if unknown or rejected:
            answer = rejected or rejection(404, f"reviews of pods go to {_OR}")
            self._metrics.count_refused(answer.status)
            return answer
        if phase is None:
            return await self._bound(await self._body(receive, MAX_BINDING_BYTES, length))
        body = await self._body(receive, MAX_BODY_BYTES, length, phase)
        if len(body) <= SMALL_BODY_BYTES:
            return self._reviews.answer(phase, body)
        return await self._in_turn(phase, body)

    async def _in_turn(self, phase: Phase, body: bytes) -> Answer:
        """Answer a large review on the thread for those."""
        if self._large_bytes + len(body) > self._max_large_bytes:
            self._metrics.count_refused(_OVERLOADED.status)
            return _OVERLOADED
        self._large_bytes += len(body)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._wait_s):
                judged = self._reviews.answer
                return await loop.run_in_executor(self._large_reviews, judged, phase, body)
        except TimeoutError:
            self._metrics.count_refused(_OVERLOADED.status)
            return _OVERLOADED
        finally:
            self._large_bytes -= len(body)

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

    async def _body(
        self, receive: Receive, limit: int, announced: int, phase: Phase | None = None
    ) -> bytes:
        """Receive a body; raises BodyError: too large, too slow, or too many at once."""
        if announced > limit:
            raise await self._too_large(phase, b"", receive, limit, more=True)
        message = await receive()
        first: bytes = message.get("body", b"")
        if not message.get("more_body"):
            if len(first) > limit:
                raise await self._too_large(phase, first, receive, limit, more=False)
            return first
        try:
            async with asyncio.timeout(self._body_timeout_s):
                body, more = await self._rest_of_body(first, receive, limit + 1)
        except TimeoutError:
            self._metrics.count_refused(408)
            sentence = f"the body did not arrive within {self._body_timeout_s:g} s"
            raise BodyError(rejection(408, sentence), more=True) from None
        if len(body) > limit:
            raise await self._too_large(phase, body, receive, limit, more=more)
        return body

    async def _too_large(
        self, phase: Phase | None, first: bytes, receive: Receive, limit: int, *, more: bool
    ) -> BodyError:
        """Return what to answer to a body that is too large; the review of a pod has a uid."""
        if phase is None:
            self._metrics.count_refused(_TOO_LARGE.status)
            return BodyError(_TOO_LARGE, more=more)
        if more and len(first) < PREFIX_BYTES:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PREFIX_S):
                    first, more = await self._rest_of_body(first, receive, PREFIX_BYTES)
        return BodyError(self._reviews.too_large(phase, first[:PREFIX_BYTES], limit), more=more)

    async def _rest_of_body(
        self, first: bytes, receive: Receive, needed: int
    ) -> tuple[bytes, bool]:
        """Receive `needed` bytes of a body that began with `first`; say whether more will come."""
        body, counted, more = bytearray(first), 0, True
        try:
            while more and len(body) < needed:
                self._large_bytes += len(body) - counted
                counted = len(body)
                full = self._large_bytes > self._max_large_bytes
                if full and counted > SMALL_BODY_BYTES:
                    self._metrics.count_refused(_OVERLOADED.status)
                    raise BodyError(_OVERLOADED, more=True)
                message = await receive()
                if message["type"] == "http.disconnect":
                    self._metrics.count_refused(400)
                    sentence = "the body ended before it was complete"
                    raise BodyError(rejection(400, sentence), more=False)
                body += message.get("body", b"")
                more = bool(message.get("more_body"))
        finally:
            self._large_bytes -= counted
        return bytes(body), more


_TOO_LARGE: Final = rejection(413, f"the body is larger than {MAX_BINDING_BYTES // 2**10} KiB")
_OR: Final = " or ".join(PHASES)
_OVERLOADED: Final = rejection(503, "too many reviews at once; retry in a second")


def _rejected(scope: Message) -> tuple[Answer | None, int]:
    """Check method and content type; return the answer where they are wrong, and the length."""
    content_type, length = _headers(scope["headers"])
    if scope["method"] != "POST":
        return rejection(405, f"reviews are posted: POST {_OR}"), length
    if content_type.split(b";", 1)[0].strip().lower() != b"application/json":
        return rejection(415, "the content type must be application/json"), length
    return None, length


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
