"""One allocator per card: what the loop makes of a device plugin that is there, comes or goes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.agent.stepped import DOWN, FINE, GONE, GPU, MISSING, ZEROED, Bench
from tests.support.agents import VRAM
from webhook.adapters.kube.node_watch import (
    AssignmentsSeen,
    AssignmentsUnread,
    SlicesSeen,
    SlicesUnread,
)
from webhook.agent.loop import LONGEST_WAIT_S
from webhook.agent.sharing import ASK_EVERY_S
from webhook.core.kinds.nodes import write_time
from webhook.core.node.access import Access
from webhook.core.node.driver import LOADED_AFTER_S, Driver, after_scan, why_unready
from webhook.core.node.inventory import Scan
from webhook.core.node.sharing import CLAIMED_S, SETTLE_S, YOUNG_S
from webhook.core.nvidia.drivers import SeenGpu
from webhook.core.placement.assignments import Assignment, Whole
from webhook.core.pod.whole import Slice
from webhook.names import NODE_ASKS_LABEL
from webhook.nodekit.program import NewContainerNeededError

BUSY = Scan(
    gpus=(
        SeenGpu(
            uuid="GPU-a",
            product="NVIDIA H200",
            index=0,
            usable_bytes=1000 * 2**20,
            used_bytes=2**30,
        ),
    ),
    driver_version="570.86.15",
)
NOBODY = AssignmentsSeen({})
SOMEBODY = AssignmentsSeen(
    {"uid": Assignment(pod="team/train", uuids=("GPU-a",), memory_bytes=2**28, since_s=1)}
)
UNREAD = AssignmentsUnread("forbidden")
NOT_SHARED, SHARED, USED = (
    "the GPUs are not shared",
    "the GPUs are shared",
    "the GPUs are in use; waiting until they are free",
)
BESIDE = "the GPUs are shared and offered whole"
HELD = "vramwarden.io/held"


def plugin(amount="8", capacity=None, name="nvidia.com/gpu"):
    """Return what the kubelet shows of a plugin; with "0" of one that is gone and forgotten."""
    amounts = {"capacity": {name: capacity or amount}, "allocatable": {name: amount}}
    return {"status": amounts}


AWAY = plugin("0", "8")
"""Of a plugin that is gone for less than five minutes, or calls all of its GPUs unhealthy."""


def label(value):
    return {"metadata": {"labels": {"vramwarden.io/share": value}}}


@pytest.fixture
def bench(monkeypatch):
    """Make an agent that reads who has its GPUs."""
    return Bench(monkeypatch, namespace="vramwarden")


def ours(bench):
    """Return what the node shows of ours, but for the cluster admin's label and the question."""
    keys = (*bench.labels, *bench.annotations)
    aside = {"vramwarden.io/share", NODE_ASKS_LABEL}
    return [key for key in keys if key.startswith("vramwarden.io/") and key not in aside]


def test_a_node_with_the_plugin_is_left_alone_and_that_is_said_once(bench):
    for _ in range(3):
        bench.hear(FINE, NOBODY, bench.edit(plugin()), after_s=1)
    assert bench.sent == []
    assert bench.unready() == ""
    (line,) = [line for line in bench.lines() if line["msg"] == NOT_SHARED]
    assert line["level"] == "info"
    assert "nvidia.com/gpu.deploy.device-plugin=false" in line["why"]
    event = bench.agent._events.waiting.get_nowait()
    assert (event.reason, event.sentence, event.warning) == ("GPUsNotShared", line["why"], False)
    assert bench.told() == []


@pytest.mark.parametrize("scan", [None, DOWN, GONE, BUSY])
def test_not_sharing_is_ready_whatever_the_gpus_do(bench, scan):
    bench.hear(*([scan] if scan else []), NOBODY, bench.edit(plugin()))
    assert bench.unready() == ""
    assert bench.sent == []


def test_a_driver_that_is_awaited_makes_only_a_node_unready_that_is_to_be_shared(bench):
    bench.hear(DOWN, NOBODY, bench.edit(plugin()))
    assert bench.unready() == ""
    bench.hear(bench.edit(plugin("0")), DOWN, after_s=1)
    assert bench.unready() == why_unready(after_scan(NEW, DOWN, 0)) != ""


