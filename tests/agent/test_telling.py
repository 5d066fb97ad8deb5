"""Events of the node: which are written, and what their writing costs."""

from __future__ import annotations

import io
import json

import pytest

from webhook.adapters.journal import Journal
from webhook.adapters.kube.client import KubeError
from webhook.agent.telling import EVENT_EVERY_S, EVENTS, NodeEvents


class FakeKube:
    """Keeps what is created."""

    def __init__(self):
        self.created = []
        self.fails_with = None

    def now_s(self):
        return 1_700_000_000.0

    def create(self, path, body):
        if self.fails_with:
            raise self.fails_with
        self.created.append((path, body))
        return body


class Told:
    """Events of the node `gpu-1`, written when the test says so."""

    def __init__(self):
        self.kube = FakeKube()
        self.log = io.BytesIO()
        self.events = NodeEvents(self.kube, "gpu-1", Journal(self.log.write))

    def write(self, now_s=0.0):
        """Write all that waits; return the sentences of all that were written."""
        while not self.events.waiting.empty():
            self.events.write(self.events.waiting.get_nowait(), now_s)
        return [body["note"] for _, body in self.kube.created]

    def said(self):
        return [json.loads(line)["msg"] for line in self.log.getvalue().splitlines()]


@pytest.fixture
def told():
    return Told()


@pytest.mark.parametrize(("warning", "kind"), [(True, "Warning"), (False, "Normal")])
def test_an_event_of_a_node_names_it_as_its_kubelet_does(told, warning, kind):
    told.events.tell("GPUsNotShared", "because", warning=warning)
    told.write()
    assert told.kube.created == [
        (
            "/apis/events.k8s.io/v1/namespaces/default/events",
            {
                "apiVersion": "events.k8s.io/v1",
                "kind": "Event",
                "metadata": {"generateName": "gpu-1-", "namespace": "default"},
                "eventTime": "2023-11-14T22:13:20.000000Z",
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
                "reportingInstance": "gpu-1",
            },
        )
    ]


def test_the_same_sentence_is_told_once_by_reason_and_again_when_it_was_over(told):
    for sentence in ("one", "one", "two", "two", "one"):
        told.events.tell("A", sentence)
    told.events.tell("B", "one")
    assert told.write() == ["one", "two", "one", "one"]
    told.events.over("A")
    told.events.tell("A", "one")
    told.events.tell("B", "one")
    assert told.write() == ["one", "two", "one", "one", "one"]


def test_a_long_sentence_is_cut_to_what_an_event_holds(told):
    told.events.tell("A", "x" * 5000)
    assert [len(sentence) for sentence in told.write()] == [1024]


def test_events_are_few_however_much_happens(told):
    for number in range(1000):
        told.events.tell("A", str(number))
        told.write(number / 1000)
    assert len(told.write()) == EVENTS
    told.events.tell("A", "later")
    assert told.write(2 * EVENT_EVERY_S)[EVENTS:] == ["later"]


def test_nobody_waits_where_events_cannot_be_written(told):
    for number in range(1000):
        told.events.tell("A", str(number))
    assert told.events.waiting.qsize() == EVENTS


def test_a_failure_is_logged_once_and_so_is_its_end(told):
    told.kube.fails_with = KubeError("forbidden", code=403)
    for number in range(3):
        told.events.tell("A", str(number))
        assert told.write() == []
    assert told.said() == ["events of the node cannot be written"]
    told.kube.fails_with = None
    told.events.tell("A", "now")
    assert told.write() == ["now"]
    assert told.said()[1:] == ["events of the node can be written"]
