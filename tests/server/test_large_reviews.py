"""Large reviews: one thread answers them, and some are answered without being decoded."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from contextlib import asynccontextmanager
from ipaddress import ip_network

import pytest

from tests.support import router_client
from tests.support.pods import a_pod, a_review
from webhook.adapters import review_json
from webhook.adapters.bounds import MOST_REVIEW_VALUES
from webhook.server import connections, http, reviews
from webhook.server.bounds import MAX_BODY_BYTES
from webhook.server.connections import SMALL_BODY_BYTES, Peer
from webhook.server.log import JsonLog
from webhook.server.metrics import Metrics
from webhook.server.router import MAX_WAIT_S

API_SERVER = "192.0.2.9"
FILLER = {"note": "x" * SMALL_BODY_BYTES}


class Scene:
    """A router without a server, whose large reviews wait for `may_go_on`."""

    def __init__(self, monkeypatch, **bounds):
        self.log = io.BytesIO()
        self.metrics = Metrics()
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self.deciding = []
        decide = reviews.decide

        def slow(request, policy, cluster, phase):
            self.deciding.append(request.uid)
            self.begun.set()
            self.clock.now_s += self.cost_s
            if "note" in request.obj["metadata"].get("annotations", {}):
                assert self.may_go_on.wait(60)
            return decide(request, policy, cluster, phase)

        monkeypatch.setattr(reviews, "decide", slow)
        self.clock, self.cost_s = router_client.Clock(), 0.0
        self.connections = router_client.no_connections(
            api_servers=[ip_network(API_SERVER)], clock=self.clock.time
        )
        self.router = router_client.a_router(JsonLog(self.log), self.metrics, **bounds)

    async def post(self, *parts, **more):
        """Post a body in parts; return status, headers, body, and the unread parts."""
        return await router_client.post(
            self.router, "/mutate", *parts, connections=self.connections, **more
        )

    async def review(self, uid, *, large=False, **more):
        """Post one review; return the response's status and uid."""
        pod = a_pod(annotations=FILLER if large else {})
        status, _, body, _ = await self.post(json.dumps(a_review(pod, uid=uid)).encode(), **more)
        return status, json.loads(body)["response"]["uid"] if status == 200 else body

    @asynccontextmanager
    async def busy(self, count):
        """Make large reviews wait while one large review is judged."""
        tasks = [asyncio.create_task(self.review(f"l{i}", large=True)) for i in range(count)]
        assert await asyncio.to_thread(self.begun.wait, 60)
        yield tasks
        self.may_go_on.set()
        await asyncio.gather(*tasks)

    def said(self):
        return [json.loads(line) for line in self.log.getvalue().splitlines()]


@pytest.fixture
def scene(monkeypatch):
    return Scene(monkeypatch)


def test_a_small_review_is_answered_while_a_large_one_is_judged(scene):
    async def story():
        async with scene.busy(3) as tasks:
            small = await asyncio.wait_for(scene.review("small"), 60)
            assert not any(task.done() for task in tasks)
        return small, [task.result() for task in tasks]

    small, large = asyncio.run(story())
    assert small == (200, "small")
    assert large == [(200, "l0"), (200, "l1"), (200, "l2")]
    assert scene.deciding == ["l0", "small", "l1", "l2"]
    assert scene.connections.body_bytes == 0


def test_large_reviews_of_trusted_addresses_come_first(scene):
    """Waiting reviews are asked to retry if their address has used up its time."""
    scene.cost_s = 0.6

    async def story():
        async with scene.busy(5) as tasks:
            trusted = asyncio.create_task(scene.review("API", large=True, address=API_SERVER))
            await router_client.turns()
        return await trusted, [task.result()[0] for task in tasks]

    trusted, others = asyncio.run(story())
    assert trusted == (200, "API")
    assert scene.deciding == ["l0", "API", "l1"]
    assert others == [200, 200, 503, 503, 503]


