"""Facts about the cluster: updates, readiness without facts, and reviews without facts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.server.test_templates import a_review as a_workload
from tests.support.api_server import ApiServer
from tests.support.pods import A100, a_pod, a_policy, a_review, a_rule
from tests.support.recorded_log import RecordedLog
from webhook.adapters.kube import namespaces
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.follow import Changed, Failed, Listed
from webhook.adapters.kube.namespaces import PATH
from webhook.core.admission.decision import Phase
from webhook.core.pod.quantity import MIB
from webhook.core.policy.cluster import Cluster, SlicedNode
from webhook.core.policy.match import Match
from webhook.core.policy.model import Accounting, GPUClass, MemoryBounds, Rollout
from webhook.server import cluster_cache as module
from webhook.server import informer
from webhook.server.cluster_cache import SETTLE_TIMEOUT_S, ClusterCache
from webhook.server.metrics import Metrics
from webhook.server.reviews import PodReviews, TemplateReviews

INTERN = {"tier": "intern"}
ASKS = a_policy(
    a_rule(name="interns", namespace_labels=INTERN, memory=MemoryBounds(max_bytes=2**30)),
    a_rule(name="rest", namespaces=("team-*",)),
)
OTHERS = a_policy(a_rule(namespace_labels={"zone": "a"}))
PLAIN = a_policy()
DOWN = Failed(KubeError("does not answer"))
FORBIDDEN = Failed(KubeError("the right is missing", code=403))
NOT_THERE = Listed([])


def a_namespace(name="team-a", **labels):
    labels = {"kubernetes.io/metadata.name": name, **labels}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"finalizers": ["kubernetes"]}}


class Replica:
    """A cache without threads; the test sends the watch reports."""

    def __init__(self, policy=ASKS):
        self.policy = policy
        self.now_s = 1000.0
        self.limits = None
        self.api, self.log = ApiServer(), RecordedLog()
        self.cache = ClusterCache(
            self.api.kube(),
            lambda: self.policy,
            Rollout.OBSERVE,
            self.log,
            lambda: self.now_s,
            lambda: self.limits,
        )
        self.followed = None
        self.reload_policy()

    def reload_policy(self):
        """Reload the policy; return True if the cache starts to watch labels."""
        begins = self.cache.follow_labels()
        self.followed = begins or self.followed
        return begins is not None

    def send_list(self, *found, watched=True):
        things = [self.followed._collection.project(item) for item in found]
        self.followed.on_report(Listed(things, watched))

    def send_change(self, kind, found):
        self.followed.on_report(Changed(kind, self.followed._collection.project(found)))

    def send_reports(self, to, *reports):
        for report in reports:
            to.on_report(report)

    def run_informer(self, followed, monkeypatch, event, *pauses):
        """Run an informer; call `event` in its first watch, and each of `pauses` after a watch."""

        def begin_to_watch(_request):
            event()

        self.api.fails("watch=", begin_to_watch)
        happens = iter(pauses)
        monkeypatch.setattr(module.time, "sleep", lambda _: next(happens, followed.stop)())
        followed.run()

    def query_values(self, key):
        """Return the path of each request, with the value of one query parameter."""
        return [(request.path, request.query.get(key)) for request in self.api.asked]

    def labels(self, namespace="team-a"):
        return self.view.labels_for(namespace)

    @property
    def view(self):
        return self.cache.view_for(self.policy)

    def logged(self, key):
        return [values[key] for *_, values in self.log.lines]


@pytest.fixture
def replica():
    return Replica()


@pytest.fixture
def plain():
    """Return a replica whose policy needs neither labels nor slices."""
    return Replica(PLAIN)


THERE = Listed([("nvidia", None)])
COMES, CHANGES, GOES = (
    Changed(kind, ("nvidia", None)) for kind in ("ADDED", "MODIFIED", "DELETED")
)
CLASSES = {
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


@pytest.mark.parametrize(("reports", "known"), CLASSES.values(), ids=CLASSES)
def test_the_runtime_class_is_as_last_reported(plain, reports, known):
    plain.send_reports(plain.cache.classes, *reports)
    classes = frozenset({"nvidia"}) if known else frozenset()
    assert plain.view == Cluster(Rollout.OBSERVE, classes)


def test_a_replica_waits_a_limited_time_for_facts_that_its_policy_needs():
    rules = (*ASKS.rules, a_rule(name="sliced", accounting=Accounting.MIG))
    replica = Replica(a_policy(*rules))
    replica.send_reports(replica.cache.classes, DOWN)
    replica.now_s += SETTLE_TIMEOUT_S - 1
    assert replica.cache.obstacle() == f"{CLASS_WAITS}; {SLICES_WAIT}; {LABELS_WAIT}"
    replica.now_s += 1
    assert replica.cache.obstacle() == ""


def test_a_missing_right_is_logged_once_and_so_is_its_return(plain):
    plain.send_reports(plain.cache.classes, FORBIDDEN, FORBIDDEN, FORBIDDEN)
    assert plain.log.said == [("error", "RuntimeClasses cannot be followed")]
    plain.send_reports(plain.cache.classes, NOT_THERE, NOT_THERE)
    assert plain.log.said[1:] == [
        ("info", "RuntimeClass"),
        ("info", "RuntimeClasses are followed again"),
    ]
    plain.send_reports(plain.cache.classes, COMES, CHANGES, CHANGES)
    assert plain.log.said[3:] == [("info", "RuntimeClass")]


def test_only_one_runtime_class_is_read_and_watched(monkeypatch):
    path = "/apis/node.k8s.io/v1/runtimeclasses"
    replica = Replica(PLAIN)
    replica.api.put(f"{path}/nvidia", {})
    classes = replica.cache.classes
    replica.run_informer(classes, monkeypatch, lambda: replica.api.remove(f"{path}/nvidia"))
    selected = [(f"{path}/nvidia", None), (path, "metadata.name=nvidia")]
    assert replica.query_values("fieldSelector") == selected
    assert replica.logged("exists") == [True, False]
    assert replica.view.runtime_classes == frozenset()


SLICED = a_policy(a_rule(accounting=Accounting.MIG))
BY_CLASS = a_policy(classes={"m": GPUClass("m", {}, (), Accounting.MIG)})
SMALL = SlicedNode({"1g.10gb": 9728 * MIB}, {"a": "b"})
LARGE = SlicedNode({"3g.40gb": 40192 * MIB}, {})
NONE = SlicedNode({}, {})
BOTH = Listed([("b", LARGE), ("a", SMALL)])
NODES = {
    "nothing yet": ([], ()),
    "nodes": ([BOTH], (SMALL, LARGE)),
    "one without slices": ([Listed([("a", SMALL), ("c", NONE)])], (SMALL,)),
    "one comes": ([BOTH, Changed("ADDED", ("c", SMALL))], (SMALL, LARGE, SMALL)),
    "one changes": ([BOTH, Changed("MODIFIED", ("a", LARGE))], (LARGE, LARGE)),
    "one goes": ([BOTH, Changed("DELETED", ("a", SMALL))], (LARGE,)),
    "all went while nobody watched": ([BOTH, DOWN, Listed([])], ()),
    "the API server goes": ([BOTH, DOWN], (SMALL, LARGE)),
}


@pytest.mark.parametrize(("reports", "known"), NODES.values(), ids=NODES)
def test_slices_are_as_last_reported(plain, reports, known):
    plain.send_reports(plain.cache.nodes, *reports)
    assert plain.view == Cluster(Rollout.OBSERVE, sliced_nodes=known)


def test_the_view_is_the_same_object_until_a_fact_changes(plain):
    """A node's status changes often, but the view does not depend on the status."""
    plain.send_reports(plain.cache.nodes, BOTH)
    for plain.limits in (False, True):  # reported by placement's nodes
        assert plain.view.limits is plain.limits
    before = plain.view
    same = SlicedNode({"1g.10gb": 9728 * MIB}, {"a": "b"})
    plain.send_reports(plain.cache.nodes, Changed("MODIFIED", ("a", same)))
    assert plain.view is before
    assert plain.logged("profiles") == [["1g.10gb", "3g.40gb"]]


