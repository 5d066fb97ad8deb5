"""The agent's loop with given messages and a clock that the test advances."""

from dataclasses import replace

import pytest

from tests.agent.stepped import DOWN, FINE, GONE, MISSING, NOBODY, NODE, ZEROED, Bench
from tests.support.clusters import a_gpu, a_node
from tests.support.scripted_nvml import VRAM
from webhook.adapters.kube.node_objects import FiguresSeen, FiguresUnread, NodeSeen, NodeUnread
from webhook.agent import loop
from webhook.agent.proofs import LIMIT_FRESH_S
from webhook.core.node.access import Access, GpuAccess
from webhook.core.node.inventory import Scan
from webhook.core.nvidia.drivers import Fault, Proof
from webhook.node_programs.program import NewContainerNeededError

PROVEN = Proof(holds=True, back_end="misc")


@pytest.mark.parametrize("scan_first", [True, False])
def test_gpus_are_shown_once_node_and_gpus_are_known_in_either_order(scan_first, bench):
    messages = [FINE, bench.see_node()]
    bench.hear(*(messages if scan_first else reversed(messages)))
    assert bench.capacity == "1000Mi"
    assert [status for status, _ in bench.sent] == [False, True]
    assert bench.unready() == ""


def test_nothing_is_patched_before_it_is_known_what_was_advertised_before(bench):
    bench.hear(FINE)
    assert bench.sent == []
    assert bench.unready() == "the node has not been read yet"


RESTORED = [(True, {"status": {part: {VRAM: "1000Mi"} for part in ("capacity", "allocatable")}})]


@pytest.mark.parametrize(
    ("scan", "change", "sent", "unready"),
    [
        pytest.param(DOWN, ZEROED, RESTORED, DOWN.failed, id="the driver is down"),
        pytest.param(None, ZEROED, RESTORED, "", id="no scan has come"),
        pytest.param(None, {}, [], "the GPUs have not been scanned yet", id="nor is any needed"),
        pytest.param(MISSING, {}, [], MISSING.failed, id="it lacks the library"),
    ],
)
def test_what_was_advertised_is_remembered_by_the_next_agent(bench, scan, change, sent, unready):
    bench.hear(FINE, bench.see_node())
    again = bench.restarted()
    again.hear(*([scan] if scan else []), again.edit(change))
    assert (again.capacity, again.sent) == ("1000Mi", sent)
    assert unready in again.unready()
    assert bool(again.unready()) == bool(unready)


def test_a_change_by_others_is_reconciled_at_once(bench):
    bench.hear(FINE, bench.see_node())
    bench.hear(bench.edit(ZEROED), after_s=1)
    assert bench.capacity == "1000Mi"
    bench.hear(bench.edit({"metadata": {"labels": {"vramwarden.io/gpu": None}}}), after_s=1)
    assert bench.labels["vramwarden.io/gpu"] == "true"


def test_the_echo_of_our_own_patches_is_not_patched_again(bench):
    first = bench.see_node()
    bench.hear(FINE, first)
    bench.hear(first, after_s=1)  # the node before both patches
    assert len(bench.sent) == 2
    bench.hear(first, after_s=10)  # much later the node counts: a backup may have been restored
    assert len(bench.sent) == 4


def test_a_lost_gpu_leaves_after_the_grace(bench):
    bench.hear(FINE, bench.see_node())
    bench.hear(GONE, after_s=30)
    assert bench.capacity == "1000Mi"
    bench.hear(GONE, after_s=300)
    assert bench.capacity == "0"
    assert bench.labels == {}
    assert "a GPU is lost; it leaves the list if that lasts" in bench.said()
    assert "a GPU left the list" in bench.said()


def test_a_machine_that_started_again_keeps_its_gpus_while_the_driver_is_not_ready(bench):
    bench.hear(FINE, bench.see_node())
    again = bench.restarted()
    again.hear(DOWN, again.see_node())
    for scan in (DOWN, GONE, DOWN, FINE):
        again.hear(scan, after_s=30)
        assert again.capacity == "1000Mi"
    assert "a GPU left the list" not in again.said()


