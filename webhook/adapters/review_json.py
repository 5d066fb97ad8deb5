"""AdmissionReviews as bytes, through orjson; the patch travels as base64 of its JSON."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING

import orjson

from webhook.core.admission.review import (
    API_VERSION,
    KIND,
    BadReviewError,
    decode_review,
    encode_failure,
    encode_review,
)
from webhook.core.placement.binding_review import encode_verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from webhook.core.admission.decide import Decision
    from webhook.core.placement.binding_review import Verdict
    from webhook.core.pod.patch import Operation
    from webhook.core.pod.request import Request


def read_review(body: bytes) -> Request:
    """Read a review from its bytes; raises BadReviewError with one sentence."""
    if not body:
        raise BadReviewError("the body is empty; send an AdmissionReview as JSON")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadReviewError(f"the body is not JSON: {error}") from None
    return decode_review(document)


def write_review(uid: str, decision: Decision) -> bytes:
    """Write the answer to a review."""
    return orjson.dumps(encode_review(uid, decision, _encoded(decision.patch)))


def write_binding_review(uid: str, verdict: Verdict, patch: Sequence[Operation]) -> bytes:
    """Write the answer to the review of a Binding."""
    response = encode_verdict(uid, verdict, _encoded(patch))
    return orjson.dumps({"apiVersion": API_VERSION, "kind": KIND, "response": response})


def write_failure(uid: str) -> bytes:
    """Write the answer to a review that was not decided because of a bug of ours."""
    return orjson.dumps(encode_failure(uid))


def patch_bytes(patch: Iterable[Operation]) -> bytes:
    """Write a patch as the JSON text that the API server applies."""
    return orjson.dumps(list(patch))


def _encoded(patch: Sequence[Operation]) -> str:
    return b64encode(patch_bytes(patch)).decode("ascii") if patch else ""
