"""When a replica writes what became of policy objects, and when it leaves another's word alone."""

from __future__ import annotations

from math import ceil

import pytest

from tests.support.api_server import ApiServer
from tests.support.logs import RecordedLog
from tests.support.policies import IMAGE, write
from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.fence import FenceApi
from webhook.adapters.kube.follow import Changed, Failed, Listed
from webhook.adapters.kube.policies import LAST_GOOD, PoliciesApi
from webhook.adapters.policy.source import PolicySource
from webhook.server.fence import FenceKeeper
from webhook.server.policies import FIRST_READ_S, PAUSE_S, SETTLE_S, PolicyObjects
from webhook.server.service import _last_good

NOW_S = 1_800_000_000.0
DOWN = KubeError("does not answer")


def a_spec(most="10Gi", name="students"):
    return {"rules": [{"name": name, "match": {"namespaces": ["a"]}, "memory": {"max": most}}]}


POLICIES = "/apis/vramwarden.io/v1alpha1/vrampolicies"


class Cluster:
    """The API server, as somebody with kubectl and the replicas use it."""

    def __init__(self):
        self.api = ApiServer()
        self.kube = self.api.kube(now_s=lambda: NOW_S)
        self.policies = PoliciesApi(self.kube, "gpu")

    def put(self, spec, name="students", **found):
        """Store a spec, as somebody with kubectl does."""
        path = f"{POLICIES}/{name}"
        self.api.put(path, {**self.api.objects.get(path, {}), "spec": spec, **found})

    def remove(self, name="students"):
        self.api.remove(f"{POLICIES}/{name}")

    def status(self, name="students"):
        return self.api.objects[f"{POLICIES}/{name}"].get("status")

    @property
    def kept(self):
        """Return names and contents of the last good set."""
        return self.policies.last_good(b"")

    def stored(self):
        """Return version and status of each policy, by name."""
        found = (one for path, one in self.api.objects.items() if path.startswith(POLICIES))
        metadata = [(one["metadata"], one.get("status") or {}) for one in found]
        return {one["name"]: (one["resourceVersion"], status) for one, status in metadata}


class Replica:
    def __init__(self, cluster, folder):
        self.cluster = cluster
        self.now_s = 1000.0
        self.log = RecordedLog()
        told = (lambda: self.source.judged, b"", self.log)
        self.objects = PolicyObjects(cluster.policies, *told, lambda: self.now_s)
        self.objects.read_first()
        self.source = PolicySource(
            folder, IMAGE, objects=self.objects.texts, remembered=self.objects.remembered
        )
        config_map = FenceApi(cluster.kube, "gpu", LAST_GOOD)
        self.last_good = FenceKeeper(config_map, told[0], _last_good, b"", RecordedLog())

    def hears(self):
        self.objects.mirror.on_report(Listed(self.cluster.policies.read()))

    def turns(self):
        """Hear what exists, judge it and write what is due; return what that changed."""
        self.hears()
        return self.writes()

    def writes(self):
        before = self.cluster.stored()
        self.source.refresh()
        self.objects.keep()
        self.last_good.keep()
        after = self.cluster.stored().items()
        return [(name, found[1]["inForce"]) for name, found in after if found != before[name]]


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "policy", all="  rules: [{name: everybody}]")


@pytest.fixture
def replica(cluster, folder):
    return Replica(cluster, folder)


IN, OUT = ("students", True), ("students", False)


def test_what_became_of_an_object_is_written_once(cluster, replica):
    cluster.put(a_spec())
    assert replica.turns() == [IN]
    assert replica.writes() == []  # before it has heard of its own write
    assert replica.turns() == []
    assert [path for _, path, _ in cluster.api.sent("PATCH")] == [f"{POLICIES}/students/status"]
    (condition,) = cluster.status()["conditions"]
    assert condition["lastTransitionTime"] == "2027-01-15T08:00:00Z"
    cluster.put(a_spec("8GB"))
    assert replica.turns() == [OUT]
    assert replica.turns() == []
    assert cluster.status()["observedGeneration"] == 2
    cluster.put(a_spec("8Gi"))
    assert replica.turns() == [IN]
    assert replica.log.said == []


def test_nothing_is_said_of_what_was_not_judged_yet(cluster, replica):
    cluster.put(a_spec())
    replica.hears()
    replica.objects.keep()
    assert cluster.status() is None
    assert replica.writes() == [IN]


def test_two_replicas_that_judge_alike_write_once(cluster, replica, folder):
    other = Replica(cluster, folder)
    cluster.put(a_spec())
    replica.hears()
    other.hears()
    assert replica.writes() == [IN]
    assert other.writes() == []  # a conflict: it has not heard of the write
    assert other.turns() == []
    assert (replica.log.lines, other.log.lines) == ([], [])


def test_replicas_of_two_folders_do_not_overwrite_each_other(cluster, replica, tmp_path):
    """A changed folder reaches them within a minute or two of each other."""
    other = Replica(cluster, write(tmp_path / "new", all="  rules: [{name: renamed}]"))
    cluster.put(a_spec())
    assert replica.turns() == [IN]
    assert other.turns() == [IN]  # its judgement is new
    for _ in range(3):
        assert replica.turns() == []
        assert other.turns() == []
    replica.now_s += SETTLE_S - 1
    assert replica.turns() == []
    replica.now_s += 1
    assert replica.turns() == [IN]
    assert replica.turns() == []