@pytest.mark.parametrize("node", [plugin(), label("false")], ids=["plugin", "label"])
def test_no_advice_is_given_on_sharing_where_nothing_is_shared(monkeypatch, node):
    bench = Bench(monkeypatch, namespace="vramwarden", access=Access(visible_devices="all"))
    bench.hear(FINE, NOBODY, bench.edit(node))
    assert [one for one in bench.told() if one != "GPUsNotShared"] == []
    assert [line for line in bench.lines() if line["level"] == "warning"] == []
    bench.edit({"status": {"capacity": None, "allocatable": None}})
    bench.hear(bench.edit(label(None)), after_s=1)
    for _ in range(2):
        bench.hear(FINE, after_s=SETTLE_S)
    assert bench.told() == [*(["GPUsShared"] if node == plugin() else []), "DefaultRuntime"]


NO_LIBRARY = replace(MISSING, driver_loaded=True)


def test_who_shares_nothing_needs_no_new_container_until_it_shares(bench):
    """Where a runtime brings in no library, as on GKE, the agent beside the plugin stays."""
    for _ in range(9):
        bench.hear(NO_LIBRARY, NOBODY, bench.edit(plugin()), after_s=LOADED_AFTER_S)
    assert bench.unready() == ""
    with pytest.raises(NewContainerNeededError):
        bench.hear(bench.edit(plugin("0")), NO_LIBRARY, after_s=LOADED_AFTER_S)


def test_what_could_not_be_advertised_is_not_kept_beside_a_plugin(monkeypatch):
    bench = Bench(monkeypatch)  # it reads no lists, and so withdraws nothing
    bench.api.fails("PATCH", 0, forever=True)
    bench.hear(FINE, bench.see_node())
    bench.api.recovers()
    sent = len(bench.sent)
    bench.hear(bench.edit(plugin()), after_s=10)
    assert (len(bench.sent), bench.told()) == (sent, ["GPUsNotShared"])


def test_an_admin_who_wants_both_gets_both(bench):
    bench.edit(label("true"))
    bench.hear(FINE, NOBODY, bench.edit(plugin()))
    assert bench.capacity == "1000Mi"
    assert bench.allocatable == {"nvidia.com/gpu": "8", VRAM: "1000Mi"}
    assert bench.told() == []


def test_an_admin_who_wants_no_share_gets_none_and_silence(bench):
    bench.hear(FINE, NOBODY, bench.edit(label("false")))
    assert bench.sent == []
    assert (bench.told(), bench.unready()) == ([], "")
    assert bench.said() == ["GPUs"]


@pytest.mark.parametrize(
    "unreadable", ["what", "", None, "1k"], ids=["a word", "nothing", "null", "1k"]
)
def test_an_amount_that_cannot_be_read_is_one(bench, unreadable):
    node = bench.edit({})
    node.node["status"] = {"allocatable": {"nvidia.com/gpu": unreadable}}
    bench.hear(FINE, NOBODY, node)
    assert bench.sent == []


def test_a_plugin_that_comes_takes_the_node_while_nobody_has_vram(bench):
    bench.hear(FINE, NOBODY, bench.see_node())
    bench.hear(bench.edit(plugin()), after_s=1)
    assert ours(bench) == []
    assert bench.capacity == bench.allocatable[VRAM] == "0"
    assert bench.allocatable["nvidia.com/gpu"] == "8"
    assert (bench.told(), bench.unready()) == (["GPUsNotShared"], "")


@pytest.mark.parametrize(("pods", "left"), [(SOMEBODY, "256Mi"), (UNREAD, "1000Mi")])
def test_a_plugin_that_comes_to_pods_leaves_what_they_have_until_they_are_gone(bench, pods, left):
    bench.hear(FINE, NOBODY, bench.see_node())
    bench.hear(pods, after_s=20)
    bench.told()
    bench.hear(bench.edit(plugin("1")), after_s=20)
    sent = len(bench.sent)
    for second in range(3):
        bench.hear(bench.edit(plugin(str(second + 1))), after_s=20)
    assert len(bench.sent) == sent
    assert bench.capacity == left
    assert "no other pod is given any" in bench.annotations[HELD]
    assert (bench.said().count(BESIDE), bench.told()) == (1, ["SharedBesidePlugin"])
    assert bench.unready() == ""
    bench.hear(NOBODY, after_s=20)
    assert (bench.capacity, ours(bench)) == ("0", [])
    assert bench.told() == ["GPUsNotShared"]


