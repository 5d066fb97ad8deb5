"""The table contains every rule, and every rule's docstring has three labels."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re

import pytest

from tests.support.pods import RULE, a_pod, a_policy
from webhook.core.admission import rules
from webhook.core.admission.rules.case import CaseKind, new_case
from webhook.core.admission.rules.table import HINTS, HINTS_WITHOUT_FINDINGS, RULES, UNREAD_KEYS
from webhook.core.pod.views import read_pod
from webhook.core.policy.cluster import UNKNOWN_CLUSTER

JUDGING = [*(row.rule for row in RULES), UNREAD_KEYS, *HINTS, *HINTS_WITHOUT_FINDINGS]


def find_rules():
    """Return every function whose docstring has the label Rule."""
    modules = [
        importlib.import_module(f"{rules.__name__}.{found.name}")
        for found in pkgutil.iter_modules(rules.__path__)
    ]
    return {
        function
        for module in modules
        for _, function in inspect.getmembers(module, inspect.isfunction)
        if (function.__doc__ or "").startswith("Rule: ")
    }


def test_every_rule_is_in_the_table_once():
    assert len(JUDGING) == len(set(JUDGING))
    assert set(JUDGING) == find_rules(), "give each rule a row in rules/table.py"


@pytest.mark.parametrize("rule", JUDGING, ids=lambda rule: rule.__name__)
def test_a_rule_says_fields_and_allowed_values(rule):
    assert re.search(r"\n +Fields: .+\n(.+\n)* +Allowed values: ", rule.__doc__)


def test_every_kind_of_case_is_judged():
    for kind in CaseKind.__members__.values():
        assert any(kind & row.judges for row in RULES), kind


def test_a_rule_for_demands_in_the_wrong_row_raises_instead_of_allowing():
    pod = read_pod(a_pod())
    with pytest.raises(LookupError, match="is in the table"):
        _ = new_case(pod, RULE, a_policy(), UNKNOWN_CLUSTER).demand
