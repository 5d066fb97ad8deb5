"""Policy objects as they are stored: what is read of one, and the last good set."""

from __future__ import annotations

import copy
import json
import zlib
from base64 import b64decode, b64encode

import orjson
import pytest

from tests.support.api_server import ApiServer
from webhook.adapters.kube.fence import FenceApi
from webhook.adapters.kube.policies import LAST_GOOD, PoliciesApi, last_good_data, read_stored
from webhook.core.policy.fence import sealed

MADE = {
    "apiVersion": "vramwarden.io/v1alpha1",
    "kind": "VRAMPolicy",
    "metadata": {"name": "teams", "uid": "u", "resourceVersion": "7", "generation": 3},
    "spec": {"rules": [{"name": "a"}]},
    "status": {"inForce": True},
}
KEY = b"0123456789abcdef" * 2
SETS = [[], [("teams", b'{"a":"b"}'), ("x", "\u00e9\U0001f600".encode())]]


STORED = f"/api/v1/namespaces/ours/configmaps/{LAST_GOOD}"


@pytest.fixture
def server():
    return ApiServer()


@pytest.fixture
def kube(server):
    return server.kube()


@pytest.fixture
def api(kube):
    return PoliciesApi(kube, "ours")


def keep(kube, objects, key=KEY):
    """Keep a set, as replicas do."""
    kept = FenceApi(kube, "ours", LAST_GOOD, "policies")
    kept.write(sealed(last_good_data(objects), key, 1_800_000_000.0), kept.read())


def test_what_somebody_wrote_is_kept_apart_from_what_the_api_server_adds():
    stored = read_stored(MADE)
    assert (stored.name, stored.uid, stored.version, stored.generation) == ("teams", "u", "7", 3)
    assert stored.status == {"inForce": True}
    written = {key: MADE[key] for key in ("apiVersion", "kind", "spec")}
    assert json.loads(stored.data) == {**written, "metadata": {"name": "teams"}}
    later = copy.deepcopy(MADE) | {"status": {}}
    later["metadata"] |= {"resourceVersion": "9", "labels": {"a": "b"}}
    assert read_stored(later).data == stored.data


def test_equal_contents_are_equal_in_whatever_order_they_come():
    fields = {"name": "a", "memory": {"max": "1Gi", "min": "1Mi"}}
    turned = {"memory": {"min": "1Mi", "max": "1Gi"}, "name": "a"}
    one, other = ({**MADE, "spec": {"rules": [rule]}} for rule in (fields, turned))
    assert read_stored(one).data == read_stored(other).data


def test_an_object_that_is_nested_too_deeply_hides_no_other():
    deep = json.loads('{"a":' * 300 + "1" + "}" * 300)
    stored = read_stored({**MADE, "spec": deep})
    assert stored.name == "teams"
    assert "nested too deeply" in json.loads(stored.data)["spec"]


def test_a_large_number_is_the_same_by_a_list_and_by_a_watch():
    text = json.dumps({**MADE, "spec": {"x": 10**20}})
    listed, watched = read_stored(json.loads(text)), read_stored(orjson.loads(text))
    assert listed.data == watched.data
    assert json.loads(listed.data)["spec"] == {"x": 1e20}


def test_of_a_large_object_a_little_more_than_may_be_is_kept():
    large = {**MADE, "spec": {"x": "x" * 2**21}}
    assert len(read_stored(large).data) == 2**20 + 1


@pytest.mark.parametrize("objects", SETS, ids=len)
def test_the_last_good_set_comes_back_as_it_was(api, server, kube, objects):
    assert api.last_good(KEY) is None
    keep(kube, objects)
    assert api.last_good(KEY) == api.last_good() == objects
    keep(kube, [("new", b"{}")])
    assert api.last_good(KEY) == [("new", b"{}")]
    assert list(server.objects) == [STORED]


def test_what_no_replica_sealed_is_no_last_good_set_and_people_still_see_it(api, server, kube):
    keep(kube, [("a", b"{}")], b"another")
    assert (api.last_good(KEY), api.last_good()) == (None, [("a", b"{}")])
    # What 0.2.0 wrote; its replicas end during an upgrade.
    data = server.objects[STORED]["data"]
    server.put(STORED, {"binaryData": {"objects.v1": data["objects.v1"]}})
    assert (api.last_good(KEY), api.last_good()) == (None, [("a", b"{}")])


def packed(value):
    return b64encode(zlib.compress(json.dumps(value).encode())).decode()


UNREADABLE = {
    "nothing": {},
    "another key": {"objects.v2": "x"},
    "no base64": {"objects.v1": "x"},
    "not packed": {"objects.v1": b64encode(b"[]").decode()},
    "no pairs": {"objects.v1": packed([["a"]])},
    "no list": {"objects.v1": packed(5)},
    "a bomb": {"objects.v1": packed([["a", "x" * 2**24]])},
}


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_is_no_set(api, server, data):
    server.put(STORED, {"data": sealed(data, KEY, 0.0)})
    assert (api.last_good(), api.last_good(KEY)) == (None, None)


def test_as_much_as_may_be_read_is_kept(api, kube):
    text = '\\"' * 2**18  # what JSON in JSON makes longest
    objects = [("a", json.dumps(text).encode())]
    assert len(objects[0][1]) >= 2**20
    keep(kube, objects)
    assert api.last_good(KEY) == objects


def test_without_a_namespace_nothing_is_kept(kube):
    assert PoliciesApi(kube, "").last_good() is None


def test_the_set_is_packed():
    (packed,) = last_good_data([("a", b"x" * 2**19)]).values()
    assert len(b64decode(packed)) < 2**12