def test_one_that_somebody_changed_is_written_again_when_it_has_settled(cluster, replica):
    cluster.put(a_spec())
    replica.turns()
    cluster.put(a_spec(), status={"inForce": False, "observedGeneration": 1})
    assert replica.turns() == []
    replica.now_s += SETTLE_S
    assert replica.turns() == [IN]
    cluster.put(a_spec(), status={})  # and this is of no generation
    assert replica.turns() == [IN]


def test_an_edit_of_another_object_changes_what_waits_for_it(cluster, replica):
    cluster.put(a_spec(name="two", most="8GB"), "other")
    cluster.put(a_spec())
    assert sorted(replica.turns()) == [("other", False), OUT]
    cluster.put(a_spec(name="two"), "other")
    assert sorted(replica.turns()) == [("other", True), IN]
    cluster.remove("other")
    assert replica.turns() == [IN]  # the policy in force is another one


def test_events_are_taken_one_by_one_and_failures_said_once(cluster, replica):
    cluster.put(a_spec())
    (stored,) = cluster.policies.read()
    replica.objects.mirror.on_report(Changed("ADDED", stored))
    assert replica.writes() == [IN]
    for _ in range(2):
        replica.objects.mirror.on_report(Failed(DOWN))
    assert replica.writes() == []
    assert len(replica.objects.texts()) == 1
    replica.hears()
    (stored,) = cluster.policies.read()
    replica.objects.mirror.on_report(Changed("DELETED", stored))
    replica.objects.mirror.on_report(Changed("DELETED", stored))
    assert replica.objects.texts() == ()
    try:
        int("a bug")
    except ValueError as bug:
        replica.objects.mirror.on_report(Failed(bug))
    assert replica.log.said == [
        ("error", "policy objects cannot be followed"),
        ("info", "policy objects are followed again"),
        ("exception", "following policy objects failed"),
    ]


def test_what_cannot_be_written_is_said_once_and_tried_again(cluster, replica):
    cluster.put(a_spec())
    for _ in range(2):
        cluster.api.fails("PATCH .*/status", 500)
        assert replica.turns() == []
    assert replica.turns() == [IN]
    assert replica.turns() == []
    cluster.put(a_spec("9Gi"))
    replica.hears()
    cluster.remove()
    assert replica.writes() == []  # it is gone, which will be heard
    assert replica.log.said == [
        ("error", "what became of policies cannot be written"),
        ("info", "what became of policies is written again"),
    ]


def test_the_last_good_set_is_kept_and_a_bad_one_is_not(cluster, replica):
    replica.turns()
    assert cluster.kept == []
    cluster.put(a_spec())
    replica.turns()
    good = cluster.kept
    assert [name for name, _ in good] == ["students"]
    cluster.put(a_spec("8GB"))
    replica.turns()
    assert cluster.kept == good


def test_a_start_beside_an_invalid_object_takes_the_last_good_ones(cluster, replica, folder):
    cluster.put(a_spec("4Gi"))
    replica.turns()
    cluster.put(a_spec("8GB"))
    second = Replica(cluster, folder)
    rules = {rule.name: rule.memory.max_bytes for rule in second.source.current.rules}
    assert rules == {"everybody": None, "students": 4 * 2**30}
    assert second.turns() == [OUT]
    assert cluster.status()["message"].endswith("; what it held before stays in force")
    assert second.log.said == [
        ("error", "an object is not valid, so the last good ones are in force")
    ]
    assert replica.turns() == []


def test_the_last_good_set_may_have_been_an_empty_one(cluster, replica, folder):
    replica.turns()
    cluster.put(a_spec("8GB"))
    assert [rule.name for rule in Replica(cluster, folder).source.current.rules] == ["everybody"]


def patience(cluster, *codes, forever=False):
    """Read for the first time while the API server fails; return how long it slept each time."""
    cluster.api.fails("GET .*/vrampolicies", *codes, forever=forever)
    slept = []
    told = (None, b"", RecordedLog(), lambda: sum(slept))
    PolicyObjects(cluster.policies, *told).read_first(slept.append)
    return slept


def test_a_start_waits_for_the_api_server_and_for_the_kind(cluster):
    assert patience(cluster) == []
    assert patience(cluster, 500, 404, 0) == [PAUSE_S] * 3


TRIES = 1 + ceil(FIRST_READ_S / PAUSE_S)


@pytest.mark.parametrize(
    ("code", "tries", "said"),
    [
        pytest.param(403, 1, "grant list on vrampolicies.vramwarden.io", id="no right"),
        pytest.param(404, TRIES, "install the kind VRAMPolicy, or leave", id="no kind"),
        pytest.param(500, TRIES, "policy objects cannot be read: .* 500", id="no answer"),
    ],
)
def test_a_start_that_cannot_read_them_fails_and_says_what_to_do(cluster, code, tries, said):
    with pytest.raises(KubeError, match=said) as caught:
        patience(cluster, code, forever=True)
    assert caught.value.code == code
    assert len(cluster.api.asked) == tries
