"""Names on a node with vramwarden's prefix, and the patches that remove only those."""

from __future__ import annotations

import pytest

from webhook.core.node.patches import find_leftovers
from webhook.names import NODE_SHARE_LABEL

OURS = "vramwarden.io/"
NODE = {
    "metadata": {
        "labels": {
            f"{OURS}gpu": "true",
            NODE_SHARE_LABEL: "true",
            "nvidia.com/gpu.present": "true",
        },
        "annotations": {f"{OURS}gpus": "[]", "volumes.kubernetes.io/x": "true"},
    },
    "status": {
        "capacity": {f"{OURS}vram": "8Gi", "cpu": "8"},
        "allocatable": {"cpu": "8"},
        "conditions": [{"type": "Ready"}, {"type": f"{OURS}SentryActing"}],
    },
}


@pytest.mark.parametrize(
    ("kept", "labels"),
    [((), [f"{OURS}gpu", NODE_SHARE_LABEL]), ((NODE_SHARE_LABEL,), [f"{OURS}gpu"])],
    ids=["all", "all but a label"],
)
def test_the_patches_name_what_has_our_prefix_and_nothing_else(kept, labels):
    amount = {f"{OURS}vram": None}
    patches = find_leftovers(NODE, kept).patches()
    assert patches.metadata == {
        "metadata": {"labels": dict.fromkeys(labels), "annotations": {f"{OURS}gpus": None}}
    }
    assert patches.status == {
        "status": {
            "capacity": amount,
            "allocatable": amount,
            "conditions": [{"type": f"{OURS}SentryActing", "$patch": "delete"}],
        }
    }


@pytest.mark.parametrize("part", ["metadata", "status"])
def test_where_a_part_has_nothing_of_ours_it_is_not_patched(part):
    patches = find_leftovers({part: NODE[part]}).patches()
    other = {"metadata": "status", "status": "metadata"}[part]
    assert getattr(patches, part)
    assert getattr(patches, other) is None


def test_what_is_found_is_named():
    assert str(find_leftovers(NODE)) == (
        "2 labels, 1 annotation, resource vramwarden.io/vram, condition vramwarden.io/SentryActing"
    )
    assert not find_leftovers({"metadata": {"labels": {"a": "b"}}, "status": {}})
