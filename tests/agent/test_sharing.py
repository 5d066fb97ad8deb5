"""One allocator per GPU: how the loop reacts to a device plugin that exists, appears or goes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.agent.stepped import (
    API_NOW_S,
    BUSY,
    DOWN,
    FINE,
    GONE,
    GPU,
    MISSING,
    NOBODY,
    SOMEBODY,
    ZEROED,
    Bench,
    Clock,
)
from tests.support.scripted_nvml import VRAM
from webhook.adapters.kube.node_objects import AssignmentsUnread, SlicesSeen, SlicesUnread
from webhook.agent.loop import LONGEST_WAIT_S
from webhook.agent.sharing import QUESTION_INTERVAL_S
from webhook.core.kinds.nodes import write_time
from webhook.core.node.access import (
    LOADED_AFTER_S,
    Access,
    DriverStatus,
    explain_unready,
    record_scan,
)
from webhook.core.node.inventory import Scan
from webhook.core.node.node_fields import SharingCode, explain_closed, read_verdict
from webhook.core.node.other_allocators import SETTLE_S, SLICE_GRACE_S, YOUNG_S
from webhook.core.placement.assignment_codec import WholeGpuPods
from webhook.core.pod.whole_gpus import ResourceSlice
from webhook.names import NODE_QUESTION_LABEL, NODE_SHARING_ANNOTATION
from webhook.node_programs.program import NewContainerNeededError

# Inputs of the agent. A patch is a change of the node by another client.
NODE = {}
RESTART, SILENCE = object(), object()
"""Events of a story: the agent restarts; no replica of the webhook responds."""
UNREAD = AssignmentsUnread("forbidden")
NO_SLICES, REFUSED, OUTAGE = (
    SlicesSeen(()), SlicesUnread("404", refused=True), SlicesUnread("503", refused=False)
)  # fmt: skip
MORE = replace(GPU, uuid="GPU-b", index=1, used_bytes=2**30)
ONE_MORE_BUSY = Scan(gpus=(GPU, MORE), driver_version="570.86.15")
BOTH_BUSY = Scan(gpus=(*BUSY.gpus, MORE), driver_version="570.86.15")


def plugin(amount="8", capacity=None, name="nvidia.com/gpu"):
    """Return the amounts in a node's status; "0" for a removed and forgotten plugin."""
    amounts = {"capacity": {name: capacity or amount}, "allocatable": {name: amount}}
    return {"status": amounts}


GONE_PLUGIN, NO_AMOUNTS = plugin("0"), {"status": dict.fromkeys(("capacity", "allocatable"))}
AWAY = plugin("0", "8")
"""Amounts of a plugin that was removed within five minutes, or whose GPUs are all unhealthy."""


def label(value):
    return {"metadata": {"labels": {"vramwarden.io/share": value}}}


def annotated(verdict):
    return {"metadata": {"annotations": {NODE_SHARING_ANNOTATION: verdict}}}


def created(age_s, **labels):
    at = write_time(API_NOW_S + Clock.now_s - age_s)
    return {"metadata": {"creationTimestamp": at, "labels": labels}}


def slices(*uuids, driver="gpu.nvidia.com"):
    return SlicesSeen((ResourceSlice("one", driver, frozenset({"gpu", *uuids})),))


PLUGIN_LABEL = {"nvidia.com/gpu.deploy.device-plugin": "true"}
DRA_LABEL = {"nvidia.com/gpu.deploy.dra-driver": "true"}


# Reports of the agent. Each is a line of the log, and except for the last one an Event.
NOT_SHARED, DRAIN, BESIDE, UNTIL, SHARED, NO_LONGER = (
    "GPUsNotShared", "DrainWholeGPUPods", "SharedBesidePlugin", "SharedUntilPodsEnd", "GPUsShared",
    "not shared any longer",
)  # fmt: skip
LINES = {
    "the GPUs are not shared": NOT_SHARED,
    "the GPUs are in use; waiting until they are free": DRAIN,
    "the GPUs are shared and offered whole": BESIDE,
    "the GPUs stay shared until their pods have ended": UNTIL,
    "the GPUs are shared": SHARED,
    "the GPUs are not shared any longer": NO_LONGER,
}

