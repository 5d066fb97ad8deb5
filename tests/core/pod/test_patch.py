import copy

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.core.pod import patch as patch_module
from webhook.core.pod.patch import PatchError, apply_patch, make_patch, proven_patch

SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "b"])
KEYS = st.sampled_from(["name", "a", "b", "a/b", "~", "vramwarden.io/gpu-memory"])
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=4)


@given(OBJECTS, OBJECTS)
def test_a_derived_patch_turns_before_into_after_for_an_independent_applier(before, after):
    untouched = copy.deepcopy(before)
    operations = make_patch(before, after)
    assert jsonpatch.apply_patch(before, operations) == after
    assert apply_patch(before, operations) == after
    assert before == untouched


@given(OBJECTS)
def test_equal_objects_need_no_operation(document):
    assert make_patch(document, copy.deepcopy(document)) == []


def test_named_items_are_matched_by_name():
    before = {"c": [{"name": "app", "x": 1}, {"name": "log"}]}
    after = {"c": [{"name": "ours"}, {"name": "app", "x": 2}, {"name": "log"}]}
    assert make_patch(before, after) == [
        {"op": "add", "path": "/c/0", "value": {"name": "ours"}},
        {"op": "replace", "path": "/c/1/x", "value": 2},
    ]


def test_keys_are_escaped_as_rfc_6901_says():
    assert make_patch({"m": {}}, {"m": {"a/b~c": 1}}) == [
        {"op": "add", "path": "/m/a~1b~0c", "value": 1}
    ]


def test_true_is_not_one():
    assert make_patch({"a": 1}, {"a": True}) == [{"op": "replace", "path": "/a", "value": True}]


def test_a_patch_that_does_not_hold_is_never_sent(monkeypatch):
    monkeypatch.setattr(patch_module, "make_patch", lambda *_: [{"op": "remove", "path": "/x"}])
    with pytest.raises(PatchError, match="does not apply"):
        proven_patch({}, {"a": 1})
    wrong = [{"op": "add", "path": "/a", "value": 2}]
    monkeypatch.setattr(patch_module, "make_patch", lambda *_: wrong)
    with pytest.raises(PatchError, match="not to the wanted"):
        proven_patch({}, {"a": 1})


@given(OBJECTS, OBJECTS)
def test_the_proof_of_a_patch_changes_neither_object(before, after):
    copies = copy.deepcopy((before, after))
    operations = copy.deepcopy(proven_patch(before, after))
    assert (before, after) == copies
    assert operations == make_patch(before, after)


def test_what_a_patch_does_not_touch_is_neither_copied_nor_compared():
    class Untouched(list):
        def __iter__(self):
            raise AssertionError("was read")

        def __eq__(self, other):
            raise AssertionError("was compared")

        __hash__ = None

    args = Untouched(["a"] * 3)
    env = [{"name": "a"}]
    before = {"spec": {"containers": [{"name": "c", "args": args}, {"name": "d", "env": env}]}}
    ours = {"name": "c", "args": args, "env": [{"name": "b"}]}
    after = {"spec": {"containers": [ours, {"name": "d", "env": [*env, {"name": "b"}]}]}}
    assert [operation["path"] for operation in proven_patch(before, after)] == [
        "/spec/containers/0/env",
        "/spec/containers/1/env/1",
    ]
    assert before["spec"]["containers"] == [{"name": "c", "args": args}, {"name": "d", "env": env}]