def test_only_nodes_with_slices_by_profile_are_read(monkeypatch):
    mixed = {"nvidia.com/mig.strategy": "mixed"}
    labels = {
        **mixed,
        "nvidia.com/mig-1g.10gb.memory": "9728",
        "nvidia.com/mig-1g.10gb.count": "7",
        "nvidia.com/mig-1g.10gb.me.memory": "9728",
        "nvidia.com/mig-2g.20gb.memory": "-5",
        "nvidia.com/mig-3g.40gb.memory": "0",
        "nvidia.com/mig-7g.80gb.memory": "99999999999",
    }
    replica = Replica(PLAIN)
    small = {"nvidia.com/mig-1g.10gb.memory": "9728"}
    for name, given in (("a", labels), ("b", mixed | small), ("c", small)):
        replica.api.put(f"/api/v1/nodes/{name}", {"metadata": {"labels": given}})
    replica.run_informer(
        replica.cache.nodes, monkeypatch, lambda: replica.api.remove("/api/v1/nodes/b")
    )
    assert replica.view.sliced_nodes == (SlicedNode({"1g.10gb": 9728 * MIB}, labels),)
    assert (
        replica.query_values("labelSelector")
        == [("/api/v1/nodes", "nvidia.com/mig.strategy=mixed")] * 2
    )