STARTS, GIVES = (0, [FINE, NOBODY, NODE], "1000Mi"), (0, [FINE, SOMEBODY, NODE], "1000Mi")
BEGINS_BESIDE = (0, [FINE, NOBODY, plugin()], "", NOT_SHARED)

STORIES = {
    "beside a plugin a node is left alone, and that is said once": [
        BEGINS_BESIDE,
        (1, [FINE, NOBODY, plugin()], ""),
        (1, [FINE, NOBODY, plugin()], ""),
    ],
    "also without a scan": [(0, [NOBODY, plugin()], "", NOT_SHARED)],
    "also while the driver is down": [(0, [DOWN, NOBODY, plugin()], "", NOT_SHARED)],
    "also without a GPU": [(0, [GONE, NOBODY, plugin()], "", NOT_SHARED)],
    "also while the GPUs are in use": [(0, [BUSY, NOBODY, plugin()], "", NOT_SHARED)],
    "an admin who wants both gets both": [
        (0, [label("true"), FINE, NOBODY, plugin()], "1000Mi"),
    ],
    "who wants both waits until the GPUs are free, and for no plugin": [
        (0, [label("true"), BUSY, NOBODY, plugin()], "", DRAIN),
        (1, [GONE_PLUGIN, FINE], "1000Mi", SHARED),
    ],
    "an admin who wants no share gets none, and silence": [(0, [FINE, NOBODY, label("false")], "")],
    "an amount that cannot be read is one": [(0, [FINE, NOBODY, plugin("what")], "", NOT_SHARED)],
    "a plugin that comes takes the node while nobody has VRAM": [
        STARTS,
        (1, [plugin()], "0", NOT_SHARED),
    ],
    "one that comes to pods leaves what they have until they are gone": [
        STARTS,
        (20, [SOMEBODY], "1000Mi"),
        (20, [plugin("1")], "256Mi drains", BESIDE),
        (20, [plugin("2")], "256Mi drains"),
        (20, [plugin("3")], "256Mi drains"),
        (20, [NOBODY], "0", NOT_SHARED),
    ],
    "and all of it while nobody can say what they have": [
        STARTS,
        (20, [UNREAD], "1000Mi"),
        (20, [plugin("1")], "1000Mi drains", BESIDE),
        (20, [plugin("2")], "1000Mi drains"),
        (20, [NOBODY], "0", NOT_SHARED),
    ],
    "a restart beside the plugin keeps what is shown until it knows of pods": [
        STARTS,
        (0, [RESTART, FINE, plugin()], "1000Mi"),
        (0, [NOBODY], "0", NOT_SHARED),
    ],
    "a plugin that comes and goes is told each time": [
        STARTS,
        *2 * [
            (10, [plugin()], "0", NOT_SHARED),
            (10, [GONE_PLUGIN, FINE], "0"),
            (SETTLE_S, [], "0"),
            (1, [FINE], "1000Mi", SHARED),
        ],
    ],
    # The kubelet shows 0. Its next status, 10 s later, shows that the plugin is back.
    "a plugin or kubelet that restarts makes no gap": [
        BEGINS_BESIDE,
        *[
            step
            for gone_s in (1, 10.4, SETTLE_S - 0.1)
            for zero in (GONE_PLUGIN, NO_AMOUNTS)
            for step in ((60, [FINE, zero], ""), (gone_s, [FINE, NODE], ""), (0, [plugin()], ""))
        ],
    ],
    "gaps between restarts do not add up": [
        BEGINS_BESIDE,
        *5 * [
            (SETTLE_S / 2, [FINE, GONE_PLUGIN], ""),
            (SETTLE_S / 2, [plugin(), GONE_PLUGIN], ""),
        ],
    ],
    # An example is a reboot, after which both start.
    "an agent that starts while the plugin is away waits for it too": [
        (0, [FINE, NOBODY, GONE_PLUGIN], ""),
        (SETTLE_S - 0.1, [FINE, NODE], ""),
        (0.1, [], ""),
        (0, [FINE], "1000Mi"),
    ],
    # The plugin is upgraded slowly, has crashed, or declares all of its GPUs unhealthy.
    "a plugin that the kubelet has not forgotten still offers the GPUs": [
        BEGINS_BESIDE,
        *9 * [(SETTLE_S, [FINE, AWAY], "")],
        (1, [GONE_PLUGIN], ""),
        (SETTLE_S, [FINE], ""),
        (0, [FINE], "1000Mi", SHARED),
    ],
    **{
        f"a hold outlasts a kubelet that restarts, and an agent: {name}": [
            STARTS,
            (20, [SOMEBODY, sign], "256Mi drains", BESIDE),
            (1, [NOBODY, GONE_PLUGIN], "0 drains"),
            (0, [RESTART, FINE, NOBODY, NODE], "0 drains", BESIDE),
            (SETTLE_S, [FINE], "1000Mi", SHARED),
        ]
        for name, sign in (("there", plugin()), ("away", AWAY))
    },
    **{
        f"a verdict that somebody {verb} opens no node that drains": [
            GIVES,
            (20, [plugin()], "256Mi drains", BESIDE),
            (1, [{**GONE_PLUGIN, **annotated(text)}], "256Mi drains"),
            (SETTLE_S, [FINE], "1000Mi", SHARED),
        ]
        for verb, text in (("removes", None), ("spoils", "x"), ("changes", "Shared: x"))
    },
    "a plugin that restarts beside shares is told once": [
        GIVES,
        (20, [plugin()], "256Mi drains", BESIDE),
        *3 * [
            (20, [GONE_PLUGIN, BUSY], "256Mi drains"),
            (SETTLE_S - 0.1, [plugin()], "256Mi drains"),
        ],
        (20, [GONE_PLUGIN, BUSY], "256Mi drains"),
        (SETTLE_S, [BUSY], "1000Mi", SHARED),
    ],
    # Pods with whole GPUs.
    "a plugin that goes while the GPUs are in use is waited for": [
        BEGINS_BESIDE,
        (SETTLE_S, [GONE_PLUGIN, BUSY], ""),  # a pod may have started since the last scan
        (SETTLE_S, [GONE_PLUGIN, BUSY], ""),  # a pod may have started since this scan, too
        (SETTLE_S, [GONE_PLUGIN, BUSY], "", DRAIN),
        (30, [FINE], "1000Mi", SHARED),
    ],
    "a node begins to be shared once its GPUs are free": [
        (30, [BUSY, NOBODY, NODE], "", DRAIN),
        (30, [BUSY, NOBODY, NODE], ""),
        (30, [FINE], "1000Mi", SHARED),
        (30, [BUSY], "1000Mi"),  # used by a share now
        (1, [ZEROED], "1000Mi"),
    ],
    "a node that had no GPU to share begins like any other": [
        (0, [GONE, NOBODY, NODE], ""),
        (30, [BUSY], "", DRAIN),
    ],
    "it is said again only where other GPUs are in use": [
        step
        for scan in (ONE_MORE_BUSY, BOTH_BUSY, ONE_MORE_BUSY)
        for step in ((1, [scan, NOBODY, NODE], "", DRAIN), (1, [scan], ""), (1, [scan], ""))
    ],
    "a restart goes on sharing GPUs that are in use": [
        STARTS,
        (0, [RESTART, BUSY, SOMEBODY, ZEROED], "1000Mi"),
    ],
    "where nobody answers for pods with whole GPUs the node is shared all the same": [
        (0, [SILENCE, FINE, NOBODY, NODE], ""),
        (29.9, [FINE, replace(NOBODY, whole=WholeGpuPods("1", 1, ("team/old",)))], ""),
        (0.1, [FINE], "1000Mi"),
    ],
    # Early signs of other allocators.
    "a young node waits for signs": [
        (0, [FINE, NOBODY, created(YOUNG_S - 1)], ""),
        (SETTLE_S - 0.1, [FINE], ""),
        (0.1, [FINE], ""),
        (0, [FINE], "1000Mi"),
    ],
    "what NVIDIA's operator is to bring is waited for until the node is ten minutes old": [
        (0, [FINE, NOBODY, created(60, **PLUGIN_LABEL)], "", NOT_SHARED),
        (YOUNG_S - 60.1, [FINE], ""),
        (0.2, [FINE], ""),
        (0, [FINE], "1000Mi", SHARED),
    ],
    "the label of the DRA driver counts where slices cannot be read": [
        (0, [FINE, NOBODY, REFUSED, created(YOUNG_S - 100, **DRA_LABEL)], "", NOT_SHARED),
    ],
    "and not where they can": [
        (0, [FINE, NOBODY, slices("GPU-b"), created(YOUNG_S - 100, **DRA_LABEL)], ""),
    ],
    # A DRA driver.
    "what a DRA driver offers is not shared for five minutes longer": [
        (0, [FINE, NOBODY, slices("GPU-a"), NODE], "gpu.nvidia.com", NOT_SHARED),
        (2 * SLICE_GRACE_S, [OUTAGE, FINE], "gpu.nvidia.com"),
        (1, [NO_SLICES, FINE], "gpu.nvidia.com"),
        (SLICE_GRACE_S - 2, [FINE], "gpu.nvidia.com"),
        # The slice may not have arrived yet.
        (0, [RESTART, FINE, NOBODY, NODE], "gpu.nvidia.com", NOT_SHARED),
        (SLICE_GRACE_S - 0.1, [FINE], "gpu.nvidia.com"),
        (0.1, [FINE], ""),
        (0, [FINE], "1000Mi", SHARED),
    ],
    **{
        f"slices that keep no node from being shared: {name}": [
            (0, [FINE, NOBODY, seen, NODE], "1000Mi"),
        ]
        for name, seen in {
            "another's GPU": slices("GPU-b"),
            "a channel": slices("channel-0", driver="compute-domain.nvidia.com"),
            "refused": REFUSED,
            "an outage": OUTAGE,
        }.items()
    },
    "slices of any driver with one of its GPUs do": [
        (0, [FINE, NOBODY, slices("GPU-a", driver="other.example"), NODE], "other.example",
         NOT_SHARED),
    ],
    "a DRA driver that comes to pods holds the node": [
        GIVES,
        (1, [slices("GPU-a")], "256Mi drains gpu.nvidia.com", BESIDE),
        (1, [NOBODY], "0 gpu.nvidia.com", NOT_SHARED),
    ],
    # A cluster admin's label.
    "a label that forbids to share waits for the pods": [
        GIVES,
        (10, [label("false")], "256Mi drains", UNTIL),
        (10, [NOBODY], "0", NO_LONGER),
    ],
}  # fmt: skip
"""Steps: seconds to wait, messages, the agent's fields of the node afterwards, and reported
Events."""

