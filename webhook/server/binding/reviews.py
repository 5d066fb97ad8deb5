"""One review of a Binding from bytes to bytes: decoded, decided, encoded, counted, logged."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from webhook.adapters.review_json import read_review, write_binding_review, write_failure
from webhook.core.binding import (
    Binding,
    BindingOutcome,
    BindingReason,
    Verdict,
    annotated,
    read_binding,
)
from webhook.core.errors import MalformedObjectError
from webhook.core.patch import proven_patch
from webhook.core.review import BadReviewError
from webhook.server.reviews import Answer, refusal

if TYPE_CHECKING:
    from webhook.core.admission import Request
    from webhook.server.binding.binder import Binder
    from webhook.server.log import JsonLog
    from webhook.server.metrics import Metrics

WEBHOOK: Final = "bind"

_NOT_A_BINDING: Final = Verdict(BindingOutcome.UNTOUCHED, BindingReason.NOT_A_BINDING)
_NOT_CONFIGURED: Final = Verdict(
    BindingOutcome.UNAVAILABLE,
    BindingReason.NOT_CONFIGURED,
    "this server does not place pods: it was started without --placement-namespace",
)


class BindingReviews:
    """Answers reviews of Bindings; may wait for the API server, so give it a thread."""

    def __init__(self, binder: Binder | None, metrics: Metrics, log: JsonLog) -> None:
        """Decide by `binder`; without one every Binding is refused."""
        self._binder = binder
        self._metrics = metrics
        self._log = log

    def answer(self, body: bytes) -> Answer:
        """Answer one review."""
        started = perf_counter()
        try:
            request = read_review(body)
        except BadReviewError as error:
            self._metrics.count_refused(400)
            self._log.warning("review refused", webhook=WEBHOOK, code=400, why=str(error))
            return refusal(400, str(error))
        binding: Binding | None = None
        try:
            binding, verdict = self._decide(request)
            patch = (
                proven_patch(binding.obj, annotated(binding.obj, verdict.uuids))
                if (binding and verdict.uuids)
                else []
            )
            answer = Answer(200, write_binding_review(request.uid, verdict, patch))
        except Exception:  # noqa: BLE001 - whatever the bug, the API server gets an answer
            self._metrics.count_failure(WEBHOOK, perf_counter() - started)
            self._log.exception("review failed", **_about(request, binding))
            return Answer(200, write_failure(request.uid))
        duration_s = perf_counter() - started
        self._metrics.count_binding(request.operation, verdict, duration_s)
        self._log.info("review", **_about(request, binding), **_outcome(verdict, duration_s))
        return answer

    def _decide(self, request: Request) -> tuple[Binding | None, Verdict]:
        try:
            binding = read_binding(request)
        except MalformedObjectError as error:
            return None, Verdict(BindingOutcome.MALFORMED, sentence=str(error))
        if binding is None:
            return None, _NOT_A_BINDING
        if self._binder is None:
            return binding, _NOT_CONFIGURED
        return binding, self._binder.bind(binding, dry_run=request.dry_run)


def _about(request: Request, binding: Binding | None) -> dict[str, Any]:
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
