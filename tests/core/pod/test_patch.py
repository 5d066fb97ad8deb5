import copy

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.core.pod.patch import Draft, apply_patch

SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "b"])
KEYS = st.sampled_from(["name", "a", "b", "a/b", "~", "vramwarden.io/gpu-memory"])
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=4)
PLACES = st.lists(st.sampled_from(["name", "a", "b"]), max_size=3).map(
    lambda parts: "".join(f"/{part}" for part in parts)
)


def walked(document, place):
    """Return what is at a place; None where nothing is, or only something without fields."""
    for part in place.split("/")[1:]:
        document = document.get(part) if type(document) is dict else None
    return document


def is_open(document, place):
    """Say whether objects are at all places on the way, as far as there is anything."""
    parts = place.split("/")[1:]
    ways = ("".join(f"/{part}" for part in parts[:count]) for count in range(len(parts) + 1))
    return all(type(walked(document, way)) in {dict, type(None)} for way in ways)


def held(draft, before, untouched):
    """Assert that a draft's operations make its object of the one that came."""
    assert jsonpatch.apply_patch(before, draft.operations) == draft.obj
    assert apply_patch(before, draft.operations) == draft.obj
    assert before == untouched


@given(OBJECTS, st.lists(st.tuples(PLACES, KEYS, JSON), max_size=6))
def test_fields_are_put_where_they_are_wanted_and_objects_made_for_them(document, edits):
    untouched, wanted = copy.deepcopy(document), copy.deepcopy(document)
    draft = Draft(document)
    for place, key, value in edits:
        if not is_open(draft.obj, place):
            continue
        draft.put(place, key, value)
        holder = wanted
        for part in place.split("/")[1:]:
            if holder.get(part) is None:
                holder[part] = {}
            holder = holder[part]
        holder[key] = copy.deepcopy(value)
    assert draft.obj == wanted
    held(draft, document, untouched)


ITEMS = st.lists(st.dictionaries(KEYS, SCALARS, max_size=2), max_size=6)


@given(st.data(), ITEMS, ITEMS, st.booleans())
def test_a_list_is_changed_to_any_other(data, before, new, moves):
    after = data.draw(st.permutations(before)) if moves else before
    after = [item for item in after if data.draw(st.booleans())]
    for item in new:
        after.insert(data.draw(st.integers(0, len(after))), item)
    document = {"spec": {"env": before}}
    untouched = copy.deepcopy(document)
    draft = Draft(document)
    draft.change("/spec", "env", before, after)
    assert draft.obj == {"spec": {"env": after}}
    held(draft, document, untouched)


def test_an_item_that_stands_twice_is_matched_in_order():
    twice, other = {"name": "a"}, {"name": "b"}
    before = [twice, twice, other]
    draft = Draft({"env": before})
    draft.change("", "env", before, [twice, other, other])
    # The second `other` is none of those that were there: the list is set as a whole.
    assert draft.operations == [{"op": "add", "path": "/env", "value": [twice, other, other]}]
    draft = Draft({"env": before})
    draft.change("", "env", before, [twice, other])
    assert draft.operations == [{"op": "remove", "path": "/env/1"}]
    held(draft, {"env": before}, {"env": [twice, twice, other]})


def test_what_stays_in_a_list_has_no_operation():
    first, last = {"name": "a"}, {"name": "c"}
    before = [first, last]
    draft = Draft({"env": before})
    draft.change("", "env", before, [{"name": "ours"}, first, last, {"name": "d"}])
    assert draft.operations == [
        {"op": "add", "path": "/env/0", "value": {"name": "ours"}},
        {"op": "add", "path": "/env/3", "value": {"name": "d"}},
    ]


def test_a_list_that_is_absent_or_null_is_put_as_a_whole():
    for document in ({}, {"env": None}, {"env": []}):
        draft = Draft(document)
        draft.append("", "env", document.get("env") or [], [{"name": "a"}])
        assert draft.operations == [{"op": "add", "path": "/env", "value": [{"name": "a"}]}]


@given(ITEMS, ITEMS)
def test_items_are_appended_after_those_that_are_present(present, missing):
    document = {"env": present} if present else {}
    untouched = copy.deepcopy(document)
    draft = Draft(document)
    draft.append("", "env", present, missing)
    assert draft.obj.get("env", []) == [*present, *missing]
    held(draft, document, untouched)


def test_edits_of_one_new_object_are_one_operation():
    draft = Draft({"spec": {}})
    draft.put("/spec/resources/limits", "vram", "8Gi")
    draft.put("/spec/resources/requests", "vram", "8Gi")
    both = {"limits": {"vram": "8Gi"}, "requests": {"vram": "8Gi"}}
    assert draft.operations == [{"op": "add", "path": "/spec/resources", "value": both}]


def test_a_value_that_is_put_is_never_changed_by_a_later_edit():
    shared = {"a": 1}
    draft = Draft({})
    draft.put("", "x", shared)
    draft.put("/x", "b", 2)
    assert shared == {"a": 1}
    assert draft.obj == {"x": {"a": 1, "b": 2}}
    held(draft, {}, {})


def test_items_are_removed_and_inserted_by_index():
    document = {"c": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}
    untouched = copy.deepcopy(document)
    draft = Draft(document)
    draft.put("/c/1", "image", "x")
    draft.remove("/c", 2)
    draft.insert("/c", 0, {"name": "ours"})
    assert [item["name"] for item in draft.obj["c"]] == ["ours", "a", "b"]
    held(draft, document, untouched)


@pytest.mark.parametrize("key", ["a/b~c", "~1", "/"])
def test_keys_are_escaped_as_rfc_6901_says(key):
    draft = Draft({"m": {key: 1, "x": 2}})
    draft.put("/m", key, 3)
    held(draft, {"m": {key: 1, "x": 2}}, {"m": {key: 1, "x": 2}})
    draft.remove("/m", key)
    held(draft, {"m": {key: 1, "x": 2}}, {"m": {key: 1, "x": 2}})
    assert draft.obj == {"m": {"x": 2}}


def test_what_no_edit_touches_is_neither_read_nor_copied():
    class Untouched(list):
        def __iter__(self):
            raise AssertionError("was read")

        def __eq__(self, other):
            raise AssertionError("was compared")

        def copy(self):
            raise AssertionError("was copied")

        __hash__ = None

    args = Untouched(["a"] * 3)
    env = [{"name": "a"}]
    document = {"spec": {"containers": [{"name": "c", "args": args, "env": env}]}}
    draft = Draft(document)
    draft.change("/spec/containers/0", "env", env, [*env, {"name": "b"}])
    assert [operation["path"] for operation in draft.operations] == ["/spec/containers/0/env/1"]
    assert draft.obj["spec"]["containers"][0]["args"] is args
    assert document["spec"]["containers"][0]["env"] == [{"name": "a"}]