def test_classes_that_no_rule_allows_need_no_facts():
    classes = {"m": GPUClass("m", {}, (), Accounting.MIG), "a100": A100}
    replica = Replica(a_policy(a_rule(allowed_classes=("a100",)), classes=classes))
    assert replica.cache.obstacle() == CLASS_WAITS


def test_listed_labels_and_each_change_of_them_are_known(replica):
    assert replica.labels() is None
    replica.send_list(a_namespace(tier="intern"), a_namespace("team-b"))
    assert (replica.labels(), replica.labels("team-b")) == (INTERN, {})
    assert replica.labels("team-c") is None
    replica.send_change("MODIFIED", a_namespace(tier="staff"))
    replica.send_change("ADDED", a_namespace("team-c", tier="intern"))
    assert (replica.labels(), replica.labels("team-c")) == ({"tier": "staff"}, INTERN)
    replica.send_change("MODIFIED", a_namespace())
    replica.send_change("DELETED", a_namespace("team-c", tier="intern"))
    assert (replica.labels(), replica.labels("team-c")) == ({}, None)
    replica.send_list(a_namespace("team-b", tier="intern"))
    assert (replica.labels(), replica.labels("team-b")) == (None, INTERN)


def test_known_labels_stay_while_the_api_server_does_not_answer(replica):
    replica.send_list(a_namespace(tier="intern"))
    for failure in (DOWN, FORBIDDEN):
        replica.followed.on_report(failure)
        assert replica.labels() == INTERN


def test_labels_that_no_rule_selects_by_are_not_stored(replica):
    many = {f"example.com/{number}": "x" * 63 for number in range(1000)}
    replica.send_list(a_namespace(tier="intern", **many), a_namespace("team-b", **many))
    assert replica.labels() == INTERN
    assert replica.labels("team-b") is namespaces._NONE


def test_a_namespace_that_is_too_large_is_unknown(replica):
    unread = {**a_namespace(), "spec": "too large to be read"}
    replica.send_list(unread)
    assert replica.labels() is None
    replica.send_list(a_namespace(tier="intern"))
    replica.send_change("MODIFIED", unread)
    assert replica.labels() is None


def test_a_policy_without_namespace_labels_sends_no_request():
    replica = Replica(PLAIN)
    assert replica.followed is None
    replica.send_reports(replica.cache.classes, THERE)
    assert replica.cache.obstacle() == ""
    assert replica.labels() is None


def test_labels_that_only_an_exception_selects_by_are_known():
    exception = Match(namespace_labels=INTERN)
    replica = Replica(a_policy(a_rule(exception=exception)))
    replica.send_list(a_namespace(tier="intern"))
    assert replica.labels() == INTERN


