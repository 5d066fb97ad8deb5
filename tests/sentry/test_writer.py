"""The object of a node: how often it is written, and what becomes of it where that fails."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.adapters.journal import Journal
from webhook.adapters.kube.client import KubeError
from webhook.core.kinds.node_writes import LEAST_S, REGULAR_S
from webhook.core.kinds.nodes import GpuFigures, NodeFigures, PodFigures, write_gpu_node
from webhook.sentry.writer import LONGEST_PAUSE_S, NODE_EVERY_S, UNKNOWN_KIND_S, GpuNodeWriter

GIB = 2**30
OBJECT = "/apis/vramwarden.io/v1alpha1/gpunodes/n1"
COLLECTION = "/apis/vramwarden.io/v1alpha1/gpunodes"
DOWN = KubeError("down")
MISSING = KubeError("not found", code=404)
FORBIDDEN = KubeError("forbidden", code=403)


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


class Kube:
    """Keeps one object, as the API server does, and what was sent when."""

    def __init__(self):
        self.now_s = 1000.0
        self.stored = None
        self.node = {"metadata": {"uid": "u-1", "labels": {"vramwarden.io/enforcement": "sidecar"}}}
        self.knows_kind = True
        self.fails = None
        self.asked = []
        self.written_s = []

    def find(self, path):
        return self._do("find", path, lambda: self.stored)

    def read(self, path, **_):
        return self._do("read", path, lambda: self._there(self.node))

    def merge(self, path, body):
        def patch():
            merged = _merged(self._there(self.stored), body)
            self._write(merged)

        self._do("merge", path, patch)

    def create(self, path, body):
        def store():
            if not self.knows_kind:
                raise MISSING
            self._write(json.loads(json.dumps(body)))

        self._do("create", path, store)

    def calls(self, *verbs):
        return [path for verb, path in self.asked if verb in verbs]

    def _there(self, found):
        if found is None:
            raise MISSING
        return found

    def _write(self, body):
        self.stored = body
        self.written_s.append(self.now_s)

    def _do(self, verb, path, answer):
        self.asked.append((verb, path))
        if self.fails:
            raise self.fails
        return answer()


def _merged(before, patch):
    """Merge as RFC 7386 says."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


class Bench:
    def __init__(self, stored=None, jitter_s=0.0):
        self.kube = Kube()
        self.kube.stored = stored
        self.said, self.sent = [], []
        self.jitter_s = jitter_s
        self.start()

    def start(self):
        self.writer = GpuNodeWriter(
            self.kube, "n1", Journal(self.said.append), self.jitter_s, clock=lambda: self.kube.now_s
        )

    def step(self, newest=None, later_s=0.0):
        self.kube.now_s += later_s
        if newest:
            self.writer.offer(newest)
        return self.writer.step(self.sent.append)

    def messages(self):
        return [json.loads(line)["msg"] for line in self.said]


def test_the_first_report_creates_the_object_with_its_owner():
    bench = Bench()
    bench.step(figures(3))
    assert bench.kube.stored == write_gpu_node(figures(3), "u-1")
    assert bench.writer.own.enforcement == "sidecar"
    assert bench.kube.calls("merge", "create") == [OBJECT, COLLECTION]
    assert bench.step() is None


def test_what_is_stored_is_handed_over_before_anything_is_written():
    stored = write_gpu_node(figures(9, 1.0, "u-x"))
    bench = Bench(stored)
    bench.kube.fails = DOWN
    bench.step(figures(1, 100.0))
    assert (bench.sent, bench.kube.calls("merge", "create")) == ([], [])
    bench.kube.fails = None
    bench.step(later_s=LEAST_S)
    bench.step(later_s=LEAST_S)
    ((sent,), asked) = bench.sent, bench.kube.calls("find", "merge")
    assert (sent, asked) == (figures(9, 1.0, "u-x"), [OBJECT, OBJECT, OBJECT])


def test_only_the_newest_report_is_written_and_each_once():
    bench = Bench()
    bench.step(figures(0))
    for used in range(1, 15):
        bench.step(figures(used * 4), later_s=1.0)
    assert len(bench.kube.written_s) == 1
    bench.step(later_s=1.0)
    assert bench.kube.written_s == [1000.0, 1000.0 + LEAST_S]
    assert bench.kube.stored["status"]["gpus"][0]["usedMi"] == 14 * 4 * 1024
    bench.step(later_s=10 * REGULAR_S)
    assert len(bench.kube.written_s) == 2


