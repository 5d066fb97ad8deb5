"""What is known of a node's GPUs after each scan, case by case and as laws."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.gpus import (
    DOWN,
    GRACE_S,
    INVENTORIES,
    NODE,
    SCANS,
    a_gpu,
    a_scan,
    after,
    put_right,
    seen,
)
from webhook.core.node.inventory import Inventory, TrackedGpu, forget_xids, observe, skipped, strike
from webhook.core.node.state import read_inventory
from webhook.core.nvidia.drivers import SeenGpu
from webhook.core.pod.quantity import MIB

FINE = a_scan(seen("a"), seen("b", 2000, 1))
BOTH = after((0.0, FINE))
B_LOST = (a_gpu("a"), replace(a_gpu("b", 2000, 1), healthy=False, fault="is lost"))


def test_a_first_scan_advertises_every_gpu_at_once():
    assert BOTH.gpus == (a_gpu("a"), a_gpu("b", 2000, 1))
    assert BOTH.vram_bytes == 3000 * MIB
    assert (BOTH.driver_version, BOTH.enforcement, BOTH.advertised) == (
        "570.86.15",
        "sidecar",
        True,
    )


def test_usable_memory_is_rounded_down_to_a_whole_mebibyte():
    (gpu,) = after(
        (0.0, a_scan(SeenGpu(uuid="GPU-a", product="x", index=0, usable_bytes=5 * MIB - 1)))
    ).gpus
    assert gpu.memory_bytes == 4 * MIB


STAYS, LEAVES, CHANGES = "stays", "leaves", "has the new size"
A = seen("a")
CASES = {
    "it answers as advertised": (FINE, STAYS, STAYS),
    "it is not there": (a_scan(A), STAYS, LEAVES),
    "no GPU exists": (a_scan(), STAYS, LEAVES),
    "the driver does not answer": (DOWN, STAYS, STAYS),
    "it fails in another way": (a_scan(A, unsure=frozenset({"GPU-b"})), STAYS, STAYS),
    "some GPU fails and gives no UUID": (a_scan(A, unsure=frozenset({""})), STAYS, STAYS),
    "another GPU fails": (a_scan(unsure=frozenset({"GPU-a"})), STAYS, LEAVES),
    "it is in MIG mode": (a_scan(A, seen("b", 2000, 1, mig=True)), LEAVES, LEAVES),
    "it is smaller": (a_scan(A, seen("b", 1999, 1)), STAYS, CHANGES),
    "it is larger": (a_scan(A, seen("b", 2001, 1)), STAYS, CHANGES),
    "it reports no size": (a_scan(A, seen("b", None, 1)), STAYS, STAYS),
    "it reports a size of nothing": (a_scan(A, seen("b", 0, 1)), STAYS, STAYS),
}


@pytest.mark.parametrize("case", [case for case in CASES if CASES[case][1] == STAYS])
def test_a_gpu_that_is_not_as_advertised_gets_no_further_pod(case):
    scan, *_ = CASES[case]
    (health,) = (gpu.healthy for gpu in after((9.0, scan), start=BOTH).gpus if gpu.index == 1)
    assert health == (case in {"it answers as advertised", "the driver does not answer"})


@pytest.mark.parametrize("gpus", [BOTH.gpus, B_LOST])
def test_a_driver_that_does_not_answer_changes_no_gpu_s_health(gpus):
    start = replace(BOTH, known=tuple(map(TrackedGpu, gpus)))
    assert after((9.0, DOWN), start=start).gpus == gpus


def test_a_gpu_that_answers_again_is_healthy_at_once():
    start = replace(BOTH, known=tuple(map(TrackedGpu, B_LOST)))
    assert after((9.0, FINE), start=start).gpus == BOTH.gpus


@pytest.mark.parametrize("case", CASES)
def test_what_becomes_of_a_gpu_at_once_and_after_the_grace(case):
    scan, *expected = CASES[case]
    for until_s, what in zip((GRACE_S - 1, GRACE_S), expected, strict=True):
        inventory = after((10.0, scan), (10.0 + until_s, scan), start=BOTH)
        sizes = [gpu.memory_bytes // MIB for gpu in inventory.gpus if gpu.uuid == "GPU-b"]
        changed = [gpu.usable_bytes // MIB for gpu in scan.gpus if gpu.usable_bytes][1:]
        assert sizes == {STAYS: [2000], LEAVES: [], CHANGES: changed}[what]


def test_the_driver_s_numbering_names_and_version_are_followed_at_once():
    scan = a_scan(replace(seen("b", 2000, 0), product="NVIDIA H200 NVL"), seen("a", 1000, 1))
    gpus = after((1.0, scan), start=BOTH).gpus
    assert [(gpu.uuid, gpu.product, gpu.index) for gpu in gpus] == [
        ("GPU-b", "NVIDIA H200 NVL", 0),
        ("GPU-a", "NVIDIA H200", 1),
    ]
    replaced = replace(scan, driver_version="580.2")
    assert after((1.0, replaced), start=BOTH).driver_version == "580.2"


@pytest.mark.parametrize(
    ("state", "fault"),
    [
        ({}, ""),
        ({"recovery": 0}, ""),
        ({"recovery": 99}, ""),  # a value of the future
        ({"recovery": -1}, ""),
        ({"remap_pending": True}, ""),
        ({"recovery": 1}, "needs a reset of the GPU"),
        ({"recovery": 2}, "needs a reboot of the node"),
        ({"recovery": 3}, "needs a drain of peer-to-peer traffic"),
        ({"recovery": 4}, "needs a drain and a reset of the GPU"),
        ({"remap_failed": True, "recovery": 0}, "row remapping failed"),
        ({"remap_failed": True, "recovery": 1}, "row remapping failed; needs a reset of the GPU"),
    ],
)
@pytest.mark.parametrize("start", [None, BOTH, replace(BOTH, known=tuple(map(TrackedGpu, B_LOST)))])
def test_a_gpu_is_as_healthy_as_the_driver_s_state_says_new_known_or_back(state, fault, start):
    scan = a_scan(A, replace(seen("b", 2000, 1), **state))
    inventory = after((9.0, scan), start=start)
    b = replace(a_gpu("b", 2000, 1), healthy=not fault, fault=fault)
    assert inventory.gpus == (a_gpu("a"), b)
    assert inventory.vram_bytes == 3000 * MIB
    assert after((10.0, FINE), start=inventory).gpus == BOTH.gpus  # as soon as that is fine


STRUCK = strike(BOTH, "GPU-b", 79)
FELL = "Xid 79: it has fallen off the bus"


def b_asks(recovery):
    return a_scan(A, replace(seen("b", 2000, 1), recovery=recovery))


@pytest.mark.parametrize(
    ("scans", "fault"),
    [
        ([], FELL),
        ([DOWN], FELL),
        ([b_asks(None)], FELL),
        ([b_asks(0)], FELL),
        ([b_asks(99), b_asks(0)], FELL),
        ([b_asks(1)], f"{FELL}; needs a reset of the GPU"),
        ([b_asks(1), DOWN], f"{FELL}; needs a reset of the GPU"),
        ([b_asks(1), b_asks(None)], FELL),
        ([a_scan(A)], f"{FELL}; is lost"),
        ([a_scan(A), b_asks(0)], FELL),
        ([b_asks(1), b_asks(0)], ""),
        ([b_asks(2), DOWN, b_asks(0)], ""),
        ([b_asks(4), b_asks(None), a_scan(A), b_asks(0)], ""),
        ([b_asks(1), b_asks(0), b_asks(1)], "needs a reset of the GPU"),
    ],
)
@pytest.mark.parametrize("restarts", [False, True])
def test_an_xid_stays_until_the_driver_asked_for_a_recovery_and_no_longer_does(
    scans, fault, restarts
):
    inventory = STRUCK
    for now_s, scan in enumerate(scans):
        inventory = observe(inventory, scan, now_s, GRACE_S)
        if restarts:  # as the agent reads it back
            inventory = read_inventory(put_right(NODE, inventory))
    (a, b) = inventory.gpus
    assert (a, b.healthy, b.fault) == (a_gpu("a"), not fault, fault)
    assert bool(b.xid) == ("Xid" in fault)
    assert inventory.vram_bytes == 3000 * MIB


def test_a_second_xid_keeps_the_first_and_waits_for_another_recovery():
    asked = observe(STRUCK, b_asks(1), 0.0)
    again = observe(strike(asked, "GPU-b", 95), b_asks(0), 1.0)
    assert [(gpu.xid, gpu.healthy) for gpu in again.gpus] == [(0, True), (79, False)]


@pytest.mark.parametrize(
    ("recorded", "now", "xid"),
    [("boot-1", "boot-1", 79), ("boot-1", "boot-2", 0), ("boot-1", "", 79), ("", "boot-2", 79)],
)
def test_an_xid_is_forgotten_after_a_reboot(recorded, now, xid):
    later = at_once(b_asks(None), now, replace(STRUCK, boot_id=recorded))
    assert (later.gpus[1].xid, later.gpus[1].healthy) == (xid, not xid)
    assert later.boot_id == now or recorded


def test_an_xid_after_a_reboot_is_of_that_start_also_where_no_gpu_answered_in_it_yet():
    silent = a_scan(unsure=frozenset({"GPU-a", "GPU-b"}))
    struck = strike(at_once(silent, "boot-2"), "GPU-b", 79, "boot-2")
    assert at_once(b_asks(0), "boot-2", struck).gpus[1].xid == 79
    both = strike(strike(OLD, "GPU-a", 48, "boot-1"), "GPU-b", 79, "boot-2")
    assert [gpu.xid for gpu in both.gpus] == [0, 79]


def test_who_forgets_xids_waits_for_the_driver_s_word():
    forgotten = forget_xids(STRUCK)
    assert [(gpu.xid, gpu.healthy) for gpu in forgotten.gpus] == [(0, True), (0, False)]
    assert observe(forgotten, DOWN, 0.0).gpus == forgotten.gpus
    assert observe(forgotten, b_asks(None), 0.0).gpus == BOTH.gpus
    assert not observe(forgotten, b_asks(1), 0.0).gpus[1].healthy


@pytest.mark.parametrize("inventory", [BOTH, Inventory(), Inventory(fixed_bytes=MIB)])
def test_an_xid_of_a_gpu_that_is_not_advertised_changes_nothing(inventory):
    assert strike(inventory, "GPU-z", 79, "boot-2") == inventory


OLD = replace(BOTH, boot_id="boot-1")
NEW = (a_gpu("x", 3000), a_gpu("y", 3000, 1))
OTHERS = (seen("x", 3000), seen("y", 3000, 1))


def at_once(scan, boot_id, start=OLD):
    """Return the inventory after one scan, in which nothing's grace is over."""
    return observe(start, scan, 10.0, GRACE_S, boot_id)