WITHOUT_LISTS = {
    "an agent that reads no lists never withdraws": [
        (0, [FINE, NODE], "1000Mi"),
        (1, [plugin()], "1000Mi drains", BESIDE),
    ],
    "and asks nobody for pods with whole GPUs": [(0, [FINE, NODE], "1000Mi")],
}


@pytest.fixture
def bench(monkeypatch):
    """Create an agent that watches the assignments."""
    return Bench(monkeypatch, namespace="vramwarden")


def ours(bench):
    """Return the agent's fields of the node, except `share`, the question and the verdict."""
    keys = (*bench.labels, *bench.annotations)
    aside = {"vramwarden.io/share", NODE_QUESTION_LABEL, NODE_SHARING_ANNOTATION}
    return [key for key in keys if key.startswith("vramwarden.io/") and key not in aside]


def shows(bench):
    """Return the capacity, True if the node drains, and the DRA driver that was found."""
    verdict = read_verdict(bench.node)
    drains = verdict.code is SharingCode.DRAINING
    driver = bench.annotations.get("vramwarden.io/dra-driver")
    found = [*(["drains"] if drains else []), *([driver] if driver else [])]
    is_listed = bench.capacity not in {None, "0"} or drains
    assert ("vramwarden.io/gpu" in ours(bench), len(ours(bench)) > bool(driver)) == (
        is_listed,
        is_listed,
    )
    assert bool(explain_closed(bench.node)) == (not is_listed or drains)
    assert bench.allocatable.get(VRAM) == bench.capacity
    return " ".join(filter(None, [bench.capacity, *found]))


