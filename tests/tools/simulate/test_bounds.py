"""How many GPUs a workload needs at least, and what fragmentation costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.simulate.clusters import a_node, a_pod
from webhook.tools.simulate.replay.bounds import lower_bound, martello_toth, stranded_bytes


@pytest.mark.parametrize(
    ("pieces", "needs", "stranded"),
    [
        ([], {5: 1}, 0),
        ([3, 4, 5, 6], {5: 1}, 7),  # what just fits is of use
        ([6, 3, 5, 4], {5: 1}, 7),
        ([3, 4, 5, 6], {5: 1, 4: 1}, (7 + 3) // 2),
        ([3, 4, 5, 6], {5: 3, 4: 1}, (3 * 7 + 3) // 4),
        ([-9, 3], {5: 1}, 3),
        ([3], {}, 0),
    ],
)
def test_stranded_is_what_lies_in_pieces_too_small(pieces, needs, stranded):
    assert stranded_bytes(pieces, needs) == stranded


@pytest.mark.parametrize(
    ("parts", "size", "bins"),
    [
        ([], 10, 0),
        ([10], 10, 1),
        ([5, 5], 10, 1),
        ([6, 6, 6], 10, 3),  # over half
        ([7, 7, 4, 4], 10, 3),  # 4 fits beside no 7
        ([7, 7, 4], 10, 3),
        ([6, 6, 4, 4], 10, 2),
        ([9, 1, 1, 1], 10, 2),
        ([1] * 25, 10, 3),
        ([8, 5, 5, 5, 2], 10, 3),
    ],
)
def test_the_bound_of_martello_and_toth(parts, size, bins):
    assert martello_toth(parts, size) == bins


@pytest.mark.parametrize(
    ("nodes", "pods", "bound"),
    [
        ([a_node("n1", 8, 8)], [a_pod(5), a_pod(3)], 1),
        ([a_node("n1", 8, 8)], [a_pod(5), a_pod(5)], 2),
        ([a_node("n1", 8, 8), a_node("n2", 20)], [a_pod(8), a_pod(8)], 1),  # large ones first
        ([a_node("n1", 8, 8), a_node("n2", 20)], [a_pod(7), a_pod(7), a_pod(8)], 2),
        ([a_node("n1", 8, 8)], [a_pod(1, 2)], 2),
        ([a_node("n1", 8)], [a_pod(8), a_pod(8), a_pod(8)], 3),  # more than there are
        ([a_node("n1", 8)], [a_pod(9), a_pod(1, 2), a_pod(1, zone="b")], 0),  # run nowhere
        ([a_node("n1", 8, 8)], [a_pod(8, duration_s=5.0), a_pod(8, arrival_s=5.0)], 1),
        ([a_node("n1", 8, 8)], [a_pod(8, duration_s=6.0), a_pod(8, arrival_s=5.0)], 2),
        ([a_node("n1", 8, 8)], [a_pod(8, duration_s=0.0), a_pod(8), a_pod(8)], 2),
        ([a_node("n1", 8, 8)], [a_pod(8, duration_s=5.0), *[a_pod(8, arrival_s=5.0)] * 2], 2),
        ([a_node("n1", 20, 4, 4, 4)], [a_pod(10), a_pod(10), a_pod(4), a_pod(4)], 3),
        ([a_node("n1", 20, 4)], [*[a_pod(10)] * 2, *[a_pod(4)] * 4], 3),
        ([a_node("n1", 8, 8)], [a_pod(1), a_pod(1, 2)], 2),
        # Few large ones now, many small ones later: each moment counts.
        (
            [a_node("n1", 8, 8, 8)],
            [*[a_pod(5, duration_s=1.0)] * 3, *[a_pod(4, arrival_s=2.0)] * 4],
            3,
        ),
    ],
)
def test_so_many_gpus_are_needed_at_least(nodes, pods, bound):
    assert lower_bound(nodes, pods) == bound


def fewest_bins(parts, size):
    """Return how many bins are needed, by trying everything."""

    def fits(left, room):
        if not left:
            return True
        first, *rest = left
        tried = set()
        for index, free in enumerate(room):
            if free >= first and free not in tried:
                tried.add(free)
                if fits(rest, [*room[:index], free - first, *room[index + 1 :]]):
                    return True
        return False

    parts = sorted(parts, reverse=True)
    return next(bins for bins in range(len(parts) + 1) if fits(parts, [size] * bins))


PARTS = st.lists(st.integers(1, 12), max_size=7)


@given(PARTS)
def test_the_bound_is_never_more_than_what_is_needed(parts):
    assert martello_toth(parts, 12) <= fewest_bins(parts, 12)


@given(PARTS)
def test_the_bound_is_at_least_the_sum_and_the_parts_over_half(parts):
    assert martello_toth(parts, 12) >= -(-sum(parts) // 12)
    assert martello_toth(parts, 12) >= sum(part > 6 for part in parts)


@given(PARTS)
def test_on_one_node_of_equal_gpus_the_bound_is_that_of_the_parts(parts):
    node = a_node("n", *[12] * 7)
    assert lower_bound([node], map(a_pod, parts)) == martello_toth(parts, 12)
