"""Pods and nodes that a replica tracks by lists and watches.

`tests/adapters/kube/test_follow.py` tests the sequence of lists and watches.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.api_server import ApiServer
from tests.support.recorded_log import RecordedLog
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.follow import Changed, Failed, Listed
from webhook.adapters.kube.placement import GpuNode, PlacementApi, Question
from webhook.core.nvidia.variables import DeviceNames
from webhook.core.placement.fit import Need
from webhook.core.placement.pod_state import PendingAssignment, PodState
from webhook.core.pod.gpus import Gpu
from webhook.server.informer import Informer
from webhook.server.metrics import Metrics, PlacementMetrics
from webhook.server.placement import tracker as module
from webhook.server.placement.tracker import Tracker

NODE = GpuNode(name="n1", gpus=(Gpu(uuid="GPU-a", memory_bytes=10, product="X", index=0),))
POD = PodState(uid="p1", name="team/train", need=Need(5))
BOUND = replace(POD, node="n1", uuids=("GPU-a",))
WAITS = replace(BOUND, uuids=(), pending=PendingAssignment())


class Scene(Tracker):
    """A tracker, its callbacks, and the watch events that it sees."""

    def __init__(self):
        self.server = ApiServer()
        self.exposed, self.log = Metrics(), RecordedLog()
        self.freed, self.came_to_wait, self.lost, self.changed = [], [], [], []
        self.asked = []
        super().__init__(
            PlacementApi(self.server.kube(), "sys"),
            PlacementMetrics(self.exposed),
            self.log,
            self.freed.append,
            self.came_to_wait.append,
            self.lost.append,
            self.changed.append,
            self.asked.append,
        )

    def hear(self, *reports):
        """Apply a list of pods, then changes (kind and pod) and errors."""
        for report in reports:
            if isinstance(report, list):
                self.pods.on_report(Listed(report))
            elif isinstance(report, tuple):
                self.pods.on_report(Changed(*report))
            else:
                self.pods.on_report(Failed(report))


@pytest.fixture
def tracker():
    return Scene()


def test_it_keeps_the_server_unready_until_both_lists_were_read(tracker, monkeypatch):
    def end(informer, _pause_s):
        informer.stop()
        informer._raise_if_stopped()

    monkeypatch.setattr(Informer, "_sleep", end)
    pod, node = "/api/v1/namespaces/team/pods/train", "/api/v1/nodes/n1"
    labels = {"vramwarden.io/managed": "true", "vramwarden.io/gpu": "true"}
    tracker.server.put(pod, {"metadata": {"uid": "p1", "labels": labels}})
    tracker.server.put("/api/v1/namespaces/team/pods/plain", {})

    def change(_):
        tracker.server.put(node, {"metadata": {"labels": labels}})
        tracker.server.remove(pod)

    tracker.server.fails("watch", change)  # then watches report the change
    found = []
    for informer in (tracker.pods, tracker.nodes):
        found.append((tracker.obstacle(), tracker.knows_pod("team/train"), tracker.node("n1")))
        informer.run()
    assert found == [
        ("pods and nodes not read yet", False, None),
        ("nodes not read yet", False, None),
    ]
    assert tracker.obstacle() == ""
    assert (tracker.pod("p1").gone, tracker.node("n1")) == (True, GpuNode(name="n1", gpus=()))
    assert [pod.name for pod in tracker.freed] == ["team/train"]
    assert not tracker.knows_pod("team/plain")


def test_it_knows_what_the_largest_gpu_has_and_if_a_driver_limits_as_nodes_come_and_go(tracker):
    large = GpuNode(
        name="n2",
        gpus=(
            Gpu(uuid="GPU-b", memory_bytes=5, product="X", index=0),
            Gpu(uuid="GPU-c", memory_bytes=80, product="X", index=1, healthy=False),
        ),
        driver_limit=True,
    )
    known = [(tracker.largest_gpu_bytes(), tracker.has_driver_limit())]
    for act in (
        lambda: tracker._on_nodes([NODE]),
        lambda: tracker._on_node("ADDED", large),
        lambda: tracker._on_node("MODIFIED", replace(large, gpus=large.gpus[:1])),
        lambda: tracker._on_node("MODIFIED", replace(large, driver_limit=False)),
        lambda: tracker._on_node("DELETED", NODE),
        lambda: tracker._on_nodes([]),
    ):
        act()
        known.append((tracker.largest_gpu_bytes(), tracker.has_driver_limit()))
    largest, limits = zip(*known, strict=True)
    assert largest == (None, 10, 80, 10, 80, 80, None)
    assert limits == (None, False, True, True, False, False, False)


def test_malformed_gpus_of_a_node_are_reported_once(tracker):
    ill = replace(NODE, unread=2)
    for act in (
        lambda: tracker._on_nodes([ill]),
        lambda: tracker._on_node("MODIFIED", replace(ill, closed_reason="x")),
        lambda: tracker._on_node("MODIFIED", NODE),
        lambda: tracker._on_nodes([ill]),
        lambda: tracker._on_node("DELETED", ill),
    ):
        act()
    warning = ("warning", "GPUs of a node's list that are malformed are not used")
    assert [(level, message) for level, message, _ in tracker.log.lines] == [
        warning,
        ("info", "all GPUs of a node's list can be read again"),
        warning,
    ]
    assert tracker.log.lines[0][2] == {"node": NODE.name, "why": 2}


def test_what_a_new_list_does_not_have_any_more_is_gone(tracker):
    tracker.hear([BOUND], KubeError("away"), [])
    assert tracker.freed == [replace(BOUND, gone=True)]
    assert tracker.pod("p1").gone
    assert tracker.pods_for("n1", []) == {}
    assert not tracker.knows_pod("team/train")
    said = [(level, message) for level, message, _ in tracker.log.lines]
    assert said == [
        ("error", "placement cannot watch; retrying"),
        ("info", "placement watches again"),
    ]
    assert (
        'vramwarden_placement_watch_failed{resource="pods"} 0.0'
        in tracker.exposed.exposition().decode()
    )


@pytest.mark.parametrize(
    ("kind", "pod"), [("DELETED", BOUND), ("MODIFIED", replace(BOUND, finished=True))]
)
def test_a_pod_that_ends_is_reported_once(tracker, kind, pod):
    tracker.hear([POD], ("MODIFIED", BOUND))
    assert (tracker.pods_for("n1", []), tracker.freed) == ({"p1": BOUND}, [])
    tracker.hear((kind, pod), (kind, pod))
    assert tracker.freed == [pod if pod.finished else replace(BOUND, gone=True)]
    assert tracker.pods_for("n1", ["p1"])["p1"] == tracker.freed[0]
    assert tracker.pods_for("n1", []) == {}


def test_another_pod_of_the_same_name_is_another_pod(tracker):
    second = replace(POD, uid="p2")
    tracker.hear([POD], ("DELETED", POD), ("ADDED", second), ("DELETED", POD))
    assert tracker.knows_pod("team/train")
    assert tracker.pod("p1").gone
    assert tracker.pod("p2") == second


def test_not_every_pod_that_ever_was_is_remembered(tracker, monkeypatch):
    monkeypatch.setattr(module, "_REMEMBERED", 2)
    pods = [replace(POD, uid=f"p{number}", name=f"team/{number}") for number in range(4)]
    tracker.hear(pods, *(("DELETED", pod) for pod in pods))
    assert [tracker.pod(pod.uid) is not None for pod in pods] == [False, False, True, True]


def test_a_finished_pod_that_a_new_list_does_not_have_is_not_kept_forever(tracker):
    finished = replace(BOUND, finished=True)
    tracker.hear([finished], [])
    assert tracker.freed == [finished]
    assert not tracker.knows_pod("team/train")


def test_a_pod_that_gets_its_label_back_is_known_again(tracker, monkeypatch):
    monkeypatch.setattr(module, "_REMEMBERED", 1)
    other = replace(POD, uid="p2", name="team/other")
    tracker.hear([POD], ("DELETED", BOUND), ("ADDED", BOUND), ("DELETED", other))
    assert tracker.knows_pod("team/train")
    assert tracker.pods_for("n1", []) == {"p1": BOUND}


def test_a_node_that_does_not_show_its_gpus_is_known(tracker):
    silent = replace(NODE, gpus=())
    tracker._on_nodes([silent])
    assert tracker.node("n1") == silent
    tracker._on_node("DELETED", silent)
    assert tracker.node("n1") is None


def test_a_bug_is_logged(tracker):
    tracker.hear(ValueError("a bug"), [POD])
    assert tracker.log.lines == [("exception", "following pods failed", {})]
    assert tracker.pod("p1") == POD


def test_a_pod_that_turns_out_to_be_bound_without_gpus_is_reported_once(tracker):
    tracker.hear([POD], ("MODIFIED", WAITS), ("MODIFIED", WAITS))
    assert tracker.came_to_wait == [WAITS]
    found = tracker.pending_pods("n1"), tracker.pending_pods("n2"), tracker.pending_pods()
    assert found == ([WAITS], [], [WAITS])
    assert "vramwarden_placement_waiting 1.0" in tracker.exposed.exposition().decode()


class Untouched(dict):
    """Pods of a node that must not be searched."""

    def __iter__(self):
        raise AssertionError("looked through")

    values = items = __iter__


def test_who_waits_on_a_node_is_found_without_looking_at_other_nodes(tracker):
    tracker.hear(("ADDED", WAITS))
    tracker._pending["n2"] = Untouched(p2=replace(WAITS, uid="p2", node="n2"))
    assert tracker.pending_pods("n1") == [WAITS]
    assert tracker.nodes_with_pending(["n3", "n1"]) == ["n1"]
    assert tracker.nodes_with_pending() == ["n1", "n2"]
    tracker.hear(("MODIFIED", BOUND))
    assert (tracker.pending_pods("n1"), tracker.nodes_with_pending()) == ([], ["n2"])


@pytest.mark.parametrize(
    ("kind", "pod"),
    [
        pytest.param("MODIFIED", BOUND, id="it has GPUs"),
        pytest.param("MODIFIED", replace(POD, need=None), id="it can be read no more"),
        pytest.param("DELETED", WAITS, id="it is deleted"),
    ],
)
def test_a_pod_waits_no_more_once(tracker, kind, pod):
    tracker.hear([POD], ("MODIFIED", WAITS), (kind, pod))
    assert (tracker.pending_pods(), tracker.nodes_with_pending(), tracker.came_to_wait) == (
        [],
        [],
        [WAITS],
    )
    assert "vramwarden_placement_waiting 0.0" in tracker.exposed.exposition().decode()


def test_nodes_that_are_gone_are_reported(tracker):
    other = replace(NODE, name="n2")
    tracker._on_nodes([NODE, other])
    tracker._on_node("DELETED", other)
    tracker._on_nodes([])
    assert tracker.lost == ["n2", "n1"]


def test_each_question_of_a_node_is_reported_once(tracker):
    first, again, other = Question("n1", "7"), Question("n1", "8"), Question("n2", "7")
    tracker._on_questions([first, Question("n3", "")])
    tracker._on_questions([first, other])
    for question in (first, again, again):
        tracker._on_question("MODIFIED", question)
    tracker._on_questions([again, other])
    assert (tracker.asked, tracker.lost) == ([first, other, again], [])
    tracker._on_nodes([NODE])  # shared now
    tracker._on_question("DELETED", again)
    tracker._on_questions([])
    assert tracker.lost == ["n2"]
    tracker._on_question("ADDED", again)
    assert tracker.asked == [first, other, again, again]


UNNAMED = replace(NODE, device_names=DeviceNames.NONE)
CLOSED = replace(NODE, closed_reason="by a device plugin")
UNHEALTHY = replace(NODE, gpus=(replace(NODE.gpus[0], healthy=False),))


@pytest.mark.parametrize("listed", [True, False])
def test_nodes_of_which_something_else_is_known_are_reported(tracker, listed):
    other = replace(NODE, name="n2")
    tracker._on_nodes([NODE, other])
    for node in (NODE, UNNAMED, UNNAMED, UNHEALTHY, CLOSED):
        if listed:
            tracker._on_nodes([node, other])
        else:
            tracker._on_node("MODIFIED", node)
        assert tracker.node("n1") == node
    assert [names for names in tracker.changed if names] == [{"n1", "n2"}, *[{"n1"}] * 3]