def play(bench, story):
    """Run a story and check each step; the agent is ready, and patches only changed amounts."""
    for number, (after_s, heard, expected, *told) in enumerate(story):
        what = f"step {number}"
        if RESTART in heard:
            bench = bench.restarted()
        if SILENCE in heard:
            bench.whole_pods = None
        messages = [
            bench.edit(event) if isinstance(event, dict) else event
            for event in heard
            if event not in (RESTART, SILENCE)
        ]
        before, sent, lines = bench.capacity, len(bench.sent), len(bench.said())
        bench.hear(*messages, after_s=after_s)
        assert shows(bench) == expected, what
        assert [LINES[line] for line in bench.said()[lines:] if line in LINES] == told, what
        assert bench.told() == [event for event in told if event != NO_LONGER], what
        assert bench.unready() == "", what
        amounts = [patch["status"] for status, patch in bench.sent[sent:] if status]
        assert bool(amounts) == (before != bench.capacity), what
        assert all(set(part) == {VRAM} for amount in amounts for part in amount.values())


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_one_allocator_per_card(bench, story):
    play(bench, story)


@pytest.mark.parametrize("story", WITHOUT_LISTS.values(), ids=WITHOUT_LISTS)
def test_one_allocator_per_card_where_no_list_is_read(monkeypatch, story):
    play(Bench(monkeypatch), story)


