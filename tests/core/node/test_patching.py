"""How often a node is patched, which reports of it are echoes, and how its startup taint goes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.core.node.patching import OWN_ECHO_S, Allowance, is_echo, without_taint

KEY = "startup-taint.cluster-autoscaler.kubernetes.io/vramwarden"
OURS = {"key": KEY, "value": "true", "effect": "NoSchedule"}
TWICE = {"key": KEY, "effect": "NoExecute"}
OTHER = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
LONGER = {"key": f"{KEY}-2", "effect": "NoSchedule"}


def taken(allowance, times):
    """Return at which of these times one more may happen."""
    allowed = []
    for now_s in times:
        left = allowance.spend(now_s)
        allowed += [now_s] if left else []
        allowance = left or allowance
    return allowed


def test_an_allowance_refills_with_time():
    times = (0, 0, 0, 4, 5, 6, 100, 100, 100)
    assert taken(Allowance(2, 5.0), times) == [0, 0, 5, 100, 100]


def test_what_is_not_taken_does_not_pile_up():
    assert taken(Allowance(3, 5.0), [1e6] * 10) == [1e6] * 3


def test_asking_in_vain_costs_nothing():
    assert taken(Allowance(1, 5.0), [0, 1, 2, 3, 4, 5]) == [0, 5]


def test_a_value_is_not_changed_by_spending():
    allowance = Allowance(1, 5.0)
    assert allowance.spend(7) == allowance.spend(7) == Allowance(1, 5.0, spent=1, counted_s=7)


@given(
    st.integers(1, 5),
    st.integers(1, 8).map(float),
    st.lists(st.integers(0, 400).map(lambda quarters: quarters / 4)).map(sorted),
)
def test_in_any_time_no_more_happens_than_at_once_and_by_the_pace(most, every_s, times):
    allowed = taken(Allowance(most, every_s), times)
    for first, begins_s in enumerate(allowed):
        for last, ends_s in enumerate(allowed[first:], 1):
            assert last <= most + (ends_s - begins_s) / every_s + 1e-6


def of_version(version):
    return {"metadata": {"resourceVersion": version}}


@pytest.mark.parametrize(
    ("reported", "known", "since_patch_s", "echo"),
    [
        ("9", "10", 0.0, True),
        ("9", "10", OWN_ECHO_S - 0.1, True),
        ("10", "10", 0.0, False),
        ("11", "10", 0.0, False),
        ("100", "99", 0.0, False),  # by number, not by text
        ("9", "x", 0.0, False),
        ("x", "10", 0.0, False),
        ("-9", "10", 0.0, False),
        ("", "10", 0.0, False),
        ("9", None, 0.0, False),
        ("9", "10", OWN_ECHO_S, False),
        ("9", "10", float("inf"), False),
    ],
)
def test_only_what_is_older_than_our_own_recent_patch_is_an_echo(
    reported, known, since_patch_s, echo
):
    before = None if known is None else of_version(known)
    assert is_echo(of_version(reported), before, since_patch_s) is echo


def a_node(*taints, **spec):
    spec = {"podCIDR": "10.0.0.0/24", **spec, **({"taints": list(taints)} if taints else {})}
    return {"metadata": {"name": "n", "resourceVersion": "7"}, "spec": spec}


@pytest.mark.parametrize(
    ("taints", "left"),
    [
        ((OURS,), None),
        ((OURS, TWICE), None),
        ((OTHER, OURS, LONGER), [OTHER, LONGER]),
        ((TWICE, OTHER), [OTHER]),
    ],
)
def test_all_taints_of_the_key_go_and_the_others_stay_as_they_were_read(taints, left):
    expected = {"metadata": {"resourceVersion": "7"}, "spec": {"taints": left}}
    assert without_taint(a_node(*taints), KEY) == expected


@pytest.mark.parametrize("node", [a_node(), a_node(OTHER, LONGER), {}, {"spec": None}])
def test_there_is_no_patch_where_there_is_no_such_taint(node):
    assert without_taint(node, KEY) is None


def test_no_key_is_no_taint():
    assert without_taint(a_node(OURS, {"key": "", "effect": "NoSchedule"}), "") is None
