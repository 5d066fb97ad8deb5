"""One allocator per card: what the loop makes of a device plugin that is there, comes or goes."""

from __future__ import annotations

import itertools
import queue
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.agent.stepped import DOWN, FINE, GONE, GPU, MISSING, ZEROED, Bench
from tests.support.agents import VRAM
from webhook.adapters.kube.assigned import AssignmentsSeen, AssignmentsUnread
from webhook.adapters.kube.client import KubeError
from webhook.agent.loop import PACE_S, NewContainerNeededError
from webhook.core.node.access import Access
from webhook.core.node.driver import LOADED_AFTER_S, Driver, after_scan, why_unready
from webhook.core.node.inventory import Scan, SeenGpu
from webhook.core.node.sharing import SETTLE_S
from webhook.core.placement.assignments import Assignment

BUSY = Scan((SeenGpu(*("GPU-a", "NVIDIA H200", 0, 1000 * 2**20), used_bytes=2**30),), "570.86.15")
NOBODY = AssignmentsSeen({})
SOMEBODY = AssignmentsSeen({"uid": Assignment("team/train", ("GPU-a",), 2**28, 1)})
UNREAD = AssignmentsUnread("forbidden")
NOT_SHARED, SHARED, USED = (
    "the GPUs are not shared",
    "the GPUs are shared",
    "the GPUs are in use; waiting until they are free",
)
BESIDE = "the GPUs are shared and offered whole"


def plugin(amount="8", name="nvidia.com/gpu"):
    """Return what the kubelet shows of a plugin; with "0" of one that is gone."""
    return {"status": {"capacity": {name: "8"}, "allocatable": {name: amount}}}


def label(value):
    return {"metadata": {"labels": {"vramwarden.io/share": value}}}


@pytest.fixture
def bench(monkeypatch):
    """Make an agent that reads who has its GPUs."""
    return Bench(monkeypatch, namespace="vramwarden")


def ours(bench):
    """Return what the node shows of ours, but for the cluster admin's label."""
    metadata = bench.kube.node["metadata"]
    keys = (*metadata.get("labels", {}), *metadata.get("annotations", {}))
    return [
        key for key in keys if key.startswith("vramwarden.io/") and key != "vramwarden.io/share"
    ]


def test_a_node_with_the_plugin_is_left_alone_and_that_is_said_once(bench):
    for _ in range(3):
        bench.hear(FINE, NOBODY, bench.edit(plugin()), after_s=1)
    assert bench.kube.sent == []
    assert bench.unready() == ""
    (line,) = [line for line in bench.lines() if line["msg"] == NOT_SHARED]
    assert line["level"] == "info"
    assert "nvidia.com/gpu.deploy.device-plugin=false" in line["why"]
    ((reason, sentence, warning),) = [bench.agent._events.waiting.get_nowait()]
    assert (reason, sentence, warning) == ("GPUsNotShared", line["why"], False)
    assert bench.told() == []


@pytest.mark.parametrize("scan", [None, DOWN, GONE, BUSY])
def test_not_sharing_is_ready_whatever_the_gpus_do(bench, scan):
    bench.hear(*([scan] if scan else []), NOBODY, bench.edit(plugin()))
    assert bench.unready() == ""
    assert bench.kube.sent == []


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
    bench.kube.fails_with = KubeError("down")
    bench.hear(FINE, bench.see_node())
    bench.kube.fails_with = None
    sent = len(bench.kube.sent)
    bench.hear(bench.edit(plugin()), after_s=10)
    assert (len(bench.kube.sent), bench.told()) == (sent, ["GPUsNotShared"])


def test_an_admin_who_wants_both_gets_both(bench):
    bench.edit(label("true"))
    bench.hear(FINE, NOBODY, bench.edit(plugin()))
    assert bench.capacity == "1000Mi"
    assert bench.kube.node["status"]["allocatable"] == {"nvidia.com/gpu": "8", VRAM: "1000Mi"}
    assert bench.told() == []


def test_an_admin_who_wants_no_share_gets_none_and_silence(bench):
    bench.hear(FINE, NOBODY, bench.edit(label("false")))
    assert bench.kube.sent == []
    assert (bench.told(), bench.unready()) == ([], "")
    assert bench.said() == ["GPUs"]