def test_a_restart_beside_the_plugin_keeps_what_is_shown_until_it_knows_of_pods(bench):
    bench.hear(FINE, NOBODY, bench.see_node())
    again = bench.restarted()
    again.hear(FINE, again.edit(plugin()))
    assert (again.sent, again.told(), again.capacity) == ([], [], "1000Mi")
    assert again.unready() == ""
    again.hear(NOBODY)
    assert (again.told(), again.capacity) == (["GPUsNotShared"], "0")


def test_an_agent_that_reads_no_lists_never_withdraws(monkeypatch):
    bench = Bench(monkeypatch)
    bench.hear(FINE, bench.see_node())
    bench.hear(bench.edit(plugin()), after_s=1)
    assert (bench.capacity, bench.told()) == ("1000Mi", ["SharedBesidePlugin"])


def test_a_plugin_that_goes_is_followed_by_a_scan_at_once_and_then_a_share(bench):
    bench.hear(FINE, NOBODY, bench.edit(plugin()))
    assert not bench.agent._scan_now.is_set()
    bench.hear(bench.edit(plugin("0")), after_s=1)
    assert bench.agent._scan_now.is_set()
    assert bench.sent == []  # a whole-GPU pod may have started since the last scan
    assert bench.unready() == ""
    bench.hear(FINE, after_s=1)
    bench.agent._scan_now.clear()
    assert bench.agent._sharing.due_in_s(bench.clock.now_s) == SETTLE_S - 1
    bench.hear(after_s=SETTLE_S - 1.1)
    assert not bench.agent._scan_now.is_set()
    bench.hear(after_s=0.1)
    assert bench.agent._scan_now.is_set()
    assert bench.sent == []  # nor has that scan come
    bench.hear(FINE, after_s=1)
    assert bench.capacity == "1000Mi"
    assert bench.told() == ["GPUsNotShared", "GPUsShared"]
    assert bench.said()[-2:] == [SHARED, "node patched"]


def test_the_loop_wakes_when_whole_gpus_count_as_offered_no_longer(bench):
    bench.hear(FINE, NOBODY, bench.edit(plugin()))
    bench.hear(bench.edit(plugin("0")), after_s=1)
    waits = []
    bench.agent._inbox = SimpleNamespace(get=waits.append)
    for after_s in (0, SETTLE_S - 1, 1):
        bench.clock.now_s += after_s
        bench.agent._receive()
    assert waits == [LONGEST_WAIT_S, 1, LONGEST_WAIT_S]


def test_a_plugin_or_kubelet_that_restarts_makes_no_gap(bench):
    """The kubelet shows 0, and with its next status, 10 s later, that the plugin is back."""
    bench.hear(FINE, NOBODY, bench.edit(plugin()))
    lines = bench.said()
    for gone_s in (1, 10.4, SETTLE_S - 0.1):
        for zero in (plugin("0"), {"status": dict.fromkeys(("capacity", "allocatable"))}):
            bench.hear(FINE, bench.edit(zero), after_s=60)
            bench.hear(FINE, bench.see_node(), after_s=gone_s)
            assert bench.unready() == ""
            bench.hear(bench.edit(plugin()))
    assert bench.sent == []
    assert (bench.told(), bench.said()) == (["GPUsNotShared"], lines)


def test_gaps_between_restarts_do_not_add_up(bench):
    bench.hear(FINE, NOBODY, bench.edit(plugin()))
    for _ in range(5):
        bench.hear(FINE, bench.edit(plugin("0")), after_s=SETTLE_S / 2)
        bench.hear(bench.edit(plugin()), bench.edit(plugin("0")), after_s=SETTLE_S / 2)
    assert bench.sent == []


