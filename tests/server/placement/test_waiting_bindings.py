"""Bindings that wait for the API server do not block others, and their number is limited."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import asynccontextmanager

import pytest

from tests.server.placement.binding_reviews import review
from tests.support import router_client
from tests.support.api_server import ApiServer
from tests.support.pods import a_policy
from tests.support.recorded_log import RecordedLog
from webhook.adapters.kube.placement import GpuNode, PlacementApi
from webhook.core.placement.fit import Need
from webhook.core.placement.pod_state import PodState
from webhook.core.pod.gpus import Gpu
from webhook.server import reviews
from webhook.server import router as router_module
from webhook.server.metrics import Metrics, PlacementMetrics
from webhook.server.placement import reviews as placement_reviews
from webhook.server.placement.assignment_lists import AT_ONCE, AssignmentLists
from webhook.server.placement.binder import Binder
from webhook.server.placement.reviews import BindingReviews
from webhook.server.placement.tracker import Tracker
from webhook.server.reviews import PodReviews
from webhook.server.router import Router


class Scene:
    """The webhook's router without a server, and a slow API server."""

    def __init__(self):
        self.server, self.may_answer = ApiServer(), threading.Event()
        self.server.fails(".", self._answer_later, forever=True)
        api = PlacementApi(self.server.kube(), "sys")
        metrics = Metrics()
        counted = PlacementMetrics(metrics)
        tracker = Tracker(api, counted, RecordedLog())
        tracker._on_nodes([GpuNode(name="with-gpus", gpus=())])
        tracker.pods.is_listed = tracker.nodes.is_listed = True
        binder = Binder(api, tracker, AssignmentLists(api, tracker, counted))
        bindings = BindingReviews(binder, metrics, RecordedLog())
        self.tracker = tracker
        self.router = Router(
            PodReviews(a_policy, metrics, RecordedLog()),
            bindings,
            metrics,
            RecordedLog(),
            is_bind_path="/bind".__eq__,
            max_buffered_bytes=2**20,
        )

    def _answer_later(self, _):
        assert self.may_answer.wait(60)

    async def bind(self, node, *, in_parts=False, **metadata):
        """Post the review of a plain pod's Binding; return status, headers and body."""
        target = {"kind": "Node", "name": node}
        obj = {"metadata": {"name": "plain", "uid": "plain"} | metadata, "target": target}
        body = json.dumps(review(object=obj)).encode()
        size = 2**16 if in_parts else len(body)
        parts = [body[start : start + size] for start in range(0, len(body), size)]
        status, headers, answer, _ = await router_client.post(self.router, "/bind", *parts)
        return status, headers, answer

    async def until(self, waiting):
        """Wait until this number of bindings is waiting."""
        while self.router._waiting_bindings < waiting:  # noqa: ASYNC110 - it signals nobody
            await asyncio.sleep(0.001)

    @asynccontextmanager
    async def waiting(self, count):
        """Send bindings that wait for the API server."""
        tasks = [asyncio.create_task(self.bind("with-gpus")) for _ in range(count)]
        await self.until(count)
        yield tasks
        self.may_answer.set()
        answers = await asyncio.gather(*tasks)
        assert [status for status, *_ in answers] == [200] * count


@pytest.fixture
def scene():
    return Scene()


def test_a_pod_without_a_demand_does_not_queue_behind_those_with_one(scene):
    async def story():
        async with scene.waiting(AT_ONCE + 8) as tasks:
            status, _, body = await asyncio.wait_for(scene.bind("without-gpus"), 30)
            assert not any(task.done() for task in tasks)
        return status, json.loads(body)["response"]["allowed"]

    assert asyncio.run(story()) == (200, True)


def test_beyond_a_bound_callers_are_asked_to_come_back(scene, monkeypatch):
    monkeypatch.setattr(router_module, "MAX_WAITING_BINDINGS", 3)

    async def story():
        async with scene.waiting(3):
            answer = await asyncio.wait_for(scene.bind("with-gpus"), 30)
        return answer, await scene.bind("with-gpus")

    (status, headers, body), afterwards = asyncio.run(story())
    assert (status, headers[b"retry-after"]) == (503, b"1")
    assert b"too many reviews at once" in body
    assert afterwards[0] == 200


def test_so_are_they_where_what_waits_is_large(scene):
    async def story():
        large = asyncio.create_task(scene.bind("with-gpus", annotations={"x": "y" * 30_000}))
        await scene.until(1)
        again = scene.bind("with-gpus", annotations={"x": "y" * 30_000})
        status, *_ = await asyncio.wait_for(again, 30)
        scene.may_answer.set()
        return status, (await large)[0], scene.router._buffered_bytes

    assert asyncio.run(story()) == (503, 200, 0)


@pytest.mark.parametrize("sent", ["at once", "in parts"])
def test_a_binding_of_more_than_256_kib_is_413(scene, sent):
    status, _, body = asyncio.run(
        scene.bind("with-gpus", in_parts=sent == "in parts", annotations={"x": "y" * 2**18})
    )
    assert (status, body) == (413, b"the body is larger than 256 KiB\n")


def test_a_binding_that_waits_is_read_once(scene, monkeypatch):
    bodies = []
    read = reviews.read_review
    monkeypatch.setattr(reviews, "read_review", lambda body: bodies.append(body) or read(body))

    async def story():
        async with scene.waiting(1):
            pass

    asyncio.run(story())
    assert len(bodies) == 1


def test_an_api_server_that_is_slow_holds_up_no_pod_that_is_not_known_to_be_ours(
    scene, monkeypatch
):
    monkeypatch.setattr(placement_reviews, "DEADLINE_S", 0.05)
    gpus = (Gpu(uuid="GPU-a", memory_bytes=10, product="X", index=0),)
    scene.tracker._on_nodes([GpuNode(name="with-gpus", gpus=gpus)])
    scene.tracker._on_pods([PodState(uid="ours", name="team/ours", need=Need(5))])

    async def story():
        answers = [await scene.bind("with-gpus", uid=uid, name=uid) for uid in ("any", "ours")]
        assert scene.router._waiting_bindings == 0
        return [json.loads(body)["response"] for _, _, body in answers]

    stranger, ours = asyncio.run(story())
    scene.may_answer.set()
    assert (stranger["allowed"], "patch" in stranger) == (True, False)
    assert stranger["auditAnnotations"]["reasons"] == "APIServerAway"
    assert (ours["allowed"], ours["status"]["code"]) == (False, 503)
    assert "no answer within 0.05 s" in ours["status"]["message"]


@pytest.mark.parametrize("node", ["with-gpus", "without-gpus"])
@pytest.mark.parametrize("uid", ["any", "ours"])
def test_a_bug_of_ours_holds_up_no_pod_that_is_not_known_to_be_ours(scene, monkeypatch, node, uid):
    def stumble(*_):
        raise RuntimeError("a bug")

    scene.tracker._on_pods([PodState(uid="ours", name="team/ours", need=Need(5))])
    for name in ("knows_pod", "node"):
        monkeypatch.setattr(scene.tracker, name, stumble)
    scene.server.recovers()
    scene.server.fails(".", stumble, forever=True)
    if node == "with-gpus":  # known from memory, so the pod is read
        monkeypatch.setattr(scene.tracker, "node", lambda name: GpuNode(name=name, gpus=()))
    _, _, body = asyncio.run(scene.bind(node, uid=uid, name=uid))
    response = json.loads(body)["response"]
    assert response["uid"] == review()["request"]["uid"]
    assert response.get("status", {}).get("code") == (500 if uid == "ours" else None)
    assert (response["allowed"], "patch" in response) == (uid != "ours", False)