def test_only_large_reviews_beyond_the_limit_are_asked_to_retry(monkeypatch):
    scene = Scene(monkeypatch)
    monkeypatch.setattr(connections, "MAX_LARGE_BYTES", 4 * SMALL_BODY_BYTES)

    async def story():
        async with scene.busy(2):
            body = json.dumps(a_review(a_pod(annotations=FILLER))).encode()
            at_once = await scene.post(body)
            early = len(body) - 100
            status, _, _, unread = await scene.post(body[:early], body[early:-1], body[-1:])
            small = await scene.review("small")
        return at_once[:3], (status, len(unread)), small

    (status, headers, body), in_parts, small = asyncio.run(story())
    assert (status, headers[b"retry-after"]) == (503, b"1")
    assert body == b"too many reviews at once; retry in a second\n"
    assert in_parts == (503, 2)
    assert small == (200, "small")


@pytest.mark.parametrize(
    ("held", "one_more"),
    [
        ({}, True),
        ({"a": 7}, True),
        ({"a": 8}, False),
        ({"b": 8}, True),
        ({"b": 8, "c": 7}, True),
        ({"b": 8, "c": 8}, False),
        ({"API": 16}, False),
        ({"b": 8, "c": 8, "API": 7}, False),
    ],
)
def test_no_untrusted_address_gets_all_memory_for_large_bodies(held, one_more):
    """One or many addresses post bodies of 8 MiB. API servers get the remaining memory."""
    peers = {name: Peer(address=name, is_trusted=name.isupper()) for name in (*held, "a", "API")}
    reserve = router_client.no_connections().reserve
    for name, mebibytes in held.items():
        assert reserve(peers[name], mebibytes * 2**20)
    assert reserve(peers["a"], 2**20) is one_more
    reserve(peers["a"], -(2**20))
    left = 24 - sum(held.values())
    assert reserve(peers["API"], left * 2**20)
    assert not reserve(peers["API"], 1)


def test_a_large_review_that_waits_too_long_is_asked_to_retry(monkeypatch):
    scene = Scene(monkeypatch, wait_s=0.05)

    async def story():
        async with scene.busy(1):
            late = await scene.review("late", large=True)
        scene.router._wait_s = MAX_WAIT_S  # long enough for a busy machine
        return late, await scene.review("afterwards", large=True)

    (status, body), afterwards = asyncio.run(story())
    assert (status, body) == (503, b"too many reviews at once; retry in a second\n")
    assert afterwards == (200, "afterwards")
    assert scene.deciding == ["l0", "afterwards"]  # the caller of the other review no longer waits


def beginning(uid="here"):
    """Return a review's prefix, as the API server writes it."""
    kind = '"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"'
    return f'{{{kind},"request":{{"uid":"{uid}",'.encode()


@pytest.mark.parametrize("announced", [None, 0], ids=["announced", "chunked"])
def test_a_body_over_8_mib_is_denied_by_the_uid_of_its_first_kib_and_not_kept(scene, announced):
    megabytes = [b" " * 2**20] * (12 if announced is None else 9)
    status, headers, body, unread = asyncio.run(
        scene.post(beginning(), b" " * 2000, *megabytes, announced=announced)
    )
    assert (status, headers[b"connection"]) == (200, b"close")
    answer = json.loads(body)["response"]
    assert (answer["uid"], answer["allowed"]) == ("here", False)
    what = "make the pod smaller; a review of it is larger than 8 MiB and cannot be judged"
    assert answer["status"]["message"] == f"TooComplex: spec: {what}"
    # If the size is announced, only the prefix is received before the response, otherwise 8 MiB.
    assert len(unread) == (12 if announced is None else 1)
    assert scene.deciding == []
    (line,) = scene.said()
    assert (line["uid"], line["decision"], line["reasons"]) == ("here", "denied", ["TooComplex"])
    assert scene.connections.body_bytes == 0


@pytest.mark.parametrize("announced", [MAX_BODY_BYTES + 1, 0], ids=["announced", "chunked"])
def test_without_a_uid_in_its_first_kib_it_is_413(scene, announced):
    parts = b" " * 2000 + beginning(), *[b" " * 2**20] * 9
    status, headers, body, _ = asyncio.run(scene.post(*parts, announced=announced))
    assert (status, body) == (413, b"the body is larger than 8 MiB\n")
    assert headers[b"connection"] == b"close"
    refused = scene.metrics.registry.get_sample_value
    assert refused("vramwarden_http_rejected_total", {"code": "413"}) == 1


