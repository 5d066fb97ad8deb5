"""The patch that takes a startup taint off."""

import pytest

from webhook.core.node.taints import without_taint

KEY = "startup-taint.cluster-autoscaler.kubernetes.io/vramwarden"
OURS = {"key": KEY, "value": "true", "effect": "NoSchedule"}
TWICE = {"key": KEY, "effect": "NoExecute"}
OTHER = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
LONGER = {"key": f"{KEY}-2", "effect": "NoSchedule"}


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
