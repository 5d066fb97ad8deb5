"""The TLS port's routes: accepted requests, their handlers, and limits on waiting.

The port has no authentication. Any pod that reaches it can post, so no input is trusted before it
is decoded. Small reviews are answered on the event loop, which costs less than passing them to a
thread. Large reviews are answered one by one on a thread, trusted addresses first, so that the
event loop can answer others meanwhile. Decoding holds the interpreter lock, for at most 25 ms
(`MOST_REVIEW_VALUES`). A decision shares the interpreter with other threads.
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
from webhook.server.handler import Answer, Endpoint, build_rejection
from webhook.server.log import JsonLog
from webhook.server.metrics import Metrics
from webhook.server.placement.reviews import BindingReviews, WaitingBinding
from webhook.server.reviews import PHASES, PREFIX_BYTES, PodReviews, TemplateReviews

DECODED_BYTES_PER_BYTE: Final = 32
"""Maximum memory per byte of JSON after decoding; 28 was measured for `{"a":{}}`."""

MAX_WAIT_S: Final = 4.0
"""Maximum time in seconds to answer a large review, including the wait for the thread. After
that, the caller, which is still waiting, is asked to retry."""

JSON: Final = b"application/json"

ADVISE_PATH: Final = b"/advise"
"""Path of workload reviews."""


class Router:
    """Routes POST /mutate, /validate, /advise and Bindings; rejects other requests."""

    def __init__(
        self,
        reviews: PodReviews,
        bindings: BindingReviews,
        metrics: Metrics,
        log: JsonLog,
        *,
        is_bind_path: Callable[[str], bool],
        templates: TemplateReviews | None = None,
        wait_s: float = MAX_WAIT_S,
        max_buffered_bytes: int = MAX_BUFFERED_BYTES,
    ) -> None:
        """Accept Bindings at the paths for which `is_bind_path` returns True.

        If `templates` is None, workloads are not reviewed.
        """
        self._endpoints = {
            path.encode(): self._create_endpoint(
                partial(reviews.answer, phase),
                partial(reviews.too_large, phase, limit_bytes=MAX_BODY_BYTES),
            )
            for path, phase in PHASES.items()
        }
        if templates:
            too_large = partial(templates.too_large, limit_bytes=MAX_BODY_BYTES)
            self._endpoints[ADVISE_PATH] = self._create_endpoint(templates.answer, too_large)
        self._binding = Endpoint(
            max_bytes=MAX_BINDING_BYTES,
            answer=self._answer_binding,
            too_large=lambda _: self._count_rejection(_TOO_LARGE),
            is_secret=True,
        )
        self._is_bind_path = is_bind_path
        self._bindings = bindings
        # A single thread: two that decode at the same time would delay the event loop twice as
        # long.
        self._thread = ThreadPoolExecutor(1, "large-review")
        self._large_reviews: dict[bool, deque[_LargeReview]] = {True: deque(), False: deque()}
        """Reviews that wait for the thread, keyed by whether their address is trusted."""
        self.count_rejected = metrics.count_rejected
        self._log = log
        self._wait_s = wait_s
        self._max_buffered_bytes = max_buffered_bytes
        self._buffered_bytes = 0
        self._waiting_bindings = 0

    def route(self, method: bytes, path: bytes, content_type: bytes) -> Endpoint | Answer:
        """Return a request's endpoint, or the response if there is no endpoint."""
        if method != b"POST":
            return self._count_rejection(_METHOD_NOT_ALLOWED)
        if content_type != JSON and content_type.split(b";", 1)[0].strip().lower() != JSON:
            return self._count_rejection(_UNSUPPORTED_TYPE)
        endpoint = self._endpoints.get(path)
        if endpoint is None and self._is_bind_path(path.decode(errors="surrogateescape")):
            return self._binding
        return endpoint or self._count_rejection(_NOT_FOUND)

    def overloaded(self) -> Answer:
        """Reject a request because the server is overloaded."""
        return self._count_rejection(_OVERLOADED)

    def failed(self) -> Answer:
        """Reject a request that failed outside of a review; called while the error is handled."""
        self._log.exception("request failed")
        return self._count_rejection(_FAILED)

    def _count_rejection(self, answer: Answer) -> Answer:
        self.count_rejected(answer.status)
        return answer

    def _create_endpoint(
        self, judge: Callable[[bytes], Answer], too_large: Callable[[bytes], Answer]
    ) -> Endpoint:
        """Return an endpoint for reviews of pods or workloads."""

        def answer(body: bytes, peer: Peer) -> Answer | Coroutine[Any, Any, Answer]:
            if len(body) <= SMALL_BODY_BYTES:
                return judge(body)
            return self._answer_large(_LargeReview(judge, body, peer))

        return Endpoint(
            max_bytes=MAX_BODY_BYTES,
            answer=answer,
            too_large=too_large,
            prefix_bytes=PREFIX_BYTES,
        )

    async def _answer_large(self, review: _LargeReview) -> Answer:
        """Answer a large review on the thread."""
        self._large_reviews[review.peer.is_trusted].append(review)
        self._thread.submit(self._judge_next)
        try:
            async with asyncio.timeout(self._wait_s):
                return await asyncio.wrap_future(review.answer)
        except TimeoutError:
            return self.overloaded()

    def _judge_next(self) -> None:
        """Answer the next large review; called on the thread, once per review."""
        review = (self._large_reviews[True] or self._large_reviews[False]).popleft()
        peer, answer = review.peer, review.answer
        if not answer.set_running_or_notify_cancel():
            return  # the caller no longer waits
        try:
            has_time = peer.has_time()
            answer.set_result(
                peer.run_timed(review.judge, review.body) if has_time else self.overloaded()
            )
        except Exception as error:  # noqa: BLE001 - the event loop raises it again, and answers
            answer.set_exception(error)

    def _answer_binding(self, body: bytes, _peer: Peer) -> Answer | Coroutine[Any, Any, Answer]:
        """Answer a Binding, at once if no request to the API server is needed."""
        begun = self._bindings.begin(body)
        if isinstance(begun, Answer):
            return begun
        return self._finish_binding(begun, DECODED_BYTES_PER_BYTE * len(body))

    async def _finish_binding(self, waiting: WaitingBinding, size: int) -> Answer:
        is_full = self._buffered_bytes + size > self._max_buffered_bytes
        if is_full or self._waiting_bindings >= MAX_WAITING_BINDINGS:
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
    """A large review that waits for the thread."""

    judge: Callable[[bytes], Answer]
    body: bytes
    peer: Peer
    answer: Future[Answer] = field(default_factory=Future)


_REVIEW_PATHS: Final = " or ".join(PHASES)
_METHOD_NOT_ALLOWED: Final = build_rejection(405, f"reviews are posted: POST {_REVIEW_PATHS}")
_UNSUPPORTED_TYPE: Final = build_rejection(415, "the content type must be application/json")
_NOT_FOUND: Final = build_rejection(404, f"reviews of pods go to {_REVIEW_PATHS}")
_TOO_LARGE: Final = build_rejection(
    413, f"the body is larger than {MAX_BINDING_BYTES // 2**10} KiB"
)
_OVERLOADED: Final = build_rejection(503, "too many reviews at once; retry in a second")
_FAILED: Final = build_rejection(500, "vramwarden failed on this request; its log has the cause")
