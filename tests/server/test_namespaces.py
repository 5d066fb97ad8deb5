"""What a replica knows of namespaces' labels, and what it answers where it does not know them."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from tests.adapters.kube.test_follow import Enough, Script
from tests.server.test_templates import a_review as a_workload
from tests.support.pods import a_pod, a_policy, a_request, a_review, a_rule
from webhook.adapters.kube import namespaces
from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.follow import Changed, Failed, Listed
from webhook.core.admission.decide import Phase
from webhook.core.policy.match import Match
from webhook.core.policy.values import Bounds
from webhook.server import namespaces as module
from webhook.server.log import JsonLog
from webhook.server.metrics import Metrics
from webhook.server.namespaces import KNOWN_WITHIN_S, PATH, POLL_S, Namespaces
from webhook.server.reviews import PodReviews
from webhook.server.templates import TemplateReviews

INTERN = {"tier": "intern"}
ASKS = a_policy(
    a_rule(name="interns", namespace_labels=INTERN, memory=Bounds(max_bytes=2**30)),
    a_rule(name="rest", namespaces=("team-*",)),
)
OTHERS = a_policy(a_rule(namespace_labels={"zone": "a"}))
PLAIN = a_policy()
DOWN = Failed(KubeError("does not answer"))
FORBIDDEN = Failed(KubeError("the right is missing", code=403))


def a_namespace(name="team-a", **labels):
    labels = {"kubernetes.io/metadata.name": name, **labels}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"finalizers": ["kubernetes"]}}


class Replica:
    """Follows namespaces without a thread: a test says what is heard."""

    def __init__(self, policy=ASKS):
        self.policy = policy
        self.now_s = 1000.0
        self.written = io.BytesIO()
        self.logger = JsonLog(self.written)
        self.namespaces = Namespaces(
            Script(()), lambda: self.policy, self.logger, lambda: self.now_s
        )
        self.followed = None
        self.polls()

    def polls(self):
        """Do what the thread does every two seconds; return whether it begins to follow."""
        begins = self.namespaces.keep()
        self.followed = begins.func.__self__ if begins else self.followed
        return begins is not None

    def lists(self, *found, watched=True):
        self.followed.hear(Listed([self.followed.labelled(one) for one in found], watched))

    def hears(self, kind, found):
        self.followed.hear(Changed(kind, self.followed.labelled(found)))

    def knows(self, namespace="team-a"):
        request = a_request(a_pod(), namespace=namespace)
        return self.namespaces.told(request, self.policy).namespace_labels

    @property
    def log(self):
        lines = map(json.loads, self.written.getvalue().splitlines())
        return [(line["level"], line["msg"]) for line in lines]


@pytest.fixture
def replica():
    return Replica()


def test_what_is_listed_is_known_and_each_change_of_it(replica):
    assert replica.knows() is None
    replica.lists(a_namespace(tier="intern"), a_namespace("team-b"))
    assert (replica.knows(), replica.knows("team-b")) == (INTERN, {})
    assert replica.knows("team-c") is None
    replica.hears("MODIFIED", a_namespace(tier="staff"))
    replica.hears("ADDED", a_namespace("team-c", tier="intern"))
    assert (replica.knows(), replica.knows("team-c")) == ({"tier": "staff"}, INTERN)
    replica.hears("MODIFIED", a_namespace())
    replica.hears("DELETED", a_namespace("team-c", tier="intern"))
    assert (replica.knows(), replica.knows("team-c")) == ({}, None)
    replica.lists(a_namespace("team-b", tier="intern"))
    assert (replica.knows(), replica.knows("team-b")) == (None, INTERN)


def test_while_the_api_server_does_not_answer_what_was_known_stays(replica):
    replica.lists(a_namespace(tier="intern"))
    for failure in (DOWN, FORBIDDEN):
        replica.followed.hear(failure)
        assert replica.knows() == INTERN


def test_no_label_is_kept_for_which_no_rule_asks(replica):
    many = {f"example.com/{number}": "x" * 63 for number in range(1000)}
    replica.lists(a_namespace(tier="intern", **many), a_namespace("team-b", **many))
    assert replica.knows() == INTERN
    assert replica.followed.labels["team-b"] is namespaces._NONE


def test_a_namespace_that_is_too_large_to_be_read_is_not_known(replica):
    unread = {**a_namespace(), "spec": "too large to be read"}
    replica.lists(unread)
    assert replica.knows() is None
    replica.lists(a_namespace(tier="intern"))
    replica.hears("MODIFIED", unread)
    assert replica.knows() is None


def test_a_policy_that_asks_for_no_labels_needs_nothing_of_the_api_server():
    replica = Replica(PLAIN)
    assert replica.followed is None
    assert replica.namespaces.obstacle() == ""
    assert replica.knows() is None


def test_labels_for_which_only_an_exception_asks_are_known():
    exception = Match(namespace_labels=INTERN)
    replica = Replica(a_policy(a_rule(exception=exception)))
    replica.lists(a_namespace(tier="intern"))
    assert replica.knows() == INTERN


def test_a_new_policy_is_served_from_what_is_listed_for_it(replica):
    replica.lists(a_namespace(tier="intern", zone="a"))
    first = replica.followed
    assert not replica.polls()
    replica.policy = OTHERS
    assert replica.knows() is None
    assert replica.polls()
    assert replica.followed is not first
    assert replica.knows() is None
    # The one before goes on, for requests that were read under its policy.
    first.hear(Changed("MODIFIED", first.labelled(a_namespace(tier="staff"))))
    request = a_request(a_pod())
    told = replica.namespaces.told(request, ASKS)
    assert told.namespace_labels == {"tier": "staff"}
    replica.lists(a_namespace(tier="intern", zone="a"))
    assert replica.knows() == {"zone": "a"}
    with pytest.raises(module._OverError):
        first.hear(DOWN)


def test_a_policy_that_asks_for_less_is_served_at_once():
    both = a_policy(a_rule(namespace_labels={"tier": "intern", "zone": "a"}))
    replica = Replica(both)
    replica.lists(a_namespace(tier="intern", zone="a"))
    replica.policy = ASKS
    assert replica.knows() == {"tier": "intern", "zone": "a"}


def test_when_no_rule_asks_any_more_all_is_forgotten(replica):
    replica.lists(a_namespace(tier="intern"))
    replica.policy = PLAIN
    assert not replica.polls()
    assert replica.namespaces._known.labels == {}
    with pytest.raises(module._OverError):
        replica.followed.sleep(0.0)
    replica.policy = ASKS
    assert replica.polls()


def test_what_was_never_listed_ends_when_the_policy_changes_again(replica):
    first = replica.followed
    replica.policy = OTHERS
    replica.polls()
    with pytest.raises(module._OverError):
        first.hear(DOWN)


def test_all_namespaces_are_listed_and_watched_until_that_is_over(replica, monkeypatch):
    slept = []

    def sleep(pause_s):
        slept.append(pause_s)
        replica.policy = PLAIN
        replica.polls()

    monkeypatch.setattr(module.time, "sleep", sleep)
    script = Script([("7", "team-a")], [[("MODIFIED", a_namespace(tier="intern"))]])
    followed = replica.followed
    followed.follow(script)  # returns
    assert script.read_paths == [(PATH, {})]
    assert [path for path, _, _ in script.watched] == [PATH]
    assert len(slept) == 1
    assert followed.labels == {"team-a": INTERN}


WAITS = "labels of namespaces not read yet"


@pytest.mark.parametrize(
    ("reports", "obstacle"),
    [([], WAITS), ([DOWN], WAITS), ([FORBIDDEN], ""), ([DOWN, FORBIDDEN, DOWN], "")],
)
def test_a_replica_is_ready_once_it_cannot_know(replica, reports, obstacle):
    for report in reports:
        replica.followed.hear(report)
    assert replica.namespaces.obstacle() == obstacle


def test_a_replica_is_ready_once_it_knows_and_stays_so(replica):
    replica.lists()
    assert replica.namespaces.obstacle() == ""
    replica.policy = OTHERS
    replica.polls()
    assert replica.namespaces.obstacle() == ""


def test_a_replica_that_gets_no_answer_does_not_wait_forever(replica):
    replica.now_s += KNOWN_WITHIN_S - 1
    assert replica.namespaces.obstacle() == WAITS
    replica.now_s += 1
    assert replica.namespaces.obstacle() == ""


def test_a_missing_right_is_logged_once_and_its_return_too(replica):
    for _ in range(3):
        replica.followed.hear(FORBIDDEN)
    assert replica.log == [("error", "namespaces cannot be followed")]
    replica.lists(watched=False)
    assert len(replica.log) == 1
    replica.lists()
    assert replica.log[1:] == [("info", "namespaces are followed again")]


def test_a_bug_is_logged_with_its_trace(replica):
    replica.followed.hear(Failed(KeyError("metadata")))
    assert replica.log == [("error", "following namespaces failed")]


def test_it_begins_by_itself_and_looks_every_two_seconds(monkeypatch):
    begun, slept = [], []

    class Thread:
        def __init__(self, target, name, daemon):
            assert daemon
            self.target, self.name = target, name

        def start(self):
            begun.append(self)

    def sleep(pause_s):
        slept.append(pause_s)
        if len(slept) == 2:
            raise Enough

    monkeypatch.setattr(module, "Thread", Thread)
    monkeypatch.setattr(module.time, "sleep", sleep)
    replica = Replica(PLAIN)
    replica.policy = ASKS
    replica.namespaces.start()
    with pytest.raises(Enough):
        begun[0].target()
    assert [thread.name for thread in begun] == ["namespaces", "namespaces-watch"]
    assert slept == [POLL_S, POLL_S]


class Answers:
    """Reviews of pods and of workloads, by what a replica knows."""

    def __init__(self, replica):
        self.metrics = Metrics()
        reads = (lambda: replica.policy, self.metrics, replica.logger)
        self.pods = PodReviews(*reads, tell=replica.namespaces.told)
        self.workloads = TemplateReviews(*reads, tell=replica.namespaces.told)

    def of_pod(self, namespace="team-a", phase=Phase.MUTATE):
        body = json.dumps(a_review(a_pod("8Gi"), namespace=namespace)).encode()
        return self.pods.answer(phase, body)

    def reasons(self, namespace="team-a"):
        answer = self.of_pod(namespace)
        assert answer.status == 200
        return json.loads(answer.body)["response"]["auditAnnotations"].get("reasons", "")

    def warnings(self):
        answer = self.workloads.answer(a_workload(a_pod("8Gi")))
        assert answer.status == 200
        return json.loads(answer.body)["response"].get("warnings", [])


def test_a_pod_is_judged_by_its_namespaces_labels_as_they_are_now(replica):
    answers = Answers(replica)
    replica.lists(a_namespace(tier="intern"), a_namespace("team-b"))
    assert answers.reasons() == "TooLarge"
    assert answers.reasons("team-b") == ""
    replica.hears("MODIFIED", a_namespace())
    replica.hears("MODIFIED", a_namespace("team-b", tier="intern"))
    assert answers.reasons() == ""
    assert answers.reasons("team-b") == "TooLarge"
    assert any("TooLarge" in one for one in answers.warnings()) is False
    replica.hears("MODIFIED", a_namespace(tier="intern"))
    assert any("TooLarge" in one for one in answers.warnings())


def test_where_they_are_not_known_the_api_server_is_asked_to_retry(replica):
    answers = Answers(replica)
    for phase in Phase:
        answer = answers.of_pod(phase=phase)
        assert answer.status == 503
        assert answer.body == b"the namespace's labels are not known yet; retry in a second\n"
    refused = answers.metrics.registry.get_sample_value
    assert refused("vramwarden_http_refused_total", {"code": "503"}) == 2
    assert replica.log == [("warning", "review not answered")] * 2
    assert answers.warnings() == []
    replica.lists(a_namespace())
    assert answers.of_pod().status == 200


def test_a_server_without_a_cluster_answers_no_pod_whose_rule_depends_on_labels():
    pods = PodReviews(lambda: ASKS, Metrics(), JsonLog(io.BytesIO()))
    body = json.dumps(a_review(a_pod("8Gi"))).encode()
    assert pods.answer(Phase.MUTATE, body).status == 503


def test_what_is_known_under_another_policy_is_not_believed(replica):
    replica.lists(a_namespace(tier="intern"))
    request = a_request(a_pod())
    asks_more = replace(ASKS, rules=(*ASKS.rules, *OTHERS.rules))
    assert replica.namespaces.told(request, asks_more) is request
    assert replica.namespaces.told(request, PLAIN) is request
