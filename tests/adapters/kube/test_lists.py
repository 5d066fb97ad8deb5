"""Lists are read in pages, and only the projected part of each object is kept."""

from __future__ import annotations

import gc
import json
import weakref
from functools import partial

import pytest

from webhook.adapters.kube import bounded_json
from webhook.adapters.kube.client import Kube
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.follow import Collection, Failed, follow

THINGS = "/api/v1/things"
MANY = 1201
EXPIRED = 410, {"kind": "Status", "code": 410, "message": "the token is too old"}


def name_of(thing):
    return thing["metadata"]["name"]


def page(first, last, token="", version="77"):
    """Return a page with the objects of these numbers."""
    items = [
        {"metadata": {"name": f"o{number}"}, "spec": "x" * 50} for number in range(first, last)
    ]
    metadata = {"resourceVersion": version} | ({"continue": token} if token else {})
    return 200, {"kind": "List", "metadata": metadata, "items": items}


def pages(version="77"):
    first = page(0, 500, "to/ken=1", version), page(500, 1000, "token-2", version)
    return [*first, page(1000, MANY, "", version)]


def queries(server):
    return [request.query for request in server.asked]


def test_many_objects_are_read_in_pages_from_the_token_of_the_one_before(kube, api_server):
    api_server.answers = pages()
    names, version = kube.list_versioned(THINGS, name_of, labelSelector="ours=true")
    assert names == [f"o{number}" for number in range(MANY)]
    assert version == "77"
    every = {"labelSelector": "ours=true"}
    assert queries(api_server) == [
        every | {"limit": "50"},
        every | {"limit": "100", "continue": "to/ken=1"},
        every | {"limit": "200", "continue": "token-2"},
    ]


def test_a_page_is_forgotten_before_the_next_one_is_asked_for(kube, api_server, monkeypatch):
    class WeakDict(dict):
        """A JSON object that supports weak references."""

        __hash__ = object.__hash__

    there, left = weakref.WeakSet(), []

    def an_object(pairs):
        made = WeakDict(pairs)
        there.add(made)
        return made

    def counting(answer):
        def count(_request):
            gc.collect()
            left.append(len(there))
            return answer

        return count

    decode = json.JSONDecoder(object_pairs_hook=an_object).raw_decode
    monkeypatch.setattr(bounded_json, "_decode", decode)
    api_server.fails("GET", *map(counting, pages()))
    assert len(kube.list_all(THINGS, name_of)) == MANY
    assert left == [0, 0, 0]


@pytest.mark.parametrize("read", [0, 1])
def test_where_a_token_expired_the_list_starts_again_and_nothing_is_listed_twice(
    read, kube, api_server
):
    api_server.answers = [*pages("5")[: read + 1], EXPIRED, *pages("9")]
    names, version = kube.list_versioned(THINGS, name_of)
    assert names == [f"o{number}" for number in range(MANY)]
    assert version == "9"
    assert "continue" not in queries(api_server)[read + 2]


def test_tokens_that_expire_again_and_again_are_a_failure(kube, api_server):
    api_server.answers = [page(0, 500, "a"), EXPIRED, page(0, 500, "b"), EXPIRED]
    with pytest.raises(KubeError, match="the token is too old"):
        kube.list_all(THINGS, name_of)
    assert len(api_server.asked) == 4


def test_a_list_that_cannot_be_read_to_its_end_is_reported(kube, api_server):
    class Enough(BaseException):
        pass

    def report(received):
        assert isinstance(received, Failed)
        assert "the token is too old" in str(received.error)
        raise Enough

    api_server.answers = [page(0, 500, "a"), EXPIRED, page(0, 500, "b"), EXPIRED]
    with pytest.raises(Enough):
        follow(Collection(kube=kube, path=THINGS, project=name_of), report, sleep=pytest.fail)


def test_a_list_with_nothing_in_it_has_a_version(kube, api_server):
    api_server.answers = [(200, {"metadata": {"resourceVersion": "3"}, "items": None})]
    assert kube.list_versioned(THINGS, name_of) == ([], "3")


def unchanged(found):
    return found


@pytest.mark.parametrize("find", [Kube.find, partial(Kube.find_parsed, project=unchanged)])
def test_an_object_is_found_or_none(kube, api_server, find):
    api_server.answers = [(200, {"a": 1}), (404, {}), (403, {"message": "no"})]
    assert find(kube, THINGS) == {"a": 1}
    assert find(kube, THINGS) is None
    with pytest.raises(KubeError, match="our role"):
        find(kube, THINGS)


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ('pods "x" is forbidden: User "us" cannot patch resource "pods/status"', True),
        ("no", True),
        ("pods \"x\" is forbidden: ValidatingAdmissionPolicy 'fence' denied request: no", False),
        ('admission webhook "theirs.example" denied the request: no', False),
    ],
)
def test_a_denial_by_admission_is_not_taken_for_a_missing_right(kube, api_server, said, hint):
    api_server.answers = [(403, {"message": said})]
    with pytest.raises(KubeError) as caught:
        kube.find(THINGS)
    assert said in str(caught.value)
    assert str(caught.value).endswith(" (the right is missing from our role)") == hint
