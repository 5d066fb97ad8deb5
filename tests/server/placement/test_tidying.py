"""Entries leave soon after their pods end; a failure is said once, and tried again."""

from __future__ import annotations

import threading

import pytest

from tests.support.logs import RecordedLog
from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.placement import Question, StoredList
from webhook.core.placement.assignments import PodState, Whole
from webhook.server.placement import tidying as module
from webhook.server.placement.tidying import Tidying

LIST = StoredList("n1", {}, whole=True, version="1")


class Api:
    def assignments(self, node):
        return StoredList(node, {}, True, "1", Whole("7", 0, ()))

    def whole_gpu_pods(self, node):
        return [f"{node}/{name}" for name in "abcd"]

    def all_assignments(self, _known):
        return [LIST, StoredList("", {}, whole=False, version="1")]


class Binder:
    """Records what it was asked to tidy; fails as often as it is set to."""

    def __init__(self, failures=0, broken=()):
        self.tidied = []
        self.said = {}
        self.enough = threading.Event()
        self._failures = failures
        self._broken = broken

    def say(self, node, whole):
        self.said[node] = whole
        self.enough.set()

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
        self.enough.set()


def ended(uid):
    return PodState(uid=uid, name=f"team/{uid}", need=None, finished=True)


@pytest.fixture
def tidying(monkeypatch):
    monkeypatch.setattr(module, "GATHER_S", 0.05)
    return Tidying(Api(), RecordedLog())


def test_the_lists_in_which_pods_stand_that_ended_are_tidied_once_each(tidying, monkeypatch):
    monkeypatch.setattr(module, "EVERY_S", 3600.0)
    binder = Binder()
    for uid in ("p1", "p2", "p3", "p1"):
        tidying.ended(ended(uid))
    tidying.start(binder)
    assert binder.enough.wait(60)
    for _ in range(200):
        if len(binder.tidied) == 2:
            break
        threading.Event().wait(0.01)
    assert binder.tidied == [("n1", None), ("n2", None)]


def test_what_nodes_ask_is_answered_unless_it_was(tidying, monkeypatch):
    monkeypatch.setattr(module, "EVERY_S", 3600.0)
    binder = Binder(broken={"n1"})
    tidying.ended(ended("p1"))
    for node, asked in (("n2", "6"), ("n1", "7"), ("n2", "8")):
        tidying.asked(Question(node, asked))
    tidying.start(binder)
    assert binder.enough.wait(60)
    assert binder.said == {"n2": Whole("8", 4, ("n2/a", "n2/b", "n2/c"))}


def test_a_list_that_cannot_be_written_keeps_no_other_from_its_turn(tidying):
    tidying._api.all_assignments = lambda _known: [
        StoredList(name, {}, whole=True, version="1") for name in ("n1", "n2")
    ]
    binder = Binder(broken={"n1"})
    with pytest.raises(KubeError):
        tidying.round(binder)
    assert [name for name, _ in binder.tidied] == ["n2", "lost"]


def test_a_list_that_should_be_there_is_tidied_too(tidying):
    binder = Binder()
    tidying.round(binder)
    lost = StoredList("lost", {}, whole=False, version="")
    assert binder.tidied == [("n1", LIST), ("lost", lost)]


def test_all_lists_are_tidied_now_and_then_and_failures_are_reported_once(tidying, monkeypatch):
    monkeypatch.setattr(module, "EVERY_S", 0.01)
    binder = Binder(failures=3)
    tidying.start(binder)
    assert binder.enough.wait(60)
    for _ in range(200):
        if len(tidying._log.lines) == 2:
            break
        threading.Event().wait(0.01)
    assert ("n1", LIST) in binder.tidied  # as it was read: no list is read twice
    assert [line[:2] for line in tidying._log.lines[:2]] == [
        ("error", "lists of GPUs cannot be tidied; retrying"),
        ("info", "lists of GPUs are tidied again"),
    ]
