"""The fence's ConfigMap: when a replica writes it, and when it keeps another replica's text."""

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
    """An API server with the ConfigMap, and a clock."""

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

    def sync(self):
        """Sync once; return the number of writes."""
        before = len(self.fence.api.sent())
        assert self.keeper.sync()
        return len(self.fence.api.sent()) - before


def sealed_by_other(key=KEY, now_s=NOW_S):
    return seal_data(fence_data(THEIRS), key, now_s)


@pytest.fixture
def fence():
    return Fence()


@pytest.fixture
def replica(fence):
    return Replica(fence)


def test_it_writes_what_is_missing_and_nothing_twice(replica, fence):
    assert [replica.sync() for _ in range(3)] == [1, 0, 0]
    assert fence.unsealed == fence_data(OURS)
    fence.api.remove(CONFIG_MAP)
    assert [replica.sync() for _ in range(2)] == [1, 0]


@pytest.mark.parametrize("key", fence_data(OURS))
def test_a_changed_key_is_restored_at_once_and_other_keys_stay(replica, fence, key):
    replica.sync()
    fence.put(data={**fence.data, key: "x", "rules.v3": "another release's"})
    assert replica.sync() == 1
    assert fence.unsealed == {**fence_data(OURS), "rules.v3": "another release's"}
    fence.put(data={})
    assert replica.sync() == 1
    fence.put()
    assert replica.sync() == 1


def test_a_new_policy_is_written_over_another_replicas(replica, fence):
    fence.put(data=sealed_by_other())
    assert replica.sync() == 1
    replica.policy = THIRD
    assert replica.sync() == 1
    assert fence.unsealed == fence_data(THIRD)


def test_another_replicas_policy_is_kept_until_it_has_settled(replica, fence):
    replica.sync()
    fence.put(data=sealed_by_other())
    assert replica.sync() == 0
    fence.at_s += SETTLE_S - 1
    assert replica.sync() == 0
    assert fence.unsealed == fence_data(THEIRS)
    fence.at_s += 1
    assert replica.sync() == 1
    assert fence.unsealed == fence_data(OURS)


FORGED = {
    "without a seal": fence_data(THEIRS),
    "sealed without a key": seal_data(fence_data(THEIRS), b"", NOW_S),
    "sealed with another key": sealed_by_other(KEY[1:]),
    "sealed, and changed": {**sealed_by_other(), **fence_data(THIRD)},
    "sealed, and given another time": {
        **sealed_by_other(now_s=NOW_S - SETTLE_S),
        SEAL_KEY: sealed_by_other(now_s=NOW_S - SETTLE_S)[SEAL_KEY].replace("17", "18", 1),
    },
    "sealed two minutes ago, and put back": sealed_by_other(now_s=NOW_S - SETTLE_S),
    "with a seal that is none": {**fence_data(THEIRS), SEAL_KEY: "\u0663 \u00e9"},
}


@pytest.mark.parametrize("data", FORGED.values(), ids=FORGED)
def test_a_text_without_a_valid_seal_is_replaced_at_once_each_time(replica, fence, data):
    replica.sync()
    for _ in range(9):
        fence.put(data=data)
        assert replica.sync() == 1
        assert fence.unsealed == fence_data(OURS)


@pytest.mark.parametrize("at", ["x", "", "-1", "9" * 13])
def test_without_a_key_any_writer_can_seal_for_a_limited_time(fence, at):
    replica = Replica(fence, b"")
    replica.sync()
    fence.put(data=seal_data(fence_data(THEIRS), b"", NOW_S))
    assert replica.sync() == 0
    head = f"{at} {','.join(sorted(fence_data(THEIRS)))}"
    code = _authenticate(fence_data(THEIRS), head, b"")
    fence.put(data={**fence_data(THEIRS), SEAL_KEY: f"{head} {code}"})
    assert replica.sync() == 1


LESS = {key: text for key, text in fence_data(THEIRS).items() if key != GPUS_KEY}
OTHER_RELEASES = {"more": {**fence_data(THEIRS), "new.v1": "x"}, "less": LESS}


@pytest.mark.parametrize("data", OTHER_RELEASES.values(), ids=OTHER_RELEASES)
def test_the_text_of_another_release_is_kept_until_it_has_settled(replica, fence, data):
    replica.sync()
    fence.put(data={**fence_data(OURS), **seal_data(data, KEY, NOW_S)})
    assert replica.sync() == 0
    fence.put(data={**fence_data(OURS), **seal_data({"last-good": "x"}, KEY, NOW_S)})
    assert replica.sync() == 0  # the replica's own text, under another seal
    fence.put(data={**fence_data(THEIRS), **seal_data({"last-good": "x"}, KEY, NOW_S)})
    assert replica.sync() == 1


def test_replicas_with_different_policies_seldom_write(fence):
    """Each replica writes when it starts. Later one of them writes from time to time."""
    first, second = Replica(fence), Replica(fence)
    second.policy = THEIRS
    for _ in range(600):
        for item in (first, second):
            item.sync()
        fence.at_s += 1
    assert len(fence.api.sent()) <= 2 + 600 / SETTLE_S


def test_replicas_get_a_new_policy_one_after_the_other(fence):
    first, second = Replica(fence), Replica(fence)
    first.sync()
    second.sync()
    first.policy = THIRD
    for _ in range(60):
        first.sync()
        second.sync()
    second.policy = THIRD
    second.sync()
    assert len(fence.api.sent()) == 2
    assert fence.unsealed == fence_data(THIRD)


def test_a_conflict_is_not_logged_and_a_new_policy_is_still_written(replica, fence):
    fence.put(data=sealed_by_other())
    fence.api.fails("PUT", lambda _: fence.put(data=sealed_by_other()))  # another writer was first
    assert not replica.keeper.sync()
    assert replica.log.messages == []
    assert replica.sync() == 1
    assert replica.log.messages == ["the fence's rules are written"]


def test_a_missing_right_is_logged_once_and_so_is_its_return(replica, fence):
    fence.api.denied.add(("get", "configmaps"))
    assert [replica.keeper.sync() for _ in range(3)] == [False] * 3
    assert replica.log.messages == ["the fence's rules cannot be written"]
    fence.api.denied.clear()
    replica.sync()
    assert replica.log.messages[1:] == [
        "the fence's rules are written again",
        "the fence's rules are written",
    ]


def test_the_text_depends_only_on_the_policy(replica, fence):
    replica.sync()
    assert fence.unsealed[RULES_KEY] == fence_data(a_policy())[RULES_KEY]