@pytest.mark.parametrize(
    "unreadable", ["what", "", None, "1k"], ids=["a word", "nothing", "null", "1k"]
)
def test_an_amount_that_cannot_be_read_is_one(bench, unreadable):
    node = bench.edit({})
    node.node["status"] = {"allocatable": {"nvidia.com/gpu": unreadable}}
    bench.hear(FINE, NOBODY, node)
    assert bench.kube.sent == []


def test_a_plugin_that_comes_takes_the_node_while_nobody_has_vram(bench):
    bench.hear(FINE, NOBODY, bench.see_node())
    bench.hear(bench.edit(plugin()), after_s=1)
    assert ours(bench) == []
    assert bench.capacity == bench.kube.node["status"]["allocatable"][VRAM] == "0"
    assert bench.kube.node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert (bench.told(), bench.unready()) == (["GPUsNotShared"], "")


@pytest.mark.parametrize("pods", [SOMEBODY, UNREAD])
def test_a_plugin_that_comes_to_pods_changes_nothing_until_they_are_gone(bench, pods):
    bench.hear(FINE, NOBODY, bench.see_node())
    bench.hear(pods, after_s=20)
    bench.told()
    sent = len(bench.kube.sent)
    for second in range(3):
        bench.hear(bench.edit(plugin(str(second + 1))), after_s=20)
    assert len(bench.kube.sent) == sent
    assert (bench.said().count(BESIDE), bench.told()) == (1, ["SharedBesidePlugin"])
    assert bench.unready() == ""
    bench.hear(NOBODY, after_s=20)
    assert (bench.capacity, ours(bench)) == ("0", [])
    assert bench.told() == ["GPUsNotShared"]


def test_a_restart_beside_the_plugin_keeps_what_is_shown_until_it_knows_of_pods(monkeypatch, bench):
    bench.hear(FINE, NOBODY, bench.see_node())
    again = Bench(monkeypatch, namespace="vramwarden")
    again.kube.node = bench.kube.node
    again.hear(FINE, again.edit(plugin()))
    assert (again.kube.sent, again.told(), again.capacity) == ([], [], "1000Mi")
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
    assert bench.kube.sent == []  # a whole-GPU pod may have started since the last scan
    assert bench.unready() == ""
    bench.hear(FINE, after_s=1)
    bench.agent._scan_now.clear()
    assert bench.agent._sharing.due_in_s(bench.clock.now_s) == SETTLE_S - 1
    bench.hear(after_s=SETTLE_S - 1.1)
    assert not bench.agent._scan_now.is_set()
    bench.hear(after_s=0.1)
    assert bench.agent._scan_now.is_set()
    assert bench.kube.sent == []  # nor has that scan come
    bench.hear(FINE, after_s=1)
    assert bench.capacity == "1000Mi"
    assert bench.told() == ["GPUsNotShared", "GPUsShared"]
    assert bench.said()[-2:] == [SHARED, "node patched"]


def test_the_loop_wakes_when_whole_gpus_count_as_offered_no_longer(bench):
    bench.hear(FINE, NOBODY, bench.edit(plugin()))
    bench.hear(bench.edit(plugin("0")), after_s=1)
    waits = []

    def get(*, timeout):
        waits.append(timeout)
        raise queue.Empty

    bench.agent._messages = SimpleNamespace(get=get)
    for after_s in (0, SETTLE_S - 1, 1):
        bench.clock.now_s += after_s
        bench.agent._receive()
    assert waits == [PACE_S, 1, PACE_S]


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
    assert bench.kube.sent == []
    assert (bench.told(), bench.said()) == (["GPUsNotShared"], lines)


def test_gaps_between_restarts_do_not_add_up(bench):
    bench.hear(FINE, NOBODY, bench.edit(plugin()))
    for _ in range(5):
        bench.hear(FINE, bench.edit(plugin("0")), after_s=SETTLE_S / 2)
        bench.hear(bench.edit(plugin()), bench.edit(plugin("0")), after_s=SETTLE_S / 2)
    assert bench.kube.sent == []


