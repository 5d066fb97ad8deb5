"""Reviews: decoding, decision, encoding, metrics and log lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Final

from webhook.adapters.review_json import (
    Answerable,
    BadReviewError,
    is_dense,
    read_review,
    uid_in_prefix,
    write_failure,
    write_review,
    write_too_dense,
    write_too_large,
)
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Decision, Phase
from webhook.core.admission.workload_review import (
    AdviceSource,
    WorkloadAdvice,
    advise,
    size_warning,
    verify_patch,
)
from webhook.core.nvidia.programs import warn_of_size
from webhook.core.pod.findings import Reason
from webhook.core.pod.patch import Operation, condense
from webhook.core.pod.request import Request
from webhook.core.policy.cluster import UNKNOWN_CLUSTER, Cluster
from webhook.core.policy.match import NamespaceUnknownError
from webhook.core.policy.model import Policy
from webhook.server.connections import SMALL_BODY_BYTES
from webhook.server.handler import Answer, build_rejection
from webhook.server.log import JsonLog, text_for_log
from webhook.server.metrics import Metrics

Warn = Callable[[str, Mapping[str, Any], int], str]
ViewFor = Callable[[Policy], Cluster]
"""Returns the facts about the cluster for the policy in force."""

PHASES: Final = {"/mutate": Phase.MUTATE, "/validate": Phase.VALIDATE}

ADVISE: Final = "advise"
"""Name of workload reviews in metrics and log lines."""

PREFIX_BYTES: Final = 1024
"""Size of a review's prefix, which contains the review's uid."""

PATCH_CHECK_INTERVAL: Final = 256
"""Number of patches under a policy of which one is checked before it is sent."""
MAX_CHECKED_BYTES: Final = 16 * 2**10
"""Maximum size of a review whose patch is checked. A check takes up to five times as long as the
decision, and both together must not block the event loop for long."""

_NO_ADVICE: Final = WorkloadAdvice()
_NAMESPACE_UNKNOWN: Final = build_rejection(
    503, "the namespace's labels are not known yet; retry in a second"
)


def unknown_cluster(_policy: Policy) -> Cluster:
    """Return a view without facts, for a server that does not watch the cluster."""
    return UNKNOWN_CLUSTER


@dataclass(slots=True)
class Review:
    """A decoded review that is not answered yet; immutable by convention."""

    webhook: str
    request: Request
    started_s: float


class Reviews:
    """Decodes reviews, encodes their responses, and counts and logs them.

    A malformed *review* is rejected with HTTP 4xx, which the API server gets. A malformed *object*
    is denied, which the user sees.
    """

    def __init__(self, metrics: Metrics, log: JsonLog) -> None:
        self._metrics = metrics
        self._log = log

    def read(self, webhook: str, body: bytes) -> Review | Answer:
        """Decode a review, or return a rejection if the body is not a review."""
        started_s = perf_counter()
        try:
            return Review(webhook, read_review(body), started_s)
        except BadReviewError as error:
            self._metrics.count_rejected(400)
            self._log.warning("review rejected", webhook=webhook, code=400, why=str(error))
            return build_rejection(400, str(error))

    def write(
        self,
        review: Review,
        decision: Answerable,
        patch: Sequence[Operation] | None = None,
        node: str = "",
    ) -> Answer:
        """Answer a review with a decision; `patch` replaces the decision's patch.

        `node` is logged with a review that concerns a node.
        """
        request = review.request
        patch = decision.patch if patch is None else patch
        answer = Answer(200, write_review(request.uid, decision, patch))
        outcome, reasons = decision.outcome.value, decision.reasons
        duration_s = perf_counter() - review.started_s
        reason = reasons[0] if reasons else ""
        self._metrics.count(review.webhook, request.operation, outcome, reason, duration_s)
        fields = _log_fields(review)
        fields["decision"] = outcome
        fields["reasons"] = reasons
        if node:
            fields["node"] = node
        fields.update(decision.log_fields)
        fields["durationMs"] = round(duration_s * 1000, 3)
        self._log.line("info", "review", fields)
        return answer

    def fail(self, review: Review, body: bytes) -> Answer:
        """Answer a review that caused an exception. Only the log contains the traceback."""
        duration_s = perf_counter() - review.started_s
        self._metrics.count(review.webhook, "other", "failed", "InternalError", duration_s)
        self._log.exception("review failed", **_log_fields(review))
        return Answer(200, body)


class _PatchChecks:
    """Checks a sample of the patches before they are sent.

    Property tests check the patches of generated pods; this class checks those of real pods. The
    sample is the first patch under each policy, and then one in `PATCH_CHECK_INTERVAL`. A check
    takes as long as a decision, so it affects no percentile up to the 99th. After a failure the
    next patch is also checked. Two threads may count one review twice, or not at all.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._policy: str | None = None
        """Digest of the last policy under which a check passed."""
        self._remaining = 0

    def sample(
        self, request: Request, patch: Sequence[Operation], policy: Policy, cluster: Cluster
    ) -> None:
        """Check a patch if it is due; raises PatchError or another error on failure."""
        if policy.digest == self._policy and self._remaining > 0:
            self._remaining -= 1
            return
        self._policy = None
        try:
            verify_patch(request, patch, policy, cluster)
        except Exception:
            self._metrics.count_patch_check(passed=False)
            raise
        self._metrics.count_patch_check(passed=True)
        self._policy, self._remaining = policy.digest, PATCH_CHECK_INTERVAL - 1


