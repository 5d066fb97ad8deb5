"""The TLS port's door: which requests may come in, who answers each, and how much waits at once.

The port has no authentication: any pod that reaches it can post, so nothing is trusted until read.
Small reviews are answered where they arrive, on the event loop, since that costs less than any
hand-over. Large ones take their turn on one thread, so that the loop goes on answering the others.
Decoding holds the interpreter, for 25 ms at most (`review_json.MAX_VALUES`); deciding shares it.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from webhook.server.reviews import (
    PHASES,
    SMALL_BODY_BYTES,
    Answer,
    Beside,
    PodReviews,
    Review,
    rejection,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from webhook.server.connections import Source
    from webhook.server.log import JsonLog
    from webhook.server.metrics import Metrics
    from webhook.server.placement.reviews import BindingReviews
    from webhook.server.reviews import Asked
    from webhook.server.templates import TemplateReviews


MAX_BODY_BYTES: Final = 8 * 2**20
"""The API server accepts objects of 3 MiB; a review holds the object, the old one and options."""

MAX_BINDING_BYTES: Final = 256 * 2**10
"""A Binding is a name, a node and annotations, which the API server bounds at 256 KiB."""

MAX_BUFFERED_BYTES: Final = 64 * 2**20
"""Bindings waiting at once; the scheduler is asked to retry beyond that."""

MAX_LARGE_BYTES: Final = 24 * 2**20
"""Large bodies being received or waiting at once; callers beyond that are asked to retry.

