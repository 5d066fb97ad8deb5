import orjson
import pytest

from tests.support.pods import a_pod, a_review
from webhook.adapters.review_json import (
    BadReviewError,
    decode_review,
    encode_too_large,
    uid_in_prefix,
)

# The first bytes of a review from kube-apiserver 1.36: Go writes fields in the order of its types.
SENT = (
    b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1",'
    b'"request":{"uid":"705ab4f5-6393-11e8-b7cc-42010a800002","kind":{"group":"","version":"v1",'
)
UID = "705ab4f5-6393-11e8-b7cc-42010a800002"


def without(review, *keys):
    for key in keys:
        del review["request"][key]
    return review


def test_a_review_written_by_hand_means_the_creation_of_what_it_holds():
    review = without(a_review(a_pod("8Gi")), "kind", "operation", "userInfo", "namespace", "name")
    request = decode_review(review)
    assert (request.kind, request.operation) == ("Pod", "CREATE")


@pytest.mark.parametrize("missing", ["uid", "object"])
def test_a_review_without_uid_or_object_is_rejected(missing):
    with pytest.raises(BadReviewError, match=missing):
        decode_review(without(a_review(a_pod()), missing))


@pytest.mark.parametrize("operation", ["DELETE", "CONNECT"])
def test_operations_without_an_object_need_none(operation):
    review = a_review(None, operation=operation)
    assert decode_review(review).operation == operation


def test_the_uid_is_found_in_what_an_api_server_sends_and_whatever_blanks_stand_between():
    assert uid_in_prefix(SENT) == uid_in_prefix(SENT + b"x" * 2**20) == UID
    spread = b' {\n "apiVersion": "admission.k8s.io/v1", "kind" : "AdmissionReview",\n'
    assert uid_in_prefix(spread + b'  "request": {\n  "uid": "u-1"') == "u-1"


@pytest.mark.parametrize(
    "prefix",
    [
        pytest.param(b"", id="empty"),
        pytest.param(SENT[:100], id="cut within the uid"),
        pytest.param(orjson.dumps(a_review(a_pod(), uid="")), id="an empty uid"),
        pytest.param(SENT.replace(b'"uid"', b'"object":{"metadata":{"uid"'), id="a pod's uid"),
        pytest.param(SENT.replace(b"AdmissionReview", b"Pod"), id="no review"),
        pytest.param(SENT.replace(b"/v1", b"/v1beta1"), id="another version"),
        pytest.param(SENT.replace(b"705ab4f5-", b"a" * 129), id="a uid of more than 128 letters"),
        pytest.param(SENT.replace(b"705ab4f5", rb"\u0061"), id="an escape in the uid"),
        pytest.param(SENT.replace(b"705ab4f5", b"\xff\x00"), id="no text in the uid"),
    ],
)
def test_a_prefix_without_a_sure_uid_has_none(prefix):
    assert uid_in_prefix(prefix) is None


def test_a_body_that_is_too_large_is_denied_in_the_words_of_a_finding():
    detail = "make the pod smaller; a review of it is larger than 8 MiB and cannot be judged"
    answer = encode_too_large(UID, 8 * 2**20)
    assert answer["response"] == {
        "uid": UID,
        "allowed": False,
        "status": {
            "status": "Failure",
            "code": 403,
            "reason": "Forbidden",
            "message": f"TooComplex: spec: {detail}",
            "details": {"causes": [{"reason": "TooComplex", "field": "spec", "message": detail}]},
        },
        "auditAnnotations": {"decision": "denied", "reasons": "TooComplex"},
    }
