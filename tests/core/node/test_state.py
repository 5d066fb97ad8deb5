"""Fields of a node, its desired state, and the patches in between."""

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
from webhook.core.node.inventory import Inventory, TrackedGpu, read_inventory
from webhook.core.node.patches import build_patches, describe_changes
from webhook.core.node.state import NodeState, build_desired_state, to_label_value
from webhook.core.nvidia.variables import DeviceNames
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
    node = put_right(NODE, Inventory(tracked=tuple(map(TrackedGpu, gpus)), advertised=True))
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
    assert build_desired_state(inventory) == NodeState()
    assert not build_patches(by_hand, build_desired_state(inventory))
    assert not build_patches(NODE, build_desired_state(GONE))  # an unmarked node stays as is


@pytest.mark.parametrize("names", [*DeviceNames])
def test_the_names_of_its_gpus_are_shown_and_read_back(names):
    node = put_right(NODE, replace(TWO, device_names=names.value))
    assert node["metadata"]["labels"]["vramwarden.io/device-names"] == names.value
    assert read_inventory(node).device_names == names.value
    assert put_right(node, replace(TWO, device_names="")) == node  # unknown now


@pytest.mark.parametrize("label", ["", "UUID", "of.the.future"])
def test_a_word_that_this_release_does_not_know_is_none(label):
    node = put_right(NODE, TWO)
    keys = ("vramwarden.io/device-names", "vramwarden.io/enforcement")
    node["metadata"]["labels"] |= dict.fromkeys(keys, label)
    read = read_inventory(node)
    assert (read.device_names, read.enforcement) == ("", "")


def test_what_is_not_known_yet_is_left_alone():
    state = build_desired_state(Inventory(tracked=(TrackedGpu(a_gpu()),), advertised=True))
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
    made = build_patches(node, build_desired_state(TWO))
    assert made.metadata is None
    assert made.status == {"status": {part: {VRAM: "3000Mi"}}}
    assert list(describe_changes(node, made)) == [f"{part}[{VRAM}]: {shown or 'absent'} -> 3000Mi"]


@pytest.mark.parametrize(
    "shown", ["3145728000", "3000Mi", "3072000Ki", "3145728k", "3145728000000m"]
)
def test_an_equal_amount_written_differently_needs_no_patch(shown):
    node = put_right(NODE, TWO)
    node["status"] = {part: {VRAM: shown} for part in ("capacity", "allocatable")}
    assert not build_patches(node, build_desired_state(TWO))


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
    made = build_patches(node, build_desired_state(TWO, conditions={"x": wanted}))
    expected = patched and {"status": {"conditions": [{"type": "x", **patched}]}}
    assert (made.metadata, made.status) == (None, expected)
    assert list(describe_changes(node, made)) == ([f"conditions[x]: {said}"] if said else [])


@pytest.mark.parametrize("label", OURS)
def test_a_label_that_was_removed_is_all_that_is_patched(label):
    node = copy.deepcopy(put_right(NODE, TWO))
    value = node["metadata"]["labels"].pop(label)
    made = build_patches(node, build_desired_state(TWO))
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
    assert to_label_value(name) == label


def test_the_product_is_that_of_the_largest_gpu():
    scan = a_scan(seen("a"), seen("b", 3000, 1), seen("c", 3000, 2))
    assert build_desired_state(after((0.0, scan))).labels["vramwarden.io/gpu-memory-mib"] == "3000"


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
    """Return all fields of other controllers."""
    return {
        (section, part, key): value
        for section, parts in node.items()
        for part, values in parts.items()
        for key, value in (values or {}).items()
        if key not in (*OURS, GPUS, VRAM)
    }


@given(NODES, STATES)
def test_a_node_that_was_patched_needs_no_patch(node, inventory):
    assert not build_patches(put_right(node, inventory), build_desired_state(inventory))


@given(NODES, STATES)
def test_what_others_put_on_a_node_is_not_touched(node, inventory):
    assert others_of(put_right(node, inventory)) == others_of(node)


@given(NODES, WITH_GPUS)
def test_an_agent_that_restarts_while_the_driver_is_down_changes_nothing(node, inventory):
    shown = put_right(node, inventory)
    again = after((0.0, DOWN), start=read_inventory(shown))
    assert again.gpus == inventory.gpus
    assert not build_patches(shown, build_desired_state(again))


@given(NODES, WITH_GPUS)
def test_it_restores_what_the_kubelet_zeroed_meanwhile(node, inventory):
    shown = put_right(node, inventory)
    zeroed = copy.deepcopy(shown)
    zeroed["status"]["capacity"][VRAM] = zeroed["status"]["allocatable"][VRAM] = "0"
    again = after((0.0, DOWN), start=read_inventory(zeroed))
    assert put_right(zeroed, again)["status"] == shown["status"]


@given(st.text(max_size=100))
def test_every_name_becomes_a_valid_label_and_a_label_stays_itself(name):
    safe = to_label_value(name)
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", safe, re.ASCII)
    assert to_label_value(safe) == safe