def test_an_agent_that_starts_while_the_plugin_is_away_waits_for_it_too(bench):
    """As after a reboot, with which both start."""
    bench.hear(FINE, NOBODY, bench.edit(plugin("0")))
    bench.hear(FINE, bench.edit({"metadata": {"labels": {"a": "b"}}}), after_s=SETTLE_S - 0.1)
    assert (bench.sent, bench.unready()) == ([], "")
    bench.hear(after_s=0.1).hear(FINE)
    assert bench.capacity == "1000Mi"


def test_a_plugin_that_the_kubelet_has_not_forgotten_still_offers_the_gpus(bench):
    """It is upgraded slowly, crashed, or calls all of its GPUs unhealthy."""
    bench.hear(FINE, NOBODY, bench.edit(plugin()))
    for _ in range(20):
        bench.hear(FINE, bench.edit(AWAY), after_s=SETTLE_S)
    assert (bench.sent, bench.told(), bench.unready()) == ([], ["GPUsNotShared"], "")
    bench.hear(bench.edit(plugin("0")), after_s=1)
    bench.hear(FINE, after_s=SETTLE_S).hear(FINE)
    assert (bench.capacity, bench.told()) == ("1000Mi", ["GPUsShared"])


@pytest.mark.parametrize("sign", [plugin(), AWAY], ids=["there", "away"])
def test_a_hold_outlasts_a_kubelet_that_restarts_and_an_agent(bench, sign):
    bench.hear(FINE, NOBODY, bench.see_node())
    bench.hear(SOMEBODY, bench.edit(sign), after_s=20)
    bench.hear(NOBODY, bench.edit(plugin("0")), after_s=1)
    assert (bench.capacity, HELD in ours(bench)) == ("0", True)
    again = bench.restarted()
    again.hear(FINE, NOBODY, again.see_node())
    assert (again.capacity, HELD in ours(again)) == ("0", True)
    again.hear(FINE, after_s=SETTLE_S)
    assert (again.capacity, HELD in ours(again)) == ("1000Mi", False)


def test_pods_with_whole_gpus_that_are_idle_keep_the_node_from_being_shared(bench):
    bench.whole_pods = tuple(f"team/{number}" for number in range(5))
    bench.hear(FINE, NOBODY, bench.see_node())
    for _ in range(3):
        bench.hear(FINE, after_s=ASK_EVERY_S)
    assert (ours(bench), bench.capacity, bench.told()) == ([], None, ["DrainWholeGPUPods"])
    (line,) = [line for line in bench.lines() if line["msg"] == USED]
    idle = (
        "they may use nothing now, and have GPUs all the same: team/0, team/1, team/2 and 2 more;"
    )
    assert idle in line["why"]
    assert bench.unready() == ""
    bench.whole_pods = ()
    bench.hear(FINE, after_s=ASK_EVERY_S)
    assert (bench.capacity, bench.told()) == ("1000Mi", ["GPUsShared"])
    assert NODE_ASKS_LABEL not in bench.labels


def test_where_nobody_answers_for_whole_gpu_pods_the_node_is_shared_all_the_same(bench):
    bench.whole_pods = None
    bench.hear(FINE, NOBODY, bench.see_node())
    stale = Whole("1", 1, ("team/old",))
    bench.hear(FINE, replace(NOBODY, whole=stale), after_s=ASK_EVERY_S - 0.1)
    assert bench.capacity is None
    bench.hear(FINE, after_s=0.1)
    assert (bench.capacity, bench.told()) == ("1000Mi", [])


def test_who_reads_no_lists_asks_nobody(monkeypatch):
    bench = Bench(monkeypatch)
    bench.hear(FINE, bench.see_node())
    assert bench.capacity == "1000Mi"


def created(bench, age_s, **labels):
    at = write_time(bench.api_now_s() - age_s)
    return {"metadata": {"creationTimestamp": at, "labels": labels}}


def test_a_young_node_waits_for_signs_and_an_old_one_does_not(bench):
    bench.hear(FINE, NOBODY, bench.edit(created(bench, YOUNG_S - 1)))
    bench.hear(FINE, after_s=SETTLE_S - 0.1)
    assert (bench.sent, bench.unready()) == ([], "")
    bench.hear(FINE, after_s=0.1).hear(FINE)
    assert bench.capacity == "1000Mi"