def test_another_machine_behind_the_same_node_shows_its_own_gpus_alone_and_at_once():
    later = at_once(a_scan(*OTHERS), "boot-2")
    assert later.gpus == NEW
    assert (later.vram_bytes, later.boot_id) == (6000 * MIB, "boot-2")


@pytest.mark.parametrize(
    ("scan", "boot_id"),
    [
        (a_scan(*OTHERS), "boot-1"),  # the same start: somebody added GPUs while it ran
        (a_scan(*OTHERS), ""),
        (a_scan(*OTHERS, seen("a")), "boot-2"),  # the same machine, and one GPU is late
        (a_scan(*OTHERS, unsure=frozenset({"GPU-a"})), "boot-2"),
        (a_scan(*OTHERS, unsure=frozenset({""})), "boot-2"),
        (a_scan(), "boot-2"),  # its GPUs are on their way
        (a_scan(unsure=frozenset({"GPU-x"})), "boot-2"),
        (DOWN, "boot-2"),
    ],
)
def test_a_machine_that_may_be_the_same_keeps_its_gpus_for_the_grace(scan, boot_id):
    later = at_once(scan, boot_id)
    assert {"GPU-a", "GPU-b"} <= {gpu.uuid for gpu in later.gpus}
    assert later.vram_bytes >= BOTH.vram_bytes


