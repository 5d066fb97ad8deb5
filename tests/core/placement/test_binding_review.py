"""Review of a Binding: keys removed from and added to its metadata."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pods import a_request
from tests.support.strategies import ANY_JSON
from webhook.core.placement.binding_review import (
    BindingOutcome,
    BindingVerdict,
    patch_for,
    read_binding,
)
from webhook.core.pod.findings import MalformedObjectError
from webhook.core.pod.patch import apply_patch

OURS = "vramwarden.io/"
GIVEN = {
    f"{OURS}gpu": "GPU-a,GPU-b",
    f"{OURS}visible-devices": "nvidia.com/gpu=GPU-a,nvidia.com/gpu=GPU-b",
    f"{OURS}gpu-memory-fraction": "0.1234",
}
PLACED = BindingVerdict(outcome=BindingOutcome.PLACED, uuids=("GPU-a", "GPU-b"), annotations=GIVEN)
UNTOUCHED = BindingVerdict(outcome=BindingOutcome.UNTOUCHED)
DENIED = BindingVerdict(outcome=BindingOutcome.DENIED)


def a_binding(**metadata):
    obj = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "train", "uid": "u-1", **metadata},
        "target": {"kind": "Node", "name": "n1"},
    }
    return read_binding(a_request(obj, kind="Binding", subresource="binding"))


def patched(binding, verdict):
    return apply_patch(binding.obj, patch_for(binding, verdict))


FORGED = {
    "annotations": {
        f"{OURS}gpu-memory": "1Mi",
        f"{OURS}gpu": "GPU-x",
        f"{OURS}visible-devices": "all",
        f"{OURS}gpu-memory-fraction": "1.0000",
        f"{OURS}admitted": "x",
        f"{OURS}of-the-future": "x",
        "scheduler": "mine",
    },
    "labels": {f"{OURS}managed": "no", "topology.kubernetes.io/zone": "a"},
}


def test_what_a_binding_brings_along_never_replaces_a_mark_of_ours():
    placed = patched(a_binding(**FORGED), PLACED)["metadata"]
    assert placed["annotations"] == GIVEN | {"scheduler": "mine"}
    assert placed["labels"] == {"topology.kubernetes.io/zone": "a"}


def test_it_is_taken_off_a_binding_that_is_none_of_ours_too():
    binding = a_binding(**FORGED)
    left = {"annotations": {"scheduler": "mine"}, "labels": {"topology.kubernetes.io/zone": "a"}}
    expected = {**binding.obj, "metadata": {"name": "train", "uid": "u-1", **left}}
    assert patched(binding, UNTOUCHED) == expected


@pytest.mark.parametrize(
    "metadata",
    [{}, {"annotations": None, "labels": None}, {"annotations": {"a": "b"}, "labels": {"c": "d"}}],
)
def test_what_brings_nothing_of_ours_is_not_patched(metadata):
    assert patch_for(a_binding(**metadata), UNTOUCHED) == ()


def test_what_is_denied_is_not_patched():
    assert patch_for(a_binding(**FORGED), DENIED) == ()


@pytest.mark.parametrize(
    ("metadata", "request_says", "read"),
    [
        ({"name": "train", "namespace": "a"}, {"name": "", "namespace": ""}, ("a", "train")),
        ({"name": "train"}, {"name": "other", "namespace": "b"}, ("b", "train")),
        ({"namespace": "a"}, {"name": "other", "namespace": "b"}, ("b", "other")),
    ],
    ids=["the object alone", "both have a name", "both have a namespace"],
)
def test_the_pod_is_the_one_that_object_or_request_name(metadata, request_says, read):
    obj = {"metadata": metadata, "target": {"name": "n1"}}
    binding = read_binding(a_request(obj, kind="Binding", **request_says))
    assert (binding.namespace, binding.name) == read


@pytest.mark.parametrize("part", ["annotations", "labels"])
@pytest.mark.parametrize("value", [[], "x", {"a": 7}, {f"{OURS}gpu": None}])
def test_metadata_that_no_api_server_sends_is_malformed(part, value):
    with pytest.raises(MalformedObjectError, match=rf"^metadata\.{part}"):
        a_binding(**{part: value})


KEYS = st.sampled_from(
    ["a", "b/c", "vramwarden.io", f"x.{OURS}gpu", f"{OURS}gpu", f"{OURS}managed", f"{OURS}~1"]
)
PARTS = st.none() | st.dictionaries(KEYS, st.sampled_from(["", "x"]))


@given(
    st.fixed_dictionaries({}, optional={"annotations": PARTS, "labels": PARTS, "more": ANY_JSON}),
    st.sampled_from([PLACED, UNTOUCHED]),
)
def test_of_our_keys_exactly_what_we_give_is_left_and_all_else_stays(metadata, verdict):
    binding = a_binding(**metadata)
    after = patched(binding, verdict)
    added = GIVEN if verdict is PLACED else {}
    for part, wanted in (("annotations", added), ("labels", {})):
        before, now = (item["metadata"].get(part) or {} for item in (binding.obj, after))
        ours = {key: value for key, value in now.items() if key.startswith(OURS)}
        assert ours == wanted
        others = {key: value for key, value in before.items() if not key.startswith(OURS)}
        assert {key: value for key, value in now.items() if key not in ours} == others
    rest = [
        {key: value for key, value in item["metadata"].items() if key not in FORGED}
        for item in (binding.obj, after)
    ]
    assert rest[0] == rest[1]
    assert {**after, "metadata": None} == {**binding.obj, "metadata": None}
