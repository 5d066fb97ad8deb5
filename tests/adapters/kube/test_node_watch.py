"""What is reported of a node and of its ResourceSlices, and how often that is asked for."""

from __future__ import annotations

from functools import partial

import pytest

from tests.agent.test_free_memory import taken, taking
from webhook.adapters.kube import node_watch
from webhook.adapters.kube.client import Kube, KubeError
from webhook.adapters.kube.follow import Changed, Failed, Listed
from webhook.adapters.kube.node_watch import (
    REFUSED_S,
    WATCH_S,
    AssignmentsSeen,
    AssignmentsUnread,
    NodeSeen,
    NodeUnread,
    SlicesSeen,
    SlicesUnread,
    watch_assignments,
    watch_node,
    watch_slices,
)
from webhook.core.placement.assignments import Whole, write_assignments, write_whole
from webhook.core.pod.whole import Slice, claimants, read_slice

NODE = {"metadata": {"resourceVersion": "7"}}
LATER = {"metadata": {"resourceVersion": "8"}}
DOWN = KubeError("down")
NOT_FOUND = KubeError("nodes not found", code=404)
FORBIDDEN = KubeError("forbidden", code=403)
WHOLE = Whole("7", 1, ("ns/whole",))


@pytest.fixture
def pauses(monkeypatch):
    """Let the watching threads pause no time, and keep how long they would have."""
    slept = []
    unhurried = partial(node_watch.follow, sleep=slept.append, spread=lambda _, most: most)
    monkeypatch.setattr(node_watch, "follow", unhurried)
    return slept


def modified(node):
    return "MODIFIED", node


def deleted(node):
    return "DELETED", node


class Enough(BaseException):
    """Ends a thread that works forever."""


class FakeKube(Kube):
    """Answers each read and each watch with the next of a list; a failure is raised."""

    def __init__(self, reads, watches=(), collection="/api/v1/nodes", name="n"):
        self.reads, self.watches = iter(reads), iter(watches)
        self.collection, self.name = collection, name
        self.since = []

    def read(self, path):
        assert path == f"{self.collection}/{self.name}"
        answer = next(self.reads, Enough())
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def watch(self, path, *, lasting_s, fieldSelector, resourceVersion):  # noqa: N803 - theirs
        assert (path, lasting_s) == (self.collection, WATCH_S)
        assert fieldSelector == f"metadata.name={self.name}"
        self.since.append(resourceVersion)
        events = next(self.watches)
        if isinstance(events, BaseException):
            raise events
        return self._events(events)

    def _events(self, events):
        for event in events:
            if isinstance(event, BaseException):
                raise event
            yield event


def reports_by(kube):
    reports = []
    with pytest.raises(Enough):
        watch_node(kube, "n", reports.append)
    return reports


def lists_by(reads, watches=()):
    """Return what is reported of a list, and the versions from which it was watched."""
    maps = "/api/v1/namespaces/ns/configmaps"
    kube, reports = FakeKube(reads, watches, maps, "gpu-assignments-n"), []
    with pytest.raises(Enough):
        watch_assignments(kube, "ns", "n", reports.append)
    return reports, kube.since


def test_the_node_and_each_change_are_reported_from_the_version_that_was_read(pauses):
    kube = FakeKube([NODE, LATER], [[modified(LATER), deleted(LATER)], []])
    assert reports_by(kube) == [NodeSeen(NODE), NodeSeen(LATER), NodeSeen(None), NodeSeen(LATER)]
    assert kube.since == ["7", "8"]


def test_a_node_that_does_not_exist_is_reported_and_waited_for(pauses):
    kube = FakeKube([NOT_FOUND], [[("ADDED", NODE)]])
    assert reports_by(kube) == [NodeSeen(None), NodeSeen(NODE)]
    assert kube.since == ["0"]