def test_where_nobody_recorded_a_start_there_is_a_grace():
    assert at_once(a_scan(*OTHERS), "boot-2", BOTH).vram_bytes == 9000 * MIB


@pytest.mark.parametrize("start", [BOTH, OLD])
@pytest.mark.parametrize("scan", [a_scan(seen("a")), FINE])
def test_the_start_in_which_a_gpu_answered_last_is_recorded(scan, start):
    assert at_once(scan, "boot-2", start).boot_id == "boot-2"


@pytest.mark.parametrize("scan", [DOWN, a_scan(), a_scan(unsure=frozenset({"GPU-a", "GPU-b"}))])
def test_a_start_in_which_none_answered_yet_is_not_recorded_so_others_still_replace_them(scan):
    first = at_once(scan, "boot-2")
    assert first.boot_id == "boot-1"
    assert at_once(a_scan(*OTHERS), "boot-2", first).gpus == NEW
    assert at_once(FINE, "").boot_id == "boot-1"  # nor one that is not known any more


CANNOT = a_scan(seen("a"), cannot_measure="the lists cannot be read")
NEVER = a_scan(seen("a"), cannot_measure="driver 550 is blind", never_measures=True)


@pytest.mark.parametrize(
    ("before", "scan", "at_once", "after_grace"),
    [
        ("", CANNOT, "none", "none"),
        ("", NEVER, "none", "none"),
        ("sidecar", CANNOT, "sidecar", "none"),
        ("sidecar", NEVER, "none", "none"),
        ("sidecar", DOWN, "sidecar", "sidecar"),
        ("none", DOWN, "none", "none"),
        ("none", a_scan(seen("a")), "sidecar", "sidecar"),
    ],
)
def test_the_enforcement_label_falls_only_for_good_reason(before, scan, at_once, after_grace):
    start = Inventory(known=(TrackedGpu(a_gpu()),), enforcement=before, advertised=True)
    assert after((0.0, scan), start=start).enforcement == at_once
    later = after((0.0, scan), (GRACE_S, scan), start=start)
    assert later.enforcement == after_grace


