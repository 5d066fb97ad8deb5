import copy

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.core.pod.patch import Edits, apply_patch, condense

SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "b"])
KEYS = st.sampled_from(["name", "a", "b", "a/b", "~", "vramwarden.io/gpu-memory"])
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=4)
ITEMS = st.lists(st.dictionaries(KEYS, SCALARS, max_size=2), max_size=6)
MAPS = st.none() | st.dictionaries(KEYS, SCALARS, max_size=4)


def applied(edits, document):
    """Apply edits with two implementations, and check that the document is unchanged."""
    untouched = copy.deepcopy((document, edits.operations))
    after = apply_patch(document, edits.operations)
    assert (document, edits.operations) == untouched
    assert jsonpatch.apply_patch(document, copy.deepcopy(edits.operations)) == after
    return after


@given(OBJECTS, KEYS, JSON)
def test_a_field_is_put_whether_it_is_there_or_not(document, key, value):
    edits = Edits()
    edits.put("", key, value)
    edits.put("", "in", {})
    edits.put("/in", key, value)
    assert applied(edits, document) == {**document, key: value, "in": {key: value}}


@given(st.dictionaries(KEYS, JSON, min_size=1), st.data())
def test_a_field_is_removed(document, data):
    key = data.draw(st.sampled_from(sorted(document)))
    edits = Edits()
    edits.remove("", key)
    assert applied(edits, document) == {k: v for k, v in document.items() if k != key}


@given(MAPS, st.dictionaries(KEYS, SCALARS, max_size=4))
def test_entries_are_merged_into_a_map_that_may_be_absent_or_null(present, entries):
    for document in ({"m": present}, *([{}] if present is None else [])):
        edits = Edits()
        edits.merge("", "m", present, entries)
        after = applied(edits, document)
        assert (after.get("m") or {}) == {**(present or {}), **entries}
        assert len(edits.operations) <= max(1, len(entries))
        if not entries:
            assert after == document


@given(ITEMS, ITEMS)
def test_items_are_appended_to_a_list_that_may_be_absent_or_null(present, missing):
    absent = [{}, {"env": None}] if not present else []
    for document in ({"env": present}, *absent):
        edits = Edits()
        edits.append("", "env", present, missing)
        after = applied(edits, document)
        assert (after.get("env") or []) == [*present, *missing]
        if not missing:
            assert after == document


@given(st.data(), ITEMS, ITEMS, st.booleans())
def test_a_list_is_changed_to_any_other(data, before, new, moves):
    after = data.draw(st.permutations(before)) if moves else before
    after = [item for item in after if data.draw(st.booleans())]
    for item in new:
        after.insert(data.draw(st.integers(0, len(after))), item)
    edits = Edits()
    edits.change("/spec", "env", before, after)
    assert applied(edits, {"spec": {"env": before}}) == {"spec": {"env": after}}


def test_a_list_that_is_left_alone_has_no_operation():
    env = [{"name": "a"}]
    edits = Edits()
    edits.change("", "env", env, env)
    edits.change("", "env", env, [*env])  # the same items
    assert edits.operations == []


def test_what_stays_in_a_list_has_no_operation():
    first, last = {"name": "a"}, {"name": "c"}
    before = [first, last]
    edits = Edits()
    edits.change("", "env", before, [{"name": "ours"}, first, last, {"name": "d"}])
    assert edits.operations == [
        {"op": "add", "path": "/env/0", "value": {"name": "ours"}},
        {"op": "add", "path": "/env/3", "value": {"name": "d"}},
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([{"name": "a"}, {"name": "a"}], [{"name": "a"}]),
        ([{"name": "a"}], [{"name": "a"}, {"name": "a"}]),
        ([{"name": "a"}], [{"x": 1}, {"name": "a"}]),
        ([{"name": "a"}, {"name": "b"}], [{"name": "b"}, {"name": "a"}]),
    ],
)
def test_a_list_whose_names_cannot_tell_is_set_as_a_whole(before, after):
    edits = Edits()
    edits.change("", "env", before, after)
    assert edits.operations == [{"op": "add", "path": "/env", "value": after}]


def test_an_item_that_another_of_its_name_replaces_is_edited_field_by_field():
    others = [{"name": "a"}, {"name": "c", "value": "1"}]
    before = [others[0], {"name": "b", "valueFrom": {}, "x": 1}, others[1]]
    edits = Edits()
    edits.change("", "env", before, [others[0], {"name": "b", "value": "void", "x": 1}, others[1]])
    assert edits.operations == [
        {"op": "remove", "path": "/env/1/valueFrom"},
        {"op": "add", "path": "/env/1/value", "value": "void"},
    ]


def test_items_are_taken_and_inserted_by_index():
    edits = Edits()
    edits.put("/c/1", "image", "x")
    edits.remove_item("/c", 2)
    edits.insert("/c", 0, {"name": "ours"})
    after = applied(edits, {"c": [{"name": "a"}, {"name": "b"}, {"name": "c"}]})
    assert after == {"c": [{"name": "ours"}, {"name": "a"}, {"name": "b", "image": "x"}]}


@pytest.mark.parametrize("key", ["a/b~c", "~1", "/"])
def test_keys_are_escaped_as_rfc_6901_says(key):
    put, removed = Edits(), Edits()
    put.put("/m", key, 3)
    assert applied(put, {"m": {key: 1, "x": 2}}) == {"m": {key: 3, "x": 2}}
    removed.remove("/m", key)
    assert applied(removed, {"m": {key: 1, "x": 2}}) == {"m": {"x": 2}}


def test_a_patch_is_condensed_whatever_keys_are_on_the_way_and_whatever_was_edited_before():
    document = {"spec": {"a/b~c": {"x": [{"y": 1}]}, "z": {"y": {"x": 1}}}}
    edits = Edits()
    edits.put("/spec/a~1b~0c/x/0", "y", 2)
    edits.insert("/spec/a~1b~0c/x", 0, {"y": 3})
    edits.put("/spec/a~1b~0c/x/1", "z", 4)
    edits.put("/spec/z/y", "x", 5)
    edits.put("/spec/z", "y", {"x": 6})
    edits.put("/spec/z/y", "a", 7)
    after = applied(edits, document)
    assert condense(document, edits.operations, "spec") == [
        {"op": "replace", "path": "/spec", "value": after["spec"]}
    ]
    assert applied(edits, document) == after
