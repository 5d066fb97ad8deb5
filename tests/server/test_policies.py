"""When a replica writes what became of policy objects, and when it leaves another's word alone."""

from __future__ import annotations

import copy
import io
import json
import zlib
from base64 import b64decode

import pytest

from tests.support.policies import IMAGE, write
from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.follow import Changed, Failed, Listed
from webhook.adapters.kube.policies import read_stored
from webhook.adapters.policy.source import PolicySource
from webhook.server.log import JsonLog
from webhook.server.policies import FIRST_READ_S, SETTLE_S, PolicyObjects
from webhook.server.service import _last_good

NOW_S = 1_800_000_000.0
CONFLICT = KubeError("written since", code=409)
DOWN = KubeError("does not answer")


def a_spec(most="10Gi", name="students"):
    return {"rules": [{"name": name, "match": {"namespaces": ["a"]}, "memory": {"max": most}}]}


class Cluster:
    """The API server as far as policies are concerned, in memory; a failure is raised once."""

    all = None

    def __init__(self):
        self.objects = {}
        self.kept = None
        self.writes = []
        self.asked = 0
        self.failures = []
        self.version = 0

    def put(self, spec, name="students"):
        """Store a spec, as somebody with kubectl does."""
        found = self.objects.get(name, {"metadata": {"name": name, "uid": "u", "generation": 0}})
        generation = found["metadata"]["generation"] + 1
        metadata = {**found["metadata"], "generation": generation}
        self._store({**found, "metadata": metadata, "spec": spec})

    def remove(self, name="students"):
        del self.objects[name]

    def status(self, name="students"):
        return self.objects[name].get("status")

    def stored(self):
        return [read_stored(copy.deepcopy(one)) for one in self.objects.values()]

    def now_s(self):
        return NOW_S

    def read(self):
        self._meet()
        return self.stored()

    def write_status(self, stored, status):
        self.asked += 1
        self._meet()
        found = self.objects.get(stored.name)
        if found is None:
            raise KubeError("gone", code=404)
        if found["metadata"]["resourceVersion"] != stored.version:
            raise CONFLICT
        self.writes.append((stored.name, status["inForce"]))
        kept = {key: value for key, value in status.items() if value is not None}
        self._store({**found, "status": json.loads(json.dumps(kept))})
        return read_stored(copy.deepcopy(self.objects[stored.name]))

    def last_good(self, _key):
        self._meet()
        return self.kept

    def _store(self, found):
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        self.objects[found["metadata"]["name"]] = found

    def _meet(self):
        if self.failures:
            raise self.failures.pop(0)


class Replica:
    def __init__(self, cluster, folder):
        self.cluster = cluster
        self.now_s = 1000.0
        self.slept = []
        self.written = io.BytesIO()
        self.objects = PolicyObjects(
            cluster, lambda: self.source.judged, b"", JsonLog(self.written), lambda: self.now_s
        )
        self.objects.read_first(self.sleep)
        self.source = PolicySource(
            folder, IMAGE, objects=self.objects.texts, remembered=self.objects.remembered
        )

    def sleep(self, pause_s):
        self.slept.append(pause_s)
        self.now_s += pause_s

    def hears(self):
        self.objects.mirror.on_report(Listed(self.cluster.stored()))

    def turns(self):
        """Hear what exists, judge it and write what is due; return what was written."""
        self.hears()
        return self.writes()

    def writes(self):
        before = len(self.cluster.writes)
        self.source.refresh()
        self.objects.keep()
        (data,) = _last_good(self.source.judged).values()
        self.cluster.kept = [
            (n, t.encode()) for n, t in json.loads(zlib.decompress(b64decode(data)))
        ]
        return self.cluster.writes[before:]

    @property
    def log(self):
        lines = map(json.loads, self.written.getvalue().splitlines())
        return [(line["level"], line["msg"]) for line in lines]


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
    assert cluster.asked == 1
    (condition,) = cluster.status()["conditions"]
    assert condition["lastTransitionTime"] == "2027-01-15T08:00:00Z"
    cluster.put(a_spec("8GB"))
    assert replica.turns() == [OUT]
    assert replica.turns() == []
    assert cluster.status()["observedGeneration"] == 2
    cluster.put(a_spec("8Gi"))
    assert replica.turns() == [IN]
    assert replica.log == []


