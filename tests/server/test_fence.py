"""When a replica writes the fence's parameter, and when it leaves another's alone."""

from __future__ import annotations

import pytest

from tests.support.api_server import ApiServer
from tests.support.pods import a_policy, a_rule
from tests.support.recorded_log import RecordedLog
from webhook.adapters.kube.release_objects import FenceApi
from webhook.core.policy.fence import (
    GPUS_KEY,
    RULES_KEY,
    SEAL_KEY,
    _authenticate,
    fence_data,
    seal_data,
)
from webhook.core.policy.model import Action, Rollout
from webhook.server.fence import SETTLE_S, FenceKeeper

OURS, THEIRS = a_policy(), a_policy(a_rule(action=Action.WARN), digest="fedcba9876543210")
THIRD = a_policy(a_rule(namespaces=("a",)), digest="00000000000000000000")
KEY, NOW_S = b"0123456789abcdef" * 2, 1_800_000_000.0


CONFIG_MAP = "/api/v1/namespaces/gpu/configmaps/vramwarden-fence"


class Fence:
    """The ConfigMap in an API server, and the time there."""

    def __init__(self):
        self.api = ApiServer()
        self.at_s = NOW_S

    def put(self, **found):
        self.api.put(CONFIG_MAP, found)

    @property
    def data(self):
        return self.api.objects[CONFIG_MAP]["data"]

    @property
    def unsealed(self):
        return {key: text for key, text in self.data.items() if key != SEAL_KEY}


class Replica:
    def __init__(self, fence, key=KEY):
        self.fence = fence
        self.policy = OURS
        self.log = RecordedLog()
        self.keeper = FenceKeeper(
            FenceApi(fence.api.kube(now_s=lambda: fence.at_s), "gpu"),
            lambda: self.policy,
            Rollout.ENFORCE,
            key,
            self.log,
        )

    def keep(self):
        """Do what is due; return how often it wrote."""
        before = len(self.fence.api.sent())
        assert self.keeper.keep()
        return len(self.fence.api.sent()) - before


def of_theirs(key=KEY, now_s=NOW_S):
    return seal_data(fence_data(THEIRS), key, now_s)


@pytest.fixture
def fence():
    return Fence()


@pytest.fixture
def replica(fence):
    return Replica(fence)


def test_it_writes_what_is_missing_and_nothing_twice(replica, fence):
    assert [replica.keep() for _ in range(3)] == [1, 0, 0]
    assert fence.unsealed == fence_data(OURS)
    fence.api.remove(CONFIG_MAP)
    assert [replica.keep() for _ in range(2)] == [1, 0]


@pytest.mark.parametrize("key", fence_data(OURS))
def test_what_somebody_changed_is_restored_at_once_and_other_keys_stay(replica, fence, key):
    replica.keep()
    fence.put(data={**fence.data, key: "x", "rules.v3": "another release's"})
    assert replica.keep() == 1
    assert fence.unsealed == {**fence_data(OURS), "rules.v3": "another release's"}
    fence.put(data={})
    assert replica.keep() == 1
    fence.put()
    assert replica.keep() == 1


def test_a_new_policy_is_written_over_another_replicas(replica, fence):
    fence.put(data=of_theirs())
    assert replica.keep() == 1
    replica.policy = THIRD
    assert replica.keep() == 1
    assert fence.unsealed == fence_data(THIRD)


def test_another_replicas_policy_is_left_alone_until_it_has_settled(replica, fence):
    replica.keep()
    fence.put(data=of_theirs())
    assert replica.keep() == 0
    fence.at_s += SETTLE_S - 1
    assert replica.keep() == 0
    assert fence.unsealed == fence_data(THEIRS)
    fence.at_s += 1
    assert replica.keep() == 1
    assert fence.unsealed == fence_data(OURS)


FORGED = {
    "without a seal": fence_data(THEIRS),
    "sealed without a key": seal_data(fence_data(THEIRS), b"", NOW_S),
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
def test_what_no_replica_wrote_now_is_restored_at_once_each_time(replica, fence, data):
    replica.keep()
    for _ in range(9):
        fence.put(data=data)
        assert replica.keep() == 1
        assert fence.unsealed == fence_data(OURS)


@pytest.mark.parametrize("at", ["x", "", "-1", "9" * 13])
def test_without_a_key_anybody_can_seal_but_no_time_is_forever(fence, at):
    replica = Replica(fence, b"")
    replica.keep()
    fence.put(data=seal_data(fence_data(THEIRS), b"", NOW_S))
    assert replica.keep() == 0
    head = f"{at} {','.join(sorted(fence_data(THEIRS)))}"
    code = _authenticate(fence_data(THEIRS), head, b"")
    fence.put(data={**fence_data(THEIRS), SEAL_KEY: f"{head} {code}"})
    assert replica.keep() == 1


LESS = {key: text for key, text in fence_data(THEIRS).items() if key != GPUS_KEY}
OTHER_RELEASES = {"more": {**fence_data(THEIRS), "new.v1": "x"}, "less": LESS}


@pytest.mark.parametrize("data", OTHER_RELEASES.values(), ids=OTHER_RELEASES)
def test_what_a_replica_of_another_release_sealed_is_left_alone_until_it_settled(
    replica, fence, data
):
    replica.keep()
    fence.put(data={**fence_data(OURS), **seal_data(data, KEY, NOW_S)})
    assert replica.keep() == 0
    fence.put(data={**fence_data(OURS), **seal_data({"last-good": "x"}, KEY, NOW_S)})
    assert replica.keep() == 0  # it is our text, whatever its seal
    fence.put(data={**fence_data(THEIRS), **seal_data({"last-good": "x"}, KEY, NOW_S)})
    assert replica.keep() == 1


def test_replicas_with_different_policies_do_not_fight(fence):
    """Each writes when it begins, and then one of them now and then."""
    first, second = Replica(fence), Replica(fence)
    second.policy = THEIRS
    for _ in range(600):
        for one in (first, second):
            one.keep()
        fence.at_s += 1
    assert len(fence.api.sent()) <= 2 + 600 / SETTLE_S


def test_replicas_take_a_new_policy_over_one_after_the_other(fence):
    first, second = Replica(fence), Replica(fence)
    first.keep()
    second.keep()
    first.policy = THIRD
    for _ in range(60):
        first.keep()
        second.keep()
    second.policy = THIRD
    second.keep()
    assert len(fence.api.sent()) == 2
    assert fence.unsealed == fence_data(THIRD)


def test_a_conflict_is_no_news_and_a_new_policy_is_not_forgotten_over_it(replica, fence):
    fence.put(data=of_theirs())
    fence.api.fails("PUT", lambda _: fence.put(data=of_theirs()))  # somebody was first
    assert not replica.keeper.keep()
    assert replica.log.messages == []
    assert replica.keep() == 1
    assert replica.log.messages == ["the fence's rules are written"]


def test_a_missing_right_is_logged_once_and_its_return_too(replica, fence):
    fence.api.denied.add(("get", "configmaps"))
    assert [replica.keeper.keep() for _ in range(3)] == [False] * 3
    assert replica.log.messages == ["the fence's rules cannot be written"]
    fence.api.denied.clear()
    replica.keep()
    assert replica.log.messages[1:] == [
        "the fence's rules are written again",
        "the fence's rules are written",
    ]


def test_the_text_follows_from_the_policy_alone(replica, fence):
    replica.keep()
    assert fence.unsealed[RULES_KEY] == fence_data(a_policy())[RULES_KEY]
