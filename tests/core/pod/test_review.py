import pytest

from tests.support.pods import a_pod, a_review
from webhook.core.pod.review import BadReviewError, decode_review


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