class PodReviews:
    """Answers reviews of pods under the policy in force; safe from any thread."""

    def __init__(
        self,
        policy: Callable[[], Policy],
        metrics: Metrics,
        log: JsonLog,
        warn: Warn = lambda _namespace, _metadata, requested_bytes: warn_of_size(requested_bytes),
        view_for: ViewFor = unknown_cluster,
    ) -> None:
        """Store the settings; `warn` returns a warning about a new pod's amount without waiting."""
        self._view_for = view_for
        self._policy = policy
        self._warn = warn
        self._metrics = metrics
        self._log = log
        self._reviews = Reviews(metrics, log)
        self._patch_checks = _PatchChecks(metrics)

    def answer(self, phase: Phase, body: bytes) -> Answer:
        """Answer one review."""
        if len(body) > SMALL_BODY_BYTES and is_dense(body):
            too_dense = build_rejection(
                400, "the body holds too many values for an AdmissionReview"
            )
            return self._answer_unread(phase, body[:PREFIX_BYTES], write_too_dense, too_dense)
        review = self._reviews.read(phase.value, body)
        if isinstance(review, Answer):
            return review

        # Both are read once, so that replacing the policy meanwhile affects no decision.
        policy = self._policy()
        cluster = self._view_for(policy)
        request = review.request
        try:
            decision = self._add_advice(request, decide(request, policy, cluster, phase))
            patch: Sequence[Operation] = decision.patch
            if patch and len(body) <= SMALL_BODY_BYTES:
                patch = condense(request.obj, patch, "spec")
                if len(body) <= MAX_CHECKED_BYTES:
                    self._patch_checks.sample(request, patch, policy, cluster)
            return self._reviews.write(review, decision, patch)
        except NamespaceUnknownError as error:
            self._log.warning("review not answered", **_log_fields(review), why=str(error))
            self._metrics.count_rejected(_NAMESPACE_UNKNOWN.status)
            return _NAMESPACE_UNKNOWN
        except Exception:  # noqa: BLE001 - the API server gets an answer in spite of a bug
            return self._reviews.fail(review, write_failure(request.uid))

    def _add_advice(self, request: Request, decision: Decision) -> Decision:
        """Return the decision with the warning about the pod's amount, if any."""
        requested_bytes = decision.advice_bytes
        metadata = request.obj.get("metadata")
        if requested_bytes is None or not isinstance(metadata, dict):
            return decision
        try:
            sentence = self._warn(request.namespace, metadata, requested_bytes)
        except Exception:  # noqa: BLE001 - a review is answered without advice, too
            self._log.exception("advice failed")
            return decision
        return decision.with_advice(sentence)

    def too_large(self, phase: Phase, first_bytes: bytes, limit_bytes: int) -> Answer:
        """Answer a review whose body exceeds the limit, given its first bytes."""
        rejection = build_rejection(413, f"the body is larger than {limit_bytes // 2**20} MiB")
        write = partial(write_too_large, limit_bytes=limit_bytes)
        return self._answer_unread(phase, first_bytes, write, rejection)

    def _answer_unread(
        self, phase: Phase, first_bytes: bytes, write: Callable[[str], bytes], rejection: Answer
    ) -> Answer:
        """Deny a review that was not decoded; return `rejection` if its uid is not found."""
        uid = uid_in_prefix(first_bytes)
        if uid is None:
            self._metrics.count_rejected(rejection.status)
            return rejection
        reason = Reason.TOO_COMPLEX.value
        self._metrics.count_unread(phase.value, reason)
        fields = {"webhook": phase.value, "uid": uid, "decision": "denied", "reasons": [reason]}
        self._log.line("info", "review", fields)
        return Answer(200, write(uid))


