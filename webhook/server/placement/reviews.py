"""Reviews of Bindings, answered from memory if possible, otherwise within a deadline."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from webhook.adapters.review_json import write_failure, write_review
from webhook.core.placement.binding_review import (
    Binding,
    BindingOutcome,
    BindingReason,
    BindingVerdict,
    patch_for,
    read_binding,
)
from webhook.core.pod.findings import MalformedObjectError
from webhook.server.handler import Answer
from webhook.server.log import JsonLog
from webhook.server.metrics import Metrics
from webhook.server.placement.binder import Binder, UndecidedBinding
from webhook.server.reviews import Review, Reviews

DEADLINE_S: Final = 1.5
"""Seconds within which a Binding is answered; the API server waits for 2 s."""

_NOT_A_BINDING: Final = BindingVerdict(
    outcome=BindingOutcome.UNTOUCHED, reason=BindingReason.NOT_A_BINDING
)
_WITHOUT_UID: Final = BindingVerdict(
    outcome=BindingOutcome.UNTOUCHED,
    reason=BindingReason.NO_UID,
    message="the Binding has no metadata.uid, so nothing is reserved: a name may be another pod's "
    "by now",
)
_NOT_CONFIGURED: Final = BindingVerdict(
    outcome=BindingOutcome.UNTOUCHED,
    reason=BindingReason.NOT_CONFIGURED,
    message="this server does not place pods: it was started without --placement-namespace",
)


@dataclass(frozen=True, slots=True)
class WaitingBinding:
    """A review of a binding that cannot be decided from memory."""

    review: Review
    undecided: UndecidedBinding
    binder: Binder


class BindingReviews:
    """Answers reviews of Bindings."""

    def __init__(self, binder: Binder | None, metrics: Metrics, log: JsonLog) -> None:
        """Decide with `binder`. Without a binder every Binding is untouched."""
        self._binder = binder
        self._reviews = Reviews(metrics, log)

    def begin(self, body: bytes) -> Answer | WaitingBinding:
        """Answer a review from memory, or return the review for `finish`."""
        review = self._reviews.read("bind", body)
        if isinstance(review, Answer):
            return review
        binding: Binding | None = None
        try:
            binding = read_binding(review.request)
            if binding is None:
                return self._reviews.write(review, _NOT_A_BINDING)
            if not binding.uid:
                verdict = _WITHOUT_UID
            elif self._binder is None:
                verdict = _NOT_CONFIGURED
            else:
                found = self._binder.decide_from_memory(binding)
                if isinstance(found, UndecidedBinding):
                    return WaitingBinding(review, found, self._binder)
                verdict = found
            patch = patch_for(binding, verdict)
            return self._reviews.write(review, verdict, patch, node=binding.node)
        except MalformedObjectError as error:
            verdict = BindingVerdict(outcome=BindingOutcome.MALFORMED, message=str(error))
            return self._reviews.write(review, verdict)
        except Exception:  # noqa: BLE001 - whatever the bug, the API server gets an answer
            return self._fail(review, binding)

    async def finish(self, waiting: WaitingBinding) -> Answer:
        """Answer a review that needs the API server, within `DEADLINE_S`.

        A waiting review holds no thread. The request is cancelled after the deadline, since by then
        the API server has given up this Binding, or retries it.
        """
        review, undecided, binder = waiting.review, waiting.undecided, waiting.binder
        binding = undecided.binding
        answer = asyncio.wrap_future(binder.bind(undecided, dry_run=review.request.dry_run))
        try:
            await asyncio.wait([answer], timeout=DEADLINE_S)
            is_late = not answer.done()
        finally:
            answer.cancel()
        try:
            if is_late:
                verdict = binder.fallback_verdict(binding, f"no answer within {DEADLINE_S:g} s")
            else:
                verdict = answer.result()
            patch = patch_for(binding, verdict)
            return self._reviews.write(review, verdict, patch, node=binding.node)
        except Exception:  # noqa: BLE001 - as above
            return self._fail(review, binding)

    def _fail(self, review: Review, binding: Binding | None) -> Answer:
        """Answer a review after a vramwarden bug; only pods that need placement are denied.

        A failed call would bind the pod (`failurePolicy: Ignore`), but a denial does not.
        """
        uid = review.request.uid
        if binding and self._binder and self._binder.needs_placement(binding):
            return self._reviews.fail(review, write_failure(uid))
        return self._reviews.fail(
            review, write_review(uid, BindingVerdict(outcome=BindingOutcome.UNTOUCHED))
        )