def test_a_new_policy_uses_the_labels_that_are_listed_for_it(replica):
    replica.send_list(a_namespace(tier="intern", zone="a"))
    first = replica.followed
    assert not replica.reload_policy()
    replica.policy = OTHERS
    assert replica.labels() is None
    assert replica.reload_policy()
    assert replica.followed is not first
    assert replica.view == Cluster(Rollout.OBSERVE)
    # The previous view stays in use for requests that were decoded under its policy.
    changed = first._collection.project(a_namespace(tier="staff"))
    first.on_report(Changed("MODIFIED", changed))
    assert replica.cache.view_for(ASKS).labels_for("team-a") == {"tier": "staff"}
    replica.send_list(a_namespace(tier="intern", zone="a"))
    assert replica.labels() == {"zone": "a"}
    with pytest.raises(informer._InformerStoppedError):
        first.on_report(DOWN)


def test_a_policy_that_needs_fewer_labels_is_served_at_once():
    both = a_policy(a_rule(namespace_labels={"tier": "intern", "zone": "a"}))
    replica = Replica(both)
    replica.send_list(a_namespace(tier="intern", zone="a"))
    replica.policy = ASKS
    assert replica.labels() == {"tier": "intern", "zone": "a"}


def test_labels_are_forgotten_when_no_rule_selects_by_them(replica):
    replica.send_list(a_namespace(tier="intern"))
    replica.policy = PLAIN
    assert not replica.reload_policy()
    assert replica.cache._state[0].namespaces == {}
    with pytest.raises(informer._InformerStoppedError):
        replica.followed._sleep(0.0)
    replica.policy = ASKS
    assert replica.reload_policy()


def test_an_informer_without_a_list_ends_when_the_policy_changes_again(replica):
    first = replica.followed
    replica.policy = OTHERS
    replica.reload_policy()
    with pytest.raises(informer._InformerStoppedError):
        first.on_report(DOWN)


def test_all_namespaces_are_listed_and_watched_until_stopped(replica, monkeypatch):
    def nobody_asks():
        known.append(replica.labels())
        replica.policy = PLAIN
        replica.reload_policy()

    known = []
    replica.api.put(f"{PATH}/team-a", a_namespace())
    tiered = a_namespace(tier="intern")
    replica.run_informer(
        replica.followed,
        monkeypatch,
        lambda: replica.api.put(f"{PATH}/team-a", tiered),
        nobody_asks,
    )
    assert known == [INTERN]
    assert replica.query_values("watch") == [(PATH, None), (PATH, "true")]


CLASS_WAITS = "RuntimeClass nvidia not read yet"
LABELS_WAIT = "labels of namespaces not read yet"
SLICES_WAIT = "nodes with slices (MIG) not read yet"


@pytest.mark.parametrize(
    ("policy", "part", "reports", "obstacle"),
    [
        (PLAIN, "classes", [], CLASS_WAITS),
        (PLAIN, "classes", [DOWN], CLASS_WAITS),
        (PLAIN, "classes", [DOWN, DOWN], CLASS_WAITS),
        (PLAIN, "classes", [THERE], ""),
        (PLAIN, "classes", [NOT_THERE], ""),
        (PLAIN, "classes", [THERE, DOWN], ""),
        (PLAIN, "classes", [DOWN, THERE], ""),
        (PLAIN, "classes", [FORBIDDEN], ""),
        (PLAIN, "nodes", [], ""),
        (SLICED, "nodes", [], SLICES_WAIT),
        (BY_CLASS, "nodes", [], SLICES_WAIT),
        (SLICED, "nodes", [DOWN], SLICES_WAIT),
        (SLICED, "nodes", [Listed([])], ""),
        (SLICED, "nodes", [FORBIDDEN], ""),
        (ASKS, "labels", [], LABELS_WAIT),
        (ASKS, "labels", [DOWN], LABELS_WAIT),
        (ASKS, "labels", [FORBIDDEN], ""),
        (ASKS, "labels", [DOWN, FORBIDDEN, DOWN], ""),
    ],
)
def test_a_replica_is_ready_when_needed_labels_are_known_or_cannot_be(
    policy, part, reports, obstacle
):
    replica = Replica(policy)
    followed = replica.followed if part == "labels" else getattr(replica.cache, part)
    if part != "classes":
        replica.send_reports(replica.cache.classes, THERE)
    replica.send_reports(followed, *reports)
    assert replica.cache.obstacle() == obstacle
    replica.now_s += SETTLE_TIMEOUT_S
    assert replica.cache.obstacle() == ""


