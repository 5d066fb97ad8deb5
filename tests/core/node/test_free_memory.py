"""Labels of free memory, by which pods with GPU assignment prefer nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.gpus import FIXED, GONE, INVENTORIES, NODE, TWO, WITH_GPUS, a_gpu
from tests.support.merge_patches import merged
from webhook.core.node.inventory import Inventory, TrackedGpu
from webhook.core.node.patches import Patches, build_patches, is_free_memory_only
from webhook.core.node.state import build_desired_state
from webhook.core.placement.assignments import Assignment, free_bytes_by_gpu
from webhook.core.placement.fit import Denial, Need, place
from webhook.core.pod.gpus import EVERY_GPU, MAX_COUNTED_GPUS, free_memory_label
from webhook.core.pod.quantity import MIB

FREE = "vramwarden.io/gpu-memory-free-mib"
ALL = [FREE, *(f"{FREE}.{count}" for count in range(2, 17))]


def assigned(*taken):
    """Return assignments from pairs of GPUs and MiB on each of them."""
    return {
        f"uid-{number}": Assignment(
            pod="ns/p",
            uuids=(EVERY_GPU,) if names == EVERY_GPU else tuple(f"GPU-{name}" for name in names),
            memory_bytes=mib * MIB,
            since_s=0,
        )
        for number, (names, mib) in enumerate(taken)
    }


def put_right(node, inventory, assignments):
    made = build_patches(node, build_desired_state(inventory, assignments))
    for patch in filter(None, (made.metadata, made.status)):
        node = merged(node, patch)
    return node


def free_labels(node):
    labels = node["metadata"].get("labels") or {}
    return {key: value for key, value in labels.items() if key.startswith(FREE)}


def test_the_labels_are_one_for_each_number_of_gpus():
    assert [free_memory_label(count) for count in range(1, 17)] == ALL
    assert free_memory_label(99) == ALL[-1]


@pytest.mark.parametrize(
    ("taken", "one", "two"),
    [
        ([], "2000", "1000"),
        ([("b", 1)], "1984", "1000"),
        ([("b", 80)], "1920", "1000"),
        ([("b", 1500)], "1000", "448"),  # now the other GPU has the most free memory
        ([("b", 1500), ("b", 500)], "1000", "0"),
        ([("ab", 700)], "1280", "288"),
        ([("ab", 1)], "1984", "992"),
        ([("*", 700)], "1280", "288"),  # the pod sees all GPUs
        ([("b", 2500)], "1000", "0"),  # assigned without the webhook: never a negative number
        ([("ab", 2500)], "0", "0"),
        ([("x", 2500)], "2000", "1000"),  # a GPU that was removed
    ],
)
def test_it_is_what_is_left_on_as_many_gpus(taken, one, two):
    node = put_right(NODE, TWO, assigned(*taken))
    assert free_labels(node) == {FREE: one, f"{FREE}.2": two}


def test_a_gpu_that_is_not_healthy_has_nothing_to_give():
    known = (TrackedGpu(a_gpu("a", 1000)), TrackedGpu(replace(a_gpu("b", 2000, 1), healthy=False)))
    node = put_right(NODE, Inventory(tracked=known, advertised=True), {})
    assert free_labels(node) == {FREE: "1000", f"{FREE}.2": "0"}


@pytest.mark.parametrize(
    ("size_mib", "step_mib"),
    [(15, 1), (31, 1), (32, 2), (1000, 32), (11_000, 512), (16_383, 512), (16_384, 1024)]
    + [(mib, 1024) for mib in (24_100, 81_300, 143_771)],
)
def test_it_is_shown_in_steps_and_all_of_it_where_nobody_uses_the_gpu(size_mib, step_mib):
    one = Inventory(tracked=(TrackedGpu(a_gpu("a", size_mib)),), advertised=True)
    shown = [
        int(build_desired_state(one, assigned(("a", taken)) if taken else {}).labels[FREE])
        for taken in range(min(size_mib, 3000) + 1)
    ]
    expected = [(size_mib - taken) // step_mib * step_mib for taken in range(len(shown))]
    assert shown == [size_mib, *expected[1:]]


def test_what_is_not_a_whole_mebibyte_is_not_promised():
    odd = {"uid": Assignment(pod="ns/p", uuids=("GPU-a",), memory_bytes=1, since_s=0)}
    tiny = Inventory(tracked=(TrackedGpu(a_gpu("a", 20)),), advertised=True)
    assert build_desired_state(tiny, odd).labels[FREE] == "19"


def test_where_nobody_knows_the_labels_stay_as_they_are():
    assert free_labels(put_right(NODE, TWO, None)) == {}
    node = put_right(NODE, TWO, assigned(("b", 1500)))
    assert not build_patches(node, build_desired_state(TWO, None))


def test_they_change_alone():
    node = put_right(NODE, TWO, {})
    made = build_patches(node, build_desired_state(TWO, assigned(("b", 100))))
    assert made.metadata == {"metadata": {"labels": {FREE: "1856"}}}
    assert made.status is None


@pytest.mark.parametrize("inventory", [GONE, FIXED])
@pytest.mark.parametrize("assignments", [None, {}])
def test_they_go_with_the_gpus(inventory, assignments):
    node = put_right(NODE, TWO, {})
    assert free_labels(put_right(node, inventory, assignments)) == {}


def test_that_of_a_gpu_that_left_goes_too():
    node = put_right(NODE, TWO, {})
    one = Inventory(tracked=(TrackedGpu(a_gpu("a", 1000)),), advertised=True)
    assert free_labels(put_right(node, one, {})) == {FREE: "1000"}


def test_of_more_gpus_than_that_it_is_said_of_the_first_sixteen():
    many = Inventory(
        tracked=tuple(TrackedGpu(a_gpu(f"{n}", 1000 + n, n)) for n in range(20)), advertised=True
    )
    labels = free_labels(put_right(NODE, many, {}))
    assert sorted(labels) == sorted(ALL)
    assert labels[ALL[-1]] == "1004"


ASSIGNMENTS = st.lists(
    st.tuples(st.sets(st.sampled_from("abcde"), min_size=1), st.integers(1, 4000)), max_size=6
).map(lambda taken: assigned(*taken))


@given(INVENTORIES, ASSIGNMENTS | st.none())
def test_a_node_that_was_patched_needs_no_patch(inventory, assignments):
    node = put_right(NODE, inventory, assignments)
    assert not build_patches(node, build_desired_state(inventory, assignments))


@given(
    WITH_GPUS,
    ASSIGNMENTS,
    st.integers(1, 4000),
    st.integers(1, MAX_COUNTED_GPUS),
)
def test_a_node_is_preferred_where_the_pod_can_be_placed_and_a_step_is_to_spare(
    inventory, taken, mib, count
):
    free = free_bytes_by_gpu("n", inventory.gpus, taken, {})

    def fits(size_mib):
        need = Need(size_mib * MIB, count)
        return not isinstance(place("n", inventory.gpus, free, need), Denial)

    shown = free_labels(put_right(NODE, inventory, taken)).get(free_memory_label(count))
    preferred = shown is not None and int(shown) > mib - 1
    assert fits(mib) or not preferred
    step = min(1024, max(gpu.memory_bytes // MIB for gpu in inventory.gpus) // 16)
    assert preferred or not fits(mib + step)


FREE = "vramwarden.io/gpu-memory-free-mib"


@pytest.mark.parametrize(
    ("made", "alone"),
    [
        (Patches({"metadata": {"labels": {FREE: "1"}}}), True),
        (Patches({"metadata": {"labels": {FREE: "1", f"{FREE}.16": None}}}), True),
        (Patches(), True),
        (Patches({"metadata": {"labels": {FREE: "1", "vramwarden.io/gpu": "true"}}}), False),
        (Patches({"metadata": {"labels": {FREE: "1"}, "annotations": {FREE: "1"}}}), False),
        (Patches({"metadata": {"labels": {FREE: "1"}}}, {"status": {}}), False),
    ],
)
def test_that_nothing_but_free_memory_changes_is_told_from_all_else(made, alone):
    assert is_free_memory_only(made) is alone