def test_nothing_is_said_of_what_was_not_judged_yet(cluster, replica):
    cluster.put(a_spec())
    replica.hears()
    replica.objects.keep()
    assert cluster.writes == []
    assert replica.writes() == [IN]


def test_two_replicas_that_judge_alike_write_once(cluster, replica, folder):
    other = Replica(cluster, folder)
    cluster.put(a_spec())
    replica.hears()
    other.hears()
    assert replica.writes() == [IN]
    assert other.writes() == []  # a conflict: it has not heard of the write
    assert other.turns() == []
    assert (replica.log, other.log) == ([], [])


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
    cluster.objects["students"]["status"] = {"inForce": False, "observedGeneration": 1}
    assert replica.turns() == []
    replica.now_s += SETTLE_S
    assert replica.turns() == [IN]
    cluster.objects["students"]["status"] = {}  # and this is of no generation
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
    (stored,) = cluster.stored()
    replica.objects.mirror.on_report(Changed("ADDED", stored))
    assert replica.writes() == [IN]
    for _ in range(2):
        replica.objects.mirror.on_report(Failed(DOWN))
    assert replica.writes() == []
    assert len(replica.objects.texts()) == 1
    replica.hears()
    (stored,) = cluster.stored()
    replica.objects.mirror.on_report(Changed("DELETED", stored))
    replica.objects.mirror.on_report(Changed("DELETED", stored))
    assert replica.objects.texts() == ()
    try:
        int("a bug")
    except ValueError as bug:
        replica.objects.mirror.on_report(Failed(bug))
    assert replica.log == [
        ("error", "policy objects cannot be followed"),
        ("info", "policy objects are followed again"),
        ("error", "following policy objects failed"),
    ]


def test_what_cannot_be_written_is_said_once_and_tried_again(cluster, replica):
    cluster.put(a_spec())
    for _ in range(2):
        cluster.failures = [DOWN]
        assert replica.turns() == []
    assert replica.turns() == [IN]
    assert replica.turns() == []
    cluster.put(a_spec("9Gi"))
    replica.hears()
    cluster.remove()
    assert replica.writes() == []  # it is gone, which will be heard
    assert replica.log == [
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
    assert second.log == [("error", "an object is not valid, so the last good ones are in force")]
    assert replica.turns() == []


def test_the_last_good_set_may_have_been_an_empty_one(cluster, replica, folder):
    replica.turns()
    cluster.put(a_spec("8GB"))
    assert [rule.name for rule in Replica(cluster, folder).source.current.rules] == ["everybody"]


def patient(cluster, *failures):
    """Read for the first time while the API server fails; return how often it slept."""
    cluster.failures = list(failures)
    replica = Replica.__new__(Replica)
    replica.now_s, replica.slept = 0.0, []
    objects = PolicyObjects(cluster, None, b"", JsonLog(io.BytesIO()), lambda: replica.now_s)
    objects.read_first(replica.sleep)
    return len(replica.slept)


def test_a_start_waits_for_the_api_server_and_for_the_kind(cluster):
    assert patient(cluster) == 0
    assert patient(cluster, DOWN, KubeError("no such kind", code=404), DOWN) == 3


IN_VAIN = {
    "the right is missing": (KubeError("x", code=403), "grant list on vrampolicies.vramwarden.io"),
    "there is no kind": (KubeError("x", code=404), "install the kind VRAMPolicy, or leave"),
    "it never answers": (DOWN, "policy objects cannot be read: does not answer"),
}


@pytest.mark.parametrize(("failure", "said"), IN_VAIN.values(), ids=IN_VAIN)
def test_a_start_that_cannot_read_them_fails_and_says_what_to_do(cluster, failure, said):
    with pytest.raises(KubeError, match=said) as caught:
        patient(cluster, *([failure] * int(FIRST_READ_S)))
    assert caught.value.code == failure.code
    if failure.code == 403:
        assert len(cluster.failures) == FIRST_READ_S - 1  # no use in waiting
