"""Reviews of workloads: their authors read what their pods would be told; nobody is ever denied.

A controller makes the pods, and shows nobody the warnings or denials that those meet. Registered
with `failurePolicy: Ignore`, so that no workload waits for us. What cannot be read, is too large,
stands in a namespace that is not known yet, or meets a bug of ours is allowed in silence: an answer
that denies would count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.adapters.review_json import is_dense, write_review
from webhook.core.admission.templates import WorkloadAdvice, advise, no_more
from webhook.core.pod.review import uid_in_prefix
from webhook.core.policy.match import NamespaceUnknownError
from webhook.server.connections import SMALL_BODY_BYTES
from webhook.server.http import Answer, rejection
from webhook.server.reviews import PREFIX_BYTES, Reviews, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.core.admission.templates import MoreAdvice
    from webhook.core.policy.values import Policy
    from webhook.server.log import JsonLog
    from webhook.server.metrics import Metrics
    from webhook.server.reviews import KnownFor

WEBHOOK: Final = "advise"
"""In metrics and log lines."""

_SILENCE: Final = WorkloadAdvice()


class TemplateReviews:
    """Answers reviews of workloads under the policy in force; safe from any thread.

    `more` says what else is known of a workload's pods, from memory: it is asked on the way of each
    review and may neither wait nor send a request.
    """

    def __init__(
        self,
        policy: Callable[[], Policy],
        metrics: Metrics,
        log: JsonLog,
        more: MoreAdvice = no_more,
        known_for: KnownFor = unknown,
    ) -> None:
        self._known_for = known_for
        self._policy = policy
        self._metrics = metrics
        self._more = more
        self._reviews = Reviews(metrics, log)

    def answer(self, body: bytes) -> Answer:
        """Answer one review."""
        if len(body) > SMALL_BODY_BYTES and is_dense(body):
            return self._unread(body[:PREFIX_BYTES], "holds too many values")
        review = self._reviews.read(WEBHOOK, body)
        if isinstance(review, Answer):
            return review
        policy, request = self._policy(), review.request
        try:
            advice = advise(request, policy, self._known_for(policy), self._more)
        except NamespaceUnknownError:
            advice = _SILENCE
        except Exception:  # noqa: BLE001 - as in `reviews`
            return self._reviews.fail(review, write_review(request.uid, _SILENCE))
        return self._reviews.write(review, advice)

    def too_large(self, first_bytes: bytes, limit_bytes: int) -> Answer:
        """Answer a body of which only the beginning was read, since it is larger than the limit."""
        return self._unread(first_bytes, f"is larger than {limit_bytes // 2**20} MiB")

    def _unread(self, first_bytes: bytes, what: str) -> Answer:
        """Allow what is not read, by the uid in its first bytes where one stands there."""
        uid = uid_in_prefix(first_bytes)
        if uid is not None:
            return Answer(200, write_review(uid, _SILENCE))
        answer = rejection(413, f"the body {what}")
        self._metrics.count_refused(answer.status)
        return answer