def test_why_a_node_is_not_shared_is_logged_and_an_event(bench):
    bench.hear(FINE, NOBODY, bench.edit(plugin()))
    (line,) = [line for line in bench.lines() if line["msg"] == "the GPUs are not shared"]
    assert line["level"] == "info"
    assert "nvidia.com/gpu.deploy.device-plugin=false" in line["why"]
    event = bench.agent._events.waiting.get_nowait()
    assert (event.reason, event.sentence, event.reason.warning) == (NOT_SHARED, line["why"], False)


NEW = DriverStatus(scanned_s=0, answered_s=0)


def test_the_remedy_leads_to_the_page_by_its_url(monkeypatch):
    bench = Bench(monkeypatch, documentation_url="https://d.example/{page}")
    heedless = {"metadata": {"labels": {"nvidia.com/gpu.deploy.device-plugin": "false"}}}
    bench.hear(FINE, NOBODY, bench.edit({**plugin(), **heedless}))
    page = "the affinity of https://d.example/deploy/take-the-plugin-off"
    assert read_verdict(bench.node).sentence.endswith(page)


def test_a_driver_that_is_awaited_makes_only_a_node_unready_that_is_to_be_shared(bench):
    bench.hear(DOWN, NOBODY, bench.edit(plugin()))
    assert bench.unready() == ""
    bench.hear(bench.edit(plugin("0")), DOWN, after_s=1)
    assert bench.unready() == explain_unready(record_scan(NEW, DOWN, 0)) != ""


@pytest.mark.parametrize("node", [plugin(), label("false")], ids=["plugin", "label"])
def test_no_advice_is_given_on_sharing_where_nothing_is_shared(monkeypatch, node):
    bench = Bench(monkeypatch, namespace="vramwarden", access=Access(visible_devices="all"))
    bench.hear(FINE, NOBODY, bench.edit(node))
    assert [event for event in bench.told() if event != NOT_SHARED] == []
    assert [line for line in bench.lines() if line["level"] == "warning"] == []
    bench.edit({"status": {"capacity": None, "allocatable": None}})
    bench.hear(bench.edit(label(None)), after_s=1)
    for _ in range(2):
        bench.hear(FINE, after_s=SETTLE_S)
    assert bench.told() == [*([SHARED] if node == plugin() else []), "DefaultRuntime"]


NO_LIBRARY = replace(MISSING, driver_loaded=True)


def test_who_shares_nothing_needs_no_new_container_until_it_shares(bench):
    """On GKE no runtime adds the library, and the agent must keep running next to the plugin."""
    for _ in range(9):
        bench.hear(NO_LIBRARY, NOBODY, bench.edit(plugin()), after_s=LOADED_AFTER_S)
    assert bench.unready() == ""
    with pytest.raises(NewContainerNeededError):
        bench.hear(bench.edit(plugin("0")), NO_LIBRARY, after_s=LOADED_AFTER_S)


def test_what_could_not_be_advertised_is_not_kept_beside_a_plugin(monkeypatch):
    bench = Bench(monkeypatch)  # it reads no lists, so it does not withdraw the node
    bench.api.fails("PATCH", 0, forever=True)
    bench.hear(FINE, bench.see_node())
    bench.api.recovers()
    sent = len(bench.sent)
    bench.hear(bench.edit(plugin()), after_s=10)
    assert (len(bench.sent), bench.told()) == (sent, [NOT_SHARED])


