"""One review of a Binding from bytes to bytes: decoded, decided, encoded, counted, logged."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from webhook.adapters.review_json import read_review, write_binding_review, write_failure
from webhook.core.admission.review import BadReviewError
from webhook.core.placement.binding_review import (
    BindingOutcome,
    BindingReason,
    Verdict,
    annotated,
    read_binding,
)
from webhook.core.pod.findings import MalformedObjectError
from webhook.core.pod.patch import proven_patch
from webhook.server.reviews import Answer, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.core.placement.binding_review import Binding
    from webhook.core.pod.request import Request
    from webhook.server.log import JsonLog
    from webhook.server.metrics import Metrics
    from webhook.server.placement.binder import Binder

WEBHOOK: Final = "bind"
V = TypeVar("V")

_NOT_A_BINDING: Final = Verdict(BindingOutcome.UNTOUCHED, BindingReason.NOT_A_BINDING)
_NOT_CONFIGURED: Final = Verdict(
    BindingOutcome.UNAVAILABLE,
    BindingReason.NOT_CONFIGURED,
    "this server does not place pods: it was started without --placement-namespace",
)


@dataclass(slots=True)
class _Review:
    request: Request
    started_s: float
    binding: Binding | None = None


class BindingReviews:
    """Answers reviews of Bindings."""

    def __init__(self, binder: Binder | None, metrics: Metrics, log: JsonLog) -> None:
        """Decide by `binder`; without one every Binding is refused."""
        self._binder = binder
        self._metrics = metrics
        self._log = log

    def at_once(self, body: bytes) -> Answer | None:
        """Answer a review from memory; None where the API server has to be asked (`answer`)."""
        review = self._read(body)
        if isinstance(review, Answer):
            return review
        try:
            verdict = self._decided(review, lambda binder, binding: binder.from_memory(binding))
            return self._written(review, verdict) if verdict else None
        except Exception:  # noqa: BLE001 - whatever the bug, the API server gets an answer
            return self._failed(review)

    def answer(self, body: bytes) -> Answer:
        """Answer any review; may wait for the API server, so give it a thread."""
        review = self._read(body)
        if isinstance(review, Answer):
            return review
        try:
            dry_run = review.request.dry_run
            verdict = self._decided(review, lambda binder, it: binder.bind(it, dry_run=dry_run))
            return self._written(review, verdict)
        except Exception:  # noqa: BLE001 - whatever the bug, the API server gets an answer
            return self._failed(review)

    def _read(self, body: bytes) -> _Review | Answer:
        try:
            return _Review(read_review(body), perf_counter())
        except BadReviewError as error:
            self._metrics.count_refused(400)
            self._log.warning("review refused", webhook=WEBHOOK, code=400, why=str(error))
            return refusal(400, str(error))

    def _decided(self, review: _Review, decide: Callable[[Binder, Binding], V]) -> Verdict | V:
        """Return the verdict on what no binder need see, else what `decide` makes of it."""
        try:
            review.binding = read_binding(review.request)
        except MalformedObjectError as error:
            return Verdict(BindingOutcome.MALFORMED, sentence=str(error))
        if review.binding is None:
            return _NOT_A_BINDING
        return decide(self._binder, review.binding) if self._binder else _NOT_CONFIGURED

    def _written(self, review: _Review, verdict: Verdict) -> Answer:
        request, binding = review.request, review.binding
        patch = (
            proven_patch(binding.obj, annotated(binding.obj, verdict.uuids))
            if (binding and verdict.uuids)
            else []
        )
        answer = Answer(200, write_binding_review(request.uid, verdict, patch))
        duration_s = perf_counter() - review.started_s
        self._metrics.count_binding(request.operation, verdict, duration_s)
        self._log.info("review", **_about(review), **_outcome(verdict, duration_s))
        return answer

    def _failed(self, review: _Review) -> Answer:
        """Answer in the midst of an exception."""
        self._metrics.count_failure(WEBHOOK, perf_counter() - review.started_s)
        self._log.exception("review failed", **_about(review))
        return Answer(200, write_failure(review.request.uid))


def _about(review: _Review) -> dict[str, Any]:
    request, binding = review.request, review.binding
    about: dict[str, Any] = {
        "webhook": WEBHOOK,
        "uid": request.uid,
        "operation": request.operation,
        "namespace": request.namespace,
        "user": request.user,
    }
    if request.dry_run:
        about["dryRun"] = True
    if binding:
        about |= {"name": binding.name, "node": binding.node}
    return about


def _outcome(verdict: Verdict, duration_s: float) -> dict[str, Any]:
    outcome: dict[str, Any] = {
        "decision": verdict.outcome.value,
        "reasons": [verdict.reason.value] if verdict.reason else [],
        "durationMs": round(duration_s * 1000, 3),
    }
    if verdict.uuids:
        outcome["gpus"] = list(verdict.uuids)
    if verdict.sentence:
        outcome["why"] = verdict.sentence
    return outcome