def test_what_nvidia_s_operator_is_to_bring_is_waited_for_until_the_node_is_ten_minutes_old(bench):
    label = {"nvidia.com/gpu.deploy.device-plugin": "true"}
    bench.hear(FINE, NOBODY, bench.edit(created(bench, 60, **label)))
    assert bench.told() == ["GPUsNotShared"]
    bench.hear(FINE, after_s=YOUNG_S - 60.1)
    assert bench.sent == []
    assert 0 < bench.agent._sharing.due_in_s(bench.clock.now_s) < 1
    bench.hear(FINE, after_s=0.2).hear(FINE)
    assert (bench.capacity, bench.told()) == ("1000Mi", ["GPUsShared"])


def slices(*uuids, driver="gpu.nvidia.com"):
    return SlicesSeen((Slice("one", driver, frozenset({"gpu", *uuids})),))


REFUSED, OUTAGE = SlicesUnread("404", refused=True), SlicesUnread("503", refused=False)


def test_what_a_dra_driver_offers_is_not_shared_for_five_minutes_longer(bench):
    bench.hear(FINE, NOBODY, slices("GPU-a"), bench.see_node())
    assert (bench.told(), bench.capacity, bench.unready()) == (["GPUsNotShared"], None, "")
    (line,) = [line for line in bench.lines() if line["msg"] == NOT_SHARED]
    assert "a DRA driver (gpu.nvidia.com) gives them away" in line["why"]
    bench.hear(OUTAGE, FINE, after_s=2 * CLAIMED_S)
    bench.hear(SlicesSeen(()), FINE, after_s=1)
    bench.hear(FINE, after_s=CLAIMED_S - 2)
    assert ours(bench) == ["vramwarden.io/dra-driver"]
    again = bench.restarted()  # the driver may still be on its way
    again.hear(FINE, NOBODY, again.see_node())
    (line,) = [line for line in again.lines() if line["msg"] == NOT_SHARED]
    assert "a DRA driver (gpu.nvidia.com) gives them away" in line["why"]
    again.hear(FINE, after_s=CLAIMED_S - 0.1)
    assert ours(again) == ["vramwarden.io/dra-driver"]
    again.hear(FINE, after_s=0.1).hear(FINE)
    assert (again.capacity, "vramwarden.io/dra-driver" in ours(again)) == ("1000Mi", False)


@pytest.mark.parametrize(
    ("seen", "shared"),
    [
        (slices("GPU-b"), True),
        (slices("channel-0", driver="compute-domain.nvidia.com"), True),
        (slices("GPU-a", driver="other.example"), False),
        (REFUSED, True),
        (OUTAGE, True),
    ],
    ids=["another's GPU", "a channel", "one of its GPUs", "refused", "outage"],
)
def test_only_slices_with_one_of_its_gpus_keep_a_node_from_being_shared(bench, seen, shared):
    bench.hear(FINE, NOBODY, seen, bench.see_node())
    assert bench.capacity == ("1000Mi" if shared else None)


@pytest.mark.parametrize("told", [slices("GPU-b"), REFUSED], ids=["read", "refused"])
def test_the_label_of_the_dra_driver_counts_where_slices_cannot_be_read(bench, told):
    label = {"nvidia.com/gpu.deploy.dra-driver": "true"}
    bench.hear(FINE, NOBODY, told, bench.edit(created(bench, YOUNG_S - 100, **label)))
    assert bench.told() == ([] if told != REFUSED else ["GPUsNotShared"])


def test_nothing_is_shared_before_slices_were_asked_for(bench):
    bench.agent._sharing._awaits_slices = True
    bench.hear(FINE, NOBODY, bench.see_node())
    assert (bench.sent, bench.unready()) == ([], "")
    bench.hear(OUTAGE, FINE, after_s=60)
    assert bench.sent == []
    bench.hear(REFUSED)
    assert bench.capacity == "1000Mi"
    said = [line for line in bench.lines() if line["msg"].startswith("ResourceSlices cannot")]
    assert [line["level"] for line in said] == ["warning", "info"]