@pytest.mark.parametrize("scan", [DOWN, MISSING])
def test_a_node_without_a_driver_is_left_alone_and_that_is_reported_once(scan, bench):
    for _ in range(300):
        bench.hear(scan, bench.see_node(), after_s=30)
    assert bench.sent == []
    what = "no GPU can be read on this node; waiting, and leaving the node alone"
    assert bench.said() == [what, "node patched"]  # the patch is the verdict annotation
    assert bench.unready() == f"{scan.failed}; the node's kernel has no NVIDIA driver yet"


@pytest.mark.parametrize("scan", [DOWN, MISSING])
def test_a_driver_that_came_after_the_container_needs_a_new_one(scan, bench):
    bench.hear(scan, bench.see_node(), after_s=30)
    loaded = replace(scan, driver_loaded=True)
    bench.hear(loaded, after_s=30)
    assert "a new container" in bench.unready() or "runtimeClassName" in bench.unready()
    bench.hear(loaded, after_s=30)
    with pytest.raises(NewContainerNeededError, match="the node's kernel has a driver"):
        bench.hear(after_s=0.1)
    assert bench.sent == []


def test_a_driver_that_came_in_time_is_ready_without_a_new_container(bench):
    bench.hear(DOWN, bench.see_node(), after_s=30)
    bench.hear(replace(DOWN, driver_loaded=True), after_s=30)
    bench.hear(FINE, after_s=30)
    assert (bench.capacity, bench.unready()) == ("1000Mi", "")


def test_a_driver_that_worked_and_is_down_is_waited_for_and_leaves_the_agent_ready(bench):
    bench.hear(FINE, bench.see_node())
    for _ in range(100):
        bench.hear(replace(DOWN, driver_loaded=True), after_s=30)
    assert (bench.capacity, bench.unready()) == ("1000Mi", "")


def test_the_names_of_the_gpus_are_shown_with_them_and_go_with_them(bench):
    bench.hear(DOWN, bench.see_node())
    assert bench.device_names is None
    bench.hear(FINE, after_s=30)
    assert bench.device_names == "runtime.nvidia.com"
    bench.hear(GONE, after_s=30)
    assert bench.device_names == "runtime.nvidia.com"
    bench.hear(GONE, after_s=300)
    assert bench.device_names is None


def test_an_agent_in_another_runtime_mode_shows_the_new_names_once_it_sees_a_gpu(bench):
    bench.hear(FINE, bench.see_node())
    again = bench.restarted(access=Access(visible_devices="all", runtime_class="nvidia"))
    again.hear(DOWN, again.see_node())
    assert again.device_names == "runtime.nvidia.com"
    assert again.sent == []
    again.hear(FINE, after_s=30)
    assert again.device_names == "uuid"
    assert again.sent == [(False, {"metadata": {"labels": {"vramwarden.io/device-names": "uuid"}}})]


def test_names_that_others_changed_are_restored(bench):
    bench.hear(FINE, bench.see_node())
    bench.hear(bench.edit({"metadata": {"labels": {"vramwarden.io/device-names": "none"}}}))
    assert bench.device_names == "runtime.nvidia.com"


def test_what_to_change_is_said_once_and_only_where_a_gpu_is_seen(monkeypatch):
    bench = Bench(monkeypatch, access=Access(GpuAccess.PRIVILEGED))
    bench.hear(MISSING, bench.see_node(), after_s=30)
    what = (
        "no pod is given a GPU here: nobody knows which names of GPUs the node's runtime resolves"
    )
    assert what not in bench.said()
    for _ in range(5):
        bench.hear(FINE, after_s=30)
    assert bench.said().count(what) == 1
    assert bench.device_names == "none"
    assert (bench.capacity, bench.unready()) == ("1000Mi", "")


def test_a_default_runtime_is_said_once(monkeypatch):
    bench = Bench(monkeypatch, access=Access(visible_devices="all"))
    for _ in range(5):
        bench.hear(FINE, bench.see_node(), after_s=30)
    (said,) = (line for line in bench.lines() if "default one" in line["msg"])
    assert (said["level"], "fence.void" in said["why"]) == ("warning", True)


def test_a_dry_run_says_what_it_would_patch_once_and_patches_nothing(monkeypatch):
    bench = Bench(monkeypatch, dry_run=True)
    for _ in range(3):
        bench.hear(FINE, bench.see_node(), after_s=1)
    assert bench.sent == []
    assert bench.said().count("would patch the node") == 1