@pytest.mark.parametrize(
    ("doubt", "within", "later"),
    [
        (a_scan(A), (B_LOST, "sidecar"), ((a_gpu("a"),), "sidecar")),
        (replace(FINE, cannot_measure="x"), (BOTH.gpus, "sidecar"), (BOTH.gpus, "none")),
    ],
    ids=["a GPU that is lost", "a probe that fails"],
)
@pytest.mark.parametrize("between", [FINE, DOWN], ids=["fine in between", "the driver was down"])
def test_a_doubt_that_was_interrupted_begins_its_grace_again(doubt, within, later, between):
    times = [(0.0, doubt), (200.0, between), (201.0, doubt), (500.0, doubt)]
    for scans, found in ((times, within), ([*times, (501.0, doubt)], later)):
        inventory = after(*scans, start=BOTH)
        assert (inventory.gpus, inventory.enforcement) == found


def test_a_fixed_amount_listens_to_no_driver():
    fixed = Inventory(fixed_bytes=48 * 1024 * MIB)
    assert after((0.0, a_scan(seen("a"))), (1.0, DOWN), start=fixed) == fixed
    assert fixed.vram_bytes == 48 * 1024 * MIB


def test_a_gpu_is_skipped_with_a_reason():
    scan = a_scan(seen("a", 1), seen("b", mig=True), seen("c", None), seen("d", 0))
    reasons = skipped(scan)
    assert list(reasons) == ["GPU-b", "GPU-c", "GPU-d"]
    assert "MIG" in reasons["GPU-b"]
    assert "--vram" in reasons["GPU-c"]
    assert after((0.0, scan)).gpus == (a_gpu("a", 1),)


# Laws


def without_mig(scan):
    return replace(scan, gpus=tuple(replace(gpu, mig=False) for gpu in scan.gpus))


