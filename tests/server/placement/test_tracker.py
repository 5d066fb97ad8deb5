"""What a replica knows of pods and nodes: lists, watches, what they leave out, what they repeat."""

from __future__ import annotations

import threading
from dataclasses import replace
from operator import itemgetter

import pytest

from tests.support.logs import RecordedLog
from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.follow import Collection
from webhook.adapters.kube.placement import GpuNode, Question
from webhook.core.nvidia.device_names import DeviceNames
from webhook.core.placement.assignments import PodState, Waits
from webhook.core.placement.fit import Need
from webhook.core.pod.gpus import Gpu
from webhook.server.metrics import Metrics, PlacementMetrics
from webhook.server.mirror import Mirror
from webhook.server.placement import tracker as module
from webhook.server.placement.tracker import Tracker

NODE = GpuNode("n1", (Gpu(uuid="GPU-a", memory_bytes=10, product="X", index=0),))
POD = PodState(uid="p1", name="team/train", need=Need(5))
BOUND = replace(POD, node="n1", uuids=("GPU-a",))


class Script:
    """A Kube that answers lists and watches of pods from a script, and then never again."""

    def __init__(self, lists=(), watches=()):
        self.lists = list(lists)
        self.watches = list(watches)
        self.watched_from = []
        self.at_the_end = threading.Event()
        self.nodes_taken = threading.Event()
        self.pods = Collection(kube=self, path="pods", keep=itemgetter("pod"))
        self.nodes = Collection(kube=self, path="nodes", keep=None)
        self.questions = Collection(kube=self, path="questions", keep=None)

    def list_all(self, path, _keep):
        if path == "questions":
            self._end(threading.Event())
        if path == "nodes":
            return [NODE], "1"
        if not self.lists:
            self._end(self.at_the_end)
        return self._next(self.lists)

    def watch(self, path, *, resourceVersion, **_):  # noqa: N803 - Kubernetes' own
        if path == "nodes":
            return (self._end(self.nodes_taken) for _ in "1")
        self.watched_from.append(resourceVersion)
        if self.watches:
            return iter(self._next(self.watches))
        return (self._end(self.at_the_end) for _ in "1")

    def _next(self, answers):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _end(self, reached):
        reached.set()
        threading.Event().wait()


@pytest.fixture
def follow(monkeypatch):
    """Return a function that runs a tracker on a script to the script's end."""
    monkeypatch.setattr(Mirror, "_sleep", lambda *_: None)

    def run(script):
        metrics = Metrics()
        log, freed = RecordedLog(), []
        reported = []
        tracker = Tracker(script, PlacementMetrics(metrics), log, freed.append, reported.append)
        tracker.reported = reported
        tracker.start()
        assert script.at_the_end.wait(60)
        assert script.nodes_taken.wait(60)
        return tracker, log, freed, metrics.exposition().decode()

    return run


def changed(kind, pod, version="2"):
    return kind, {"metadata": {"resourceVersion": version}, "pod": pod}


def test_it_keeps_the_server_unready_until_both_lists_were_read(follow):
    script = Script()
    tracker = Tracker(script, PlacementMetrics(Metrics()), RecordedLog())
    assert tracker.obstacle() == "pods and nodes not read yet"
    tracker, *_ = follow(Script([([], "1")]))
    assert tracker.obstacle() == ""
    assert tracker.node("n1") == NODE


def test_it_knows_what_the_largest_gpu_has_while_nodes_come_and_go():
    tracker = Tracker(Script(), PlacementMetrics(Metrics()), RecordedLog())
    large = GpuNode(
        "n2",
        (
            Gpu(uuid="GPU-b", memory_bytes=5, product="X", index=0),
            Gpu(uuid="GPU-c", memory_bytes=80, product="X", index=1, healthy=False),
        ),
    )
    known = [tracker.largest_bytes()]
    for act in (
        lambda: tracker._on_nodes([NODE]),
        lambda: tracker._on_node("ADDED", large),
        lambda: tracker._on_node("MODIFIED", replace(large, gpus=large.gpus[:1])),
        lambda: tracker._on_node("DELETED", NODE),
        lambda: tracker._on_nodes([]),
    ):
        act()
        known.append(tracker.largest_bytes())
    assert known == [None, 10, 80, 10, 5, None]