def test_pauses_double_up_to_a_bound_until_a_watch_succeeds(pauses):
    reports = reports_by(FakeKube([*[DOWN] * 6, NODE, DOWN], [[]]))
    assert reports == [*[NodeUnread("down")] * 6, NodeSeen(NODE), NodeUnread("down")]
    watched = pauses.pop(6)
    assert 0 < watched <= 1  # a watch that ends at once is not begun again at once
    assert pauses == [1, 2, 4, 8, 15, 15, 1]


def test_where_only_the_watch_is_denied_reads_go_on_and_its_pauses_grow(pauses):
    reports = reports_by(FakeKube([NODE] * 3, [FORBIDDEN] * 3))
    assert reports == [NodeSeen(NODE, watched=False), NodeUnread("forbidden")] * 3
    assert pauses == [1, 2, 4]


def test_a_watch_that_breaks_off_is_started_again(pauses):
    reports = reports_by(FakeKube([NODE, LATER], [[DOWN], []]))
    assert reports == [NodeSeen(NODE), NodeUnread("down"), NodeSeen(LATER)]


class Quiet:
    """An API server where nothing changes for an hour; time passes as it is waited."""

    def __init__(self):
        self.now_s, self.asked = 0.0, []

    def find(self, path):
        self.asked.append(path)
        return NODE

    def watch(self, path, *, lasting_s, **_):
        self.asked.append(path)
        self.sleep(lasting_s)
        return iter(())

    def sleep(self, seconds):
        self.now_s += seconds
        if self.now_s > 3600:
            raise Enough


def test_a_node_where_nothing_changes_costs_the_api_server_a_request_in_two_minutes(monkeypatch):
    quiet = Quiet()
    unhurried = partial(node_watch.follow, clock=lambda: quiet.now_s, sleep=quiet.sleep)
    monkeypatch.setattr(node_watch, "follow", unhurried)
    with pytest.raises(Enough):
        watch_node(quiet, "n", lambda _: None)
    assert len(quiet.asked) <= 2 * 3600 / (0.75 * WATCH_S) + 2


def config_map(mib, version="7", whole=None):
    data = {**write_assignments(taking(mib)), **write_whole(whole)}
    return {"metadata": {"resourceVersion": version}, "data": data}


def test_the_list_and_each_change_are_reported_from_the_version_that_was_read(pauses):
    events = [
        ("MODIFIED", config_map(2, "8")),
        ("BOOKMARK", {"metadata": {"resourceVersion": "9"}}),
        ("DELETED", config_map(2, "10")),
        ("ADDED", config_map(3, "11", WHOLE)),
    ]
    answered = AssignmentsSeen(taking(3), whole=WHOLE)
    expected = [taken(1), taken(2), taken(0), answered]
    assert lists_by([config_map(1)], [events]) == (expected, ["7"])


def test_no_list_means_that_all_is_free_and_it_is_waited_for(pauses):
    reported = lists_by([NOT_FOUND], [[("ADDED", config_map(3))]])
    assert reported == ([taken(0), taken(3)], ["0"])


@pytest.mark.parametrize(
    ("data", "mib"),
    [(None, 0), ({}, 0), ({"a": "{"}, 0), ({"a": "{", **write_assignments(taking(5))}, 5)],
)
def test_of_a_list_that_somebody_edited_what_can_be_read_counts(data, mib, pauses):
    stored = {"metadata": {"resourceVersion": "7"}, "data": data}
    assert lists_by([stored], [[]])[0] == [taken(mib)]


def test_failures_of_a_list_are_reported_and_pauses_grow(pauses):
    reported, _ = lists_by([FORBIDDEN, DOWN, DOWN, config_map(1)], [FORBIDDEN])
    assert reported == [
        AssignmentsUnread("forbidden"),
        AssignmentsUnread("down"),
        AssignmentsUnread("down"),
        AssignmentsSeen(taking(1), watched=False),
        AssignmentsUnread("forbidden"),
    ]
    assert pauses == [1, 2, 4, 8]


