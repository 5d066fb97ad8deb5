"""Entries leave soon after their pods end; a failure is said once, and tried again."""

from __future__ import annotations

import threading

import pytest

from tests.support.api_server import ApiServer
from tests.support.recorded_log import RecordedLog
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.placement import PlacementApi, Question, StoredList
from webhook.core.placement.assignment_codec import Whole
from webhook.core.placement.pod_state import PodState
from webhook.server.placement import tidying as module
from webhook.server.placement.tidying import Tidying

LOST = StoredList("lost", {}, whole=False, version="")


class Binder:
    """Records what it was asked to tidy; fails as often as it is set to."""

    def __init__(self, failures=0, broken=()):
        self.tidied = []
        self.said = {}
        self._failures = failures
        self._broken = broken

    def say(self, node, whole):
        self.said[node] = whole

    def nodes_of(self, pods):
        entered = {"p1": {"n1"}, "p2": {"n1", "n2"}}
        return set().union(*(entered.get(pod.uid, ()) for pod in pods))

    def copy(self, _name):
        return None

    def unlisted(self, listed):
        return {"n1", "lost"} - set(listed)

    def tidy(self, name, stored=None):
        if self._failures:
            self._failures -= 1
            raise KubeError("away")
        if name in self._broken:
            raise KubeError("away")
        self.tidied.append((name, stored))


class Log(RecordedLog):
    """Says when tidying works again."""

    def __init__(self):
        super().__init__()
        self.is_over = threading.Event()

    def event(self, level, message, /, **values):
        super().event(level, message, **values)
        if level == "info":
            self.is_over.set()


@pytest.fixture
def server():
    """Return an API server with pods that have whole GPUs on n2, and a list of no known node."""
    found = ApiServer()
    whole = [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    for name in "abcd":
        path = f"/api/v1/namespaces/ml/pods/{name}"
        status = {"startTime": "2026-01-01T00:00:00Z"}
        found.put(path, {"spec": {"nodeName": "n2", "containers": whole}, "status": status})
    labels = {"vramwarden.io/gpu-assignments": "true"}
    found.put("/api/v1/namespaces/sys/configmaps/other", {"metadata": {"labels": labels}})
    return found


@pytest.fixture
def api(server):
    return PlacementApi(server.kube(), "sys")


@pytest.fixture
def tidying(api, monkeypatch):
    monkeypatch.setattr(module, "GATHER_S", 0.0)
    return Tidying(api, Log())


def ended(uid):
    return PodState(uid=uid, name=f"team/{uid}", need=None, finished=True)


def test_the_lists_in_which_pods_stand_that_ended_are_tidied_once_each(tidying):
    binder = Binder()
    for uid in ("p1", "p2", "p3", "p1"):
        tidying.ended(ended(uid))
    tidying._each(tidying._due(binder, 60))
    assert binder.tidied == [("n1", None), ("n2", None)]
    assert tidying._due(binder, 0) == []


def test_what_nodes_ask_is_answered_unless_it_was(tidying, api):
    api.store("n1", {}, "", Whole("7", 0, ()))
    binder = Binder(broken={"n1"})
    tidying.ended(ended("p1"))
    for node, asked in (("n2", "6"), ("n1", "7"), ("n2", "8")):
        tidying.asked(Question(node, asked))
    with pytest.raises(KubeError):  # of the list that cannot be tidied
        tidying._each(tidying._due(binder, 60))
    assert binder.said == {"n2": Whole("8", 4, ("ml/a", "ml/b", "ml/c"))}


def test_a_list_that_cannot_be_written_keeps_no_other_from_its_turn(tidying, api):
    for name in ("n1", "n2"):
        api.store(name, {}, "")
    binder = Binder(broken={"n1"})
    with pytest.raises(KubeError):
        tidying.round(binder)
    assert [name for name, _ in binder.tidied] == ["n2", "lost"]


def test_a_list_that_should_be_there_is_tidied_too(tidying, api):
    binder, stored = Binder(), api.store("n1", {}, "")
    tidying.round(binder)
    assert binder.tidied == [("n1", stored), ("lost", LOST)]


def test_all_lists_are_tidied_now_and_then_and_failures_are_reported_once(
    tidying, api, monkeypatch
):
    monkeypatch.setattr(module, "EVERY_S", 0.01)
    binder, stored = Binder(failures=3), api.store("n1", {}, "")
    tidying.start(binder)
    assert tidying._log.is_over.wait(60)
    assert ("n1", stored) in binder.tidied  # as it was read: no list is read twice
    assert [line[:2] for line in tidying._log.lines[:2]] == [
        ("error", "lists of GPUs cannot be tidied; retrying"),
        ("info", "lists of GPUs are tidied again"),
    ]
