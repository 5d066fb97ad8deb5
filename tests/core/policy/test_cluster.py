from __future__ import annotations

import pytest

from webhook.core.policy.cluster import SlicedNode, find_largest_profile, find_smallest_profiles

A = SlicedNode({"1g": 10, "2g": 20, "1g.20": 20}, {"pool": "a"})
B = SlicedNode({"1h": 16, "2h": 35}, {"pool": "b", "zone": "x"})


@pytest.mark.parametrize(
    ("nodes", "amounts", "chosen"),
    [
        ([A], [10], {10: "1g"}),
        ([A], [11], {11: "1g.20"}),
        ([A, B], [11], {11: "1h"}),
        ([A, B], [10], {10: "1g"}),
        ([A, B], [10, 15], {10: "1g", 15: "1g.20"}),
        ([B, A], [10, 15], {10: "1g", 15: "1g.20"}),
        ([A, B], [10, 30], {10: "1h", 30: "2h"}),
        ([A, B], [36], None),
        ([], [1], None),
    ],
)
def test_the_smallest_of_one_node_are_chosen(nodes, amounts, chosen):
    assert find_smallest_profiles(nodes, amounts) == chosen


class Read(dict):
    """Profiles that count their reads."""

    times = 0

    def items(self):
        Read.times += 1
        return super().items()


def test_nodes_with_equal_profiles_are_judged_once_whatever_is_asked_for():
    nodes = [SlicedNode(Read({"1g": 100, "2g": 200})) for _ in range(100)]
    assert find_smallest_profiles(nodes, range(1, 51)) == dict.fromkeys(range(1, 51), "1g")
    assert Read.times == 100 + 50


def test_the_largest_is_named():
    assert find_largest_profile([A, B]) == (35, "2h")
    assert find_largest_profile([]) == (0, "")


@pytest.mark.parametrize(
    ("selector", "selected"),
    [({}, True), ({"pool": "b"}, True), ({"pool": "a"}, False), ({"pool": "b", "q": "x"}, False)],
)
def test_a_selector_is_met_by_every_label(selector, selected):
    assert B.is_selected(selector) is selected
    assert SlicedNode({}).is_selected(selector)