def test_a_patch_that_fails_is_retried_after_pauses_that_double(bench):
    bench.api.denied.add(("patch", "nodes"))
    bench.hear(FINE, bench.see_node())
    tries = []
    for second in range(1, 61):
        before = len(bench.sent)
        bench.hear(after_s=1)
        tries += [second] if len(bench.sent) > before else []
    assert tries == [1, 3, 7, 15, 30, 45, 60]
    assert bench.said().count("the node cannot be patched; retrying") == 1
    assert "the right is missing from our role" in bench.unready()
    bench.api.denied.clear()
    bench.hear(after_s=15)
    assert bench.capacity == "1000Mi"
    assert "the node can be patched" in bench.said()
    assert bench.unready() == ""
    bench.api.fails("PATCH", 0, forever=True)
    bench.hear(bench.edit(ZEROED), after_s=1)
    bench.api.recovers()
    bench.hear(after_s=1)  # not only after the longest pause
    assert bench.capacity == "1000Mi"


def test_whoever_keeps_changing_the_node_costs_no_patch_a_second(bench):
    bench.hear(FINE, bench.see_node())
    sent = []
    for _ in range(600):
        bench.hear(bench.edit(ZEROED), after_s=1)
        sent.append(len(bench.sent))
    assert sent[9] == 2 + 10  # the first patches are sent at once
    assert sent[-1] - sent[-301] == 300 / loop.PATCH_INTERVAL_S
    what = "somebody else keeps changing the node; patching less often"
    assert bench.said().count(what) == 1
    bench.hear(after_s=loop.PATCH_INTERVAL_S)
    assert bench.capacity == "1000Mi"


def test_two_agents_on_one_node_do_not_fight(bench):
    agents = (bench, bench.restarted())
    for agent in agents:
        agent.hear(FINE, agent.see_node())
    bench.edit(ZEROED)
    for item in 10 * agents:
        item.hear(item.see_node(), after_s=1)
    assert bench.capacity == "1000Mi"
    assert [status for status, _ in bench.sent] == [False, True, True]  # two at first, then one


def test_a_node_that_is_deleted_and_created_again_gets_its_gpus_again(bench):
    bench.hear(FINE, bench.see_node())
    bench.hear(NodeSeen(None), after_s=1)
    assert "has no node n" in bench.unready()
    bench.api.remove(NODE)
    bench.api.put(NODE, {})
    bench.hear(bench.see_node(), after_s=1)
    assert bench.capacity == "1000Mi"
    assert bench.said()[-3:] == ["waiting for the node", "the node exists", "node patched"]


def test_a_watch_that_fails_is_reported_once_and_when_it_is_over(bench):
    bench.hear(FINE, bench.see_node())
    for _ in range(3):
        bench.hear(NodeUnread("down"), bench.see_node(watched=False), after_s=1)
    assert bench.unready() == "down"
    bench.hear(bench.see_node(), after_s=1)
    said = bench.said()
    assert said.count("the node cannot be watched; retrying") == 1
    assert said[-1] == "the node is watched"
    assert bench.unready() == ""


