"""What is reported of a node's ResourceSlices, and how often they are asked for."""

from __future__ import annotations

import pytest

from webhook.adapters.kube import slices
from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.follow import Changed, Failed, Listed
from webhook.adapters.kube.slices import REFUSED_S, SlicesSeen, SlicesUnread, watch_slices
from webhook.core.node.slices import Slice, claimants, read_slice

GPU = Slice("gpus", "gpu.nvidia.com", frozenset({"gpu", "GPU-a"}))
CHANNEL = Slice("channels", "compute-domain.nvidia.com", frozenset({"channel"}))
MOVED = Slice("gpus", "gpu.nvidia.com", frozenset({"GPU-b"}))
NOT_SERVED = Failed(KubeError("404", code=404))
FORBIDDEN = Failed(KubeError("403", code=403))
DOWN = Failed(KubeError("down"))


@pytest.fixture
def heard(monkeypatch):
    """Return a function that hears reports, and returns what was sent and the pauses after each."""

    def hear(*reports):
        sent, pauses = [], []
        monkeypatch.setattr(slices.time, "sleep", pauses.append)

        def follow(collection, hear, *, sleep):
            assert collection.fields == "spec.nodeName=n"
            for report in reports:
                hear(report)
                if isinstance(report, Failed):
                    sleep(1.0)

        monkeypatch.setattr(slices, "follow", follow)
        watch_slices(None, "n", sent.append)
        return sent, pauses

    return hear


def test_all_slices_are_reported_at_each_change(heard):
    deleted, moved = Changed("DELETED", CHANNEL), Changed("MODIFIED", MOVED)
    sent, _ = heard(Listed([GPU]), Changed("ADDED", CHANNEL), moved, deleted, Listed([]))
    assert sent == [
        SlicesSeen((GPU,)),
        SlicesSeen((GPU, CHANNEL)),
        SlicesSeen((CHANNEL, MOVED)),
        SlicesSeen((MOVED,)),
        SlicesSeen(()),
    ]


@pytest.mark.parametrize(
    ("reports", "sent", "pauses"),
    [
        ([NOT_SERVED], [SlicesUnread("404", refused=True)], [REFUSED_S]),
        ([FORBIDDEN, FORBIDDEN], [], [1, 1]),
        ([FORBIDDEN] * 3, [SlicesUnread("403", refused=True)], [1, 1, REFUSED_S]),
        ([DOWN] * 3, [SlicesUnread("down", refused=False)], [1, 1, 1]),
        ([FORBIDDEN, FORBIDDEN, Listed([]), FORBIDDEN], [SlicesSeen(())], [1, 1, 1]),
        ([FORBIDDEN] * 3 + [Listed([]), DOWN], [..., SlicesSeen(())], [1, 1, REFUSED_S, 1]),
    ],
    ids=["not served", "just granted?", "not granted", "an outage", "granted", "granted late"],
)
def test_a_failure_that_may_pass_is_not_reported_at_once(heard, reports, sent, pauses):
    was_sent, paused = heard(*reports)
    assert paused == pauses
    assert [... if one is ... else was for one, was in zip(sent, was_sent, strict=True)] == sent


def test_a_bug_ends_the_thread(heard):
    with pytest.raises(ZeroDivisionError):
        heard(Failed(ZeroDivisionError()))


@pytest.mark.parametrize(
    ("spec", "texts"),
    [
        ({"devices": [{"attributes": {"uuid": {"string": "GPU-a"}}}]}, {"GPU-a"}),
        ({"devices": [{"attributes": {"n": {"int": 1}, "b": {"bool": True}}}]}, set()),
        ({"devices": [{}, {"attributes": None}, 7, {"attributes": {"a": "GPU-a"}}]}, set()),
        ({"devices": {"a": 1}}, set()),
        ({"devices": [{}] * 128 + [{"attributes": {"uuid": {"string": "GPU-a"}}}]}, set()),
        (None, set()),
    ],
)
def test_a_slice_is_read_as_far_as_it_can_be(spec, texts):
    found = read_slice({"metadata": {"name": "one"}, "spec": spec})
    assert (found.name, found.texts) == ("one", frozenset(texts))


def test_claimants_are_who_names_one_of_the_gpus():
    assert claimants([MOVED, CHANNEL, GPU], {"GPU-a"}) == ("gpu.nvidia.com",)
    assert claimants([MOVED, CHANNEL], {"GPU-a"}) == ()