def test_a_dra_driver_that_comes_to_pods_holds_the_node(bench):
    bench.hear(FINE, SOMEBODY, bench.see_node())
    bench.hear(slices("GPU-a"), after_s=1)
    assert (bench.capacity, bench.told()) == ("256Mi", ["SharedBesidePlugin"])
    bench.hear(NOBODY, after_s=1)
    assert (bench.capacity, bench.told()) == ("0", ["GPUsNotShared"])


def test_a_plugin_that_restarts_beside_shares_is_told_once(bench):
    bench.hear(FINE, SOMEBODY, bench.see_node())
    bench.hear(bench.edit(plugin()), after_s=20)
    lines = bench.said()
    for _ in range(3):
        bench.hear(bench.edit(plugin("0")), BUSY, after_s=20)
        bench.hear(bench.edit(plugin()), after_s=SETTLE_S - 0.1)
    assert (bench.told(), bench.said()) == (["SharedBesidePlugin"], lines)
    bench.hear(bench.edit(plugin("0")), BUSY, after_s=20)
    bench.hear(BUSY, after_s=SETTLE_S)
    assert (bench.told(), bench.capacity) == (["GPUsShared"], "1000Mi")


def test_who_wants_both_waits_for_no_plugin(bench):
    bench.edit(label("true"))
    bench.hear(BUSY, NOBODY, bench.edit(plugin()))
    bench.hear(bench.edit(plugin("0")), FINE, after_s=1)
    assert bench.capacity == "1000Mi"


def test_a_plugin_that_goes_while_the_gpus_are_in_use_is_waited_for(bench):
    bench.hear(FINE, NOBODY, bench.edit(plugin()))
    for _ in range(3):
        bench.hear(bench.edit(plugin("0")), BUSY, after_s=SETTLE_S)
    assert bench.sent == []
    assert bench.told() == ["GPUsNotShared", "DrainWholeGPUPods"]
    bench.hear(FINE, after_s=30)
    assert (bench.capacity, bench.told()) == ("1000Mi", ["GPUsShared"])


def test_a_node_begins_to_be_shared_once_its_gpus_are_free(bench):
    for _ in range(3):
        bench.hear(BUSY, NOBODY, bench.see_node(), after_s=30)
    assert (bench.sent, bench.unready()) == ([], "")
    assert (bench.said().count(USED), bench.told()) == (1, ["DrainWholeGPUPods"])
    bench.hear(FINE, after_s=30)
    assert bench.capacity == "1000Mi"
    bench.hear(BUSY, after_s=30)  # by a share now
    bench.hear(bench.edit(ZEROED), after_s=1)
    assert bench.capacity == "1000Mi"


def test_a_node_that_had_no_gpu_to_share_begins_like_any_other(bench):
    bench.hear(GONE, NOBODY, bench.see_node())
    bench.hear(BUSY, after_s=30)
    assert (bench.sent, bench.told()) == ([], ["DrainWholeGPUPods"])


def test_it_is_said_again_only_where_other_gpus_are_in_use(bench):
    other = SeenGpu(
        uuid="GPU-b", product="NVIDIA H200", index=1, usable_bytes=1000 * 2**20, used_bytes=2**30
    )
    both, one = (
        Scan(gpus=(GPU, other), driver_version="570.86.15"),
        Scan(gpus=(*BUSY.gpus, other), driver_version="570.86.15"),
    )
    for scan, _ in itertools.product((both, one, both), range(3)):
        bench.hear(scan, NOBODY, bench.see_node(), after_s=1)
    assert bench.told() == ["DrainWholeGPUPods"] * 3
    assert bench.said().count(USED) == 3


def test_a_restart_goes_on_sharing_gpus_that_are_in_use(bench):
    bench.hear(FINE, NOBODY, bench.see_node())
    again = bench.restarted()
    again.hear(BUSY, SOMEBODY, again.edit(ZEROED))
    assert (again.capacity, again.told()) == ("1000Mi", [])