A third of it is the most of an address that is not trusted (`connections`), two thirds of all of
those. Small bodies are bounded by the number of connections, and always pass.
"""

READ_BYTES_PER_BYTE: Final = 32
"""The most memory that a byte of JSON takes once it is read: `{"a":{}}` took 28."""

BODY_TIMEOUT_S: Final = 5.0
"""Our webhooks are registered with `timeoutSeconds: 5` at most: afterwards nobody waits."""

WAIT_S: Final = 4.0
"""A large review waits for its turn, and is answered, within this time, so that a caller who still
waits learns that it may retry."""

MAX_WAITING_BINDINGS: Final = 1024
"""Far more than kube-scheduler sends at once (its client's default is 50 requests per second)."""

JSON: Final = b"application/json"

ADVISED_AT: Final = b"/advise"
"""Where workloads are reviewed."""


class Door:
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
        body_timeout_s: float = BODY_TIMEOUT_S,
        wait_s: float = WAIT_S,
        max_buffered_bytes: int = MAX_BUFFERED_BYTES,
        max_large_bytes: int = MAX_LARGE_BYTES,
    ) -> None:
        """Take bindings at the paths for which `binds_at` holds (`bind_path`).

        Without `templates` workloads are not reviewed.
        """
        self._templates = templates
        self._binds_at = binds_at
        self._reviews = reviews
        self._bindings = bindings
        # One: two would decode at the same time, and hold up the event loop twice as long.
        self._large_reviews = ThreadPoolExecutor(1, "large-review")
        self._metrics = metrics
        self._log = log
        self.body_timeout_s = body_timeout_s
        self._wait_s = wait_s
        self._max_buffered_bytes = max_buffered_bytes
        self._buffered_bytes = 0
        self._max_large_bytes = max_large_bytes
        self._large_bytes = 0
        self._waiting_bindings = 0
        self.in_flight = 0
        """Requests whose body is being received or answered."""
        metrics.in_flight.set_function(lambda: self.in_flight)

    def asked(self, method: bytes, path: bytes, content_type: bytes) -> Asked | Answer | None:
        """Return what a request asks for, None for a binding; or the answer where it is nothing."""
        if method != b"POST":
            return self._refused(_NOT_POSTED)
        if content_type != JSON and content_type.split(b";", 1)[0].strip().lower() != JSON:
            return self._refused(_NOT_JSON)
        phase = _PHASES.get(path)
        if phase is None and path == ADVISED_AT and self._templates:
            return Beside.WORKLOAD
        if phase is None and not self._binds_at(path.decode(errors="surrogateescape")):
            return self._refused(_NOT_FOUND)
        return phase

    def limit(self, asked: Asked | None) -> int:
        """Return how many bytes a body may have."""
        return MAX_BODY_BYTES if asked else MAX_BINDING_BYTES

    def answer(
        self, asked: Asked | None, body: bytes, source: Source
    ) -> Answer | Coroutine[Any, Any, Answer]:
        """Answer a request: at once where that is possible."""
        if asked is None:
            return self._bound(body)
        if len(body) <= SMALL_BODY_BYTES:
            return self._judged(asked, body)
        return self._in_turn(asked, body, source)

    def too_large(self, asked: Asked | None, first: bytes) -> Answer:
        """Answer a body that is too large; the review of a pod has a uid in its first bytes."""
        if asked is None:
            return self._refused(_TOO_LARGE)
        if isinstance(asked, Beside):
            return self._of_templates().too_large(first, MAX_BODY_BYTES)
        return self._reviews.too_large(asked, first, MAX_BODY_BYTES)

    def hold(self, source: Source, more: int) -> Answer | None:
        """Count bytes of a large body; return the answer where there are too many."""
        self._large_bytes += more
        source.body_bytes += more
        most = self._max_large_bytes
        is_full = self._large_bytes > most or (
            not source.is_trusted
            and (source.body_bytes > most // 3 or self._large_bytes > most * 2 // 3)
        )
        return self._refused(_OVERLOADED) if more > 0 and is_full else None

    def too_slow(self) -> Answer:
        """Answer a body that does not come."""
        sentence = f"the body did not arrive within {self.body_timeout_s:g} s"
        return self._refused(rejection(408, sentence))

    def cut_off(self) -> None:
        """Count a request that ended before it was complete; nobody is left to answer."""
        self._metrics.count_refused(400)

    def malformed(self, sentence: str) -> Answer:
        """Answer what is no HTTP."""
        return self._refused(Answer(400, sentence.encode(), b"text/plain"))

    def failed(self) -> Answer:
        """Answer a request on which we failed outside of a review; to be called as it happens."""
        self._log.exception("request failed")
        return self._refused(_FAILED)

    def _refused(self, answer: Answer) -> Answer:
        self._metrics.count_refused(answer.status)
        return answer

    def _judged(self, asked: Asked, body: bytes) -> Answer:
        """Answer a review of a pod or of a workload."""
        if isinstance(asked, Beside):
            return self._of_templates().answer(body)
        return self._reviews.answer(asked, body)

    def _of_templates(self) -> TemplateReviews:
        if self._templates is None:
            raise LookupError("a workload was asked for, and none is reviewed")
        return self._templates

    async def _in_turn(self, asked: Asked, body: bytes, source: Source) -> Answer:
        """Answer a large review on the thread for those."""
        loop = asyncio.get_running_loop()
        try:
            overloaded = self.hold(source, len(body))
            if overloaded:
                return overloaded
            async with asyncio.timeout(self._wait_s):
                return await loop.run_in_executor(self._large_reviews, self._judged, asked, body)
        except TimeoutError:
            return self._refused(_OVERLOADED)
        finally:
            self.hold(source, -len(body))

    def _bound(self, body: bytes) -> Answer | Coroutine[Any, Any, Answer]:
        """Answer a Binding: at once from memory, else when its turn has come."""
        review = self._bindings.read(body)
        if isinstance(review, Answer):
            return review
        answer = self._bindings.at_once(review)
        return answer or self._waited(review, READ_BYTES_PER_BYTE * len(body))

    async def _waited(self, review: Review, size: int) -> Answer:
        full = self._buffered_bytes + size > self._max_buffered_bytes
        if full or self._waiting_bindings >= MAX_WAITING_BINDINGS:
            return self._refused(_OVERLOADED)
        self._waiting_bindings += 1
        self._buffered_bytes += size
        try:
            return await self._bindings.answer(review)
        finally:
            self._buffered_bytes -= size
            self._waiting_bindings -= 1


_PHASES: Final = {path.encode(): phase for path, phase in PHASES.items()}
_OR: Final = " or ".join(PHASES)
_NOT_POSTED: Final = rejection(405, f"reviews are posted: POST {_OR}")
_NOT_JSON: Final = rejection(415, "the content type must be application/json")
_NOT_FOUND: Final = rejection(404, f"reviews of pods go to {_OR}")
_TOO_LARGE: Final = rejection(413, f"the body is larger than {MAX_BINDING_BYTES // 2**10} KiB")
_OVERLOADED: Final = rejection(503, "too many reviews at once; retry in a second")
_FAILED: Final = rejection(500, "vramwarden failed on this request; its log has the cause")
