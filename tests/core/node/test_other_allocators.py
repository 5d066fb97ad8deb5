"""Other allocators of GPUs: how they are found, and the remedy that removes each."""

from __future__ import annotations

import pytest

from tests.core.node.sharing_nodes import DRA, PLUGIN, judge_with, make_node
from webhook.core.node.node_fields import is_advertised
from webhook.core.node.other_allocators import (
    find_allocator_resources,
    had_other_allocator,
    read_dra_drivers,
)
from webhook.core.node.sharing import Shared, SharingDecision
from webhook.names import NODE_SHARE_LABEL, VRAM_RESOURCE

TEN_MINUTES = 600
OFFERED, HEEDLESS, FORGOTTEN, OPERATOR, CLAIMS = (
    f"label the node {PLUGIN}=false,",
    "give its DaemonSet the affinity of deploy/take-the-plugin-off.md",
    "the kubelet forgets it within five minutes",
    "until the node is ten minutes old; if none comes, share at once (vramwarden.io/share=true)",
    f"take the driver off the node (NVIDIA's operator: {DRA}=false), or",
)


@pytest.mark.parametrize(
    ("capacity", "allocatable", "labels", "beside", "cure"),
    [
        # Resources of a kubelet whose plugin is registered, restarts, is gone, or is forgotten.
        ("2", "2", {}, {}, OFFERED),
        ("2", "0", {}, {}, OFFERED),
        ("0", "0", {}, {}, None),
        (None, "2", {}, {}, OFFERED),
        ("2", None, {}, {}, OFFERED),
        ("what", "0", {}, {}, OFFERED),
        ("2", "2", {PLUGIN: "true"}, {}, OFFERED),
        ("2", "2", {PLUGIN: "false"}, {}, HEEDLESS),
        ("2", "0", {PLUGIN: "false"}, {}, FORGOTTEN),
        ("0", "0", {PLUGIN: "false"}, {"age_s": 0}, None),
        # Labels of NVIDIA's operator before it starts its plugin or DRA driver.
        ("0", "0", {PLUGIN: "true"}, {"age_s": TEN_MINUTES - 1}, OPERATOR),
        ("0", "0", {PLUGIN: "true"}, {"age_s": -5}, OPERATOR),
        ("0", "0", {PLUGIN: "true"}, {"age_s": TEN_MINUTES}, None),
        ("0", "0", {PLUGIN: "true"}, {}, None),
        ("0", "0", {PLUGIN: "paused"}, {"age_s": 0}, None),
        ("0", "0", {DRA: "true"}, {"age_s": 0}, None),
        ("0", "0", {DRA: "true"}, {"age_s": 0, "dra_drivers": None}, OPERATOR),
        ("0", "0", {DRA: "true"}, {"age_s": TEN_MINUTES, "dra_drivers": None}, None),
        ("0", "0", {}, {"age_s": 0, "dra_drivers": None}, None),
        # A DRA driver on the node.
        ("0", "0", {}, {"dra_drivers": ("gpu.nvidia.com",)}, CLAIMS),
        ("0", "0", {PLUGIN: "false", DRA: "false"}, {"dra_drivers": ("gpu.nvidia.com",)}, CLAIMS),
        ("0", "0", {}, {"dra_drivers": ("gpu.amd.com", "gpu.nvidia.com")}, CLAIMS),
        ("0", "0", {}, {"dra_drivers": ("gpu.amd.com",)}, "; take AMD's driver off the node, or"),
    ],
    ids=str,
)
def test_a_sign_is_found_and_the_cure_is_the_one_that_helps_there(
    capacity, allocatable, labels, beside, cure
):
    amounts = {"capacity": capacity, "allocatable": allocatable}
    status = {
        part: {"nvidia.com/gpu": amount} for part, amount in amounts.items() if amount is not None
    }
    node = {"metadata": {"name": "n", "labels": labels}, "status": status}
    found = judge_with(node, **beside)
    assert found.shared is (Shared.YES if cure is None else Shared.NO)
    assert (cure or "") in found.sentence
    held = judge_with(node, is_advertised=True, has_pods=True, **beside)
    assert held.shared is (Shared.YES if cure is None else Shared.DRAINING)
    node["metadata"]["labels"] = {**labels, NODE_SHARE_LABEL: "true"}
    assert judge_with(node, **beside) == SharingDecision(Shared.YES)


@pytest.mark.parametrize(
    ("allocatable", "offered"),
    [
        (None, ()),
        ({}, ()),
        ({"nvidia.com/gpu": "0"}, ()),
        ({"nvidia.com/gpu": "0k"}, ()),
        ({"nvidia.com/gpu": "1"}, ("nvidia.com/gpu",)),
        ({"nvidia.com/gpu": "1k"}, ("nvidia.com/gpu",)),
        ({"nvidia.com/gpu": 1}, ("nvidia.com/gpu",)),
        ({"nvidia.com/gpu": "500m"}, ("nvidia.com/gpu",)),
        ({"nvidia.com/gpu": "many"}, ("nvidia.com/gpu",)),
        ({"nvidia.com/gpu": ""}, ("nvidia.com/gpu",)),
        ({"nvidia.com/gpu": None}, ("nvidia.com/gpu",)),
        (
            {"nvidia.com/gpumem": "9", "nvidia.com/gpu.shared": "4", "nvidia.com/gpu": "0"},
            ("nvidia.com/gpu.shared", "nvidia.com/gpumem"),
        ),
        ({"nvidia.com/mig-1g.10gb": "7", "amd.com/gpu": "1", VRAM_RESOURCE: "80Gi"}, ()),
    ],
    ids=str,
)
def test_whole_gpus_are_what_is_offered_of_them(allocatable, offered):
    assert find_allocator_resources(make_node(allocatable)) == offered
    assert find_allocator_resources({"status": {"capacity": allocatable}}) == offered


@pytest.mark.parametrize(
    ("capacity", "allocatable", "offered"),
    [
        ({"nvidia.com/gpu": "8"}, {"nvidia.com/gpu": "0"}, True),  # the plugin restarts
        ({"nvidia.com/gpu": "0"}, {"nvidia.com/gpu": "0"}, True),  # the kubelet restarted
        ({}, {"nvidia.com/gpu.shared": "8"}, True),
        ({"nvidia.com/mig-1g.10gb": "7", VRAM_RESOURCE: "80Gi"}, {"amd.com/gpu": "1"}, False),
    ],
)
def test_a_name_that_is_left_says_that_whole_gpus_were_offered(capacity, allocatable, offered):
    assert (
        had_other_allocator({"status": {"capacity": capacity, "allocatable": allocatable}})
        is offered
    )


def test_a_node_without_any_status_offers_nothing():
    for node in ({}, {"status": None}, {"status": {"allocatable": None}}):
        assert find_allocator_resources(node) == ()
        assert not had_other_allocator(node)
        assert not is_advertised(node)
        assert judge_with(node, has_pods=None) == SharingDecision(Shared.YES)


def test_drivers_that_claimed_a_node_are_read_printable_and_bounded():
    node = make_node({})
    node["metadata"]["annotations"] = {"vramwarden.io/dra-driver": "\x1b[31mx," + "d" * 999}
    assert read_dra_drivers(node) == ("?[31mx", "d" * 249)