def test_a_node_that_lost_all_of_ours_at_once_is_reconciled_although_its_gpus_are_in_use(bench):
    bench.hear(FINE, SOMEBODY, bench.see_node())
    bench.hear(BUSY, after_s=10)
    keys = dict.fromkeys(ours(bench))
    bench.edit({"metadata": {"labels": keys, "annotations": keys}})
    bench.hear(bench.edit(ZEROED), after_s=10)
    assert bench.capacity == "1000Mi"
    assert "vramwarden.io/gpu" in ours(bench)


def test_labels_that_an_autoscaler_set_beforehand_do_not_make_a_node_shared(bench):
    bench.edit({"metadata": {"labels": {"vramwarden.io/gpu": "true"}}})
    bench.hear(FINE, NOBODY, bench.edit(plugin()))
    assert (bench.sent, bench.capacity, bench.told()) == ([], None, ["GPUsNotShared"])


def test_labels_of_others_stay_where_nothing_was_shared_and_go_with_what_was(bench):
    """Such a label may be all that brings the DaemonSet there."""
    preset = {"metadata": {"labels": {"vramwarden.io/gpu": "true"}}}
    bench.edit(preset)
    bench.hear(FINE, NOBODY, bench.edit(label("false")))
    assert bench.sent == []
    bench.hear(bench.edit(label(None)), after_s=1).hear(FINE)
    assert bench.capacity == "1000Mi"
    bench.hear(bench.edit(label("false")), after_s=1)
    assert (bench.capacity, ours(bench)) == ("0", [])
    sent = len(bench.sent)
    bench.hear(bench.edit(preset), after_s=1)
    assert (len(bench.sent), ours(bench)) == (sent, ["vramwarden.io/gpu"])


def test_what_is_withdrawn_loses_its_capacity_first(bench):
    """Without the label the DaemonSet may take the agent away before it is done."""
    bench.hear(FINE, NOBODY, bench.see_node())
    assert [status for status, _ in bench.sent] == [False, False, True]
    bench.hear(bench.edit(plugin()), after_s=1)
    assert [status for status, _ in bench.sent[3:]] == [True, False]


def test_a_withdrawal_that_fails_half_way_is_tried_again(bench):
    bench.hear(FINE, NOBODY, bench.see_node())
    bench.api.fails(r"PATCH .*/nodes/n\?", 0)
    bench.hear(bench.edit(plugin()), after_s=1)
    assert (bench.capacity, "vramwarden.io/gpu" in ours(bench)) == ("0", True)
    bench.hear(after_s=5)
    assert (ours(bench), bench.unready()) == ([], "")


def test_a_label_that_forbids_to_share_waits_for_the_pods(bench):
    bench.hear(FINE, SOMEBODY, bench.see_node())
    bench.hear(bench.edit(label("false")), after_s=10)
    assert (bench.capacity, bench.told()) == ("256Mi", ["SharedUntilPodsEnd"])
    bench.hear(NOBODY, after_s=10)
    assert (bench.capacity, ours(bench), bench.told()) == ("0", [], [])
    assert bench.said()[-2:] == ["the GPUs are not shared any longer", "node patched"]


def test_a_plugin_that_comes_and_goes_is_told_each_time(bench):
    bench.hear(FINE, NOBODY, bench.see_node())
    for _ in range(2):
        bench.hear(bench.edit(plugin()), after_s=10)
        bench.hear(bench.edit(plugin("0")), FINE, after_s=10)
        bench.hear(after_s=SETTLE_S)
        bench.hear(FINE, after_s=1)
        assert (bench.told(), bench.capacity) == (["GPUsNotShared", "GPUsShared"], "1000Mi")


def test_a_fixed_amount_is_kept_apart_from_whole_gpus_too_and_waits_for_no_driver(monkeypatch):
    bench = Bench(monkeypatch, fixed_bytes=2**30)
    bench.hear(bench.edit(plugin()))
    assert (bench.sent, bench.told(), bench.unready()) == ([], ["GPUsNotShared"], "")
    bench.hear(bench.edit(plugin("0")), after_s=1)
    bench.hear(after_s=SETTLE_S)
    assert (bench.capacity, bench.told()) == ("1Gi", ["GPUsShared"])


