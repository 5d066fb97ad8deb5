"""Events and conditions of a node's programs; reporting never waits."""

from __future__ import annotations

import json
import threading

import pytest

from tests.support.api_server import ApiServer
from webhook.adapters.journal import Journal
from webhook.core.node.events import EventReason
from webhook.node_programs.events import (
    OF_AN_OBJECT,
    OF_AN_OBJECT_EVERY_S,
    RETRY_S,
    WAITING,
    EventWriter,
)
from webhook.sentry.actions import cap_report

TRAINER = "aaaaaaaa-0000-4000-8000-000000000001"
TRAIN = "/api/v1/namespaces/team/pods/train"
POD = {"kind": "Pod", "namespace": "team", "name": "train", "uid": TRAINER}


def of_pod(*, stopped=True, uid=TRAINER, sentence="it held too much"):
    return cap_report("team/train", uid, sentence, stopped=stopped)


STOPPED = of_pod()

A, B = EventReason.GPU_LOST, EventReason.GPU_UNHEALTHY


class Bench:
    """EventWriter of the node `gpu-1`, which writes when the test calls it, and a pod."""

    def __init__(self):
        self.api, self.said, self.now_s = ApiServer(), [], 0.0
        self.api.put(TRAIN, {"metadata": {"uid": TRAINER}})
        self.events = EventWriter(
            self.api.kube(now_s=lambda: 1_800_000_000.0), Journal(self.said.append), node="gpu-1",
            reporter="vramwarden.io/agent", instance="agent-x", action="Advertise",
            clock=lambda: self.now_s,
        )  # fmt: skip

    @property
    def written(self):
        """Stored Events, in the order of their creation."""
        return [found for path, found in self.api.objects.items() if "/events/" in path]

    def write(self):
        """Write all pending Events; return reason, message and count of each."""
        while not self.events.waiting.empty():
            self.events.write(self.events.waiting.get_nowait())
        return [
            (item["reason"], item["note"], item.get("series", {"count": 1})["count"])
            for item in self.written
        ]

    def messages(self):
        return [json.loads(line)["msg"] for line in self.said]


@pytest.fixture
def bench():
    return Bench()


@pytest.mark.parametrize(
    ("reason", "kind"),
    [(EventReason.DRAIN, "Warning"), (EventReason.NOT_SHARED, "Normal")],
)
def test_an_event_of_a_node_names_it_as_its_kubelet_does(bench, reason, kind):
    bench.events.once(reason, "because")
    bench.write()
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": "gpu-1-", "namespace": "default"},
        "eventTime": "2027-01-15T08:00:00.000000Z",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": "gpu-1", "uid": "gpu-1"},
        "type": kind,
        "reason": reason,
        "note": "because",
        "action": "Advertise",
        "reportingController": "vramwarden.io/agent",
        "reportingInstance": "agent-x",
    }
    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    assert bench.api.sent() == [("POST", path, event)]


def test_a_condition_and_an_event_are_of_exactly_this_pod(bench):
    others = {"type": "Ready", "status": "True"}
    bench.api.put(TRAIN, {"metadata": {"uid": TRAINER}, "status": {"conditions": [others]}})
    assert bench.events.write(STOPPED) is False
    condition = {
        "type": "vramwarden.io/CapHeld",
        "status": "False",
        "reason": "VRAMCapExceeded",
        "message": "it held too much",
        "lastTransitionTime": "2027-01-15T08:00:00Z",
    }
    assert bench.api.objects[TRAIN]["status"] == {"conditions": [others, condition]}
    (event,) = bench.written
    assert event["metadata"]["namespace"] == "team"
    assert event["regarding"] == {"apiVersion": "v1", **POD}
    wanted = ("type", "reason", "note", "action")
    assert [event[key] for key in wanted] == [
        "Warning", "VRAMCapExceeded", "it held too much", "Stop",
    ]  # fmt: skip


def test_what_has_no_condition_is_an_event_alone(bench):
    bench.events.write(of_pod(stopped=False))
    assert [(method, body["action"]) for method, _, body in bench.api.sent()] == [
        ("POST", "Report")
    ]


