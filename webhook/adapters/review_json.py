"""AdmissionReviews as bytes, through orjson; the patch travels as base64 of its JSON."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING

import orjson

from webhook.core.pod.review import (
    BadReviewError,
    decode_review,
    encode_failure,
    encode_review,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from webhook.core.pod.patch import Operation
    from webhook.core.pod.request import Request
    from webhook.core.pod.review import Answerable


def read_review(body: bytes) -> Request:
    """Read a review from its bytes; raises BadReviewError with one sentence."""
    if not body:
        raise BadReviewError("the body is empty; send an AdmissionReview as JSON")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadReviewError(f"the body is not JSON: {error}") from None
    return decode_review(document)


def write_review(uid: str, answer: Answerable) -> bytes:
    """Write the answer to a review."""
    encoded = b64encode(patch_bytes(answer.patch)).decode("ascii") if answer.patch else ""
    return orjson.dumps(encode_review(uid, answer, encoded))


def write_failure(uid: str) -> bytes:
    """Write the answer to a review that was not decided because of a bug of ours."""
    return orjson.dumps(encode_failure(uid))


def patch_bytes(patch: Iterable[Operation]) -> bytes:
    """Write a patch as the JSON text that the API server applies."""
    return orjson.dumps(list(patch))
