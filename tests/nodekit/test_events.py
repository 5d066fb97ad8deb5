"""What a program of a node reports in the API server, and that nobody waits for that."""

from __future__ import annotations

import json
import threading
import time

import pytest

from webhook.adapters.journal import Journal
from webhook.adapters.kube.client import KubeError
from webhook.nodekit.events import (
    OF_AN_OBJECT,
    OF_AN_OBJECT_EVERY_S,
    RETRY_S,
    WAITING,
    EventWriter,
)
from webhook.sentry.loop import report_of_pod

DOWN = KubeError("down")
FORBIDDEN = KubeError("forbidden", code=403)
NOT_FOUND = KubeError("not found", code=404)
ANOTHER = KubeError("metadata.uid: Invalid value: field is immutable", code=422)
INVALID = KubeError("status.conditions: Invalid value", code=422)
TRAINER = "aaaaaaaa-0000-4000-8000-000000000001"
POD = {"kind": "Pod", "namespace": "team", "name": "train", "uid": TRAINER}


def of_pod(*, stopped=True, uid=TRAINER):
    return report_of_pod("team/train", uid, "it held too much", stopped=stopped)


STOPPED = of_pod()


class FakeKube:
    """Takes patches and creations, and fails as the lists say."""

    def __init__(self):
        self.sent = []
        self.fails = {"patch": [], "create": []}

    def now_s(self):
        return 1_800_000_000.0

    def patch(self, path, body):
        self._do("patch", path, body)

    def create(self, path, body):
        return self._do("create", path, body)

    def _do(self, what, path, body):
        if self.fails[what] and (error := self.fails[what].pop(0)):
            raise error
        self.sent.append((what, path, body))
        return body


class Bench:
    """An EventWriter of the node `gpu-1`, which writes when the test says so."""

    def __init__(self):
        self.kube, self.said, self.now_s = FakeKube(), [], 0.0
        self.events = EventWriter(
            self.kube, Journal(self.said.append), node="gpu-1", reporter="vramwarden.io/agent",
            instance="agent-x", action="Advertise", clock=lambda: self.now_s,
        )  # fmt: skip

    def write(self):
        """Write all that waits; return the sentences of all that were written."""
        while not self.events.waiting.empty():
            self.events.write(self.events.waiting.get_nowait())
        return [body["note"] for what, _, body in self.kube.sent if what == "create"]

    def messages(self):
        return [json.loads(line)["msg"] for line in self.said]


@pytest.fixture
def bench():
    return Bench()


@pytest.mark.parametrize(("warning", "kind"), [(True, "Warning"), (False, "Normal")])
def test_an_event_of_a_node_names_it_as_its_kubelet_does(bench, warning, kind):
    bench.events.once("GPUsNotShared", "because", warning=warning)
    bench.write()
    assert bench.kube.sent == [
        (
            "create",
            "/apis/events.k8s.io/v1/namespaces/default/events",
            {
                "apiVersion": "events.k8s.io/v1",
                "kind": "Event",
                "metadata": {"generateName": "gpu-1-", "namespace": "default"},
                "eventTime": "2027-01-15T08:00:00.000000Z",
                "regarding": {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "name": "gpu-1",
                    "uid": "gpu-1",
                },
                "type": kind,
                "reason": "GPUsNotShared",
                "note": "because",
                "action": "Advertise",
                "reportingController": "vramwarden.io/agent",
                "reportingInstance": "agent-x",
            },
        )
    ]


def test_a_condition_and_an_event_are_of_exactly_this_pod(bench):
    assert bench.events.write(STOPPED) is False
    (_, path, patch), (_, events, event) = bench.kube.sent
    assert path == "/api/v1/namespaces/team/pods/train/status"
    condition = {
        "type": "vramwarden.io/CapHeld",
        "status": "False",
        "reason": "VRAMCapExceeded",
        "message": "it held too much",
        "lastTransitionTime": "2027-01-15T08:00:00Z",
    }
    assert patch == {"metadata": {"uid": TRAINER}, "status": {"conditions": [condition]}}
    assert events == "/apis/events.k8s.io/v1/namespaces/team/events"
    assert event["regarding"] == {"apiVersion": "v1", **POD}
    wanted = ("type", "reason", "note", "action")
    assert [event[key] for key in wanted] == [
        "Warning", "VRAMCapExceeded", "it held too much", "Stop",
    ]  # fmt: skip


