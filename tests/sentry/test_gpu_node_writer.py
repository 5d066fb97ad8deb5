"""Writes of a node's GPUNode: how often, and after failures."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.api_server import ApiServer
from webhook.adapters.journal import Journal
from webhook.adapters.kube.node_objects import OwnNode
from webhook.core.kinds.node_write_delay import MAX_INTERVAL_S, MIN_INTERVAL_S
from webhook.core.kinds.nodes import GpuFigures, NodeFigures, PodFigures, write_gpu_node
from webhook.core.nvidia.drivers import Proof
from webhook.sentry.gpu_node_writer import (
    LONGEST_PAUSE_S,
    NODE_EVERY_S,
    UNKNOWN_KIND_S,
    GpuNodeWriter,
)

GIB = 2**30
COLLECTION = "/apis/vramwarden.io/v1alpha1/gpunodes"
OBJECT = f"{COLLECTION}/n1"
NODE = "/api/v1/nodes/n1"
SHARED = {
    "metadata": {"uid": "u-1", "labels": {"vramwarden.io/enforcement": "sidecar"}},
    "status": {"capacity": {"vramwarden.io/vram": "80Gi"}},
}


def figures(used=0, at_s=1.0, *pods):
    shares = tuple(PodFigures(uid=uid, cap_bytes=GIB, used_bytes=0, peak_bytes=0) for uid in pods)
    gpu = GpuFigures(
        uuid="GPU-a",
        index=0,
        product="H200",
        total_bytes=80 * GIB,
        usable_bytes=79 * GIB,
        promised_bytes=0,
        used_bytes=used * GIB,
        pods=shares,
    )
    return NodeFigures(
        name="n1", observed_s=at_s, driver_version="580", enforcement="sidecar", gpus=(gpu,)
    )


class Bench:
    def __init__(self, stored=None, jitter_s=0.0):
        self.api, self.now_s = ApiServer(), 1000.0
        self.api.put(NODE, SHARED)
        if stored:
            self.api.put(OBJECT, stored)
        self.version = self.stored_version()
        self.written_s = []
        self.said, self.sent = [], []
        self.jitter_s = jitter_s
        self.start()

    def start(self):
        journal = Journal(self.said.append)
        self.writer = GpuNodeWriter(
            self.api.kube(), "n1", journal, self.jitter_s, clock=lambda: self.now_s
        )

    def step(self, newest=None, later_s=0.0):
        self.now_s += later_s
        if newest:
            self.writer.offer(newest)
        wait_s = self.writer.step(self.sent.append)
        before, self.version = self.version, self.stored_version()
        if self.version not in {before, None}:
            self.written_s.append(self.now_s)
        return wait_s

    def stored_version(self):
        return self.api.objects.get(OBJECT, {"metadata": {}})["metadata"].get("resourceVersion")

    @property
    def stored(self):
        """Stored object, without the fields that API servers add."""
        found = self.api.objects[OBJECT]
        ours = {key: found["metadata"][key] for key in ("name", "ownerReferences")
                if key in found["metadata"]}  # fmt: skip
        return {**found, "metadata": ours}

    def asked(self, *methods):
        """Return the paths of requests about objects of nodes."""
        return [path for _, path, _ in self.api.sent(*methods) if path.startswith(COLLECTION)]

    def messages(self):
        return [json.loads(line)["msg"] for line in self.said]


def test_the_first_report_creates_the_object_with_its_owner():
    bench = Bench()
    bench.step(figures(3))
    assert bench.stored == write_gpu_node(figures(3), "u-1")
    assert bench.writer.own.enforcement == "sidecar"
    assert bench.asked("PATCH", "POST") == [OBJECT, COLLECTION]
    assert bench.step() is None


def test_what_is_stored_is_handed_over_before_anything_is_written():
    bench = Bench(write_gpu_node(figures(9, 1.0, "u-x")))
    bench.api.fails(".*", 0, forever=True)
    bench.step(figures(1, 100.0))
    assert (bench.sent, bench.asked()) == ([], [])
    bench.api.recovers()
    bench.step(later_s=MIN_INTERVAL_S)
    bench.step(later_s=MIN_INTERVAL_S)
    assert bench.sent == [figures(9, 1.0, "u-x")]
    assert bench.asked("GET", "PATCH") == [OBJECT, OBJECT, OBJECT]


def test_what_waits_to_be_written_is_written_at_the_end():
    bench = Bench()
    bench.writer.write_last()
    bench.step(figures(3))
    bench.writer.write_last()
    assert len(bench.asked("PATCH")) == 1
    bench.step(figures(3, 2.0))
    bench.api.fails("PATCH", 500)
    bench.writer.write_last()
    assert bench.stored == write_gpu_node(figures(3), "u-1")
    bench.writer.write_last()
    assert bench.stored == write_gpu_node(figures(3, 2.0), "u-1")


def test_nothing_is_written_at_the_end_before_it_is_known_what_is_stored():
    bench = Bench(write_gpu_node(figures(9, 1.0, "u-x")))
    bench.api.fails("GET", 500)
    bench.step(figures(1, 100.0))
    bench.writer.write_last()
    assert bench.asked("PATCH") == []


def test_only_the_newest_report_is_written_and_each_once():
    bench = Bench()
    bench.step(figures(0))
    waits = [bench.step(figures(used * 4), later_s=1.0) for used in range(1, 15)]
    assert (waits, len(bench.written_s)) == ([MIN_INTERVAL_S - used for used in range(1, 15)], 1)
    bench.step(later_s=1.0)
    assert bench.written_s == [1000.0, 1000.0 + MIN_INTERVAL_S]
    assert bench.stored["status"]["gpus"][0]["usedMi"] == 14 * 4 * 1024
    bench.step(later_s=10 * MAX_INTERVAL_S)
    assert len(bench.written_s) == 2


def test_figures_that_do_not_move_are_written_once_a_minute_and_its_jitter():
    bench = Bench(jitter_s=3.0)
    for second in range(200):
        bench.step(figures(0, float(second)), later_s=1.0)
    assert bench.written_s == [1004.0, 1067.0, 1130.0, 1193.0]


UNKNOWN = replace(figures().gpus[0], promised_bytes=None, used_bytes=None)
WHYS = {"not_shared": "x", "held": "x", "limit": Proof(holds=False, why="x")}


@pytest.mark.parametrize(
    ("node", "first", "meanwhile", "then", "owner"),
    [
        pytest.param(
            SHARED, figures(3), lambda _: None, replace(figures(), gpus=(UNKNOWN,)), "u-1",
            id="what became unknown leaves it",
        ),
        pytest.param(
            SHARED, replace(figures(), **WHYS), lambda _: None, figures(), "u-1",
            id="the node is shared again",
        ),
        pytest.param(
            None, figures(), lambda api: api.put(NODE, SHARED), figures(0, 2.0), "u-1",
            id="an owner that was not known at first",
        ),
        pytest.param(
            SHARED, figures(), lambda api: replace_all(api, "u-2"), figures(0, 2.0), "u-2",
            id="somebody deleted it, and the node is another",
        ),
    ],
)  # fmt: skip
def test_the_object_is_soon_what_was_seen_last(node, first, meanwhile, then, owner):
    bench = Bench()
    if node is None:
        bench.api.remove(NODE)
    bench.step(first)
    assert bench.stored == write_gpu_node(first, node and "u-1")
    meanwhile(bench.api)
    bench.step(then, later_s=NODE_EVERY_S)
    assert bench.stored == write_gpu_node(then, owner)


def replace_all(api, uid):
    api.remove(OBJECT)
    api.put(NODE, {"metadata": {"uid": uid}})


def test_a_cluster_without_the_kind_is_asked_seldom_and_said_once():
    bench = Bench()
    bench.api.unknown.add("gpunodes")
    for second in range(3600):
        bench.step(figures(second % 50, float(second)), later_s=1.0)
    assert len(bench.asked("POST")) == 3600 // UNKNOWN_KIND_S
    assert bench.messages() == [
        "the cluster knows no GPUNode; is its CRD installed (crds.install)?"
    ]
    bench.api.unknown.clear()
    bench.step(figures(1, 5000.0), later_s=UNKNOWN_KIND_S)
    assert bench.stored == write_gpu_node(figures(1, 5000.0), "u-1")
    assert bench.messages()[1:] == ["what is seen here can be written as a GPUNode"]


def test_an_api_server_that_is_away_is_asked_ever_less_and_said_once():
    bench = Bench()
    bench.step(figures(0))
    bench.api.fails(".*", 0, forever=True)
    before, at_most = len(bench.api.asked), 600 / LONGEST_PAUSE_S + 3
    for second in range(600):
        bench.step(figures(second % 50, float(second)), later_s=1.0)
    assert len(bench.asked("PATCH")) - 1 <= at_most
    assert len(bench.api.asked) - before <= 2 * at_most
    assert "what is seen here cannot be written as a GPUNode; retrying" in bench.messages()
    assert len(bench.messages()) <= 2


def test_a_node_that_may_not_be_read_costs_only_the_owner():
    bench = Bench()
    bench.api.denied.add(("get", "nodes"))
    bench.step(figures(0))
    assert bench.stored == write_gpu_node(figures(0))
    assert bench.messages() == ["the Node cannot be read; its GPUNode does not go with it"]


def annotated(**annotations):
    return {"metadata": {"annotations": {f"vramwarden.io/{k}": v for k, v in annotations.items()}}}


GPU = {"uuid": "GPU-a", "memory": GIB, "product": "H200", "index": 0}
ONE = json.dumps([GPU])
BROKEN = {**GPU, "uuid": "GPU-b", "healthy": False, "fault": "is broken"}


@pytest.mark.parametrize(
    ("node", "field", "known"),
    [
        ({"status": {"capacity": {"vramwarden.io/vram": "80Gi"}}}, "not_shared", ""),
        ({}, "not_shared", "its agent does not advertise them"),
        (annotated(sharing="NotShared: a plugin"), "not_shared", "a plugin"),
        (annotated(sharing="NotShared: a plugin"), "held", ""),
        (annotated(gpus=ONE, sharing="Shared: x"), "held", ""),
        (annotated(gpus=ONE, sharing="Draining: by others"), "held", "by others"),
        (annotated(gpus=ONE, sharing="Draining: by others"), "not_shared", ""),
        (annotated(gpus=ONE, sharing="Draining: " + "x" * 600), "held", "x" * 256),
        (annotated(gpus=ONE, sharing=""), "held",
         "its annotation vramwarden.io/sharing cannot be read"),
        (annotated(gpus=json.dumps([GPU, BROKEN])), "faults", {"GPU-b": "is broken"}),
    ],
)  # fmt: skip
def test_what_its_agent_says_of_the_node_is_known_within_a_minute(node, field, known):
    bench = Bench()
    bench.step(figures())
    assert bench.writer.own == OwnNode("u-1", "sidecar")
    bench.api.put(NODE, node)
    bench.step(figures(1), later_s=NODE_EVERY_S)
    assert getattr(bench.writer.own, field) == known


def test_a_node_that_never_had_a_gpu_has_no_object_and_one_that_lost_them_has():
    none = replace(figures(), gpus=())
    bench = Bench()
    bench.step(none)
    assert OBJECT not in bench.api.objects
    bench.step(figures(1))
    bench.step(none, later_s=MIN_INTERVAL_S)
    assert bench.stored["status"]["summary"]["gpus"] == 0


def seconds(most):
    """Draw seconds whose sums need no rounding."""
    return st.integers(0, 64 * most).map(lambda drawn: drawn / 64)


storms = st.lists(
    st.tuples(
        seconds(40),
        st.integers(0, 80),
        st.lists(st.sampled_from("abc"), max_size=3, unique=True),
        st.sampled_from([None, None, None, 0, 403, 404, "lost"]),
        st.booleans(),
    ),
    max_size=60,
)


def let_fail(api, fails):
    """Make all requests fail with a code, lose the response of each write, or do neither."""
    api.recovers()
    if fails == "lost":
        api.fails("PATCH|POST", api.loses_the_answer, forever=True)
    elif fails is not None:
        api.fails(".*", fails, forever=True)


@given(storms, seconds(5))
def test_whatever_happens_at_most_one_write_is_stored_in_fifteen_seconds(storm, jitter_s):
    """This holds if a response is lost, the object is deleted, or the thread wakes early."""
    bench = Bench(jitter_s=jitter_s)
    for number, (later_s, used, pods, fails, deleted) in enumerate(storm):
        let_fail(bench.api, fails)
        if deleted and number % 5 == 0 and OBJECT in bench.api.objects:
            bench.api.remove(OBJECT)
        bench.step(figures(used, float(number), *pods), later_s=later_s)
        bench.step()
    assert all(later - item >= MIN_INTERVAL_S for item, later in pairwise(bench.written_s))


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 80), st.booleans()), max_size=60),
    st.integers(0, 5),
)
def test_who_starts_again_and_again_writes_no_more_than_who_goes_on(storm, jitter_s):
    bench = Bench(jitter_s=jitter_s)
    for later_s, used, restarts in storm:
        bench.now_s += later_s
        if restarts:
            bench.start()
        bench.step(figures(used, bench.now_s))
        bench.step()
    assert all(later - item >= MIN_INTERVAL_S for item, later in pairwise(bench.written_s))


def test_a_new_sentry_that_sees_what_the_last_one_did_writes_when_that_one_had():
    bench = Bench(jitter_s=3.0)
    bench.step(figures(4, 1000.0))
    bench.step(later_s=3.0)
    bench.start()
    for second in range(200):
        bench.step(figures(4, bench.now_s), later_s=1.0)
        assert second or bench.sent
    assert bench.written_s == [1003.0, 1064.0, 1127.0, 1190.0]


@given(storms)
def test_the_newest_figures_are_always_written_in_the_end(storm):
    bench = Bench()
    for number, (later_s, used, pods, fails, _) in enumerate(storm):
        let_fail(bench.api, None if fails == "lost" else fails)
        bench.step(figures(used, float(number), *pods), later_s=later_s)
    bench.api.recovers()
    last = figures(7, 10_000.0, "z")
    bench.step(last)
    for _ in range(4):
        bench.step(later_s=UNKNOWN_KIND_S)
    assert bench.stored == write_gpu_node(last, "u-1")
