"""When a replica writes the fence's parameter, and when it leaves another's alone."""

from __future__ import annotations

import io
import json

import pytest

from tests.support.pods import a_policy, a_rule
from webhook.adapters.kube.client import KubeError
from webhook.adapters.policy.source import PolicyReview
from webhook.core.policy.fence import RULES_KEY, SEAL_KEY, WHOLE_GPUS_KEY, _code, fence_data, sealed
from webhook.core.policy.values import Action
from webhook.server.fence import SETTLE_S, FenceKeeper
from webhook.server.log import JsonLog

OURS, THEIRS = a_policy(), a_policy(a_rule(action=Action.WARN), digest="fedcba9876543210")
THIRD = a_policy(a_rule(namespaces=("a",)), digest="00000000000000000000")
KEY, NOW_S = b"0123456789abcdef" * 2, 1_800_000_000.0


class Stored:
    """The ConfigMap, in memory; a failure is raised once."""

    def __init__(self):
        self.found = None
        self.writes = 0
        self.failures = []
        self.at_s = NOW_S

    def now_s(self):
        return self.at_s

    def read(self):
        self._meet()
        return self.found

    def write(self, data, found):
        self._meet()
        assert found is self.found
        self.writes += 1
        self.found = {"data": {**((found or {}).get("data") or {}), **data}}

    def put(self, data):
        self.found = {"data": dict(data)}

    @property
    def data(self):
        """Return what is stored, without its seal."""
        return {key: text for key, text in self.found["data"].items() if key != SEAL_KEY}

    def _meet(self):
        if self.failures:
            raise self.failures.pop(0)


class Replica:
    def __init__(self, stored, key=KEY):
        self.stored = stored
        self.policy = OURS
        self.log = io.BytesIO()
        self.keeper = FenceKeeper(
            stored,
            lambda: PolicyReview(self.policy, {}, {}),
            lambda judged: fence_data(judged.policy),
            key,
            JsonLog(self.log),
        )

    def keep(self):
        before = self.stored.writes
        assert self.keeper.keep()
        return self.stored.writes - before

    @property
    def messages(self):
        return [json.loads(line)["msg"] for line in self.log.getvalue().splitlines()]


def of_theirs(key=KEY, now_s=NOW_S):
    return sealed(fence_data(THEIRS), key, now_s)


@pytest.fixture
def stored():
    return Stored()


@pytest.fixture
def replica(stored):
    return Replica(stored)


def test_it_writes_what_is_missing_and_nothing_twice(replica, stored):
    assert [replica.keep() for _ in range(3)] == [1, 0, 0]
    assert stored.data == fence_data(OURS)
    stored.found = None
    assert [replica.keep() for _ in range(2)] == [1, 0]


@pytest.mark.parametrize("key", fence_data(OURS))
def test_what_somebody_changed_is_restored_at_once_and_other_keys_stay(replica, stored, key):
    replica.keep()
    stored.put({**stored.found["data"], key: "x", "rules.v3": "another release's"})
    assert replica.keep() == 1
    assert stored.data == {**fence_data(OURS), "rules.v3": "another release's"}
    stored.put({})
    assert replica.keep() == 1
    stored.found = {}
    assert replica.keep() == 1


def test_a_new_policy_is_written_over_another_replicas(replica, stored):
    stored.put(of_theirs())
    assert replica.keep() == 1
    replica.policy = THIRD
    assert replica.keep() == 1
    assert stored.data == fence_data(THIRD)


def test_another_replicas_policy_is_left_alone_until_it_has_settled(replica, stored):
    replica.keep()
    stored.put(of_theirs())
    assert replica.keep() == 0
    stored.at_s += SETTLE_S - 1
    assert replica.keep() == 0
    assert stored.data == fence_data(THEIRS)
    stored.at_s += 1
    assert replica.keep() == 1
    assert stored.data == fence_data(OURS)


