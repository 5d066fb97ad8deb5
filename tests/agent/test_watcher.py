"""What the watching thread reports, and how often it asks an API server that fails."""

import functools
import itertools
from types import SimpleNamespace

import pytest

from webhook.adapters.kube import assigned
from webhook.adapters.kube.assigned import WATCH_S
from webhook.adapters.kube.client import Kube, KubeError
from webhook.agent import watcher
from webhook.agent.watcher import NodeSeen, WatchFailed, watch, watch_gpus
from webhook.agent.xids import Hold
from webhook.core.node.inventory import Scan, SeenGpu

NODE = {"metadata": {"resourceVersion": "7"}}
LATER = {"metadata": {"resourceVersion": "8"}}
DOWN = KubeError("down")
NOT_FOUND = KubeError("nodes not found", code=404)
FORBIDDEN = KubeError("forbidden", code=403)


def modified(node):
    return "MODIFIED", node


def deleted(node):
    return "DELETED", node


class Enough(BaseException):
    """Ends a thread that works forever."""


class FakeKube(Kube):
    """Answers each read and each watch with the next of a list; a failure is raised."""

    def __init__(self, reads, watches):
        self.reads, self.watches = iter(reads), iter(watches)
        self.since = []

    def read(self, path):
        assert path == "/api/v1/nodes/n"
        answer = next(self.reads, Enough())
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def watch(self, path, *, lasting_s, fieldSelector, resourceVersion):  # noqa: N803 - theirs
        assert (path, lasting_s) == ("/api/v1/nodes", WATCH_S)
        assert fieldSelector == "metadata.name=n"
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
        watch(kube, "n", reports.append)
    return reports


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
    assert reports == [*[WatchFailed("down")] * 6, NodeSeen(NODE), WatchFailed("down")]
    watched = pauses.pop(6)
    assert 0 < watched <= 1  # a watch that ends at once is not begun again at once
    assert pauses == [1, 2, 4, 8, 15, 15, 1]


def test_where_only_the_watch_is_denied_reads_go_on_and_its_pauses_grow(pauses):
    reports = reports_by(FakeKube([NODE] * 3, [FORBIDDEN] * 3))
    assert reports == [NodeSeen(NODE, watched=False), WatchFailed("forbidden")] * 3
    assert pauses == [1, 2, 4]


def test_a_watch_that_breaks_off_is_started_again(pauses):
    reports = reports_by(FakeKube([NODE, LATER], [[DOWN], []]))
    assert reports == [NodeSeen(NODE), WatchFailed("down"), NodeSeen(LATER)]


class Wanted:
    """A `threading.Event` that keeps how long was waited for it, and waits no time."""

    def __init__(self):
        self.pauses = []
        self.cleared = 0

    def wait(self, pause_s):
        self.pauses.append(pause_s)

    def clear(self):
        self.cleared += 1


def test_gpus_are_scanned_with_a_pause_after_each_scan_or_at_once(monkeypatch):
    scanned = []
    monkeypatch.setattr(watcher, "scan", lambda *by: scanned.append(by) or Scan())
    numbers = itertools.count()
    wanted = Wanted()

    def send(_):
        if next(numbers) == 3:
            raise Enough

    with pytest.raises(Enough):
        watch_gpus("nvml", "file", 30.0, wanted, Hold(), send)
    assert scanned == [("nvml", "file")] * 4
    assert wanted.pauses == [30.0] * 3
    assert wanted.cleared == 4  # before each scan: what asks for one meanwhile gets another


FINE, GONE = Scan((SeenGpu("GPU-a", "x", 0, 1),)), Scan()


@pytest.mark.parametrize(
    ("scans", "fresh"),
    [
        ([FINE] * 4, [0]),
        ([FINE, FINE, Scan(failed="why"), FINE, FINE], [0, 3]),
        ([FINE, FINE, Scan(unsure=frozenset({""})), Scan(unsure=frozenset({""})), FINE, FINE],
         [0, 3, 4]),
        ([FINE, FINE, GONE, GONE, GONE], [0, 3]),
        ([FINE, FINE, GONE, FINE, FINE], [0, 3]),
        ([FINE] * 24, [0, 21]),  # in any case each ten minutes, to see what was added
    ],
)  # fmt: skip
def test_a_scan_takes_the_library_anew_after_one_that_failed_or_saw_others(
    scans, fresh, monkeypatch
):
    class Holding(Hold):
        def fresh(self):
            taken.append(len(scanned))
            return super().fresh()

    taken, scanned, coming = [], [], iter(scans)
    monkeypatch.setattr(watcher, "scan", lambda *_: scanned.append(0) or next(coming))
    clock = SimpleNamespace(monotonic=lambda: 30.0 * len(scanned))
    monkeypatch.setattr(watcher, "time", clock)

    def send(_):
        if len(scanned) == len(scans):
            raise Enough

    with pytest.raises(Enough):
        watch_gpus("nvml", "file", 30.0, Wanted(), Holding(), send)
    assert taken == fresh


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
    unhurried = functools.partial(assigned.follow, clock=lambda: quiet.now_s, sleep=quiet.sleep)
    monkeypatch.setattr(assigned, "follow", unhurried)
    with pytest.raises(Enough):
        watch(quiet, "n", lambda _: None)
    assert len(quiet.asked) <= 2 * 3600 / (0.75 * WATCH_S) + 2