NEW = Driver(scanned_s=0, answered_s=0)
TAINT = "startup-taint.cluster-autoscaler.kubernetes.io/vramwarden"
OTHER = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
TAINTED = {"spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}, OTHER]}}


@pytest.fixture
def tainted(monkeypatch):
    made = Bench(monkeypatch, namespace="vramwarden", startup_taint=TAINT)
    made.edit(TAINTED)
    return made


def has_taint(bench):
    taints = bench.node["spec"]["taints"]
    assert OTHER in taints
    return TAINTED["spec"]["taints"][0] in taints


def test_the_startup_taint_goes_once_the_node_shows_its_gpus(tainted):
    tainted.hear(NOBODY, tainted.see_node())
    assert has_taint(tainted)
    version = tainted.hear(FINE).node["metadata"]["resourceVersion"]
    assert (tainted.capacity, has_taint(tainted)) == ("1000Mi", True)
    tainted.hear(after_s=1)
    assert not has_taint(tainted)
    metadata = {"resourceVersion": version}
    assert tainted.sent[-1] == (False, {"metadata": metadata, "spec": {"taints": [OTHER]}})
    tainted.hear(after_s=1)
    assert len(tainted.sent) == 4
    assert tainted.lines()[-1]["changes"] == [f"taints[{TAINT}]: removed"]


@pytest.mark.parametrize(
    ("scan", "node", "stays"),
    [
        (None, {}, True),
        (DOWN, {}, True),
        (BUSY, {}, True),
        (Scan(gpus=(), driver_version="570.86.15", unsure=frozenset({""})), {}, True),
        (GONE, {}, False),  # the driver answers: there is no GPU
        (None, plugin(), False),
        (None, label("false"), False),
    ],
    ids=["no scan", "down", "in use", "unsure", "no GPU", "plugin", "label"],
)
def test_the_startup_taint_stays_until_it_is_settled_what_becomes_of_the_node(
    tainted, scan, node, stays
):
    tainted.hear(*([scan] if scan else []), NOBODY, tainted.edit(node))
    tainted.hear(after_s=1)
    assert has_taint(tainted) is stays
    whys = {None: "the GPUs have not been scanned yet", DOWN: why_unready(after_scan(NEW, DOWN, 0))}
    assert tainted.unready() == (whys.get(scan, "") if stays else "")


def test_a_plugin_that_is_gone_in_the_answer_to_a_patch_is_waited_for_too(bench):
    bench.hear(FINE, NOBODY, bench.see_node())
    seen = bench.edit(plugin())
    bench.edit(plugin("0"))
    bench.hear(seen, after_s=1)
    bench.hear(FINE, after_s=1).hear(FINE, after_s=1)
    assert (bench.capacity, ours(bench)) == ("0", [])
    bench.hear(after_s=SETTLE_S).hear(FINE)
    assert bench.capacity == "1000Mi"


def test_the_startup_taint_of_a_node_that_is_advertised_goes_although_the_driver_is_down(tainted):
    tainted.hear(FINE, NOBODY, tainted.see_node())
    tainted.hear(DOWN, after_s=1)
    assert not has_taint(tainted)


def test_a_taint_that_somebody_adds_meanwhile_is_not_lost(tainted):
    tainted.hear(FINE, NOBODY, tainted.see_node())
    added = {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}
    seen = tainted.edit({"spec": {"taints": [*TAINTED["spec"]["taints"], added]}})
    tainted.hear(after_s=1)
    assert "409" in tainted.unready()
    assert has_taint(tainted)
    tainted.hear(seen, after_s=6)
    assert tainted.node["spec"]["taints"] == [OTHER, added]
    assert tainted.unready() == ""


def test_without_the_option_no_taint_is_touched(bench):
    bench.edit(TAINTED)
    bench.hear(FINE, NOBODY, bench.see_node())
    bench.hear(after_s=1)
    assert has_taint(bench)


def test_a_dry_run_takes_no_taint_off(monkeypatch):
    bench = Bench(monkeypatch, startup_taint=TAINT, dry_run=True)
    bench.hear(bench.edit({**TAINTED, **plugin()}))
    assert bench.sent == []
    assert bench.lines()[-1]["why"] == f"taints[{TAINT}]: removed"
