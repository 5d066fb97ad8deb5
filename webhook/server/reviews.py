"""One review from bytes to bytes: decoded, decided, encoded, counted, logged."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, overload

from webhook.adapters.review_json import read_review, write_failure, write_review
from webhook.core.admission.decide import Phase, decide
from webhook.core.pod.review import BadReviewError

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.core.admission.decide import Decision
    from webhook.core.pod.request import Request
    from webhook.core.pod.review import Answerable
    from webhook.core.policy.values import Policy
    from webhook.server.log import JsonLog
    from webhook.server.metrics import Metrics

PHASES: Final = {"/mutate": Phase.MUTATE, "/validate": Phase.VALIDATE}


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer."""

    status: int
    body: bytes
    content_type: bytes = b"application/json"


def rejection(status: int, sentence: str) -> Answer:
    """Build the answer to a request that is not a review: one sentence for the caller."""
    return Answer(status, f"{sentence}\n".encode(), b"text/plain; charset=utf-8")


@dataclass(frozen=True, slots=True)
class Review:
    """A review that was read and waits for its answer."""

    webhook: str
    request: Request
    started_s: float


class Reviews:
    """Answers reviews: read, decided, encoded, counted, logged.

    A bad *review* is an HTTP 4xx to the API server; a bad *object* is a denial inside an answer,
    shown to the user. A bug of ours is code 500 inside an answer with the review's uid; its trace
    is in the log only.
    """

    def __init__(self, metrics: Metrics, log: JsonLog) -> None:
        self._metrics = metrics
        self._log = log

    def read(self, webhook: str, body: bytes) -> Review | Answer:
        """Read a review; return the answer where the body is none."""
        started_s = perf_counter()
        try:
            return Review(webhook, read_review(body), started_s)
        except BadReviewError as error:
            self._metrics.count_refused(400)
            self._log.warning("review rejected", webhook=webhook, code=400, why=str(error))
            return rejection(400, str(error))

    @overload
    def answer(self, review: Review, decide: Callable[[Request], Answerable]) -> Answer: ...
    @overload
    def answer(
        self, review: Review, decide: Callable[[Request], Answerable | None]
    ) -> Answer | None: ...
    def answer(
        self, review: Review, decide: Callable[[Request], Answerable | None]
    ) -> Answer | None:
        """Answer a review with what `decide` returns; None where it cannot decide yet."""
        webhook, request = review.webhook, review.request
        try:
            made = decide(request)
            if made is None:
                return None
            answer = Answer(200, write_review(request.uid, made))
        except Exception:  # noqa: BLE001 - whatever the bug, the API server gets an answer
            self._metrics.count_failure(webhook, perf_counter() - review.started_s)
            self._log.exception("review failed", **_about(review))
            return Answer(200, write_failure(request.uid))
        duration_s = perf_counter() - review.started_s
        self._metrics.count(webhook, request, made, duration_s)
        outcome = {"decision": made.outcome.value, "reasons": made.reasons, **made.logged}
        duration_ms = round(duration_s * 1000, 3)
        self._log.info("review", **_about(review), **outcome, durationMs=duration_ms)
        return answer


class PodReviews:
    """Answers reviews of pods under the policy in force."""

    def __init__(self, policy: Callable[[], Policy], metrics: Metrics, log: JsonLog) -> None:
        self._policy = policy
        self._reviews = Reviews(metrics, log)

    def answer(self, phase: Phase, body: bytes) -> Answer:
        """Answer one review."""
        review = self._reviews.read(phase.value, body)
        if isinstance(review, Answer):
            return review

        def decided(request: Request) -> Decision:
            # Read once: a policy that is replaced meanwhile cannot split a decision.
            return decide(request, self._policy(), phase)

        return self._reviews.answer(review, decided)


def _about(review: Review) -> dict[str, Any]:
    request = review.request
    about: dict[str, Any] = {
        "webhook": review.webhook,
        "uid": request.uid,
        "operation": request.operation,
        "kind": request.kind,
        "namespace": request.namespace,
        "user": request.user,
    }
    if request.subresource:
        about["subresource"] = request.subresource
    if request.dry_run:
        about["dryRun"] = True
    metadata = request.obj.get("metadata")
    if isinstance(metadata, dict):
        about["name"] = request.name or metadata.get("name") or metadata.get("generateName")
        about["owner"] = _owner(metadata)
    else:
        about["name"] = request.name
    return about


def _owner(metadata: dict[str, Any]) -> str | None:
    owners = metadata.get("ownerReferences")
    if not isinstance(owners, list) or not owners or not isinstance(owners[0], dict):
        return None
    return f"{owners[0].get('kind')}/{owners[0].get('name')}"