def test_the_beginning_of_a_body_that_is_too_large_has_a_timeout(scene, monkeypatch):
    monkeypatch.setattr(http, "PREFIX_S", 0.02)
    assert asyncio.run(scene.post(announced=MAX_BODY_BYTES + 1))[0] == 413


DENSE = {
    "objects": b"{}",
    "keyed objects": b'{"a":{}}',
    "lists": b"[]",
    "numbers": b"1",
}


@pytest.mark.parametrize("unit", DENSE.values(), ids=DENSE)
def test_a_body_of_too_many_values_is_never_decoded(scene, monkeypatch, unit):
    loads = []
    monkeypatch.setattr(review_json.orjson, "loads", loads.append)
    body = beginning() + b'"x":[' + b",".join([unit] * MOST_REVIEW_VALUES) + b"]}}"
    status, _, answer, _ = asyncio.run(scene.post(body))
    assert (status, loads) == (200, [])
    message = json.loads(answer)["response"]["status"]["message"]
    why = "a review of it holds more than 262,144 values and cannot be judged"
    assert message == f"TooComplex: spec: make the pod smaller; {why}"


def test_without_a_uid_such_a_body_is_400(scene):
    body = b"[" + b",".join([b"{}"] * MOST_REVIEW_VALUES) + b"]"
    status, _, answer, _ = asyncio.run(scene.post(body))
    assert (status, answer) == (400, b"the body holds too many values for an AdmissionReview\n")


def test_a_long_text_of_commas_is_decoded_below_half_the_limit(scene):
    scene.may_go_on.set()
    pod = a_pod(annotations={"note": "," * (MOST_REVIEW_VALUES - 1000)})
    status, _, answer, _ = asyncio.run(scene.post(json.dumps(a_review(pod)).encode()))
    assert (status, json.loads(answer)["response"]["allowed"]) == (200, True)


def test_a_log_line_is_short_for_any_review(scene):
    long = "n" * 1_000_000
    owner = {"kind": long, "name": long}
    pod = a_pod("8Gi", annotations=FILLER)
    pod["metadata"] |= {"name": long, "generateName": long, "ownerReferences": [owner]}
    user = {"username": long}
    review = a_review(pod, uid=long, namespace=long, userInfo=user, name="", operation="CREATE")
    scene.may_go_on.set()
    status, *_ = asyncio.run(scene.post(json.dumps(review).encode()))
    assert status == 200
    line = scene.log.getvalue().splitlines()[0]
    assert len(line) < 3000
    said = json.loads(line)
    cut = f"{'n' * 252}…"
    names = ("uid", "namespace", "user", "name")
    assert {said[name] for name in names} == {cut}
    assert said["owner"] == f"{cut}/{cut}"


def test_a_value_that_is_no_text_is_not_logged(scene):
    pod = a_pod()
    pod["metadata"] |= {"name": ["x"] * 9, "ownerReferences": [{"kind": {"a": 1}, "name": 5}]}
    asyncio.run(scene.post(json.dumps(a_review(pod, name="")).encode()))
    (line,) = scene.said()
    assert (line["name"], line["owner"]) == ("(list)", "(dict)/(int)")


@pytest.mark.parametrize(
    "values",
    [
        {"why": "y" * 100_000},
        {"notes": ("y" * 10_000,) * 100},
        {"trace": "y" * 100_000},
        {f"k{i}": "y" * 200 for i in range(200)},
        {"deep": {"a": "y" * 100_000}},
    ],
    ids=["text", "texts", "trace", "many", "deep"],
)
def test_the_size_of_a_log_line_is_limited(values):
    log = io.BytesIO()
    JsonLog(log).event("error", "said", **values)
    line = log.getvalue()
    assert len(line) <= 16 * 2**10
    assert json.loads(line) | {"ts": ""} == json.loads(line) | {"ts": "", "cut": True}
    assert json.loads(line)["msg"] == "said"
