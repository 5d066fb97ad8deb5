"""What a replica knows of the RuntimeClass `nvidia`, and how long it waits for that."""

from __future__ import annotations

import io
import json

import pytest

from tests.adapters.kube.test_follow import Enough, Script, an_event, an_object
from tests.support.pods import a_policy
from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.follow import Changed, Failed, Listed, follow
from webhook.server.known import KNOWN_WITHIN_S
from webhook.server.log import JsonLog
from webhook.server.runtime_classes import RuntimeClasses, followed

POLICY = a_policy()
DOWN = Failed(KubeError("does not answer"))
FORBIDDEN = Failed(KubeError("the right is missing", code=403))
THERE, NOT_THERE = Listed(["nvidia"]), Listed([])
COMES, CHANGES, GOES = (Changed(kind, "nvidia") for kind in ("ADDED", "MODIFIED", "DELETED"))


class Replica:
    def __init__(self):
        self.now_s = 1000.0
        self.written = io.BytesIO()
        self.classes = RuntimeClasses(Script(()), JsonLog(self.written), lambda: self.now_s)

    def hears(self, *reports):
        for report in reports:
            self.classes.hear(report)

    @property
    def knows(self):
        return self.classes.told(POLICY).runtime_classes

    @property
    def log(self):
        lines = map(json.loads, self.written.getvalue().splitlines())
        return [(line["level"], line["msg"]) for line in lines]


@pytest.fixture
def replica():
    return Replica()


KNOWN = {
    "nothing yet": ([], False),
    "it exists": ([THERE], True),
    "it does not": ([NOT_THERE], False),
    "it comes": ([NOT_THERE, COMES], True),
    "it changes": ([THERE, CHANGES], True),
    "it goes": ([THERE, GOES], False),
    "it goes and comes again": ([THERE, GOES, COMES], True),
    "it went while nobody watched": ([THERE, DOWN, NOT_THERE], False),
    "the API server goes": ([THERE, DOWN], True),
    "the right is missing": ([FORBIDDEN], False),
    "the right is withdrawn": ([THERE, FORBIDDEN], True),
}


@pytest.mark.parametrize(("reports", "known"), KNOWN.values(), ids=KNOWN)
def test_policies_are_told_what_the_api_server_said_last(replica, reports, known):
    replica.hears(*reports)
    assert replica.knows == (frozenset({"nvidia"}) if known else frozenset())


def test_nothing_else_of_a_policy_changes(replica):
    replica.hears(THERE)
    assert replica.classes.told(POLICY).digest == POLICY.digest
    assert replica.classes.told(POLICY).rules is POLICY.rules


WAITS = "RuntimeClass nvidia not read yet"


@pytest.mark.parametrize(
    ("reports", "obstacle"),
    [
        ([], WAITS),
        ([DOWN], WAITS),
        ([DOWN, DOWN], WAITS),
        ([THERE], ""),
        ([NOT_THERE], ""),
        ([THERE, DOWN], ""),
        ([DOWN, THERE], ""),
        ([FORBIDDEN], ""),
    ],
)
def test_a_replica_is_ready_once_it_knows_or_cannot_know(replica, reports, obstacle):
    replica.hears(*reports)
    assert replica.classes.obstacle() == obstacle


def test_a_replica_that_gets_no_answer_does_not_wait_forever(replica):
    replica.hears(DOWN)
    replica.now_s += KNOWN_WITHIN_S - 1
    assert replica.classes.obstacle() == WAITS
    replica.now_s += 1
    assert replica.classes.obstacle() == ""


def test_a_missing_right_is_logged_once_and_its_return_too(replica):
    replica.hears(FORBIDDEN, FORBIDDEN, FORBIDDEN)
    assert replica.log == [("error", "RuntimeClasses cannot be followed")]
    replica.hears(NOT_THERE, NOT_THERE)
    assert replica.log[1:] == [("info", "RuntimeClasses are followed again")]
    replica.hears(COMES, CHANGES, CHANGES)
    assert replica.log[2:] == [("info", "RuntimeClass")]


def test_one_object_alone_is_read_and_watched(replica):
    path = "/apis/node.k8s.io/v1/runtimeclasses"
    there = an_object("7", "nvidia")
    kube = Script([there], [[an_event("DELETED", "8", "nvidia")], Enough()])
    with pytest.raises(Enough):
        follow(followed(kube), replica.classes.hear, clock=lambda: 0.0, sleep=lambda _: None)
    assert kube.read_paths[0] == f"{path}/nvidia"
    watched, _, query = kube.watched[0]
    assert (watched, query["fieldSelector"]) == (path, "metadata.name=nvidia")
    assert [level for level, _ in replica.log] == ["info", "info"]  # it existed, and went
    assert replica.knows == frozenset()