def test_a_plugin_that_goes_is_followed_by_a_scan_at_once_and_then_a_share(bench):
    bench.hear(FINE, NOBODY, bench.edit(plugin()))
    assert not bench.agent._scan_now.is_set()
    bench.hear(bench.edit(plugin("0")), after_s=1)
    assert bench.agent._scan_now.is_set()
    assert bench.sent == []  # a pod with whole GPUs may have started since the last scan
    assert bench.unready() == ""
    bench.hear(FINE, after_s=1)
    bench.agent._scan_now.clear()
    assert bench.agent._sharing.due_in_s(bench.clock.now_s) == SETTLE_S - 1
    bench.hear(after_s=SETTLE_S - 1.1)
    assert not bench.agent._scan_now.is_set()
    bench.hear(after_s=0.1)
    assert bench.agent._scan_now.is_set()
    assert bench.sent == []  # that scan has not finished, either
    bench.hear(FINE, after_s=1)
    assert bench.capacity == "1000Mi"
    assert bench.told() == [NOT_SHARED, SHARED]
    assert bench.said()[-2:] == ["the GPUs are shared", "node patched"]


def test_the_loop_wakes_when_whole_gpus_count_as_offered_no_longer(bench):
    bench.hear(FINE, NOBODY, bench.edit(plugin()))
    bench.hear(bench.edit(plugin("0")), after_s=1)
    waits = []
    bench.agent._inbox = SimpleNamespace(get=waits.append)
    for after_s in (0, SETTLE_S - 1, 1):
        bench.clock.now_s += after_s
        bench.agent._receive()
    assert waits == [LONGEST_WAIT_S, 1, LONGEST_WAIT_S]


def test_a_plugin_that_is_gone_in_the_answer_to_a_patch_is_waited_for_too(bench):
    bench.hear(FINE, NOBODY, bench.see_node())
    seen = bench.edit(plugin())
    bench.edit(plugin("0"))
    bench.hear(seen, after_s=1)
    bench.hear(FINE, after_s=1).hear(FINE, after_s=1)
    assert (bench.capacity, ours(bench)) == ("0", [])
    bench.hear(after_s=SETTLE_S).hear(FINE)
    assert bench.capacity == "1000Mi"


def test_pods_with_whole_gpus_that_are_idle_keep_the_node_from_being_shared(bench):
    bench.whole_pods = tuple(f"team/{number}" for number in range(5))
    bench.hear(FINE, NOBODY, bench.see_node())
    for _ in range(3):
        bench.hear(FINE, after_s=QUESTION_INTERVAL_S)
    assert (ours(bench), bench.capacity, bench.told()) == ([], None, [DRAIN])
    (line,) = [line for line in bench.lines() if LINES.get(line["msg"]) == DRAIN]
    assert "even if they use nothing (team/0, team/1, team/2 and 2 more);" in line["why"]
    assert bench.unready() == ""
    bench.whole_pods = ()
    bench.hear(FINE, after_s=QUESTION_INTERVAL_S)
    assert (bench.capacity, bench.told()) == ("1000Mi", [SHARED])
    assert NODE_QUESTION_LABEL not in bench.labels


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
    assert (bench.sent, bench.capacity, bench.told()) == ([], None, [NOT_SHARED])


def test_labels_of_others_stay_where_nothing_was_shared_and_go_with_what_was(bench):
    """The DaemonSet may select such a label."""
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
    """Without the label the DaemonSet may delete the agent before the removal is complete."""
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


def test_a_fixed_amount_is_kept_apart_from_whole_gpus_too_and_waits_for_no_driver(monkeypatch):
    bench = Bench(monkeypatch, fixed_bytes=2**30)
    bench.hear(bench.edit(plugin()))
    assert (bench.sent, bench.told(), bench.unready()) == ([], [NOT_SHARED], "")
    bench.hear(bench.edit(plugin("0")), after_s=1)
    bench.hear(after_s=SETTLE_S)
    assert (bench.capacity, bench.told()) == ("1Gi", [SHARED])
