"""Entries are removed soon after their pods end. A failure is logged once and retried."""

from __future__ import annotations

import threading

import pytest

from tests.support.api_server import ApiServer
from tests.support.recorded_log import RecordedLog
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.placement import PlacementApi, Question, StoredList
from webhook.core.placement.assignment_codec import WholeGpuPods
from webhook.core.placement.pod_state import PodState
from webhook.server.placement import maintenance as module
from webhook.server.placement.maintenance import ListMaintenance
from webhook.server.placement.whole_gpu_answers import WholeGpuAnswers

LOST = StoredList("lost", {}, whole=False, version="")


class Lists:
    """Lists and their garbage collection, which fails a number of times set by the test."""

    def __init__(self, failures=0, broken=()):
        self.collected = []
        self.answers = {}
        self._failures = failures
        self._broken = broken

    def submit(self, node, request):
        self.answers[node] = request.whole
        request.answer.set_result(None)

    def wait(self, answer):
        return answer.result()

    def nodes_with_entries(self, pods):
        entered = {"p1": {"n1"}, "p2": {"n1", "n2"}}
        return set().union(*(entered.get(pod.uid, ()) for pod in pods))

    def cached(self, _name):
        return None

    def unlisted_nodes(self, listed):
        return {"n1", "lost"} - set(listed)

    def collect(self, name, stored=None):
        if self._failures:
            self._failures -= 1
            raise KubeError("away")
        if name in self._broken:
            raise KubeError("away")
        self.collected.append((name, stored))


class Log(RecordedLog):
    """Signals when maintenance works again."""

    def __init__(self):
        super().__init__()
        self.is_over = threading.Event()

    def event(self, level, message, /, **values):
        super().event(level, message, **values)
        if level == "info":
            self.is_over.set()


@pytest.fixture
def server():
    """Return an API server with pods that have whole GPUs on n2, and an unknown node's list."""
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
def maintain(api, monkeypatch):
    """Return a function that builds maintenance for the given lists."""
    monkeypatch.setattr(module, "GATHER_S", 0.0)
    return lambda lists: ListMaintenance(api, Log(), lists, lists, WholeGpuAnswers(api, lists))


def ended(uid):
    return PodState(uid=uid, name=f"team/{uid}", need=None, finished=True)


def test_the_lists_in_which_pods_stand_that_ended_are_collected_once_each(maintain):
    lists = Lists()
    maintenance = maintain(lists)
    for uid in ("p1", "p2", "p3", "p1"):
        maintenance.on_ended(ended(uid))
    maintenance._run_all(maintenance._wait_for_work(60))
    assert lists.collected == [("n1", None), ("n2", None)]
    assert maintenance._wait_for_work(0) == []


def test_what_nodes_ask_is_answered_unless_it_was(maintain, api):
    api.write_list("n1", {}, "", WholeGpuPods("7", 0, ()))
    lists = Lists(broken={"n1"})
    maintenance = maintain(lists)
    maintenance.on_ended(ended("p1"))
    for node, asked in (("n2", "6"), ("n1", "7"), ("n2", "8")):
        maintenance.on_question(Question(node, asked))
    with pytest.raises(KubeError):  # from the list that cannot be collected
        maintenance._run_all(maintenance._wait_for_work(60))
    assert lists.answers == {"n2": WholeGpuPods("8", 4, ("ml/a", "ml/b", "ml/c"))}


def test_a_list_that_cannot_be_written_keeps_no_other_from_its_turn(maintain, api):
    for name in ("n1", "n2"):
        api.write_list(name, {}, "")
    lists = Lists(broken={"n1"})
    with pytest.raises(KubeError):
        maintain(lists).collect_all()
    assert [name for name, _ in lists.collected] == ["n2", "lost"]


def test_a_list_that_should_be_there_is_collected_too(maintain, api):
    lists, stored = Lists(), api.write_list("n1", {}, "")
    maintain(lists).collect_all()
    assert lists.collected == [("n1", stored), ("lost", LOST)]


def test_all_lists_are_collected_now_and_then_and_failures_are_reported_once(
    maintain, api, monkeypatch
):
    monkeypatch.setattr(module, "EVERY_S", 0.01)
    lists, stored = Lists(failures=3), api.write_list("n1", {}, "")
    maintenance = maintain(lists)
    maintenance.start()
    assert maintenance._log.is_over.wait(60)
    assert ("n1", stored) in lists.collected  # the list that was read: none is read twice
    assert [line[:2] for line in maintenance._log.lines[:2]] == [
        ("error", "lists of GPUs cannot be tidied; retrying"),
        ("info", "lists of GPUs are tidied again"),
    ]