@pytest.mark.parametrize("capacity", ["0", "8"], ids=["kubelet", "plugin"])
def test_an_agent_that_starts_while_the_plugin_is_away_waits_for_it_too(bench, capacity):
    """As after a reboot, with which both start."""
    zero = bench.edit({"status": {"capacity": {"nvidia.com/gpu": capacity}}})
    bench.hear(FINE, NOBODY, zero)
    bench.hear(FINE, bench.edit({"metadata": {"labels": {"a": "b"}}}), after_s=SETTLE_S - 0.1)
    assert (bench.kube.sent, bench.unready()) == ([], "")
    bench.hear(after_s=0.1).hear(FINE)
    assert bench.capacity == "1000Mi"


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
        bench.hear(bench.edit({"status": {"allocatable": None}}), BUSY, after_s=SETTLE_S)
    assert bench.kube.sent == []
    assert bench.told() == ["GPUsNotShared", "DrainWholeGPUPods"]
    bench.hear(FINE, after_s=30)
    assert (bench.capacity, bench.told()) == ("1000Mi", ["GPUsShared"])


def test_a_node_begins_to_be_shared_once_its_gpus_are_free(bench):
    for _ in range(3):
        bench.hear(BUSY, NOBODY, bench.see_node(), after_s=30)
    assert (bench.kube.sent, bench.unready()) == ([], "")
    assert (bench.said().count(USED), bench.told()) == (1, ["DrainWholeGPUPods"])
    bench.hear(FINE, after_s=30)
    assert bench.capacity == "1000Mi"
    bench.hear(BUSY, after_s=30)  # by a share now
    bench.hear(bench.edit(ZEROED), after_s=1)
    assert bench.capacity == "1000Mi"


def test_a_node_that_had_no_gpu_to_share_begins_like_any_other(bench):
    bench.hear(GONE, NOBODY, bench.see_node())
    bench.hear(BUSY, after_s=30)
    assert (bench.kube.sent, bench.told()) == ([], ["DrainWholeGPUPods"])


def test_it_is_said_again_only_where_other_gpus_are_in_use(bench):
    other = SeenGpu("GPU-b", "NVIDIA H200", 1, 1000 * 2**20, used_bytes=2**30)
    both, one = Scan((GPU, other), "570.86.15"), Scan((*BUSY.gpus, other), "570.86.15")
    for scan, _ in itertools.product((both, one, both), range(3)):
        bench.hear(scan, NOBODY, bench.see_node(), after_s=1)
    assert bench.told() == ["DrainWholeGPUPods"] * 3
    assert bench.said().count(USED) == 3


def test_a_restart_goes_on_sharing_gpus_that_are_in_use(monkeypatch, bench):
    bench.hear(FINE, NOBODY, bench.see_node())
    again = Bench(monkeypatch, namespace="vramwarden")
    again.kube.node = bench.kube.node
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
    assert (bench.kube.sent, bench.capacity, bench.told()) == ([], None, ["GPUsNotShared"])


def test_labels_of_others_stay_where_nothing_was_shared_and_go_with_what_was(bench):
    """Such a label may be all that brings the DaemonSet there."""
    preset = {"metadata": {"labels": {"vramwarden.io/gpu": "true"}}}
    bench.edit(preset)
    bench.hear(FINE, NOBODY, bench.edit(label("false")))
    assert bench.kube.sent == []
    bench.hear(bench.edit(label(None)), after_s=1).hear(FINE)
    assert bench.capacity == "1000Mi"
    bench.hear(bench.edit(label("false")), after_s=1)
    assert (bench.capacity, ours(bench)) == ("0", [])
    sent = len(bench.kube.sent)
    bench.hear(bench.edit(preset), after_s=1)
    assert (len(bench.kube.sent), ours(bench)) == (sent, ["vramwarden.io/gpu"])


def test_what_is_withdrawn_loses_its_capacity_first(bench):
    """Without the label the DaemonSet may take the agent away before it is done."""
    bench.hear(FINE, NOBODY, bench.see_node())
    assert [status for status, _ in bench.kube.sent] == [False, True]
    bench.hear(bench.edit(plugin()), after_s=1)
    assert [status for status, _ in bench.kube.sent[2:]] == [True, False]


def test_a_withdrawal_that_fails_half_way_is_tried_again(bench):
    bench.hear(FINE, NOBODY, bench.see_node())
    send = bench.kube.patch_node

    def fail_on_metadata(name, patch, *, status=False):
        bench.kube.fails_with = None if status else KubeError("down")
        return send(name, patch, status=status)

    bench.kube.patch_node = fail_on_metadata
    bench.hear(bench.edit(plugin()), after_s=1)
    assert (bench.capacity, "vramwarden.io/gpu" in ours(bench)) == ("0", True)
    bench.kube.patch_node, bench.kube.fails_with = send, None
    bench.hear(after_s=5)
    assert (ours(bench), bench.unready()) == ([], "")


