"""Toleration of taints by the scheduler's rules, in `check` and `explain`."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tests.support.api_server import ApiServer
from tests.support.clusters import NOW_S, a_gpu, a_node
from tests.support.installations import POLICY
from webhook.tools.problems.eligibility import find_mismatch
from webhook.tools.problems.nodes import check_taints
from webhook.tools.snapshot.installation import Installation
from webhook.tools.snapshot.node import tolerates
from webhook.tools.snapshot.pod import ClusterPod

FIGURES = a_node("n1", a_gpu(79)).figures
TAINT = ("team", "a", "NoSchedule")
ROWS = {
    "no key, Exists": [{"operator": "Exists"}],
    "no key, any other operator": [{"operator": "Equal"}, {"operator": "Gt"}, {"value": "a"}],
    "another key": [{"key": "other", "operator": "Exists"}, {"key": "other", "value": "a"}],
    "its key, Exists": [{"key": "team", "operator": "Exists"}],
    "its key, Equal or nothing|its value": [
        {"key": "team", "value": "a"},
        {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"},
    ],
    "its key, Equal or nothing|another value": [{"key": "team", "value": "b"}, {"key": "team"}],
    "its key, any other operator": [
        {"key": "team", "operator": operator, "value": "a"} for operator in ("Gt", "Lt", "exists")
    ],
    "an effect": [{"key": "team", "operator": "Exists", "effect": "NoExecute"}],
}


def test_each_row_about_tolerations_holds():
    lines = [line.strip() for line in tolerates.__doc__.splitlines() if "| " in line][2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len(cells) == len(ROWS)
    for toleration, taint, expected in cells:
        cases = ROWS.get(toleration) or ROWS[f"{toleration}|{taint}"]
        assert {tolerates([case], TAINT) for case in cases} == {expected == "yes"}
    assert not tolerates([], TAINT)


@pytest.mark.parametrize("operator", [None, "", "Equal", "Exists", "Gt", "Lt", "like"])
def test_check_and_explain_say_the_same_of_a_toleration(operator):
    keys, values, effects = ("team", "other"), ("5", "7"), ("NoSchedule", "NoExecute")
    given = ((*keys, None), (*values, None), (*effects, None))
    for key, value, effect, level, repels in product(*given, ("5", ""), effects):
        named = {"key": key, "operator": operator, "value": value, "effect": effect}
        toleration = {name: item for name, item in named.items() if item is not None}
        taint = {"key": "team", "value": level, "effect": repels}
        node = a_node("n1", a_gpu(79), taints=(taint,)).read
        rules = tuple(replace(rule, tolerations=(toleration,)) for rule in POLICY.rules)
        facts = Installation(ApiServer().kube(), "")
        vars(facts).update(_nodes=[node], stored_policy=replace(POLICY, rules=rules))
        pod = ClusterPod({"spec": {"tolerations": [toleration]}})
        by_explain = find_mismatch(pod, FIGURES, node, NOW_S)
        assert (by_explain is None) == isinstance(check_taints(facts), str), (toleration, taint)
