"""Stale reports of a node, and the patch that removes its startup taint."""

import pytest

from webhook.core.node.patches import STALE_REPORT_S, build_taint_removal, is_stale_report

KEY = "startup-taint.cluster-autoscaler.kubernetes.io/vramwarden"
OURS = {"key": KEY, "value": "true", "effect": "NoSchedule"}
TWICE = {"key": KEY, "effect": "NoExecute"}
OTHER = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
LONGER = {"key": f"{KEY}-2", "effect": "NoSchedule"}


def of_version(version):
    return {"metadata": {"resourceVersion": version}}


@pytest.mark.parametrize(
    ("reported", "known", "since_patch_s", "echo"),
    [
        ("9", "10", 0.0, True),
        ("9", "10", STALE_REPORT_S - 0.1, True),
        ("10", "10", 0.0, False),
        ("11", "10", 0.0, False),
        ("100", "99", 0.0, False),  # by number, not by text
        ("9", "x", 0.0, False),
        ("x", "10", 0.0, False),
        ("-9", "10", 0.0, False),
        ("", "10", 0.0, False),
        ("9", None, 0.0, False),
        ("9", "10", STALE_REPORT_S, False),
        ("9", "10", float("inf"), False),
    ],
)
def test_only_what_is_older_than_our_own_recent_patch_is_an_echo(
    reported, known, since_patch_s, echo
):
    before = None if known is None else of_version(known)
    assert is_stale_report(of_version(reported), before, since_patch_s) is echo


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
    assert build_taint_removal(a_node(*taints), KEY) == expected


@pytest.mark.parametrize("node", [a_node(), a_node(OTHER, LONGER), {}, {"spec": None}])
def test_there_is_no_patch_where_there_is_no_such_taint(node):
    assert build_taint_removal(node, KEY) is None


def test_no_key_is_no_taint():
    assert build_taint_removal(a_node(OURS, {"key": "", "effect": "NoSchedule"}), "") is None
