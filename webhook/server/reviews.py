"""One review from bytes to bytes: decoded, decided, encoded, counted, logged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    MoreAdvice,
    WorkloadAdvice,
    advise,
    prove,
    size_alone,
)
from webhook.core.nvidia.programs import warn_of_size
from webhook.core.pod.findings import Reason
from webhook.core.pod.patch import Operation, condense
from webhook.core.pod.request import Request
from webhook.core.policy.cluster import UNKNOWN_CLUSTER, Cluster
from webhook.core.policy.match import NamespaceUnknownError
from webhook.core.policy.model import Policy
from webhook.server.connections import SMALL_BODY_BYTES
from webhook.server.http import Answer, rejection
from webhook.server.log import JsonLog, short
from webhook.server.metrics import Metrics

Warn = Callable[[str, Mapping[str, Any], int], str]
KnownFor = Callable[[Policy], Cluster]
"""From the policy in force to what is known of the cluster."""

PHASES: Final = {"/mutate": Phase.MUTATE, "/validate": Phase.VALIDATE}

ADVISE: Final = "advise"
"""What reviews of workloads are called in metrics and log lines."""

PREFIX_BYTES: Final = 1024
"""Where a review begins, its uid stands in these."""

PROVEN_EVERY: Final = 256
"""Of so many patches under one policy one is proven as it is sent: less than one in a hundred."""
MOST_PROVEN_BYTES: Final = 16 * 2**10
"""Size of the largest review whose patch may be proven. A proof takes two to five times as long as
the decision, and both together must not keep the event loop for long."""


_SILENCE: Final = WorkloadAdvice()
_UNKNOWN: Final = rejection(503, "the namespace's labels are not known yet; retry in a second")


def unknown(_policy: Policy) -> Cluster:
    """Know nothing, as a server does that follows no cluster."""
    return UNKNOWN_CLUSTER


@dataclass(slots=True)
class Review:
    """A review that was read and waits for its answer; immutable by convention."""

    webhook: str
    request: Request
    started_s: float


class Reviews:
    """Reads reviews and writes their answers, each counted and logged.

    A bad *review* is an HTTP 4xx to the API server; a bad *object* is a denial inside an answer,
    shown to the user.
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
            self._metrics.count_rejected(400)
            self._log.warning("review rejected", webhook=webhook, code=400, why=str(error))
            return rejection(400, str(error))

    def write(
        self,
        review: Review,
        made: Answerable,
        patch: Sequence[Operation] | None = None,
        node: str = "",
    ) -> Answer:
        """Answer a review with what was decided; `patch` replaces the one that was made.

        `node` is logged, of a review about a node.
        """
        request = review.request
        patch = made.patch if patch is None else patch
        answer = Answer(200, write_review(request.uid, made, patch))
        decision, reasons = made.outcome.value, made.reasons
        duration_s = perf_counter() - review.started_s
        reason = reasons[0] if reasons else ""
        self._metrics.count(review.webhook, request.operation, decision, reason, duration_s)
        said = _about(review)
        said["decision"] = decision
        said["reasons"] = reasons
        if node:
            said["node"] = node
        said.update(made.log_fields)
        said["durationMs"] = round(duration_s * 1000, 3)
        self._log.line("info", "review", said)
        return answer

    def fail(self, review: Review, body: bytes) -> Answer:
        """Answer a review that meets a bug of ours, whose trace is in the log only."""
        duration_s = perf_counter() - review.started_s
        self._metrics.count(review.webhook, "other", "failed", "InternalError", duration_s)
        self._log.exception("review failed", **_about(review))
        return Answer(200, body)


