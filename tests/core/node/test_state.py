"""What a node carries, what it should, and the patches between."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.gpus import (
    DOWN,
    FIXED,
    FOREIGN,
    GONE,
    INVENTORIES,
    NODE,
    TWO,
    WITH_GPUS,
    a_gpu,
    a_scan,
    after,
    put_right,
    seen,
)
from tests.support.strategies import ANY_JSON
from webhook.core.node.inventory import Inventory, TrackedGpu
from webhook.core.node.state import (
    NodeState,
    changes,
    desired,
    label_safe,
    patches,
    read_gpus,
    read_inventory,
)
from webhook.core.nvidia.variables import DeviceNames
from webhook.core.pod.gpus import UUID
from webhook.core.pod.quantity import MIB

VRAM = "vramwarden.io/vram"
GPUS = "vramwarden.io/gpus"
OURS = tuple(
    f"vramwarden.io/{name}"
    for name in (
        "gpu",
        "gpu-memory-mib",
        "gpu-count",
        "gpu-product",
        "driver-version",
        "enforcement",
        "device-names",
    )
)


def test_a_node_with_gpus_shows_what_the_contract_says():
    node = put_right(NODE, TWO)
    assert node["metadata"]["labels"] == FOREIGN | {
        "vramwarden.io/gpu": "true",
        "vramwarden.io/gpu-memory-mib": "2000",
        "vramwarden.io/gpu-count": "2",
        "vramwarden.io/gpu-product": "NVIDIA-H200",
        "vramwarden.io/driver-version": "570.86.15",
        "vramwarden.io/enforcement": "sidecar",
        "vramwarden.io/device-names": "uuid",
    }
    assert json.loads(node["metadata"]["annotations"][GPUS]) == [
        {"uuid": "GPU-a", "memory": 1000 * MIB, "product": "NVIDIA H200", "index": 0},
        {"uuid": "GPU-b", "memory": 2000 * MIB, "product": "NVIDIA H200", "index": 1},
    ]
    assert node["status"]["capacity"] == {"cpu": "8", "nvidia.com/gpu": "2", VRAM: "3000Mi"}
    assert node["status"]["allocatable"] == {"cpu": "8", VRAM: "3000Mi"}


def test_a_gpu_s_total_is_shown_and_that_it_must_not_be_chosen_now():
    gpus = (
        replace(a_gpu("a"), total_bytes=1100 * MIB),
        replace(
            a_gpu("b", 2000, 1),
            total_bytes=2100 * MIB,
            healthy=False,
            fault="needs a reset",
        ),
    )
    node = put_right(NODE, Inventory(known=tuple(map(TrackedGpu, gpus)), advertised=True))
    assert json.loads(node["metadata"]["annotations"][GPUS]) == [
        {
            "uuid": "GPU-a",
            "memory": 1000 * MIB,
            "total": 1100 * MIB,
            "product": "NVIDIA H200",
            "index": 0,
        },
        {
            "uuid": "GPU-b",
            "memory": 2000 * MIB,
            "total": 2100 * MIB,
            "product": "NVIDIA H200",
            "index": 1,
            "healthy": False,
            "fault": "needs a reset",
        },
    ]
    assert node["status"]["capacity"][VRAM] == "3000Mi"
    assert read_inventory(node).gpus == gpus


ENTRY = {"uuid": "GPU-a", "memory": 1000 * MIB, "product": "NVIDIA H200", "index": 0}


@pytest.mark.parametrize(
    ("more", "total_bytes", "healthy"),
    [
        ({}, None, True),  # as an older agent writes it
        ({"total": 1000 * MIB, "healthy": True}, 1000 * MIB, True),
        ({"total": 1000 * MIB - 1}, None, True),
        ({"total": 2**50 + 1}, None, True),
        ({"total": "8Gi", "healthy": "false"}, None, True),
        ({"total": True, "healthy": 0}, None, True),
        ({"total": None, "healthy": None}, None, True),
        ({"healthy": False, "of": "the future"}, None, False),
        ({"healthy": True, "fault": "x"}, None, True),
    ],
)
def test_what_an_entry_says_besides_may_be_missing_or_wrong(more, total_bytes, healthy):
    node = {"metadata": {"annotations": {GPUS: json.dumps([ENTRY | more])}}}
    assert read_inventory(node).gpus == (
        replace(a_gpu("a"), total_bytes=total_bytes, healthy=healthy),
    )


@pytest.mark.parametrize(
    ("written", "fault"),
    [("is lost", "is lost"), (5, ""), ("x" * 1000, "x" * 120), ("is\nlost", "is?lost")],
)
def test_why_a_gpu_is_not_healthy_is_read_as_a_short_line(written, fault):
    more = {"healthy": False, "fault": written}
    node = {"metadata": {"annotations": {GPUS: json.dumps([ENTRY | more])}}}
    off = replace(a_gpu("a"), healthy=False, fault=fault)
    assert read_inventory(node).gpus == (off,)


@pytest.mark.parametrize(
    "node",
    [
        {"metadata": "x"},
        {"metadata": {"labels": "x", "annotations": "x"}},
        {"metadata": {"annotations": {GPUS: None}}},
        {"metadata": {"annotations": {GPUS: 5}}},
        {"metadata": {"labels": "x", "annotations": {GPUS: json.dumps([ENTRY])}}},
    ],
)
def test_a_node_of_a_file_may_have_any_form(node):
    assert len(read_inventory(node).gpus) == ("GPU-a" in str(node))


def test_a_fixed_amount_is_one_gpu_without_a_name_where_nothing_is_enforced():
    node = put_right(put_right(NODE, TWO), FIXED)
    assert node["metadata"]["labels"] == FOREIGN | {
        "vramwarden.io/gpu": "true",
        "vramwarden.io/gpu-memory-mib": "49152",
        "vramwarden.io/enforcement": "none",
    }
    assert node["metadata"]["annotations"] == {"a": "b"}
    assert node["status"]["capacity"][VRAM] == "48Gi"


def test_a_node_whose_last_gpu_left_shows_nothing_and_no_capacity():
    node = put_right(put_right(NODE, TWO), GONE)
    assert node["metadata"]["labels"] == FOREIGN
    assert node["metadata"]["annotations"] == {"a": "b"}
    assert node["status"]["capacity"][VRAM] == "0"
    assert node["status"]["allocatable"][VRAM] == "0"


@pytest.mark.parametrize("inventory", [Inventory(), after((0.0, DOWN)), after((0.0, a_scan()))])
def test_a_node_that_never_had_gpus_is_left_alone_whatever_others_put_there(inventory):
    by_hand = {
        "metadata": {"labels": dict.fromkeys(OURS, "x")},
        "status": {"capacity": {VRAM: "4"}},
    }
    assert desired(inventory) == NodeState()
    assert not patches(by_hand, desired(inventory))
    assert not patches(NODE, desired(GONE))  # which shows nothing, either


@pytest.mark.parametrize("names", [*DeviceNames])
def test_the_names_of_its_gpus_are_shown_and_read_back(names):
    node = put_right(NODE, replace(TWO, device_names=names.value))
    assert node["metadata"]["labels"]["vramwarden.io/device-names"] == names.value
    assert read_inventory(node).device_names == names.value
    assert put_right(node, replace(TWO, device_names="")) == node  # not known now


@pytest.mark.parametrize("label", ["", "UUID", "of.the.future"])
def test_a_word_that_this_release_does_not_know_is_none(label):
    node = put_right(NODE, TWO)
    keys = ("vramwarden.io/device-names", "vramwarden.io/enforcement")
    node["metadata"]["labels"] |= dict.fromkeys(keys, label)
    read = read_inventory(node)
    assert (read.device_names, read.enforcement) == ("", "")


def test_what_is_not_known_yet_is_left_alone():
    state = desired(Inventory(known=(TrackedGpu(a_gpu()),), advertised=True))
    unknown = {
        f"vramwarden.io/{name}" for name in ("driver-version", "enforcement", "device-names")
    }
    assert not unknown & set(state.labels)


@pytest.mark.parametrize("part", ["capacity", "allocatable"])
@pytest.mark.parametrize("shown", ["0", "1000Mi", None, "4n", "abc", "3145728000500m"])
def test_what_was_changed_by_others_is_all_that_is_patched(part, shown):
    node = copy.deepcopy(put_right(NODE, TWO))
    node["status"][part].pop(VRAM)
    if shown is not None:
        node["status"][part][VRAM] = shown
    made = patches(node, desired(TWO))
    assert made.metadata is None
    assert made.status == {"status": {part: {VRAM: "3000Mi"}}}
    assert list(changes(node, made)) == [f"{part}[{VRAM}]: {shown or 'absent'} -> 3000Mi"]


@pytest.mark.parametrize(
    "shown", ["3145728000", "3000Mi", "3072000Ki", "3145728k", "3145728000000m"]
)
def test_an_equal_amount_written_differently_needs_no_patch(shown):
    node = put_right(NODE, TWO)
    node["status"] = {part: {VRAM: shown} for part in ("capacity", "allocatable")}
    assert not patches(node, desired(TWO))


CONDITION = {"status": "False", "reason": "A", "message": "b", "lastTransitionTime": "2026"}
OLDER = {**CONDITION, "lastTransitionTime": "2025", "lastHeartbeatTime": "2025"}
SAID = {key: CONDITION[key] for key in ("status", "reason", "message")}


@pytest.mark.parametrize(
    ("carried", "wanted", "patched", "said"),
    [
        (None, CONDITION, CONDITION, "absent -> False, A"),
        (OLDER, CONDITION, None, ""),
        ({**OLDER, "reason": "C"}, CONDITION, SAID, "False, C -> False, A"),
        ({**OLDER, "message": "C"}, CONDITION, SAID, "False, A -> False, A"),
        ({**OLDER, "status": "True"}, CONDITION, CONDITION, "True, A -> False, A"),
        (OLDER, None, {"$patch": "delete"}, "False, A -> absent"),
        (None, None, None, ""),
    ],
)
def test_a_condition_is_patched_if_it_differs_and_its_time_with_its_status(
    carried, wanted, patched, said
):
    node = copy.deepcopy(put_right(NODE, TWO))
    other = {"type": "Ready", "status": "True"}
    node["status"]["conditions"] = [other, *([{"type": "x", **carried}] if carried else [])]
    made = patches(node, desired(TWO, conditions={"x": wanted}))
    expected = patched and {"status": {"conditions": [{"type": "x", **patched}]}}
    assert (made.metadata, made.status) == (None, expected)
    assert list(changes(node, made)) == ([f"conditions[x]: {said}"] if said else [])


@pytest.mark.parametrize("label", OURS)
def test_a_label_that_was_removed_is_all_that_is_patched(label):
    node = copy.deepcopy(put_right(NODE, TWO))
    value = node["metadata"]["labels"].pop(label)
    made = patches(node, desired(TWO))
    assert (made.metadata, made.status) == ({"metadata": {"labels": {label: value}}}, None)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("NVIDIA A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB"),
        ("Tesla T4", "Tesla-T4"),
        ("NVIDIA RTX PRO 6000 (Blackwell)", "NVIDIA-RTX-PRO-6000-Blackwell"),
        ("570.86.15", "570.86.15"),
        ("é", "unknown"),
        ("", "unknown"),
        ("x" * 62 + " y", "x" * 62),
    ],
)
def test_what_nvml_reports_becomes_a_label_s_value(name, label):
    assert label_safe(name) == label


def test_the_product_is_that_of_the_largest_gpu():
    scan = a_scan(seen("a"), seen("b", 3000, 1), seen("c", 3000, 2))
    assert desired(after((0.0, scan))).labels["vramwarden.io/gpu-memory-mib"] == "3000"


BAD_ANNOTATIONS = [
    "", "{", "null", "3", "{}", "[null]", "[[]]", '["GPU-a"]', "[" * 100_000,
    '[{"uuid": "GPU-a"}]',
    '[{"uuid": "", "memory": 9999999999, "product": "x", "index": 0}]',
    '[{"uuid": "GPU-a", "memory": -1, "product": "x", "index": 0}]',
    '[{"uuid": "GPU-a", "memory": 1e99, "product": "x", "index": 0}]',
    '[{"uuid": "GPU-a", "memory": 99999999999999999999999, "product": "x", "index": 0}]',
    '[{"uuid": "GPU-a", "memory": "8Gi", "product": "x", "index": 0}]',
    '[{"uuid": "GPU-a", "memory": 9999999999, "product": 1, "index": 0}]',
    '[{"uuid": "GPU-a", "memory": 9999999999, "product": "x", "index": -1}]',
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_ANNOTATIONS)
def test_an_annotation_that_cannot_be_read_was_not_advertised(text):
    assert read_inventory({"metadata": {"annotations": {GPUS: text}}}) == Inventory()


ESCAPE = "\x1b]0;pwn\x07\n\u202eevil"


@pytest.mark.parametrize(
    "malformed",
    [
        {"uuid": f"GPU-{ESCAPE}"},
        {"uuid": "GPU-b\n"},
        {"uuid": "GPU-b,GPU-a"},
        {"uuid": "G" * 49},
        {"uuid": "G" * 200_000},
        {"uuid": "*"},
        {"uuid": "GPU-é"},
        {"index": 10**300},
        {"index": 256},
        {"index": True},
    ],
    ids=str,
)
def test_an_entry_that_is_malformed_is_no_gpu_and_the_others_are(malformed):
    entries = [ENTRY | {"uuid": "GPU-b"} | malformed, ENTRY]
    node = {"metadata": {"annotations": {GPUS: json.dumps(entries)}}}
    assert read_gpus(node) == ((a_gpu(),), 1)


def test_of_a_node_64_gpus_are_read():
    entries = [ENTRY | {"uuid": f"GPU-{number}", "index": number} for number in range(70)]
    node = {"metadata": {"annotations": {GPUS: json.dumps(entries)}}}
    gpus, unread = read_gpus(node)
    assert [gpu.index for gpu in gpus] == list(range(64))
    assert unread == 6


@pytest.mark.parametrize("text", ["{", "null", "3", "[" * 100_000, f"[{'9' * 5000}]"])
def test_a_list_that_cannot_be_read_counts_as_one_entry(text):
    assert read_gpus({"metadata": {"annotations": {GPUS: text}}}) == ((), 1)


def test_texts_of_a_gpu_are_printable_and_bounded():
    entry = ENTRY | {"product": ESCAPE + "x" * 999, "healthy": False, "fault": ESCAPE + "y" * 999}
    node = {"metadata": {"annotations": {GPUS: json.dumps([entry])}}}
    ((gpu,), unread) = read_gpus(node)
    assert (gpu.product, gpu.fault, unread) == (
        "?]0;pwn???evil" + "x" * 82,
        "?]0;pwn???evil" + "y" * 106,
        0,
    )


def test_a_gpu_listed_twice_is_one():
    node = {"metadata": {"annotations": {GPUS: json.dumps([ENTRY, ENTRY])}}}
    assert read_inventory(node).gpus == (a_gpu(),)


# Laws

NODES = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {},
            optional={
                "labels": st.none()
                | st.dictionaries(
                    st.sampled_from([*OURS, *FOREIGN, "x"]),
                    st.sampled_from(["", "true", "none", "5"]),
                ),
                "annotations": st.none()
                | st.dictionaries(st.sampled_from([GPUS, "a"]), st.text(max_size=3)),
            },
        ),
        "status": st.fixed_dictionaries(
            {},
            optional={
                part: st.none()
                | st.dictionaries(
                    st.sampled_from([VRAM, "cpu", "nvidia.com/gpu"]),
                    st.sampled_from(["0", "1", "3000Mi", "8Gi", "500m"]),
                )
                for part in ("capacity", "allocatable")
            },
        ),
    }
)
STATES = INVENTORIES | st.sampled_from([FIXED, GONE, TWO])


def others_of(node):
    """Return everything that is not ours."""
    return {
        (section, part, key): value
        for section, parts in node.items()
        for part, values in parts.items()
        for key, value in (values or {}).items()
        if key not in (*OURS, GPUS, VRAM)
    }


@given(NODES, STATES)
def test_a_node_that_was_patched_needs_no_patch(node, inventory):
    assert not patches(put_right(node, inventory), desired(inventory))


@given(NODES, STATES)
def test_what_others_put_on_a_node_is_not_touched(node, inventory):
    assert others_of(put_right(node, inventory)) == others_of(node)


@given(NODES, WITH_GPUS)
def test_an_agent_that_restarts_while_the_driver_is_down_changes_nothing(node, inventory):
    shown = put_right(node, inventory)
    again = after((0.0, DOWN), start=read_inventory(shown))
    assert again.gpus == inventory.gpus
    assert not patches(shown, desired(again))


@given(NODES, WITH_GPUS)
def test_it_restores_what_the_kubelet_zeroed_meanwhile(node, inventory):
    shown = put_right(node, inventory)
    zeroed = copy.deepcopy(shown)
    zeroed["status"]["capacity"][VRAM] = zeroed["status"]["allocatable"][VRAM] = "0"
    again = after((0.0, DOWN), start=read_inventory(zeroed))
    assert put_right(zeroed, again)["status"] == shown["status"]


@given(st.text(max_size=100))
def test_every_name_becomes_a_valid_label_and_a_label_stays_itself(name):
    safe = label_safe(name)
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", safe, re.ASCII)
    assert label_safe(safe) == safe


@given(ANY_JSON)
def test_recalling_never_fails_whatever_the_annotation_says(value):
    read_inventory({"metadata": {"annotations": {GPUS: json.dumps(value)}}})


ANY_ENTRY = st.fixed_dictionaries(
    {
        "uuid": st.text(max_size=60) | st.from_regex(UUID, fullmatch=True),
        "memory": st.integers(-MIB, 2**51),
        "product": st.text(max_size=120),
        "index": st.integers(-1, 300) | st.booleans(),
    },
    optional={"healthy": st.booleans(), "fault": st.text(max_size=150)},
)


@given(st.lists(ANY_ENTRY, max_size=80))
def test_whatever_a_node_lists_no_text_of_it_is_long_or_steers_a_terminal(entries):
    gpus, unread = read_gpus({"metadata": {"annotations": {GPUS: json.dumps(entries)}}})
    assert len(gpus) <= 64
    assert 0 <= unread <= len(entries)
    for gpu in gpus:
        assert re.fullmatch("[0-9A-Za-z-]{1,48}", gpu.uuid)
        assert type(gpu.index) is int
        assert 0 <= gpu.index <= 255
        assert (gpu.product + gpu.fault).isprintable()
        assert (len(gpu.product) <= 96, len(gpu.fault) <= 120) == (True, True)
