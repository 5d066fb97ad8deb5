"""Events: their limits, and series of equal events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.api_server import ApiServer
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.events import (
    BURST,
    INTERVAL_S,
    LONGEST_NOTE,
    MOST_REMEMBERED,
    OBJECT_BURST,
    OBJECT_INTERVAL_S,
    SERIES_S,
    Events,
)

POD = {"kind": "Pod", "namespace": "team", "name": "train", "uid": "u-1"}
COLLECTION = "/apis/events.k8s.io/v1/namespaces/team/events"


class Bench:
    def __init__(self):
        self.api, self.now_s = ApiServer(), 1000.0
        kube = self.api.kube(now_s=lambda: 1_800_000_000.25)
        self.events = Events(kube, "vramwarden.io/x", "one", clock=lambda: self.now_s)

    def write(self, note="why", later_s=60.0, about=POD, reason="Because"):
        self.now_s += later_s
        self.events.write(about, reason, note, action="Try")

    @property
    def written(self):
        return list(self.api.objects.values())

    def did(self):
        return [method for method, _, _ in self.api.sent()]


@pytest.fixture
def bench():
    return Bench()


def test_an_event_has_all_that_the_api_server_demands(bench):
    bench.events.write(POD, "Because", "why", action="Try", warning=False)
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": "train-", "namespace": "team"},
        "eventTime": "2027-01-15T08:00:00.250000Z",
        "regarding": {"apiVersion": "v1", **POD},
        "reason": "Because",
        "note": "why",
        "action": "Try",
        "type": "Normal",
        "reportingController": "vramwarden.io/x",
        "reportingInstance": "one",
    }
    assert bench.api.sent() == [("POST", COLLECTION, event)]


def test_a_note_is_cut_by_its_bytes_and_between_letters(bench):
    bench.write("ä" * LONGEST_NOTE)
    bench.write("x" + "ä" * LONGEST_NOTE)
    first, second = (event["note"] for event in bench.written)
    assert first == "ä" * (LONGEST_NOTE // 2)
    assert len(second.encode()) == LONGEST_NOTE - 1


@pytest.mark.parametrize(
    ("name", "prefix"),
    [("n1.example.com", "n1.example.com-"), ("x" * 239 + ".example.com", "x" * 239 + "-")],
)
def test_the_name_that_it_begins_with_is_one_that_objects_may_have(bench, name, prefix):
    bench.write(about=POD | {"name": name})
    assert bench.written[0]["metadata"]["generateName"] == prefix


def test_the_same_again_within_ten_minutes_is_a_series(bench):
    for later_s in (0.0, SERIES_S - 1, SERIES_S - 1, SERIES_S):
        bench.write(later_s=later_s)
    first, second = bench.written
    at = "2027-01-15T08:00:00.250000Z"
    assert (bench.did(), first["series"]) == (
        ["POST", "PATCH", "PATCH", "POST"],
        {"count": 3, "lastObservedTime": at},
    )
    assert "series" not in second


@pytest.mark.parametrize("other", [{"note": "x"}, {"reason": "X"}, {"about": POD | {"uid": "u-2"}}])
def test_what_says_or_means_something_else_is_another_event(bench, other):
    bench.write()
    bench.write(**other)
    assert bench.did() == ["POST", "POST"]


def test_an_event_that_is_gone_is_written_anew_and_goes_on(bench):
    bench.write()
    bench.api.remove(*bench.api.objects)
    bench.write()
    bench.write()
    (event,) = bench.written
    assert (bench.did(), event["series"]["count"]) == (["POST", "PATCH", "POST", "PATCH"], 2)


def test_a_failed_write_is_told_and_costs_nothing_of_what_is_allowed(bench):
    bench.api.fails("POST", *[0] * 100)
    for _ in range(100):
        with pytest.raises(KubeError):
            bench.write(later_s=1.0)
    for number in range(100):
        bench.write(str(number), later_s=1.0)
    assert len(bench.written) == OBJECT_BURST


def test_of_one_object_few_are_written_and_others_go_on(bench):
    for number in range(100):
        bench.write(str(number), later_s=1.0)
    assert len(bench.written) == OBJECT_BURST
    bench.write("more", later_s=OBJECT_INTERVAL_S)
    bench.write("more yet", later_s=1.0)
    assert len(bench.written) == OBJECT_BURST + 1
    bench.write("other", about=POD | {"uid": "u-2"})
    assert len(bench.written) == OBJECT_BURST + 2


@given(st.lists(st.floats(0.0, 2.0), max_size=100))
def test_of_all_objects_five_a_second_are_written_in_the_long_run(pauses):
    bench = Bench()
    for number, pause_s in enumerate(pauses):
        bench.write(str(number), pause_s, POD | {"uid": str(number)})
    assert len(bench.written) <= BURST + (bench.now_s - 1000.0) / INTERVAL_S + 1


def test_a_storm_of_all_objects_is_bounded(bench):
    for number in range(1000):
        bench.write(str(number), 0.001, POD | {"uid": str(number)})
    assert BURST < len(bench.written) <= BURST + 1.0 / INTERVAL_S + 1


def test_however_many_objects_there_are_what_is_remembered_is_bounded(bench):
    for number in range(2 * MOST_REMEMBERED):
        bench.write(str(number), 1.0, POD | {"uid": str(number)})
    assert len(bench.written) == 2 * MOST_REMEMBERED
    assert (len(bench.events._by_object), len(bench.events._series)) == (MOST_REMEMBERED,) * 2