FORGED = {
    "with a right sum, as of 0.2.0": fence_data(THEIRS),
    "sealed without a key": sealed(fence_data(THEIRS), b"", NOW_S),
    "sealed with another key": of_theirs(KEY[1:]),
    "sealed, and changed": {**of_theirs(), **fence_data(THIRD)},
    "sealed, and given another time": {
        **of_theirs(now_s=NOW_S - SETTLE_S),
        SEAL_KEY: of_theirs(now_s=NOW_S - SETTLE_S)[SEAL_KEY].replace("17", "18", 1),
    },
    "sealed two minutes ago, and put back": of_theirs(now_s=NOW_S - SETTLE_S),
    "with a seal that is none": {**fence_data(THEIRS), SEAL_KEY: "\u0663 \u00e9"},
}


@pytest.mark.parametrize("data", FORGED.values(), ids=FORGED)
def test_what_no_replica_wrote_now_is_restored_at_once_each_time(replica, stored, data):
    replica.keep()
    for _ in range(9):
        stored.put(data)
        assert replica.keep() == 1
        assert stored.data == fence_data(OURS)


@pytest.mark.parametrize("at", ["x", "", "-1", "9" * 13])
def test_without_a_key_anybody_can_seal_but_no_time_is_forever(stored, at):
    replica = Replica(stored, b"")
    replica.keep()
    stored.put(sealed(fence_data(THEIRS), b"", NOW_S))
    assert replica.keep() == 0
    head = f"{at} {','.join(sorted(fence_data(THEIRS)))}"
    code = _code(fence_data(THEIRS), head, b"")
    stored.put({**fence_data(THEIRS), SEAL_KEY: f"{head} {code}"})
    assert replica.keep() == 1


LESS = {key: text for key, text in fence_data(THEIRS).items() if key != WHOLE_GPUS_KEY}
OTHER_RELEASES = {"more": {**fence_data(THEIRS), "new.v1": "x"}, "less": LESS}


@pytest.mark.parametrize("data", OTHER_RELEASES.values(), ids=OTHER_RELEASES)
def test_what_a_replica_of_another_release_sealed_is_left_alone_until_it_settled(
    replica, stored, data
):
    replica.keep()
    stored.put({**fence_data(OURS), **sealed(data, KEY, NOW_S)})
    assert replica.keep() == 0
    stored.put({**fence_data(OURS), **sealed({"last-good": "x"}, KEY, NOW_S)})
    assert replica.keep() == 0  # it is our text, whatever its seal
    stored.put({**fence_data(THEIRS), **sealed({"last-good": "x"}, KEY, NOW_S)})
    assert replica.keep() == 1


def test_replicas_with_different_policies_do_not_fight(stored):
    """Each writes when it begins, and then one of them now and then."""
    first, second = Replica(stored), Replica(stored)
    second.policy = THEIRS
    for _ in range(600):
        for one in (first, second):
            one.keep()
        stored.at_s += 1
    assert stored.writes <= 2 + 600 / SETTLE_S


def test_replicas_take_a_new_policy_over_one_after_the_other(stored):
    first, second = Replica(stored), Replica(stored)
    first.keep()
    second.keep()
    first.policy = THIRD
    for _ in range(60):
        first.keep()
        second.keep()
    second.policy = THIRD
    second.keep()
    assert stored.writes == 2
    assert stored.data == fence_data(THIRD)


def test_a_conflict_is_no_news_and_a_new_policy_is_not_forgotten_over_it(replica, stored):
    stored.put(of_theirs())
    stored.failures = [KubeError("somebody was first", code=409)]
    assert not replica.keeper.keep()
    assert replica.messages == []
    assert replica.keep() == 1
    assert replica.messages == ["the fence's rules are written"]


def test_a_missing_right_is_logged_once_and_its_return_too(replica, stored):
    stored.failures = [KubeError("answers 403", code=403)] * 3
    assert [replica.keeper.keep() for _ in range(3)] == [False] * 3
    assert replica.messages == ["the fence's rules cannot be written"]
    replica.keep()
    assert replica.messages[1:] == [
        "the fence's rules are written again",
        "the fence's rules are written",
    ]


def test_the_text_follows_from_the_policy_alone(replica, stored):
    replica.keep()
    assert stored.data[RULES_KEY] == fence_data(a_policy())[RULES_KEY]
