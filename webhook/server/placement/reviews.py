"""Reviews of Bindings: from memory where that is enough, else within a time that is bounded."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from webhook.adapters.review_json import write_failure, write_review
from webhook.core.placement.binding_review import (
    BindingOutcome,
    BindingReason,
    Verdict,
    answered,
    read_binding,
)
from webhook.core.pod.findings import MalformedObjectError
from webhook.server.reviews import Review, Reviews

if TYPE_CHECKING:
    from webhook.core.pod.request import Request
    from webhook.server.http import Answer
    from webhook.server.log import JsonLog
    from webhook.server.metrics import Metrics
    from webhook.server.placement.binder import Binder

WITHIN_S: Final = 1.5
"""A Binding is answered within this time, whoever it waits for: the API server waits 2 s for us."""

_NOT_A_BINDING: Final = Verdict(BindingOutcome.UNTOUCHED, BindingReason.NOT_A_BINDING)
_BY_NAME: Final = Verdict(
    BindingOutcome.UNTOUCHED,
    BindingReason.NO_UID,
    "the Binding has no metadata.uid, so nothing is reserved: a name may be another pod's by now",
)
_NOT_CONFIGURED: Final = Verdict(
    BindingOutcome.UNTOUCHED,
    BindingReason.NOT_CONFIGURED,
    "this server does not place pods: it was started without --placement-namespace",
)


class BindingReviews:
    """Answers reviews of Bindings."""

    def __init__(self, binder: Binder | None, metrics: Metrics, log: JsonLog) -> None:
        """Decide by `binder`; without one no Binding is touched."""
        self._binder = binder
        self._reviews = Reviews(metrics, log, self._failed)

    def read(self, body: bytes) -> Review | Answer:
        """Read a review; return the answer where the body is none."""
        return self._reviews.read("bind", body)

    def at_once(self, review: Review) -> Answer | None:
        """Answer a review from memory; None where the API server has to be asked (`answer`)."""
        return self._reviews.answer(review, self._from_memory)

    async def answer(self, review: Review) -> Answer:
        """Answer a review for which the API server has to be asked, within `WITHIN_S`.

        It holds no thread while it waits, and what is not waited for any more is not done: the API
        server gave this Binding up, or asks again.
        """
        binder, binding = self._binder, read_binding(review.request)
        if binder is None or binding is None:
            raise ValueError("a review that is answered at once")
        found = asyncio.wrap_future(binder.bind(binding, dry_run=review.request.dry_run))
        try:
            await asyncio.wait([found], timeout=WITHIN_S)
            is_late = not found.done()
        finally:
            found.cancel()

        def decided(_: Request) -> Verdict:
            if is_late:
                verdict = binder.uncertain(binding, f"no answer within {WITHIN_S:g} s")
            else:
                verdict = found.result()
            return answered(binding, verdict)

        return self._reviews.answer(review, decided)

    def _failed(self, request: Request) -> bytes:
        """Answer where a bug of ours kept us from deciding: a stranger must not wait for its cure.

        A failed call would be forgiven (`failurePolicy: Ignore`), but an answer counts.
        """
        binding = read_binding(request)
        if binding and self._binder and self._binder.is_ours(binding):
            return write_failure(request.uid)
        return write_review(request.uid, Verdict(BindingOutcome.UNTOUCHED))

    def _from_memory(self, request: Request) -> Verdict | None:
        """Return the verdict where no request is needed for it."""
        try:
            binding = read_binding(request)
        except MalformedObjectError as error:
            return Verdict(BindingOutcome.MALFORMED, message=str(error))
        if binding is None:
            return _NOT_A_BINDING
        if not binding.uid:
            return answered(binding, _BY_NAME)
        verdict = self._binder.from_memory(binding) if self._binder else _NOT_CONFIGURED
        return verdict and answered(binding, verdict)