class _SampledProofs:
    """Proves some patches before they are sent: laws prove them all, but of the pods that we drew.

    The first under each policy, and then one in `PROVEN_EVERY`: a proof takes as long as a
    decision, and so it takes part in no percentile up to the 99th. After one that failed nothing
    counts as proven, and the next patch is. Two threads may count one review twice, or not at all.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._policy: str | None = None
        """The digest of the policy under which a patch held last."""
        self._left = 0

    def sample(
        self, request: Request, patch: Sequence[Operation], policy: Policy, cluster: Cluster
    ) -> None:
        """Prove a patch, if it is its turn; raises PatchError, or another bug, where it fails."""
        if policy.digest == self._policy and self._left > 0:
            self._left -= 1
            return
        self._policy = None
        try:
            prove(request, patch, policy, cluster)
        except Exception:
            self._metrics.count_patch_check(passed=False)
            raise
        self._metrics.count_patch_check(passed=True)
        self._policy, self._left = policy.digest, PROVEN_EVERY - 1


class PodReviews:
    """Answers reviews of pods under the policy in force; safe from any thread."""

    def __init__(
        self,
        policy: Callable[[], Policy],
        metrics: Metrics,
        log: JsonLog,
        warn: Warn = lambda _namespace, _metadata, asked_bytes: warn_of_size(asked_bytes),
        known_for: KnownFor = unknown,
    ) -> None:
        """Let `warn` say what a new pod asks too much or too little of; it never waits."""
        self._known_for = known_for
        self._policy = policy
        self._warn = warn
        self._metrics = metrics
        self._log = log
        self._reviews = Reviews(metrics, log)
        self._proofs = _SampledProofs(metrics)

    def answer(self, phase: Phase, body: bytes) -> Answer:
        """Answer one review."""
        if len(body) > SMALL_BODY_BYTES and is_dense(body):
            too_dense = rejection(400, "the body holds too many values for an AdmissionReview")
            return self._unread(phase, body[:PREFIX_BYTES], write_too_dense, too_dense)
        review = self._reviews.read(phase.value, body)
        if isinstance(review, Answer):
            return review

        # Each read once: a policy that is replaced meanwhile cannot split a decision.
        policy = self._policy()
        cluster = self._known_for(policy)
        request = review.request
        try:
            decision = self._advised(request, decide(request, policy, cluster, phase))
            patch: Sequence[Operation] = decision.patch
            if patch and len(body) <= SMALL_BODY_BYTES:
                patch = condense(request.obj, patch, "spec")
                if len(body) <= MOST_PROVEN_BYTES:
                    self._proofs.sample(request, patch, policy, cluster)
            return self._reviews.write(review, decision, patch)
        except NamespaceUnknownError as error:
            self._log.warning("review not answered", **_about(review), why=str(error))
            self._metrics.count_rejected(_UNKNOWN.status)
            return _UNKNOWN
        except Exception:  # noqa: BLE001 - whatever the bug, the API server gets an answer
            return self._reviews.fail(review, write_failure(request.uid))

    def _advised(self, request: Request, decision: Decision) -> Decision:
        """Add what histories say."""
        asked_bytes = decision.advice_bytes
        metadata = request.obj.get("metadata")
        if asked_bytes is None or not isinstance(metadata, dict):
            return decision
        try:
            sentence = self._warn(request.namespace, metadata, asked_bytes)
        except Exception:  # noqa: BLE001 - advice is no reason to fail
            self._log.exception("advice failed")
            return decision
        return decision.with_advice(sentence)

    def too_large(self, phase: Phase, first_bytes: bytes, limit_bytes: int) -> Answer:
        """Answer a body of which only the beginning was read, since it is larger than the limit."""
        bare = rejection(413, f"the body is larger than {limit_bytes // 2**20} MiB")
        return self._unread(phase, first_bytes, lambda uid: write_too_large(uid, limit_bytes), bare)

    def _unread(
        self, phase: Phase, first_bytes: bytes, write: Callable[[str], bytes], bare: Answer
    ) -> Answer:
        """Deny a review by the uid in its first bytes; return the bare answer where none stands."""
        uid = uid_in_prefix(first_bytes)
        if uid is None:
            self._metrics.count_rejected(bare.status)
            return bare
        reason = Reason.TOO_COMPLEX.value
        self._metrics.count_unread(phase.value, reason)
        about = {"webhook": phase.value, "uid": uid, "decision": "denied", "reasons": [reason]}
        self._log.line("info", "review", about)
        return Answer(200, write(uid))


class TemplateReviews:
    """Answers reviews of workloads: their authors read what their pods would be told.

    A controller makes the pods, and shows nobody the warnings or denials that those meet. Nobody is
    ever denied: it is registered with `failurePolicy: Ignore`, so that no workload waits for us.
    What cannot be read, is too large, stands in a namespace that is not known yet, or meets a bug
    of ours is allowed in silence: an answer that denies would count.
    """

    def __init__(
        self,
        policy: Callable[[], Policy],
        metrics: Metrics,
        log: JsonLog,
        more: MoreAdvice = size_alone,
        known_for: KnownFor = unknown,
    ) -> None:
        """Let `more` say what else is known of a workload's pods; it never waits."""
        self._known_for = known_for
        self._policy = policy
        self._metrics = metrics
        self._more = more
        self._reviews = Reviews(metrics, log)

    def answer(self, body: bytes) -> Answer:
        """Answer one review."""
        if len(body) > SMALL_BODY_BYTES and is_dense(body):
            return self._unread(body[:PREFIX_BYTES], "holds too many values")
        review = self._reviews.read(ADVISE, body)
        if isinstance(review, Answer):
            return review
        policy, request = self._policy(), review.request
        try:
            advice = advise(request, policy, self._known_for(policy), self._more)
        except NamespaceUnknownError:
            advice = _SILENCE
        except Exception:  # noqa: BLE001 - as above
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
        self._metrics.count_rejected(answer.status)
        return answer


def _about(review: Review) -> dict[str, Any]:
    request = review.request
    about: dict[str, Any] = {
        "webhook": review.webhook,
        "uid": short(request.uid),
        "operation": short(request.operation),
        "kind": short(request.kind),
        "namespace": short(request.namespace),
        "user": short(request.user),
    }
    if request.subresource:
        about["subresource"] = short(request.subresource)
    if request.dry_run:
        about["dryRun"] = True
    metadata = request.obj.get("metadata")
    if isinstance(metadata, dict):
        name = request.name or metadata.get("name") or metadata.get("generateName")
        about["name"] = short(name)
        about["owner"] = _owner(metadata)
    else:
        about["name"] = short(request.name)
    return about


def _owner(metadata: dict[str, Any]) -> str | None:
    owners = metadata.get("ownerReferences")
    if not isinstance(owners, list) or not owners or not isinstance(owners[0], dict):
        return None
    return f"{short(owners[0].get('kind'))}/{short(owners[0].get('name'))}"
