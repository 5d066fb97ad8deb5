"""One review from bytes to bytes: decoded, decided, encoded, counted, logged."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from webhook.adapters.review_json import read_review, write_failure, write_review
from webhook.core.admission.decide import Phase, decide
from webhook.core.admission.review import BadReviewError

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.core.admission.decide import Decision
    from webhook.core.pod.request import Request
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


def refusal(status: int, sentence: str) -> Answer:
    """Build an answer to what is not a review: one sentence for whoever sent it."""
    return Answer(status, f"{sentence}\n".encode(), b"text/plain; charset=utf-8")


class Reviews:
    """Answers reviews under the policy in force.

    Two kinds of failure are kept apart: a bad *review* is an HTTP 4xx to the API server; a bad
    *pod* is a denial inside an answer, shown to the user. A bug of ours is code 500 inside an
    answer that bears the review's uid, with the trace in the log only.
    """

    def __init__(self, policy: Callable[[], Policy], metrics: Metrics, log: JsonLog) -> None:
        self._policy = policy
        self._metrics = metrics
        self._log = log

    def answer(self, phase: Phase, body: bytes) -> Answer:
        """Answer one review."""
        started = perf_counter()
        try:
            request = read_review(body)
        except BadReviewError as error:
            self._metrics.count_refused(400)
            self._log.warning("review refused", webhook=phase.value, code=400, why=str(error))
            return refusal(400, str(error))
        try:
            # Read once: a policy that is replaced meanwhile cannot split a decision.
            decision = decide(request, self._policy(), phase)
            answer = Answer(200, write_review(request.uid, decision))
        except Exception:  # noqa: BLE001 - whatever the bug, the API server gets an answer
            self._metrics.count_failure(phase.value, perf_counter() - started)
            self._log.exception("review failed", **_about(phase, request))
            return Answer(200, write_failure(request.uid))
        duration_s = perf_counter() - started
        self._metrics.count(phase, request, decision, duration_s)
        self._log.info("review", **_about(phase, request), **_outcome(decision, duration_s))
        return answer


def _about(phase: Phase, request: Request) -> dict[str, Any]:
    about: dict[str, Any] = {
        "webhook": phase.value,
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


def _outcome(decision: Decision, duration_s: float) -> dict[str, Any]:
    outcome: dict[str, Any] = {
        "decision": decision.outcome.value,
        "reasons": decision.reasons,
        "rule": decision.rule,
        "policy": decision.policy,
        "patchOps": len(decision.patch),
        "durationMs": round(duration_s * 1000, 3),
    }
    if decision.malformed:
        outcome["why"] = decision.malformed
    if decision.notes:
        outcome["notes"] = decision.notes
    return outcome