def test_a_replica_stays_ready_after_a_change_of_labels(replica):
    replica.send_reports(replica.cache.classes, THERE)
    replica.send_list()
    assert replica.cache.obstacle() == ""
    replica.policy = OTHERS
    replica.reload_policy()
    assert replica.cache.obstacle() == ""


def test_a_missing_right_to_namespaces_is_logged_once_and_so_is_its_return(replica):
    for _ in range(3):
        replica.followed.on_report(FORBIDDEN)
    assert replica.log.said == [("error", "namespaces cannot be followed")]
    replica.send_list(watched=False)
    assert len(replica.log.said) == 1
    replica.send_list()
    assert replica.log.said[1:] == [("info", "namespaces are followed again")]


def test_a_bug_is_logged_with_its_trace(replica):
    replica.followed.on_report(Failed(KeyError("metadata")))
    assert replica.log.said == [("exception", "following namespaces failed")]


def test_it_watches_from_its_start_and_after_a_reload_with_other_labels(monkeypatch):
    begun = []

    class Thread:
        def __init__(self, name, **others):
            assert others["daemon"]
            self.name = name

        def start(self):
            begun.append(self.name)

    monkeypatch.setattr(informer, "Thread", Thread)
    replica = Replica(PLAIN)
    replica.cache.start()
    assert begun == ["RuntimeClasses, watch", "nodes with slices, watch"]
    replica.policy = ASKS
    for _ in range(2):
        replica.cache.policy_changed()
        assert begun[2:] == ["namespaces, watch"]


class Answers:
    """Responses to reviews of pods and workloads, with the facts of a replica."""

    def __init__(self, replica):
        self.metrics = Metrics()
        reads = (lambda: replica.policy, self.metrics, replica.log)
        self.pods = PodReviews(*reads, view_for=replica.cache.view_for)
        self.workloads = TemplateReviews(*reads, view_for=replica.cache.view_for)

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


def test_a_pod_is_judged_by_the_current_labels_of_its_namespace(replica):
    answers = Answers(replica)
    replica.send_list(a_namespace(tier="intern"), a_namespace("team-b"))
    for _ in range(4):  # cached from the second review on
        assert answers.reasons() == "TooLarge"
        assert answers.reasons("team-b") == ""
    replica.send_change("MODIFIED", a_namespace())
    replica.send_change("MODIFIED", a_namespace("team-b", tier="intern"))
    assert answers.reasons() == ""
    assert answers.reasons("team-b") == "TooLarge"
    assert any("TooLarge" in warning for warning in answers.warnings()) is False
    replica.send_change("MODIFIED", a_namespace(tier="intern"))
    assert any("TooLarge" in warning for warning in answers.warnings())


def test_the_api_server_is_asked_to_retry_if_labels_are_unknown(replica):
    answers = Answers(replica)
    for phase in Phase:
        answer = answers.of_pod(phase=phase)
        assert answer.status == 503
        assert answer.body == b"the namespace's labels are not known yet; retry in a second\n"
    refused = answers.metrics.registry.get_sample_value
    assert refused("vramwarden_http_rejected_total", {"code": "503"}) == 2
    assert replica.log.said == [("warning", "review not answered")] * 2
    assert answers.warnings() == []
    replica.send_list(a_namespace())
    assert answers.of_pod().status == 200


def test_a_server_without_a_cluster_answers_no_pod_whose_rule_depends_on_labels():
    pods = PodReviews(lambda: ASKS, Metrics(), RecordedLog())
    body = json.dumps(a_review(a_pod("8Gi"))).encode()
    assert pods.answer(Phase.MUTATE, body).status == 503


def test_labels_for_another_policy_are_not_used(replica):
    replica.send_list(a_namespace(tier="intern"))
    asks_more = replace(ASKS, rules=(*ASKS.rules, *OTHERS.rules))
    assert replica.cache.view_for(asks_more).labels_for("team-a") is None
