"""The TLS port's routes: which requests may come in, who answers each, and how much waits at once.

The port has no authentication: any pod that reaches it can post, so nothing is trusted until read.
Small reviews are answered where they arrive, on the event loop, since that costs less than any
hand-over. Large ones take their turn on one thread, so that the loop goes on answering the others;
those from trusted addresses first.
Decoding holds the interpreter, for 25 ms at most (`MOST_REVIEW_VALUES`); deciding shares it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from webhook.server.bounds import (
    MAX_BINDING_BYTES,
    MAX_BODY_BYTES,
    MAX_BUFFERED_BYTES,
    MAX_WAITING_BINDINGS,
)
from webhook.server.connections import SMALL_BODY_BYTES, Peer
from webhook.server.http import Answer, Endpoint, rejection
from webhook.server.log import JsonLog
from webhook.server.metrics import Metrics
from webhook.server.placement.reviews import BindingReviews, WaitingBinding
from webhook.server.reviews import PHASES, PREFIX_BYTES, PodReviews, TemplateReviews

READ_BYTES_PER_BYTE: Final = 32
"""The most memory that a byte of JSON takes once it is read: `{"a":{}}` took 28."""

WAIT_S: Final = 4.0
"""A large review waits for its turn, and is answered, within this time, so that a caller who still
waits learns that it may retry."""


JSON: Final = b"application/json"

ADVISED_AT: Final = b"/advise"
"""Where workloads are reviewed."""


class Router:
    """Takes POST /mutate, /validate, /advise and bindings; rejects all else in one sentence."""

    def __init__(
        self,
        reviews: PodReviews,
        bindings: BindingReviews,
        metrics: Metrics,
        log: JsonLog,
        *,
        binds_at: Callable[[str], bool],
        templates: TemplateReviews | None = None,
        wait_s: float = WAIT_S,
        max_buffered_bytes: int = MAX_BUFFERED_BYTES,
    ) -> None:
        """Take bindings at the paths for which `binds_at` holds (`bind_path`).

        Without `templates` workloads are not reviewed.
        """
        self._endpoints = {
            path.encode(): self._judged_by(
                partial(reviews.answer, phase),
                partial(reviews.too_large, phase, limit_bytes=MAX_BODY_BYTES),
            )
            for path, phase in PHASES.items()
        }
        if templates:
            too_large = partial(templates.too_large, limit_bytes=MAX_BODY_BYTES)
            self._endpoints[ADVISED_AT] = self._judged_by(templates.answer, too_large)
        self._binding = Endpoint(
            max_bytes=MAX_BINDING_BYTES,
            answer=self._bind,
            too_large=lambda _: self._rejected(_TOO_LARGE),
            is_secret=True,
        )
        self._binds_at = binds_at
        self._bindings = bindings
        # One: two would decode at the same time, and hold up the event loop twice as long.
        self._thread = ThreadPoolExecutor(1, "large-review")
        self._large_reviews: dict[bool, deque[_LargeReview]] = {True: deque(), False: deque()}
        """Those that wait for the thread, by whether their address is trusted."""
        self.count_rejected = metrics.count_rejected
        self._log = log
        self._wait_s = wait_s
        self._max_buffered_bytes = max_buffered_bytes
        self._buffered_bytes = 0
        self._waiting_bindings = 0

    def route(self, method: bytes, path: bytes, content_type: bytes) -> Endpoint | Answer:
        """Return what a request asks for; or the answer where it is nothing."""
        if method != b"POST":
            return self._rejected(_NOT_POSTED)
        if content_type != JSON and content_type.split(b";", 1)[0].strip().lower() != JSON:
            return self._rejected(_NOT_JSON)
        found = self._endpoints.get(path)
        if found is None and self._binds_at(path.decode(errors="surrogateescape")):
            return self._binding
        return found or self._rejected(_NOT_FOUND)

    def overloaded(self) -> Answer:
        """Answer where too much comes at once."""
        return self._rejected(_OVERLOADED)

    def failed(self) -> Answer:
        """Answer a request on which we failed outside of a review; to be called as it happens."""
        self._log.exception("request failed")
        return self._rejected(_FAILED)

    def _rejected(self, answer: Answer) -> Answer:
        self.count_rejected(answer.status)
        return answer

    def _judged_by(
        self, judge: Callable[[bytes], Answer], too_large: Callable[[bytes], Answer]
    ) -> Endpoint:
        """Return what answers reviews of pods or workloads."""

        def answer(body: bytes, peer: Peer) -> Answer | Coroutine[Any, Any, Answer]:
            if len(body) <= SMALL_BODY_BYTES:
                return judge(body)
            return self._in_turn(_LargeReview(judge, body, peer))

        return Endpoint(
            max_bytes=MAX_BODY_BYTES,
            answer=answer,
            too_large=too_large,
            prefix_bytes=PREFIX_BYTES,
        )

    async def _in_turn(self, review: _LargeReview) -> Answer:
        """Answer a large review on the thread for those."""
        self._large_reviews[review.peer.is_trusted].append(review)
        self._thread.submit(self._judge_next)
        try:
            async with asyncio.timeout(self._wait_s):
                return await asyncio.wrap_future(review.answer)
        except TimeoutError:
            return self.overloaded()

    def _judge_next(self) -> None:
        """Answer the large review whose turn it is; called on the thread, once for each."""
        review = (self._large_reviews[True] or self._large_reviews[False]).popleft()
        peer, answer = review.peer, review.answer
        if not answer.set_running_or_notify_cancel():
            return  # its caller does not wait any more
        try:
            has_time = peer.has_time()
            answer.set_result(
                peer.timed(review.judge, review.body) if has_time else self.overloaded()
            )
        except Exception as error:  # noqa: BLE001 - as on the event loop
            answer.set_exception(error)

    def _bind(self, body: bytes, _peer: Peer) -> Answer | Coroutine[Any, Any, Answer]:
        """Answer a Binding: at once from memory, else when its turn has come."""
        begun = self._bindings.begin(body)
        if isinstance(begun, Answer):
            return begun
        return self._waited(begun, READ_BYTES_PER_BYTE * len(body))

    async def _waited(self, waiting: WaitingBinding, size: int) -> Answer:
        full = self._buffered_bytes + size > self._max_buffered_bytes
        if full or self._waiting_bindings >= MAX_WAITING_BINDINGS:
            return self.overloaded()
        self._waiting_bindings += 1
        self._buffered_bytes += size
        try:
            return await self._bindings.finish(waiting)
        finally:
            self._buffered_bytes -= size
            self._waiting_bindings -= 1


@dataclass(eq=False, slots=True)
class _LargeReview:
    """A review that waits for the thread."""

    judge: Callable[[bytes], Answer]
    body: bytes
    peer: Peer
    answer: Future[Answer] = field(default_factory=Future)


_OR: Final = " or ".join(PHASES)
_NOT_POSTED: Final = rejection(405, f"reviews are posted: POST {_OR}")
_NOT_JSON: Final = rejection(415, "the content type must be application/json")
_NOT_FOUND: Final = rejection(404, f"reviews of pods go to {_OR}")
_TOO_LARGE: Final = rejection(413, f"the body is larger than {MAX_BINDING_BYTES // 2**10} KiB")
_OVERLOADED: Final = rejection(503, "too many reviews at once; retry in a second")
_FAILED: Final = rejection(500, "vramwarden failed on this request; its log has the cause")
