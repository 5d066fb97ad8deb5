"""Decoding AdmissionReview requests (v1), and encoding their responses.

Sources: k8s.io/api/admission/v1/types.go; kube-apiserver's handling of a response in
k8s.io/apiserver/pkg/admission/plugin/webhook/request/admissionreview.go.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, Protocol

import orjson

from webhook.adapters.bounds import MOST_REVIEW_VALUES
from webhook.core.bounds import MAX_SHOWN_FINDINGS
from webhook.core.pod.fields import Json
from webhook.core.pod.findings import Finding, Reason
from webhook.core.pod.patch import Operation
from webhook.core.pod.request import BAD_REQUEST, FORBIDDEN, UNAVAILABLE, Request

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"

_FAILED: Final = 500
_REASONS: Final = {
    BAD_REQUEST: "BadRequest",
    FORBIDDEN: "Forbidden",
    UNAVAILABLE: "ServiceUnavailable",
    _FAILED: "InternalError",
}
_RETRY_AFTER_S: Final = 1

# The API server truncates each warning to 256 characters if all warnings exceed 4096.
_WARNING_LENGTH: Final = 256
_WARNINGS_LENGTH: Final = 4096

# k8s.io/api encodes a review with the fields in the order of the Go types, so the uid is the first
# field of the request. In another order, a uid in the first bytes might belong to another object.
_PREFIX: Final = re.compile(
    rb"""\s*\{\s*(?:"kind"\s*:\s*"AdmissionReview"\s*,\s*"apiVersion"\s*:\s*"admission\.k8s\.io/v1"
    |"apiVersion"\s*:\s*"admission\.k8s\.io/v1"\s*,\s*"kind"\s*:\s*"AdmissionReview")\s*,
    \s*"request"\s*:\s*\{\s*"uid"\s*:\s*"(?P<uid>[!\#-\[\]-~]{1,128})\"""",
    re.VERBOSE,
)


class BadReviewError(ValueError):
    """A body is not a v1 AdmissionReview; the message is one sentence for the caller."""


class Answerable(Protocol):
    """Result of a review: the decision about a pod, or the verdict on a binding."""

    @property
    def allowed(self) -> bool:
        """True if the request is allowed."""

    @property
    def outcome(self) -> StrEnum:
        """Outcome in one word."""

    @property
    def reasons(self) -> Sequence[str]:
        """Reasons, from a closed set of words."""

    @property
    def code(self) -> int:
        """HTTP status code of a denial."""

    @property
    def message(self) -> str:
        """Message to the user if the request is denied."""

    @property
    def findings(self) -> Sequence[Finding]:
        """Individual findings, in addition to the message."""

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings to the user if the request is allowed."""

    @property
    def patch(self) -> Sequence[Operation]:
        """JSON patch of the object."""

    @property
    def audit_annotations(self) -> Mapping[str, str]:
        """Audit annotations in addition to outcome and reasons."""

    @property
    def log_fields(self) -> Mapping[str, Any]:
        """Additional values for the webhook's log; no secrets."""


def is_dense(body: bytes) -> bool:
    """Return True if a body may have more than `MOST_REVIEW_VALUES` values, without decoding it.

    Each value except the first follows one of three characters. These characters also count inside
    strings, which is harmless since the limit is a quarter of a million. 8 MiB take 5 ms.
    """
    return len(body) - len(body.translate(None, b"{[,")) > MOST_REVIEW_VALUES


def read_review(body: bytes) -> Request:
    """Parse a review; raises BadReviewError with a message of one sentence."""
    if not body:
        raise BadReviewError("the body is empty; send an AdmissionReview as JSON")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadReviewError(f"the body is not JSON: {error}") from None
    return decode_review(document)


def write_review(uid: str, answer: Answerable, patch: Sequence[Operation] | None = None) -> bytes:
    """Return the response to a review as bytes, with its patch or an equivalent `patch`."""
    patch = answer.patch if patch is None else patch
    encoded = b64encode(patch_bytes(patch)).decode("ascii") if patch else ""
    return orjson.dumps(encode_review(uid, answer, encoded))


def write_failure(uid: str) -> bytes:
    """Return the response to a review that failed because of a bug in the webhook, as bytes."""
    return orjson.dumps(encode_failure(uid))


def write_too_large(uid: str, limit_bytes: int) -> bytes:
    """Return the response to a review larger than `limit_bytes`, which was not read, as bytes."""
    return orjson.dumps(encode_too_large(uid, limit_bytes))


def write_too_dense(uid: str) -> bytes:
    """Return the response to a review that `is_dense` and was not decoded, as bytes."""
    return orjson.dumps(encode_too_dense(uid, MOST_REVIEW_VALUES))


def patch_bytes(patch: Iterable[Operation]) -> bytes:
    """Return a JSON patch as bytes."""
    return orjson.dumps(list(patch))


def decode_review(document: object) -> Request:
    """Convert a decoded AdmissionReview; raises BadReviewError with a message of one sentence."""
    review = _object(document, "the body")
    if review.get("apiVersion") != API_VERSION or review.get("kind") != KIND:
        raise BadReviewError(f"the body must be an {KIND} of {API_VERSION}")
    request = _object(review.get("request"), "request")
    uid = request.get("uid")
    if not uid or type(uid) is not str:
        raise BadReviewError("request.uid must be a string that is not empty")
    # An API server always sends the operation. A handwritten review without it counts as a
    # creation, which has the strictest checks.
    operation = _text(request, "operation", "request") or "CREATE"
    kind = _object(request.get("kind") or _read_kind(request.get("object")), "request.kind")
    group, name = _text(kind, "group", "request.kind"), _text(kind, "kind", "request.kind")
    user = _object(request.get("userInfo") or {}, "request.userInfo")
    groups = user.get("groups") or []
    if type(groups) is not list:
        raise BadReviewError("request.userInfo.groups must be a list")
    needs_object = operation in {"CREATE", "UPDATE"}
    obj, old = request.get("object"), request.get("oldObject")
    return Request(
        uid=uid,
        kind=f"{group}/{name}" if group else name,
        operation=operation,
        subresource=_text(request, "subResource", "request"),
        namespace=_text(request, "namespace", "request"),
        name=_text(request, "name", "request"),
        dry_run=request.get("dryRun") is True,
        obj=_object(obj, "request.object") if needs_object else {},
        old=_object(old, "request.oldObject") if operation == "UPDATE" else {},
        user=_text(user, "username", "request.userInfo"),
        groups=tuple(filter(lambda item: type(item) is str, groups)),
    )


def encode_review(uid: str, answer: Answerable, encoded_patch: str) -> Json:
    """Return the response to a review; `encoded_patch` is the patch in base64, empty for none."""
    response: Json = {"uid": uid, "allowed": answer.allowed}
    if not answer.allowed:
        response["status"] = _status(answer.code, answer.message, answer.findings)
    if encoded_patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = encoded_patch
    if answer.warnings:
        response["warnings"] = list(_warnings(answer.warnings))
    response["auditAnnotations"] = {
        "decision": answer.outcome.value,
        "reasons": ",".join(answer.reasons),
        **answer.audit_annotations,
    }
    return _review(response)


def encode_failure(uid: str) -> Json:
    """Return the response to a review that failed because of a bug in the webhook."""
    message = f"vramwarden failed on this review; its log has the cause under uid {uid}"
    return _review({"uid": uid, "allowed": False, "status": _status(_FAILED, message)})


def uid_in_prefix(first_bytes: bytes) -> str | None:
    """Return the uid of a review, given its first bytes; None if it cannot be found reliably.

    The response to a body that is too large to read needs the request's uid. Otherwise the API
    server reports a failed call instead of the problem of the pod. One kilobyte suffices.
    """
    match = _PREFIX.match(first_bytes)
    return match["uid"].decode("ascii") if match else None


def encode_too_large(uid: str, limit_bytes: int) -> Json:
    """Return the response to a review larger than `limit_bytes`, which was not read.

    The response is a denial, since the rule that applies is unknown, and the pod may request a GPU.
    """
    return _too_complex(uid, f"is larger than {limit_bytes // 2**20} MiB")


def encode_too_dense(uid: str, limit: int) -> Json:
    """Return the response to a review with more than `limit` values, which was not decoded."""
    return _too_complex(uid, f"holds more than {limit:,} values")


def _too_complex(uid: str, what: str) -> Json:
    detail = f"make the pod smaller; a review of it {what} and cannot be judged"
    finding = Finding(Reason.TOO_COMPLEX, "spec", detail)
    audit = {"decision": "denied", "reasons": Reason.TOO_COMPLEX.value}
    status = _status(FORBIDDEN, str(finding), [finding])
    return _review({"uid": uid, "allowed": False, "status": status, "auditAnnotations": audit})


def _review(response: Json) -> Json:
    return {"apiVersion": API_VERSION, "kind": KIND, "response": response}


def _status(code: int, message: str, findings: Sequence[Finding] = ()) -> Json:
    status: Json = {
        "status": "Failure",
        "code": code,
        "reason": _REASONS[code],
        "message": message,
    }
    if findings:
        causes = [
            {"reason": finding.reason.value, "field": finding.path, "message": finding.detail}
            for finding in findings[:MAX_SHOWN_FINDINGS]
        ]
        status["details"] = {"causes": causes}
    elif code == UNAVAILABLE:
        # The API server copies this to the Retry-After header (responsewriters.ErrorNegotiated).
        status["details"] = {"retryAfterSeconds": _RETRY_AFTER_S}
    return status


def _warnings(sentences: Iterable[str]) -> Iterator[str]:
    left = _WARNINGS_LENGTH
    for sentence in sentences:
        text = " ".join(sentence.split())
        if len(text) > _WARNING_LENGTH:
            text = text[: _WARNING_LENGTH - 1] + "…"
        left -= len(text)
        if left < 0:
            return
        yield text


def _read_kind(obj: Any) -> Json:
    kind = obj.get("kind") if type(obj) is dict else None
    return {"group": "", "kind": kind if type(kind) is str else ""}


def _object(value: Any, path: str) -> Json:
    if type(value) is not dict:
        raise BadReviewError(f"{path} must be a JSON object")
    return value


def _text(holder: Json, key: str, path: str) -> str:
    value = holder.get(key)
    if value is None:
        return ""
    if type(value) is not str:
        raise BadReviewError(f"{path}.{key} must be a string")
    return value
