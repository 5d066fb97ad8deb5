"""What is reported in the API server, and that nobody waits for that."""

from __future__ import annotations

import threading
import time

import pytest

from tests.sentry.worlds import TRAINER
from webhook.adapters.journal import Journal
from webhook.adapters.kube.client import KubeError
from webhook.sentry.teller import OF_A_POD, RETRY_S, WAITING, OfNode, OfPod, Teller

DOWN = KubeError("down")
FORBIDDEN = KubeError("forbidden", code=403)
NOT_FOUND = KubeError("not found", code=404)
ANOTHER = KubeError("metadata.uid: Invalid value: field is immutable", code=422)
INVALID = KubeError("status.conditions: Invalid value", code=422)
STOPPED = OfPod("team/train", TRAINER, "it held too much", stopped=True)
REPORTED = OfPod("team/train", TRAINER, "it holds too much", stopped=False)


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


@pytest.fixture
def kube():
    return FakeKube()


@pytest.fixture
def said():
    return []


@pytest.fixture
def teller(kube, said):
    return Teller(kube, "n1", "sentry-x", Journal(said.append))


def test_a_stop_is_a_condition_and_an_event_of_exactly_this_pod(kube, teller):
    assert teller.write(STOPPED) is False
    (_, path, patch), (_, events, event) = kube.sent
    assert path == "/api/v1/namespaces/team/pods/train/status"
    assert patch == {
        "metadata": {"uid": TRAINER},
        "status": {
            "conditions": [
                {
                    "type": "vramwarden.io/CapHeld",
                    "status": "False",
                    "reason": "VRAMCapExceeded",
                    "message": "it held too much",
                    "lastTransitionTime": "2027-01-15T08:00:00Z",
                }
            ]
        },
    }
    assert events == "/apis/events.k8s.io/v1/namespaces/team/events"
    assert event["regarding"] == {
        "apiVersion": "v1", "kind": "Pod", "namespace": "team", "name": "train", "uid": TRAINER,
    }  # fmt: skip
    wanted = ("type", "reason", "note", "action", "reportingController", "reportingInstance")
    assert [event[key] for key in wanted] == [
        "Warning", "VRAMCapExceeded", "it held too much", "Stop",
        "vramwarden.io/sentry", "sentry-x",
    ]  # fmt: skip


def test_what_is_only_reported_is_an_event_alone(kube, teller):
    teller.write(REPORTED)
    assert [(what, body["action"]) for what, _, body in kube.sent] == [("create", "Report")]


def test_unmanaged_memory_is_an_event_of_the_node(kube, teller):
    teller.write(OfNode("300Mi are held"))
    ((_, path, event),) = kube.sent
    assert path == "/apis/events.k8s.io/v1/namespaces/default/events"
    assert (event["reason"], event["action"]) == ("VRAMUnmanaged", "Audit")
    assert event["regarding"]["name"] == "n1"


@pytest.mark.parametrize(
    ("patch", "create", "again", "sent"),
    [
        (DOWN, None, True, []),
        (None, DOWN, True, ["patch"]),
        (NOT_FOUND, None, False, []),
        (ANOTHER, None, False, []),
        (INVALID, None, False, []),
        (FORBIDDEN, None, False, ["create"]),
        (None, FORBIDDEN, False, ["patch"]),
    ],
)
def test_what_fails_is_retried_where_that_may_help(kube, teller, patch, create, again, sent):
    kube.fails = {"patch": [patch], "create": [create]}
    assert teller.write(STOPPED) is again
    assert [what for what, _, _ in kube.sent] == sent


@pytest.mark.parametrize(("error", "lines"), [(ANOTHER, 0), (NOT_FOUND, 0), (INVALID, 1)])
def test_only_what_somebody_should_know_is_logged(kube, teller, said, error, lines):
    kube.fails["patch"] = [error]
    teller.write(STOPPED)
    assert len(said) == lines


class OverError(Exception):
    """The test is over."""


def test_a_report_is_retried_until_it_is_written_and_not_forever(kube, teller):
    now_s, pauses = 0.0, []

    def sleep(pause_s):
        nonlocal now_s
        now_s += pause_s
        pauses.append(pause_s)

    def patch(_path, _body):
        if now_s > RETRY_S + 60:
            raise OverError
        raise DOWN

    kube.patch = patch
    teller.tell(STOPPED, 0.0)
    teller.tell(OfNode("300Mi are held"), 0.0)
    kube.create = lambda *_: (_ for _ in ()).throw(OverError)
    with pytest.raises(OverError):
        teller.write_all(clock=lambda: now_s, sleep=sleep)
    assert (pauses[:6], max(pauses)) == ([1, 2, 4, 8, 16, 30], 30)
    assert RETRY_S <= sum(pauses) <= RETRY_S + 30


def test_a_pod_that_comes_again_and_again_does_not_fill_the_api_server(teller):
    for second in range(100):
        teller.tell(STOPPED, float(second))
    assert teller.waiting.qsize() == OF_A_POD
    teller.tell(OfPod("team/other", "another", "it held too much", stopped=True), 100.0)
    assert teller.waiting.qsize() == OF_A_POD + 1


def test_who_tells_never_waits_however_long_the_api_server_hangs(kube, teller, said):
    hangs = threading.Event()
    kube.patch = lambda *_: hangs.wait(60)
    threading.Thread(target=teller.write_all, daemon=True).start()
    began_s = time.monotonic()
    for number in range(2 * WAITING):
        teller.tell(OfPod("team/train", f"uid-{number}", "it held too much", stopped=True), 0.0)
    took_s = time.monotonic() - began_s
    hangs.set()
    assert took_s < 10
    assert b"reports are lost, except for this log" in said[0]