def settled(inventory):
    """Forget every doubt, as if each had just been cleared."""
    return observe(inventory, DOWN, 0.0, GRACE_S)


@given(
    INVENTORIES.map(settled),
    st.lists(st.tuples(st.floats(0, GRACE_S, exclude_max=True), SCANS.map(without_mig))),
)
def test_whatever_fails_for_less_than_the_grace_lowers_nothing(inventory, scans):
    for now_s, scan in sorted(scans, key=lambda one: one[0]):
        later = observe(inventory, scan, now_s, GRACE_S)
        before = {gpu.uuid: gpu.memory_bytes for gpu in inventory.gpus}
        now = {gpu.uuid: gpu.memory_bytes for gpu in later.gpus}
        assert before.items() <= now.items()
        assert later.vram_bytes >= inventory.vram_bytes
        if inventory.enforcement == "sidecar" and not scan.never_measures:
            assert later.enforcement == "sidecar"
        inventory = later


@given(INVENTORIES, SCANS, st.sampled_from(["", "boot-1"]), st.sampled_from(["", "boot-2"]))
def test_a_start_changes_only_what_becomes_of_gpus_of_which_none_is_left(scanned, scan, old, new):
    before = replace(settled(scanned), boot_id=old)
    plain, started = observe(before, scan, 0.0), observe(before, scan, 0.0, boot_id=new)
    mentioned = {gpu.uuid for gpu in scan.gpus} | scan.unsure
    left = {gpu.uuid for gpu in before.gpus} & mentioned
    if old and new and scan.gpus and not left and "" not in scan.unsure and not scan.failed:
        assert {gpu.uuid for gpu in started.gpus} <= mentioned
    else:
        assert started.known == plain.known


@given(INVENTORIES, st.lists(st.floats(0, 1e9)))
def test_a_driver_that_is_down_changes_nothing_for_ever(inventory, times):
    later = after(*((now_s, DOWN) for now_s in sorted(times)), start=inventory)
    assert later.gpus == inventory.gpus
    assert (later.enforcement, later.driver_version) == (
        inventory.enforcement,
        inventory.driver_version,
    )


@given(INVENTORIES, SCANS, st.integers(1_000_000, 2_000_000))
def test_only_what_the_driver_just_showed_as_it_is_advertised_is_healthy(inventory, scan, now_s):
    later = observe(inventory, scan, now_s, GRACE_S)
    if scan.failed:
        assert later.gpus == inventory.gpus
    else:
        shown = {gpu.uuid: (gpu.usable_bytes or 0) // MIB for gpu in scan.gpus if not gpu.mig}
        for gpu in later.gpus:
            assert gpu.healthy == (shown.get(gpu.uuid) == gpu.memory_bytes // MIB)


@given(SCANS)
def test_what_is_advertised_first_is_never_more_than_what_is_usable(scan):
    inventory = after((0.0, scan))
    usable_bytes = sum(gpu.usable_bytes or 0 for gpu in scan.gpus if not gpu.mig)
    assert inventory.vram_bytes <= usable_bytes
    assert all(gpu.memory_bytes % MIB == 0 and gpu.memory_bytes for gpu in inventory.gpus)


@given(INVENTORIES, SCANS, st.integers(1_000_000, 2_000_000))
def test_after_the_grace_it_is_what_the_driver_says(inventory, scan, now_s):
    """Where it says it of every GPU."""
    scan = replace(scan, unsure=frozenset(), failed="", fault=None)
    later = after((now_s, scan), (now_s + GRACE_S, scan), start=inventory)
    silent = {gpu.uuid for gpu in scan.gpus if not gpu.mig and (gpu.usable_bytes or 0) < MIB}
    assert {gpu for gpu in later.gpus if gpu.uuid not in silent} == set(after((0.0, scan)).gpus)


@given(INVENTORIES, SCANS, st.integers(1_000_000, 2_000_000))
def test_the_same_scan_twice_changes_nothing_more(inventory, scan, now_s):
    once = observe(inventory, scan, now_s, GRACE_S)
    assert observe(once, scan, now_s, GRACE_S) == once
