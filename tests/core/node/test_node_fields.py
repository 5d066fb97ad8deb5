"""The list of GPUs and the sharing verdict of a node, parsed and encoded."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.node.sharing_nodes import GPU_LIST, node_with_verdict
from tests.support.gpus import a_gpu
from tests.support.strategies import ANY_JSON
from webhook.core.node.inventory import Inventory, read_inventory
from webhook.core.node.node_fields import (
    SharingCode,
    SharingVerdict,
    explain_closed,
    is_advertised,
    read_gpus,
    read_verdict,
)
from webhook.core.pod.gpus import UUID_PATTERN
from webhook.core.pod.quantity import MIB
from webhook.names import VRAM_RESOURCE

GPUS = "vramwarden.io/gpus"


ENTRY = {"uuid": "GPU-a", "memory": 1000 * MIB, "product": "NVIDIA H200", "index": 0}


@pytest.mark.parametrize(
    ("more", "total_bytes", "healthy"),
    [
        ({}, None, True),  # written by an older agent
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


@given(ANY_JSON)
def test_recalling_never_fails_whatever_the_annotation_says(value):
    read_inventory({"metadata": {"annotations": {GPUS: json.dumps(value)}}})


ANY_ENTRY = st.fixed_dictionaries(
    {
        "uuid": st.text(max_size=60) | st.from_regex(UUID_PATTERN, fullmatch=True),
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


@pytest.mark.parametrize(
    ("annotations", "capacity", "advertised"),
    [
        ({}, {}, False),
        ({"vramwarden.io/gpus": GPU_LIST}, {}, True),
        ({"vramwarden.io/gpus": GPU_LIST}, {VRAM_RESOURCE: "0"}, True),  # set to 0 by a kubelet
        ({"vramwarden.io/gpus": "[]"}, {VRAM_RESOURCE: "0"}, False),
        ({"vramwarden.io/gpus": "what"}, {VRAM_RESOURCE: "1Gi"}, True),
        ({}, {VRAM_RESOURCE: "1Gi"}, True),
        ({}, {VRAM_RESOURCE: "what"}, True),
    ],
)
def test_a_node_is_advertised_by_its_list_or_capacity(annotations, capacity, advertised):
    """Labels do not count: Karpenter and autoscalers' node groups set them in advance."""
    labels = {"vramwarden.io/gpu": "true", "vramwarden.io/gpu-memory-mib": "81920"}
    metadata = {"labels": labels, "annotations": annotations}
    assert is_advertised({"metadata": metadata, "status": {"capacity": capacity}}) is advertised


@pytest.mark.parametrize(
    ("written", "read", "closed"),
    [
        (None, None, ""),
        ("Shared: yes", ("Shared", "yes"), ""),
        ("SomeGPUsUnfit: GPU 1", ("SomeGPUsUnfit", "GPU 1"), ""),
        ("Draining: a: plugin", ("Draining", "a: plugin"), "a: plugin"),
        ("Draining: ", ("Draining", ""), "Draining"),
        ("NotShared: x", ("NotShared", "x"), "x"),
        ("Settling: \x1b]0;pwn\x07" + "h" * 600, ("Settling", "?]0;pwn?" + "h" * 248), ...),
        *(
            (text, None, "its annotation vramwarden.io/sharing cannot be read")
            for text in ("", "Shared", "shared: x", "Shared\n: x", "x" * 100_000, 7, [], {})
        ),
    ],
    ids=str,
)
def test_a_verdict_is_read_with_doubt_and_only_two_codes_open_a_node(written, read, closed):
    node = node_with_verdict(written)
    found = read_verdict(node)
    assert (found and (found.code, found.sentence)) == read
    assert explain_closed(node) == (read[1] if closed is ... else closed)


def test_a_verdict_is_written_printable_and_bounded():
    written = str(SharingVerdict(SharingCode.DRAINING, "\x1b[2J" + "x" * 999))
    assert written == "Draining: ?[2J" + "x" * 252
