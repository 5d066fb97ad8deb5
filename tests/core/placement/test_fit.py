"""Choice of GPUs: table rows, sentences and laws."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.orders import ORDERS
from tests.support.gpus import a_gpu
from webhook.core.nvidia.variables import DeviceNames
from webhook.core.placement.fit import (
    Denial,
    Need,
    best_fit,
    deny_unknown_gpus,
    deny_unnamed_gpus,
    place,
)
from webhook.core.pod.gpus import free_bytes
from webhook.core.pod.quantity import MIB

FOUR = [a_gpu(name, 1000, index) for index, name in enumerate("abcd")]


def placed(gpus, free, mib, count=1, order=best_fit):
    """Return the short names of the chosen GPUs; `free` is in MiB, in GPU order."""
    free = {gpu.uuid: mib * MIB for gpu, mib in zip(gpus, free, strict=True)}
    result = place("n1", gpus, free, Need(mib * MIB, count), order)
    if isinstance(result, Denial):
        return result.sentence
    return "".join(uuid.removeprefix("GPU-") for uuid in result)


@pytest.mark.parametrize(
    ("free", "mib", "count", "chosen"),
    [
        # enough GPUs: the one with the least free memory that still fits
        ([400, 300, 200, 100], 150, 1, "c"),
        ([400, 300, 200, 100], 100, 1, "d"),  # fits exactly
        ([400, 300, 200, 100], 101, 1, "c"),
        ([400, 300, 200, 100], 400, 1, "a"),
        # ties: the GPU with the lowest index
        ([500, 300, 300, 300], 300, 1, "b"),
        ([300, 300, 300, 300], 1, 1, "a"),
        # several GPUs: distinct, those with the least free memory that fit, in the driver's order
        ([400, 300, 200, 100], 150, 2, "bc"),
        ([100, 200, 300, 400], 150, 2, "bc"),
        ([900, 100, 800, 200], 50, 3, "bcd"),
        ([300, 300, 300, 300], 300, 4, "abcd"),
        # a negative amount counts as full
        ([-5, 10, -1, 20], 1, 1, "b"),
    ],
)
def test_best_fit_takes_the_least_free_that_still_fits(free, mib, count, chosen):
    assert placed(FOUR, free, mib, count) == chosen


@pytest.mark.parametrize(
    ("order", "one", "two"),
    [("best fit", "c", "ac"), ("first fit", "a", "ac"), ("worst fit", "d", "ad")],
)
def test_other_orders_to_compare_with(order, one, two):
    free = [400, 100, 200, 500]
    assert placed(FOUR, free, 150, order=ORDERS[order]) == one
    assert placed(FOUR, free, 150, 2, ORDERS[order]) == two


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_ties_go_to_the_lowest_index_whatever_the_list_s_order(order):
    assert placed(FOUR[::-1], [7, 7, 7, 7], 5, order=order) == "a"
    assert placed(FOUR[::-1], [7, 7, 7, 7], 5, 3, order) == "abc"


def test_of_two_gpus_that_say_the_same_index_the_lower_uuid_is_first():
    twins = [a_gpu("z"), a_gpu("y")]
    assert placed(twins, [9, 9], 5) == "y"
    assert placed(twins, [8, 9], 5, 2) == "yz"


@pytest.mark.parametrize(
    ("gpus", "free", "mib", "count", "lacks", "largest"),
    [
        (2, [600, 700], 1024, 1, "no GPU of node n1 has 1Gi free, which this pod needs", "700Mi b"),
        (2, [7, 7], 8, 1, "no GPU of node n1 has 8Mi free, which this pod needs", "7Mi a"),
        (2, [-3, -2], 1, 1, "no GPU of node n1 has 1Mi free, which this pod needs", "0 b"),
        (1, [100], 7, 2, "node n1 has 1 GPU, and this pod needs 2 with 7Mi each", "100Mi a"),
        (4, [1, 2, 3, 4], 7, 5, "node n1 has 4 GPUs, and this pod needs 5 with 7Mi each", "4Mi d"),
        (4, [1, 2, 3, 4], 7, 4, "node n1 has no GPUs with 7Mi free, and this pod needs 4", "4Mi d"),
        (4, [1, 2, 3, 8], 7, 2, "node n1 has 1 GPU with 7Mi free, and this pod needs 2", "8Mi d"),
        (4, [1, 9, 9, 9], 7, 4, "node n1 has 3 GPUs with 7Mi free, and this pod needs 4", "9Mi b"),
    ],
)
def test_a_denial_names_the_node_the_need_and_the_largest_free_amount(
    gpus, free, mib, count, lacks, largest
):
    amount, name = largest.split()
    assert placed(FOUR[:gpus], free, mib, count) == (
        f"{lacks}; the largest free amount is {amount}, on GPU {'abcd'.index(name)} (GPU-{name}); "
        "the scheduler retries, also on other nodes"
    )


def unhealthy(*names):
    return [replace(gpu, healthy=gpu.uuid[-1] not in names) for gpu in FOUR]


@pytest.mark.parametrize(
    ("names", "mib", "count", "chosen"),
    [("c", 150, 1, "b"), ("cb", 150, 1, "a"), ("d", 50, 3, "abc"), ("ab", 100, 2, "cd")],
)
def test_a_gpu_that_is_not_healthy_is_passed_over(names, mib, count, chosen):
    assert placed(unhealthy(*names), [400, 300, 200, 100], mib, count) == chosen


SENTENCES = {
    ("a", 1): "no GPU of node n1 has 350Mi free, which this pod needs; the largest free amount is "
    "300Mi, on GPU 1 (GPU-b); 1 of its 4 GPUs is unhealthy now",
    ("bcd", 2): "node n1 has 1 GPU with 350Mi free, and this pod needs 2; the largest free amount "
    "is 400Mi, on GPU 0 (GPU-a); 3 of its 4 GPUs are unhealthy now",
    ("abcd", 1): "node n1 has no GPU that is healthy now, so none can be chosen for this pod; "
    "vramwarden's node agent there logs why",
}


@pytest.mark.parametrize(("names", "count"), SENTENCES)
def test_a_denial_says_how_many_gpus_are_not_healthy(names, count):
    expected = f"{SENTENCES[names, count]}; the scheduler retries, also on other nodes"
    assert placed(unhealthy(*names), [400, 300, 200, 100], 350, count) == expected


def test_a_node_that_shows_no_gpus_is_denied():
    sentence = (
        "node n1 does not show its GPUs (annotation vramwarden.io/gpus), so none can be chosen "
        "for this pod; see whether vramwarden's node agent runs there"
    )
    assert place("n1", [], {}, Need(MIB)) == Denial(sentence) == deny_unknown_gpus("n1")


NO_NAME = (
    "the container runtime of node n1 resolves no name of its GPUs (label "
    "vramwarden.io/device-names is none), so none can be chosen for this pod; the log of "
    "vramwarden's node agent there says what to change; the scheduler retries, also on other nodes"
)
UNKNOWN_NAME = (
    "node n1 names its GPUs in a way that this webhook does not know (label "
    "vramwarden.io/device-names), so none can be chosen for this pod; see that label and the log "
    "of vramwarden's node agent there, and let agent and webhook be of one release; the scheduler "
    "retries, also on other nodes"
)


@pytest.mark.parametrize(("names", "sentence"), [(DeviceNames.NONE, NO_NAME), (None, UNKNOWN_NAME)])
def test_a_node_whose_gpus_have_no_name_says_where_that_is_written(names, sentence):
    assert deny_unnamed_gpus("n1", names) == Denial(sentence)


def test_a_pod_needs_one_gpu_where_nothing_else_is_said():
    assert Need(MIB) == Need(MIB, gpu_count=1)


@pytest.mark.parametrize(
    ("taken", "free"),
    [
        pytest.param([("ac", 4), ("c", 5), ("", 9)], [6, 20, 21], id="on each GPU of a pod"),
        pytest.param([("xa", 15)], [-5, 20, 30], id="not on one that left; below zero if shrunk"),
    ],
)
def test_what_is_taken_counts(taken, free):
    gpus = [a_gpu("a", 10), a_gpu("b", 20, 1), a_gpu("c", 30, 2)]
    taken = [(tuple(f"GPU-{name}" for name in names), mib * MIB) for names, mib in taken]
    assert [mib // MIB for mib in free_bytes(gpus, taken).values()] == free


GPUS = st.lists(st.integers(1, 100), min_size=1, max_size=8).map(
    lambda sizes: [a_gpu(str(index), mib, index) for index, mib in enumerate(sizes)]
)


@st.composite
def cases(draw):
    """Draw GPUs in any order, their free memory, and a need."""
    gpus = draw(GPUS.flatmap(st.permutations))
    gpus = [replace(gpu, healthy=draw(st.integers(0, 3)) > 0) for gpu in gpus]
    free = {gpu.uuid: draw(st.integers(-20 * MIB, gpu.memory_bytes)) for gpu in gpus}
    return gpus, free, Need(draw(st.integers(1, 100 * MIB)), draw(st.integers(1, 9)))


@given(cases(), st.sampled_from([*ORDERS.values()]))
def test_a_pod_is_placed_exactly_where_enough_gpus_have_room(case, order):
    gpus, free, need = case
    healthy = {gpu.uuid for gpu in gpus if gpu.healthy}
    fitting = {uuid for uuid in healthy if free[uuid] >= need.memory_bytes}
    result = place("n", gpus, free, need, order)
    if isinstance(result, Denial):
        assert len(fitting) < need.gpu_count
    else:
        assert len(set(result)) == len(result) == need.gpu_count
        assert set(result) <= fitting
        index = {gpu.uuid: gpu.index for gpu in gpus}
        assert [index[uuid] for uuid in result] == sorted(index[uuid] for uuid in result)


@given(cases())
def test_best_fit_leaves_no_gpu_aside_that_fits_and_has_less_free(case):
    gpus, free, need = case
    result = place("n", gpus, free, need)
    if not isinstance(result, Denial):
        aside = [free[gpu.uuid] for gpu in gpus if gpu.healthy and gpu.uuid not in result]
        most = max(free[uuid] for uuid in result)
        assert all(amount < need.memory_bytes or amount >= most for amount in aside)


@given(cases(), st.sampled_from([*ORDERS.values()]))
def test_the_order_of_the_list_does_not_matter(case, order):
    gpus, free, need = case
    assert place("n", gpus, free, need, order) == place("n", gpus[::-1], free, need, order)


@given(GPUS, st.integers(1, 100), st.integers(1, 9), st.sampled_from([*ORDERS.values()]))
def test_what_fits_on_an_empty_node_is_placed_there(gpus, mib, count, order):
    large_enough = sum(gpu.memory_bytes >= mib * MIB for gpu in gpus)
    result = place("n", gpus, free_bytes(gpus, []), Need(mib * MIB, count), order)
    assert isinstance(result, Denial) == (large_enough < count)


@given(cases())
def test_a_product_s_name_does_not_matter(case):
    gpus, free, need = case
    renamed = [replace(gpu, product="x") for gpu in gpus]
    assert place("n", gpus, free, need) == place("n", renamed, free, need)