def test_what_has_no_condition_is_an_event_alone(bench):
    bench.events.write(of_pod(stopped=False))
    assert [(what, body["action"]) for what, _, body in bench.kube.sent] == [("create", "Report")]


def test_the_same_sentence_is_reported_once_by_reason_and_again_when_it_was_over(bench):
    for sentence in ("one", "one", "two", "two", "one"):
        bench.events.once("A", sentence)
    bench.events.once("B", "one")
    assert bench.write() == ["one", "two", "one", "one"]
    bench.events.over("A")
    bench.events.once("A", "one")
    bench.events.once("B", "one")
    assert bench.write() == ["one", "two", "one", "one", "one"]


def test_a_long_sentence_is_cut_to_what_an_event_holds(bench):
    bench.events.once("A", "x" * 5000)
    assert [len(sentence) for sentence in bench.write()] == [1024]


def test_events_of_an_object_are_few_however_much_happens(bench):
    for number in range(1000):
        bench.now_s = number / 1000
        bench.events.once("A", str(number))
        bench.events.report(of_pod(stopped=False))
        bench.write()
    assert len(bench.write()) == 2 * OF_AN_OBJECT
    bench.events.report(of_pod(uid="another", stopped=False))
    assert len(bench.write()) == 2 * OF_AN_OBJECT + 1
    bench.now_s = 2 * OF_AN_OBJECT_EVERY_S
    bench.events.once("A", "later")
    assert bench.write()[-1] == "later"


@pytest.mark.parametrize(
    ("patch", "create", "again", "sent", "lines"),
    [
        (DOWN, None, True, [], 1),
        (None, DOWN, True, ["patch"], 1),
        (NOT_FOUND, None, False, [], 0),
        (ANOTHER, None, False, [], 0),
        (INVALID, None, False, [], 1),
        (FORBIDDEN, None, False, ["create"], 1),
        (None, FORBIDDEN, False, ["patch"], 1),
    ],
)
def test_what_fails_is_retried_where_that_may_help_and_logged_where_somebody_should_know(
    bench, patch, create, again, sent, lines
):
    bench.kube.fails = {"patch": [patch], "create": [create]}
    assert bench.events.write(STOPPED) is again
    assert [what for what, _, _ in bench.kube.sent] == sent
    assert len(bench.said) == lines


def test_a_failure_is_logged_once_and_so_is_its_end(bench):
    bench.kube.fails["create"] = [FORBIDDEN] * 3
    for number in range(3):
        bench.events.once("A", str(number))
        assert bench.write() == []
    assert bench.messages() == ["events of the node cannot be written"]
    bench.events.once("A", "now")
    assert bench.write() == ["now"]
    assert bench.messages()[1:] == ["events of the node can be written"]


class OverError(Exception):
    """The test is over."""


def test_a_report_is_retried_until_it_is_written_and_not_forever(bench):
    pauses = []

    def sleep(pause_s):
        bench.now_s += pause_s
        pauses.append(pause_s)

    def patch(_path, _body):
        if bench.now_s > RETRY_S + 60:
            raise OverError
        raise DOWN

    bench.kube.patch = patch
    bench.events.report(STOPPED)
    bench.events.report_node("VRAMUnmanaged", "300Mi are held")
    bench.kube.create = lambda *_: (_ for _ in ()).throw(OverError)
    with pytest.raises(OverError):
        bench.events.write_all(sleep=sleep)
    assert (pauses[:6], max(pauses)) == ([1, 2, 4, 8, 16, 30], 30)
    assert RETRY_S <= sum(pauses) <= RETRY_S + 30


def test_who_reports_never_waits_however_long_the_api_server_hangs(bench):
    hangs = threading.Event()
    bench.kube.patch = lambda *_: hangs.wait(60)
    threading.Thread(target=bench.events.write_all, daemon=True).start()
    began_s = time.monotonic()
    for number in range(2 * WAITING):
        bench.events.report(of_pod(uid=f"uid-{number}"))
    took_s = time.monotonic() - began_s
    hangs.set()
    assert took_s < 10
    assert b"reports are lost, except for this log" in bench.said[0]
