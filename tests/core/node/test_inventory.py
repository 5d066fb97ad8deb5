"""The inventory after each scan, case by case and as laws."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.gpus import DOWN, GRACE_S, INVENTORIES, SCANS, a_gpu, a_scan, after, seen
from webhook.core.bounds import MAX_UUID_LENGTH
from webhook.core.node.inventory import Inventory, TrackedGpu, apply_scan, find_skip_reasons
from webhook.core.nvidia.drivers import RECOVERIES, ScannedGpu
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
        (0.0, a_scan(ScannedGpu(uuid="GPU-a", product="x", index=0, usable_bytes=5 * MIB - 1)))
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
    start = replace(BOTH, tracked=tuple(map(TrackedGpu, gpus)))
    assert after((9.0, DOWN), start=start).gpus == gpus


def test_a_gpu_that_answers_again_is_healthy_at_once():
    start = replace(BOTH, tracked=tuple(map(TrackedGpu, B_LOST)))
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
        ({"recovery": 99}, ""),  # a value of a future driver
        ({"recovery": -1}, ""),
        ({"remap_pending": True}, ""),
        ({"recovery": 1}, "needs a reset of the GPU"),
        ({"recovery": 2}, "needs a reboot of the node"),
        ({"recovery": 3}, "needs a drain of peer-to-peer traffic"),
        ({"recovery": 4}, "needs a drain and a reset of the GPU"),
        ({"remap_failed": True, "recovery": 0}, "row remapping failed"),
        ({"remap_failed": True, "recovery": 1}, "row remapping failed; needs a reset of the GPU"),
        ({"compute_mode": None}, ""),
        *(
            ({"compute_mode": mode}, f"compute mode {name}: run nvidia-smi -i GPU-b -c DEFAULT")
            for mode, name in (
                (1, "Exclusive_Thread"),
                (2, "Prohibited"),
                (3, "Exclusive_Process"),
                (9, "9"),
            )
        ),
        ({"recovery": 1, "compute_mode": 3}, "needs a reset of the GPU"),
    ],
)
@pytest.mark.parametrize(
    "start", [None, BOTH, replace(BOTH, tracked=tuple(map(TrackedGpu, B_LOST)))]
)
def test_a_gpu_is_as_healthy_as_the_driver_s_state_says_new_known_or_back(state, fault, start):
    scan = a_scan(A, replace(seen("b", 2000, 1), **state))
    inventory = after((9.0, scan), start=start)
    b = replace(a_gpu("b", 2000, 1), healthy=not fault, fault=fault)
    assert inventory.gpus == (a_gpu("a"), b)
    assert inventory.vram_bytes == 3000 * MIB
    assert after((10.0, FINE), start=inventory).gpus == BOTH.gpus  # once the scan is fine again


def test_a_compute_mode_that_cannot_be_read_is_as_it_was():
    unread = a_scan(A, replace(seen("b", 2000, 1), compute_mode=None))
    exclusive = a_scan(A, replace(seen("b", 2000, 1), compute_mode=3))
    for before, healthy in ((FINE, True), (exclusive, False)):
        inventory = after((1.0, before), (2.0, unread))
        assert [gpu.healthy for gpu in inventory.gpus] == [True, healthy]
        assert inventory.gpus == after((1.0, before)).gpus
    assert after((1.0, exclusive), (2.0, unread), (3.0, FINE)).gpus == BOTH.gpus


def test_the_longest_fault_fits_into_an_entry():
    longest = max(RECOVERIES, key=lambda action: len(RECOVERIES[action]))
    (gpu,) = after((0.0, a_scan(replace(A, remap_failed=True, recovery=longest)))).gpus
    assert gpu.fault == f"row remapping failed; needs {RECOVERIES[longest]}"
    uuid = "GPU-" + "f" * (MAX_UUID_LENGTH - 4)
    (gpu,) = after((0.0, a_scan(replace(A, uuid=uuid, compute_mode=3)))).gpus
    assert gpu.fault.endswith(f" {uuid} -c DEFAULT")


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
    start = Inventory(tracked=(TrackedGpu(a_gpu()),), enforcement=before, advertised=True)
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
    reasons = find_skip_reasons(scan)
    assert list(reasons) == ["GPU-b", "GPU-c", "GPU-d"]
    assert "MIG" in reasons["GPU-b"]
    assert "no memory of its own" in reasons["GPU-c"]
    assert after((0.0, scan)).gpus == (a_gpu("a", 1),)


WHY = (
    "cannot be shared by memory: the driver reports no memory of its own, as with unified memory; "
    "if there is no other GPU, label the node vramwarden.io/share=false"
)
LONG = replace(seen("e", None), product="x" * 96)


GB10 = seen("c", None)


@pytest.mark.parametrize(
    ("scans", "unshared"),
    [
        ([a_scan(A, seen("c", None, 1))], "GPU 1 (NVIDIA H200)"),
        ([a_scan(GB10, seen("d", None, 1))], "GPU 0 (NVIDIA H200), GPU 1 (NVIDIA H200)"),
        ([a_scan(GB10), DOWN], "GPU 0 (NVIDIA H200)"),
        ([a_scan(GB10), a_scan(unsure=frozenset({""}))], "GPU 0 (NVIDIA H200)"),
        ([a_scan(GB10), FINE], ""),
        ([a_scan(A), a_scan(seen("a", None))], ""),
        ([a_scan(seen("b", mig=True), seen("c", None, 1, mig=True), seen("d", 0, 2))], ""),
    ],
    ids=[
        "beside another", "two", "then the driver is down", "then it does not answer", "gone",
        "one that is advertised", "skipped for another reason",
    ],
)  # fmt: skip
def test_gpus_without_memory_of_their_own_are_named(scans, unshared):
    assert after(*enumerate(scans)).unshared == (f"{unshared} {WHY}" if unshared else "")


def test_a_sentence_about_many_gpus_is_cut_before_the_cause():
    many = a_scan(*(replace(LONG, uuid=f"GPU-{number}") for number in range(9)))
    sentence = after((0.0, many)).unshared
    assert len(sentence) == 256
    assert sentence.endswith(f"… and 8 more {WHY}")


# Laws


def without_mig(scan):
    return replace(scan, gpus=tuple(replace(gpu, mig=False) for gpu in scan.gpus))


def settled(inventory):
    """Return the inventory without doubts, as if each of them had just been cleared."""
    return apply_scan(inventory, DOWN, 0.0, GRACE_S)


@given(
    INVENTORIES.map(settled),
    st.lists(st.tuples(st.floats(0, GRACE_S, exclude_max=True), SCANS.map(without_mig))),
)
def test_whatever_fails_for_less_than_the_grace_lowers_nothing(inventory, scans):
    for now_s, scan in sorted(scans, key=lambda scan: scan[0]):
        later = apply_scan(inventory, scan, now_s, GRACE_S)
        before = {gpu.uuid: gpu.memory_bytes for gpu in inventory.gpus}
        now = {gpu.uuid: gpu.memory_bytes for gpu in later.gpus}
        assert before.items() <= now.items()
        assert later.vram_bytes >= inventory.vram_bytes
        if inventory.enforcement == "sidecar" and not scan.never_measures:
            assert later.enforcement == "sidecar"
        inventory = later


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
    later = apply_scan(inventory, scan, now_s, GRACE_S)
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
    """The driver must respond for every GPU."""
    scan = replace(scan, unsure=frozenset(), failed="", fault=None)
    later = after((now_s, scan), (now_s + GRACE_S, scan), start=inventory)
    silent = {gpu.uuid for gpu in scan.gpus if not gpu.mig and (gpu.usable_bytes or 0) < MIB}
    assert {gpu for gpu in later.gpus if gpu.uuid not in silent} == set(after((0.0, scan)).gpus)


@given(INVENTORIES, SCANS, st.integers(1_000_000, 2_000_000))
def test_the_same_scan_twice_changes_nothing_more(inventory, scan, now_s):
    once = apply_scan(inventory, scan, now_s, GRACE_S)
    assert apply_scan(once, scan, now_s, GRACE_S) == once