def test_a_label_that_forbids_to_share_waits_for_the_pods(bench):
    bench.hear(FINE, SOMEBODY, bench.see_node())
    bench.hear(bench.edit(label("false")), after_s=10)
    assert (bench.capacity, bench.told()) == ("1000Mi", ["SharedUntilPodsEnd"])
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
    assert (bench.kube.sent, bench.told(), bench.unready()) == ([], ["GPUsNotShared"], "")
    bench.hear(bench.edit(plugin("0")), after_s=1)
    bench.hear(after_s=SETTLE_S)
    assert (bench.capacity, bench.told()) == ("1Gi", ["GPUsShared"])


NEW = Driver(0, 0)
TAINT = "startup-taint.cluster-autoscaler.kubernetes.io/vramwarden"
OTHER = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
TAINTED = {"spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}, OTHER]}}


@pytest.fixture
def tainted(monkeypatch):
    made = Bench(monkeypatch, namespace="vramwarden", startup_taint=TAINT)
    made.edit(TAINTED)
    return made


def has_taint(bench):
    taints = bench.kube.node["spec"]["taints"]
    assert OTHER in taints
    return len(taints) == 2


def test_the_startup_taint_goes_once_the_node_shows_its_gpus(tainted):
    tainted.hear(NOBODY, tainted.see_node())
    assert has_taint(tainted)
    version = tainted.hear(FINE).kube.node["metadata"]["resourceVersion"]
    assert (tainted.capacity, has_taint(tainted)) == ("1000Mi", True)
    tainted.hear(after_s=1)
    assert not has_taint(tainted)
    metadata = {"resourceVersion": version}
    assert tainted.kube.sent[-1] == (False, {"metadata": metadata, "spec": {"taints": [OTHER]}})
    tainted.hear(after_s=1)
    assert len(tainted.kube.sent) == 3
    assert tainted.lines()[-1]["changes"] == [f"taints[{TAINT}]: removed"]


@pytest.mark.parametrize(
    ("scan", "node", "stays"),
    [
        (None, {}, True),
        (DOWN, {}, True),
        (BUSY, {}, True),
        (Scan((), "570.86.15", unsure=frozenset({""})), {}, True),
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


def test_a_plugin_that_is_gone_in_the_answer_to_a_patch_is_waited_for_too(tainted):
    seen = tainted.edit(plugin())
    tainted.edit(plugin("0"))
    tainted.hear(FINE, NOBODY, seen)
    tainted.hear(FINE, after_s=1).hear(FINE, after_s=1)
    assert len(tainted.kube.sent) == 1  # the taint
    tainted.hear(after_s=SETTLE_S).hear(FINE)
    assert tainted.capacity == "1000Mi"


def test_the_startup_taint_of_a_node_that_is_advertised_goes_although_the_driver_is_down(tainted):
    tainted.hear(FINE, NOBODY, tainted.see_node())
    tainted.hear(DOWN, after_s=1)
    assert not has_taint(tainted)


def test_a_taint_that_somebody_adds_meanwhile_is_not_lost(tainted):
    tainted.hear(FINE, NOBODY, tainted.see_node())
    added = {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}
    tainted.kube.fails_with = KubeError("conflict", code=409)
    tainted.hear(after_s=1)
    assert has_taint(tainted)
    tainted.kube.fails_with = None
    tainted.hear(tainted.edit({"spec": {"taints": [*TAINTED["spec"]["taints"], added]}}), after_s=6)
    assert tainted.kube.node["spec"]["taints"] == [OTHER, added]
    assert tainted.unready() == ""


def test_without_the_option_no_taint_is_touched(bench):
    bench.edit(TAINTED)
    bench.hear(FINE, NOBODY, bench.see_node())
    bench.hear(after_s=1)
    assert has_taint(bench)


def test_a_dry_run_takes_no_taint_off(monkeypatch):
    bench = Bench(monkeypatch, startup_taint=TAINT, dry_run=True)
    bench.hear(bench.edit({**TAINTED, **plugin()}))
    assert bench.kube.sent == []
    assert bench.lines()[-1]["why"] == f"taints[{TAINT}]: removed"