def test_a_watch_goes_on_from_what_it_reported_last(follow):
    bookmark = changed("BOOKMARK", None, "9")
    script = Script([([POD], "5")], [[changed("MODIFIED", BOUND, "6"), bookmark], [bookmark]])
    tracker, _, freed, _ = follow(script)
    assert script.watched_from == ["5", "9", "9"]
    assert tracker.relevant("n1", []) == {"p1": BOUND}
    assert freed == []


def test_a_watch_that_ends_silently_means_a_new_list(follow):
    script = Script([([POD], "5"), ([BOUND], "8")], [[]])
    tracker, *_ = follow(script)
    assert script.watched_from == ["5", "8"]
    assert tracker.pod("p1") == BOUND


def test_what_a_new_list_does_not_have_any_more_is_gone(follow):
    script = Script([([BOUND], "5"), ([], "8")], [KubeError("away")])
    tracker, log, freed, metrics = follow(script)
    assert freed == [replace(BOUND, gone=True)]
    assert tracker.pod("p1").gone
    assert tracker.relevant("n1", []) == {}
    assert not tracker.has("team/train")
    said = [(level, message) for level, message, _ in log.lines]
    assert said == [
        ("error", "placement cannot watch; retrying"),
        ("info", "placement watches again"),
    ]
    assert 'vramwarden_placement_unfollowed{resource="pods"} 0.0' in metrics


@pytest.mark.parametrize(
    ("kind", "pod"), [("DELETED", BOUND), ("MODIFIED", replace(BOUND, finished=True))]
)
def test_a_pod_that_ends_is_reported_once(follow, kind, pod):
    events = [changed("MODIFIED", BOUND), changed(kind, pod), changed(kind, pod)]
    tracker, _, freed, _ = follow(Script([([POD], "5")], [events]))
    assert freed == [pod if pod.finished else replace(BOUND, gone=True)]
    assert tracker.relevant("n1", ["p1"])["p1"] == freed[0]
    assert tracker.relevant("n1", []) == {}


def test_another_pod_of_the_same_name_is_another_pod(follow):
    second = replace(POD, uid="p2")
    events = [changed("DELETED", POD), changed("ADDED", second), changed("DELETED", POD)]
    tracker, *_ = follow(Script([([POD], "5")], [events]))
    assert tracker.has("team/train")
    assert tracker.pod("p1").gone
    assert tracker.pod("p2") == second


def test_not_every_pod_that_ever_was_is_remembered(follow, monkeypatch):
    monkeypatch.setattr(module, "_REMEMBERED", 2)
    pods = [replace(POD, uid=f"p{number}", name=f"team/{number}") for number in range(4)]
    events = [changed("DELETED", pod) for pod in pods]
    tracker, *_ = follow(Script([(pods, "5")], [events]))
    assert [tracker.pod(pod.uid) is not None for pod in pods] == [False, False, True, True]


def test_a_finished_pod_that_a_new_list_does_not_have_is_not_kept_forever(follow):
    finished = replace(BOUND, finished=True)
    script = Script([([finished], "5"), ([], "8")], [KubeError("away")])
    tracker, _, freed, _ = follow(script)
    assert freed == [finished]
    assert not tracker.has("team/train")


def test_a_pod_that_gets_its_label_back_is_known_again(follow, monkeypatch):
    monkeypatch.setattr(module, "_REMEMBERED", 1)
    other = replace(POD, uid="p2", name="team/other")
    events = [changed("DELETED", BOUND), changed("ADDED", BOUND), changed("DELETED", other)]
    tracker, *_ = follow(Script([([POD], "5")], [events]))
    assert tracker.has("team/train")
    assert tracker.relevant("n1", []) == {"p1": BOUND}


def test_a_node_that_does_not_show_its_gpus_is_known():
    silent = replace(NODE, gpus=())
    tracker = Tracker(Script(), PlacementMetrics(Metrics()), RecordedLog())
    tracker._on_nodes([silent])
    assert tracker.node("n1") == silent
    tracker._on_node("DELETED", silent)
    assert tracker.node("n1") is None


def test_a_bug_is_logged_and_does_not_end_the_thread(follow):
    script = Script([ValueError("a bug"), ([POD], "5")])
    tracker, log, *_ = follow(script)
    assert ("exception", "following pods failed", {}) in log.lines
    assert tracker.pod("p1") == POD