def test_the_same_sentence_is_reported_once_by_reason_and_again_when_it_was_over(bench):
    for sentence in ("one", "one", "two", "two", "one"):
        bench.events.once(A, sentence)
    bench.events.once(B, "one")
    assert bench.write() == [(A, "one", 2), (A, "two", 1), (B, "one", 1)]
    bench.events.over(A)
    bench.events.once(A, "one")
    bench.events.once(B, "one")
    assert bench.write() == [(A, "one", 3), (A, "two", 1), (B, "one", 1)]


def test_a_long_sentence_is_cut_to_what_an_event_holds(bench):
    bench.events.once(A, "x" * 5000)
    assert bench.write() == [(A, "x" * 1024, 1)]


def test_events_of_an_object_are_few_however_much_happens(bench):
    for number in range(1000):
        bench.now_s = number / 1000
        bench.events.once(A, str(number))
        bench.events.report(of_pod(sentence=str(number), stopped=False))
        bench.write()
    assert len(bench.written) == 2 * OF_AN_OBJECT
    bench.events.report(of_pod(uid="another", stopped=False))
    bench.write()
    assert len(bench.written) == 2 * OF_AN_OBJECT + 1
    bench.now_s = 2 * OF_AN_OBJECT_EVERY_S
    bench.events.once(A, "later")
    assert bench.write()[-1] == (A, "later", 1)


@pytest.mark.parametrize(
    ("happens", "again", "condition", "events", "lines"),
    [
        pytest.param(lambda api: api.fails("PATCH", 0), True, False, 0, 1, id="no answer"),
        pytest.param(lambda api: api.fails("POST", 0), True, True, 0, 1, id="none to the event"),
        pytest.param(lambda api: api.remove(TRAIN), False, False, 0, 0, id="the pod is gone"),
        pytest.param(
            lambda api: api.put(TRAIN, {"metadata": {"uid": "other"}}), False, False, 0, 0,
            id="another pod",
        ),
        pytest.param(lambda api: api.fails("PATCH", 422), False, False, 0, 1, id="invalid"),
        pytest.param(
            lambda api: api.denied.add(("patch", "pods")), False, False, 1, 1, id="no right to pods"
        ),
        pytest.param(
            lambda api: api.denied.add(("create", "events")), False, True, 0, 1,
            id="no right to events",
        ),
    ],
)  # fmt: skip
def test_what_fails_is_retried_where_that_may_help_and_logged_where_somebody_should_know(
    bench, happens, again, condition, events, lines
):
    happens(bench.api)
    assert bench.events.write(STOPPED) is again
    assert ("status" in bench.api.objects.get(TRAIN, {})) is condition
    assert (len(bench.written), len(bench.said)) == (events, lines)


def test_a_failure_is_logged_once_and_so_is_its_end(bench):
    bench.api.denied.add(("create", "events"))
    for number in range(3):
        bench.events.once(A, str(number))
        assert bench.write() == []
    assert bench.messages() == ["events of the node cannot be written"]
    bench.api.denied.clear()
    bench.events.once(A, "now")
    assert bench.write() == [(A, "now", 1)]
    assert bench.messages()[1:] == ["events of the node can be written"]


class OverError(Exception):
    """Raised to end the test."""


def end(_request):
    raise OverError


def test_a_report_is_retried_until_it_is_written_and_not_forever(bench):
    pauses = []

    def sleep(pause_s):
        bench.now_s += pause_s
        pauses.append(pause_s)

    bench.api.fails("PATCH", 0, forever=True)
    bench.api.fails("POST", end)
    bench.events.report(STOPPED)
    bench.events.report_node(EventReason.UNMANAGED, "300Mi are held")
    with pytest.raises(OverError):
        bench.events.write_all(sleep=sleep)
    assert (pauses[:6], max(pauses)) == ([1, 2, 4, 8, 16, 30], 30)
    assert RETRY_S <= sum(pauses) <= RETRY_S + 30


def test_who_reports_never_waits_however_long_the_api_server_hangs(bench):
    asked, reported, in_time = threading.Event(), threading.Event(), []

    def hang(_request):
        asked.set()
        in_time.append(reported.wait(60))
        return 404

    bench.api.fails("PATCH", hang, forever=True)
    threading.Thread(target=bench.events.write_all, daemon=True).start()
    bench.events.report(of_pod(uid="uid-first"))
    assert asked.wait(60)
    for number in range(2 * WAITING):
        bench.events.report(of_pod(uid=f"uid-{number}"))
    assert in_time == []  # it is still waiting
    reported.set()
    assert b"reports are lost, except for this log" in bench.said[0]