def test_figures_that_do_not_move_are_written_once_a_minute_and_its_jitter():
    bench = Bench(jitter_s=3.0)
    for second in range(200):
        bench.step(figures(0, float(second)), later_s=1.0)
    assert bench.kube.written_s == [1004.0, 1067.0, 1130.0, 1193.0]


def test_what_became_unknown_leaves_the_object():
    bench = Bench()
    bench.step(figures(3))
    assert {"promised", "used", "unmanaged"} <= set(bench.kube.stored["status"]["summary"])
    gpu = replace(figures().gpus[0], promised_bytes=None, used_bytes=None)
    unknown = replace(figures(), gpus=(gpu,))
    bench.step(unknown, later_s=LEAST_S)
    assert bench.kube.stored == write_gpu_node(unknown, "u-1")


def test_an_owner_that_was_not_known_at_first_is_written_later():
    bench = Bench()
    node, bench.kube.node = bench.kube.node, None
    bench.step(figures(0))
    assert "ownerReferences" not in bench.kube.stored["metadata"]
    bench.kube.node = node
    bench.step(figures(0, 2.0), later_s=NODE_EVERY_S)
    assert bench.kube.stored == write_gpu_node(figures(0, 2.0), "u-1")


def test_an_object_that_somebody_deleted_is_there_again_with_the_owner_of_now():
    bench = Bench()
    bench.step(figures(0))
    bench.kube.stored = None
    bench.kube.node = {"metadata": {"uid": "u-2"}}
    bench.step(figures(0, 2.0), later_s=NODE_EVERY_S)
    assert bench.kube.stored == write_gpu_node(figures(0, 2.0), "u-2")


def test_a_cluster_without_the_kind_is_asked_seldom_and_said_once():
    bench = Bench()
    bench.kube.knows_kind = False
    for second in range(3600):
        bench.step(figures(second % 50, float(second)), later_s=1.0)
    assert len(bench.kube.calls("create")) == 3600 // UNKNOWN_KIND_S
    assert bench.messages() == [
        "the cluster knows no GPUNode; is its CRD installed (crds.install)?"
    ]
    bench.kube.knows_kind = True
    bench.step(figures(1, 5000.0), later_s=UNKNOWN_KIND_S)
    assert bench.kube.stored is not None
    assert bench.messages()[1:] == ["what is seen here can be written as a GPUNode"]


def test_an_api_server_that_is_away_is_asked_ever_less_and_said_once():
    bench = Bench()
    bench.step(figures(0))
    bench.kube.fails = DOWN
    before = len(bench.kube.asked)
    for second in range(600):
        bench.step(figures(second % 50, float(second)), later_s=1.0)
    assert len(bench.kube.calls("merge")) - 1 <= 600 / LONGEST_PAUSE_S + 3
    assert len(bench.kube.asked) - before <= 2 * (600 / LONGEST_PAUSE_S + 3)
    assert "what is seen here cannot be written as a GPUNode; retrying" in bench.messages()
    assert len(bench.messages()) <= 2


def test_a_node_that_may_not_be_read_costs_only_the_owner():
    bench = Bench()
    bench.kube.node = None
    bench.step(figures(0))
    assert bench.kube.stored == write_gpu_node(figures(0))
    assert bench.messages() == ["the Node cannot be read; its GPUNode does not go with it"]


@pytest.mark.parametrize(
    ("labels", "status", "why"),
    [
        ({}, {"capacity": {"vramwarden.io/vram": "80Gi"}}, ""),
        ({}, {"allocatable": {"nvidia.com/gpu": "2"}}, "nvidia.com/gpu is offered"),
        ({"vramwarden.io/share": "true"}, {}, "its agent does not advertise them"),
        ({"vramwarden.io/share": "false"}, {}, "vramwarden.io/share=false"),
    ],
)
def test_it_is_known_within_a_minute_whether_the_node_is_shared(labels, status, why):
    bench = Bench()
    bench.kube.node |= {"status": {"capacity": {"vramwarden.io/vram": "80Gi"}}}
    bench.step(figures())
    assert bench.writer.own.not_shared == ""
    bench.kube.node = {"metadata": {"labels": labels}, "status": status}
    bench.step(figures(1), later_s=NODE_EVERY_S)
    assert bench.writer.own.not_shared == why