class TemplateReviews:
    """Answers reviews of workloads with the warnings and denials that their pods would get.

    Controllers do not surface warnings and denials of the pods that they create, so the workload's
    author gets them. No workload is ever denied: the webhook has `failurePolicy: Ignore`, but a
    denial would still reject it. A workload is therefore allowed without a warning if too large,
    cannot be decoded, is in an unknown namespace, or causes an exception.
    """

    def __init__(
        self,
        policy: Callable[[], Policy],
        metrics: Metrics,
        log: JsonLog,
        more: AdviceSource = size_warning,
        view_for: ViewFor = unknown_cluster,
    ) -> None:
        """Store the settings; `more` returns more advice about a workload, without waiting."""
        self._view_for = view_for
        self._policy = policy
        self._metrics = metrics
        self._more = more
        self._reviews = Reviews(metrics, log)

    def answer(self, body: bytes) -> Answer:
        """Answer one review."""
        if len(body) > SMALL_BODY_BYTES and is_dense(body):
            return self._answer_unread(body[:PREFIX_BYTES], "holds too many values")
        review = self._reviews.read(ADVISE, body)
        if isinstance(review, Answer):
            return review
        policy, request = self._policy(), review.request
        try:
            advice = advise(request, policy, self._view_for(policy), self._more)
        except NamespaceUnknownError:
            advice = _NO_ADVICE
        except Exception:  # noqa: BLE001 - a workload is allowed in spite of a bug
            return self._reviews.fail(review, write_review(request.uid, _NO_ADVICE))
        return self._reviews.write(review, advice)

    def too_large(self, first_bytes: bytes, limit_bytes: int) -> Answer:
        """Answer a review whose body exceeds the limit, given its first bytes."""
        return self._answer_unread(first_bytes, f"is larger than {limit_bytes // 2**20} MiB")

    def _answer_unread(self, first_bytes: bytes, problem: str) -> Answer:
        """Allow a review that was not decoded; reject it if its uid is not found."""
        uid = uid_in_prefix(first_bytes)
        if uid is not None:
            return Answer(200, write_review(uid, _NO_ADVICE))
        answer = build_rejection(413, f"the body {problem}")
        self._metrics.count_rejected(answer.status)
        return answer


def _log_fields(review: Review) -> dict[str, Any]:
    request = review.request
    fields: dict[str, Any] = {
        "webhook": review.webhook,
        "uid": text_for_log(request.uid),
        "operation": text_for_log(request.operation),
        "kind": text_for_log(request.kind),
        "namespace": text_for_log(request.namespace),
        "user": text_for_log(request.user),
    }
    if request.subresource:
        fields["subresource"] = text_for_log(request.subresource)
    if request.dry_run:
        fields["dryRun"] = True
    metadata = request.obj.get("metadata")
    if isinstance(metadata, dict):
        name = request.name or metadata.get("name") or metadata.get("generateName")
        fields["name"] = text_for_log(name)
        fields["owner"] = _first_owner(metadata)
    else:
        fields["name"] = text_for_log(request.name)
    return fields


def _first_owner(metadata: dict[str, Any]) -> str | None:
    owners = metadata.get("ownerReferences")
    if not isinstance(owners, list) or not owners or not isinstance(owners[0], dict):
        return None
    return f"{text_for_log(owners[0].get('kind'))}/{text_for_log(owners[0].get('name'))}"