GPU = Slice("gpus", "gpu.nvidia.com", frozenset({"gpu", "GPU-a"}))
CHANNEL = Slice("channels", "compute-domain.nvidia.com", frozenset({"channel"}))
MOVED = Slice("gpus", "gpu.nvidia.com", frozenset({"GPU-b"}))
NOT_SERVED = Failed(KubeError("404", code=404))
SLICES_FORBIDDEN = Failed(KubeError("403", code=403))
SLICES_DOWN = Failed(KubeError("down"))


@pytest.fixture
def heard(monkeypatch):
    """Return a function that hears reports, and returns what was sent and the pauses after each."""

    def hear(*reports):
        sent, pauses = [], []
        monkeypatch.setattr(node_watch.time, "sleep", pauses.append)

        def follow(collection, hear, *, sleep):
            assert collection.fields == "spec.nodeName=n"
            for report in reports:
                hear(report)
                if isinstance(report, Failed):
                    sleep(1.0)

        monkeypatch.setattr(node_watch, "follow", follow)
        watch_slices(None, "n", sent.append)
        return sent, pauses

    return hear


def test_all_slices_are_reported_at_each_change(heard):
    deleted, moved = Changed("DELETED", CHANNEL), Changed("MODIFIED", MOVED)
    sent, _ = heard(Listed([GPU]), Changed("ADDED", CHANNEL), moved, deleted, Listed([]))
    assert sent == [
        SlicesSeen((GPU,)),
        SlicesSeen((GPU, CHANNEL)),
        SlicesSeen((CHANNEL, MOVED)),
        SlicesSeen((MOVED,)),
        SlicesSeen(()),
    ]


@pytest.mark.parametrize(
    ("reports", "sent", "pauses"),
    [
        ([NOT_SERVED], [SlicesUnread("404", refused=True)], [REFUSED_S]),
        ([SLICES_FORBIDDEN, SLICES_FORBIDDEN], [], [1, 1]),
        ([SLICES_FORBIDDEN] * 3, [SlicesUnread("403", refused=True)], [1, 1, REFUSED_S]),
        ([SLICES_DOWN] * 3, [SlicesUnread("down", refused=False)], [1, 1, 1]),
        (
            [SLICES_FORBIDDEN, SLICES_FORBIDDEN, Listed([]), SLICES_FORBIDDEN],
            [SlicesSeen(())],
            [1, 1, 1],
        ),
        (
            [SLICES_FORBIDDEN] * 3 + [Listed([]), SLICES_DOWN],
            [..., SlicesSeen(())],
            [1, 1, REFUSED_S, 1],
        ),
    ],
    ids=["not served", "just granted?", "not granted", "an outage", "granted", "granted late"],
)
def test_a_failure_that_may_pass_is_not_reported_at_once(heard, reports, sent, pauses):
    was_sent, paused = heard(*reports)
    assert paused == pauses
    assert [... if one is ... else was for one, was in zip(sent, was_sent, strict=True)] == sent


def test_a_bug_ends_the_thread(heard):
    with pytest.raises(ZeroDivisionError):
        heard(Failed(ZeroDivisionError()))


@pytest.mark.parametrize(
    ("spec", "texts"),
    [
        ({"devices": [{"attributes": {"uuid": {"string": "GPU-a"}}}]}, {"GPU-a"}),
        ({"devices": [{"attributes": {"n": {"int": 1}, "b": {"bool": True}}}]}, set()),
        ({"devices": [{}, {"attributes": None}, 7, {"attributes": {"a": "GPU-a"}}]}, set()),
        ({"devices": {"a": 1}}, set()),
        ({"devices": [{}] * 128 + [{"attributes": {"uuid": {"string": "GPU-a"}}}]}, set()),
        (None, set()),
    ],
)
def test_a_slice_is_read_as_far_as_it_can_be(spec, texts):
    found = read_slice({"metadata": {"name": "one"}, "spec": spec})
    assert (found.name, found.texts) == ("one", frozenset(texts))


def test_claimants_are_who_names_one_of_the_gpus():
    assert claimants([MOVED, CHANNEL, GPU], {"GPU-a"}) == ("gpu.nvidia.com",)
    assert claimants([MOVED, CHANNEL], {"GPU-a"}) == ()