@pytest.mark.parametrize(
    ("carried", "why"),
    [
        ({}, ""),
        ({"vramwarden.io/held": "by others"}, "by others"),
        ({"vramwarden.io/held": "x" * 600}, "x" * 512),
        ({"vramwarden.io/held": ""}, "annotation vramwarden.io/held"),
    ],
)
def test_it_is_known_why_the_node_is_held(carried, why):
    bench = Bench()
    bench.kube.node["metadata"]["annotations"] = carried
    bench.step(figures())
    assert bench.writer.own.held == why


def test_which_gpus_its_agent_calls_broken_is_known():
    bench = Bench()
    gpu = {"uuid": "GPU-a", "memory": GIB, "product": "H200", "index": 0}
    broken = {**gpu, "uuid": "GPU-b", "healthy": False, "fault": "Xid 79"}
    annotations = {"vramwarden.io/gpus": json.dumps([gpu, broken])}
    bench.kube.node["metadata"]["annotations"] = annotations
    bench.step(figures())
    assert bench.writer.own.faults == {"GPU-b": "Xid 79"}


def test_that_a_node_is_shared_again_is_written():
    bench = Bench()
    bench.step(replace(figures(), not_shared="x", held="x"))
    bench.step(figures(), later_s=LEAST_S)
    assert bench.kube.stored == write_gpu_node(figures(), "u-1")


def test_a_node_that_never_had_a_gpu_has_no_object_and_one_that_lost_them_has():
    none = replace(figures(), gpus=())
    bench = Bench()
    bench.step(none)
    assert bench.kube.stored is None
    bench.step(figures(1))
    bench.step(none, later_s=LEAST_S)
    assert bench.kube.stored["status"]["summary"]["gpus"] == 0


storms = st.lists(
    st.tuples(
        st.floats(0.0, 40.0),
        st.integers(0, 80),
        st.lists(st.sampled_from("abc"), max_size=3, unique=True),
        st.sampled_from([None, None, None, DOWN, FORBIDDEN, MISSING, "lost"]),
        st.booleans(),
    ),
    max_size=60,
)


@given(storms, st.floats(0, 5))
def test_whatever_happens_at_most_one_write_is_stored_in_fifteen_seconds(storm, jitter_s):
    """Also where an answer is lost, the object is deleted, or the thread wakes for nothing."""
    bench = Bench(jitter_s=jitter_s)
    kube = bench.kube
    stores = kube._write
    for number, (later_s, used, pods, fails, deleted) in enumerate(storm):
        kube.fails = fails if fails != "lost" else None
        kube._write = stores
        if fails == "lost":

            def store_and_lose(body):
                stores(body)
                raise DOWN

            kube._write = store_and_lose
        if deleted and number % 5 == 0:
            kube.stored = None
        bench.step(figures(used, float(number), *pods), later_s=later_s)
        bench.step()
    gaps = [b - a for a, b in zip(kube.written_s, kube.written_s[1:], strict=False)]
    assert all(gap >= LEAST_S for gap in gaps)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 80), st.booleans()), max_size=60),
    st.integers(0, 5),
)
def test_who_starts_again_and_again_writes_no_more_than_who_goes_on(storm, jitter_s):
    bench = Bench(jitter_s=jitter_s)
    for later_s, used, restarts in storm:
        bench.kube.now_s += later_s
        if restarts:
            bench.start()
        bench.step(figures(used, bench.kube.now_s))
        bench.step()
    written_s = bench.kube.written_s
    gaps = [b - a for a, b in pairwise(written_s)]
    assert all(gap >= LEAST_S for gap in gaps)


def test_a_new_sentry_that_sees_what_the_last_one_did_writes_when_that_one_had():
    bench = Bench(jitter_s=3.0)
    bench.step(figures(4, 1000.0))
    bench.step(later_s=3.0)
    bench.start()
    for second in range(200):
        bench.step(figures(4, bench.kube.now_s), later_s=1.0)
        assert second or bench.sent
    assert bench.kube.written_s == [1003.0, 1064.0, 1127.0, 1190.0]


@given(storms)
def test_the_newest_figures_are_always_written_in_the_end(storm):
    bench = Bench()
    for number, (later_s, used, pods, fails, _) in enumerate(storm):
        bench.kube.fails = None if fails == "lost" else fails
        bench.step(figures(used, float(number), *pods), later_s=later_s)
    bench.kube.fails = None
    last = figures(7, 10_000.0, "z")
    bench.step(last)
    for _ in range(4):
        bench.step(later_s=UNKNOWN_KIND_S)
    assert bench.kube.stored == write_gpu_node(last, "u-1")