def test_a_bug_in_a_thread_ends_the_agent(bench):
    bench.agent._inbox.start(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bench.agent._receive()


def test_a_fixed_amount_needs_no_scan(monkeypatch):
    bench = Bench(monkeypatch, fixed_bytes=48 * 2**30)
    bench.hear(bench.edit({"metadata": {"labels": {"vramwarden.io/device-names": "uuid"}}}))
    assert bench.capacity == "48Gi"
    assert bench.device_names is None
    bench.hear(after_s=10_000)
    assert bench.unready() == ""
    assert bench.said() == ["node patched"]


def test_where_nothing_changes_nothing_is_written(bench):
    bench.hear(bench.see_node(), FINE).hear(bench.see_node(), FINE)
    sent = list(bench.sent)
    assert sent
    for _ in range(120):
        bench.hear(FINE, bench.see_node(), after_s=30.0)
    assert bench.sent == sent


LIMIT = "vramwarden.io/driver-limit"
FIGURES = replace(a_node("n", a_gpu(9), age_s=0).figures, driver_version=FINE.driver_version)


def figures(bench, *, old_s=0.0, limit=PROVEN):
    """Return a GPUNode that the sentry wrote `old_s` ago."""
    return FiguresSeen(replace(FIGURES, observed_s=bench.api_now_s() - old_s, limit=limit))


@pytest.mark.parametrize("carried", [None, "true"])
@pytest.mark.parametrize(
    ("said", "label"),
    [
        (lambda _: [], "as it was"),
        (lambda _: [FiguresUnread("why")], "as it was"),
        (lambda _: [FiguresSeen(None)], None),
        (figures, "true"),
        (lambda bench: figures(bench, old_s=LIMIT_FRESH_S), "true"),
        (lambda bench: figures(bench, old_s=LIMIT_FRESH_S + 1), None),
        (lambda bench: figures(bench, old_s=-LIMIT_FRESH_S - 1), None),
        (lambda bench: figures(bench, limit=Proof(holds=False, why="x")), None),
        (lambda bench: figures(bench, limit=None), None),
    ],
    ids=[
        "not read yet", "it cannot be read", "there is none", "proven", "still", "too old",
        "of the future", "not proven", "no limiter",
    ],
)  # fmt: skip
def test_the_label_says_that_the_driver_holds_caps_where_its_gpu_node_does(
    said, label, carried, bench
):
    bench.hear(FINE, bench.edit({"metadata": {"labels": {LIMIT: carried}}}))
    assert bench.labels.get(LIMIT) == carried
    messages = said(bench)
    bench.hear(*(messages if isinstance(messages, list) else [messages]))
    assert bench.labels.get(LIMIT) == (carried if label == "as it was" else label)


@pytest.mark.parametrize("first", [True, False])
def test_where_the_gpu_node_cannot_be_read_the_label_stays_for_a_moment(first, bench):
    bench.hear(FINE, bench.see_node(), figures(bench))
    bench = bench.restarted() if first else bench
    for after_s, label in ((0.0, "true"), (LIMIT_FRESH_S - 1, "true"), (2.0, None)):
        bench.hear(FINE, bench.see_node(), FiguresUnread("why"), after_s=after_s)
        assert bench.labels.get(LIMIT) == label
    bench.hear(figures(bench))
    assert bench.labels[LIMIT] == "true"
    cannot, can = "the node's GPUNode cannot be watched", "the node's GPUNode is watched"
    assert [said.partition(";")[0] for said in bench.said() if "GPUNode" in said] == [cannot, can]


@pytest.mark.parametrize(
    ("scan", "label"),
    [
        (DOWN, None),
        (MISSING, None),
        (Scan(fault=Fault.DRIVER_CHANGED, failed="why"), None),
        (Scan(fault=Fault.UNKNOWN, failed="why"), "true"),
        (replace(FINE, driver_version="550.90.07"), None),
    ],
    ids=["gone", "no library", "replaced", "failed once", "another one"],
)
def test_the_label_goes_with_the_driver_that_was_proven_whatever_the_gpu_node_says(
    scan, label, bench
):
    bench.hear(FINE, bench.see_node(), figures(bench))
    assert bench.labels[LIMIT] == "true"
    bench.hear(scan, figures(bench))
    assert bench.labels.get(LIMIT) == label
    bench.hear(FINE, figures(bench))
    assert bench.labels[LIMIT] == "true"


def test_a_new_agent_labels_by_no_gpu_node_of_a_driver_before(bench):
    """Found by `make e2e`: the sentry's container had the previous driver's library."""
    bench.hear(replace(FINE, driver_version="550.90.07"), bench.see_node(), figures(bench))
    assert LIMIT not in bench.labels


@pytest.mark.parametrize("change", [{"vramwarden.io/share": "false"}, {}], ids=["share", "gone"])
def test_a_node_that_shares_nothing_says_nothing_of_its_driver(change, bench):
    bench.hear(FINE, bench.see_node(), figures(bench))
    bench.hear(NOBODY, bench.edit({"metadata": {"labels": change}}))
    assert (LIMIT in bench.labels) == (not change)
    if not change:
        bench.hear(GONE, after_s=30)
        bench.hear(GONE, after_s=300)
    assert LIMIT not in bench.labels