def test_a_pod_that_turns_out_to_be_bound_without_gpus_is_reported_once(follow):
    waits = replace(BOUND, uuids=(), waits=Waits())
    events = [changed("MODIFIED", waits), changed("MODIFIED", waits), changed("MODIFIED", BOUND)]
    tracker, *_ = follow(Script([([POD], "5")], [events[:2]]))
    assert tracker.reported == [waits]
    assert (tracker.waiting("n1"), tracker.waiting("n2"), tracker.waiting()) == (
        [waits],
        [],
        [waits],
    )
    tracker, _, _, metrics = follow(Script([([POD], "5")], [events]))
    assert tracker.waiting() == []
    assert "vramwarden_placement_waiting 0.0" in metrics


class Untouched(dict):
    """Pods of a node that nobody may go through."""

    def __iter__(self):
        raise AssertionError("looked through")

    values = items = __iter__


def test_who_waits_on_a_node_is_found_without_looking_at_other_nodes():
    tracker = Tracker(Script(), PlacementMetrics(Metrics()), RecordedLog())
    waits = replace(BOUND, uuids=(), waits=Waits())
    tracker._on_pod("ADDED", waits)
    tracker._waiting["n2"] = Untouched(p2=replace(waits, uid="p2", node="n2"))
    assert tracker.waiting("n1") == [waits]
    assert tracker.waited_on(["n3", "n1"]) == ["n1"]
    assert tracker.waited_on() == ["n1", "n2"]
    tracker._on_pod("MODIFIED", BOUND)
    assert (tracker.waiting("n1"), tracker.waited_on()) == ([], ["n2"])


def test_a_pod_that_waits_and_can_be_read_no_more_waits_no_more():
    tracker = Tracker(Script(), PlacementMetrics(Metrics()), RecordedLog())
    waits = replace(BOUND, uuids=(), waits=Waits())
    tracker._on_pod("ADDED", POD)
    tracker._on_pod("MODIFIED", waits)
    tracker._on_pod("MODIFIED", PodState(uid="p1", name="team/train", need=None))
    assert tracker.waited_on() == []


def test_a_pod_that_waits_and_is_deleted_waits_no_more(follow):
    waits = replace(BOUND, uuids=(), waits=Waits())
    tracker, *_ = follow(Script([([waits], "5")], [[changed("DELETED", waits)]]))
    assert tracker.reported == [waits]
    assert tracker.waiting() == []


def test_nodes_that_are_gone_are_reported():
    lost = []
    tracker = Tracker(Script(), PlacementMetrics(Metrics()), RecordedLog(), lost=lost.append)
    other = replace(NODE, name="n2")
    tracker._on_nodes([NODE, other])
    tracker._on_node("DELETED", other)
    tracker._on_nodes([])
    assert lost == ["n2", "n1"]


def test_each_question_of_a_node_is_reported_once():
    asked, lost = [], []
    tracker = Tracker(
        Script(), PlacementMetrics(Metrics()), RecordedLog(), lost=lost.append, asks=asked.append
    )
    first, again, other = Question("n1", "7"), Question("n1", "8"), Question("n2", "7")
    tracker._on_questions([first, Question("n3", "")])
    tracker._on_questions([first, other])
    for question in (first, again, again):
        tracker._on_question("MODIFIED", question)
    tracker._on_questions([again, other])
    assert (asked, lost) == ([first, other, again], [])
    tracker._on_nodes([NODE])  # shared by now
    tracker._on_question("DELETED", again)
    tracker._on_questions([])
    assert lost == ["n2"]
    tracker._on_question("ADDED", again)
    assert asked == [first, other, again, again]


UNNAMED = replace(NODE, device_names=DeviceNames.NONE)
HELD = replace(NODE, held="by a device plugin")
UNHEALTHY = replace(NODE, gpus=(replace(NODE.gpus[0], healthy=False),))


@pytest.mark.parametrize("listed", [True, False])
def test_nodes_of_which_something_else_is_known_are_reported(listed):
    changed = []
    tracker = Tracker(Script(), PlacementMetrics(Metrics()), RecordedLog(), changed=changed.append)
    other = replace(NODE, name="n2")
    tracker._on_nodes([NODE, other])
    for node in (NODE, UNNAMED, UNNAMED, UNHEALTHY, HELD):
        if listed:
            tracker._on_nodes([node, other])
        else:
            tracker._on_node("MODIFIED", node)
        assert tracker.node("n1") == node
    assert [names for names in changed if names] == [{"n1", "n2"}, *[{"n1"}] * 3]
