from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pods import a_policy, a_rule
from webhook.core.policy.match import Match, NamespaceUnknownError, Subject

POD = Subject(
    namespace="team-a",
    pod_labels={"app": "web", "tier": "free"},
    namespace_labels={"tier": "intern", "kubernetes.io/metadata.name": "team-a"},
    service_account="trainer",
)
TABLE = [
    ("namespaces", ("team-*",), True),
    ("namespaces", ("x", "team-a"), True),
    ("namespaces", ("team",), False),
    ("namespace_labels", {"tier": "intern"}, True),
    ("namespace_labels", {"tier": "intern", "kubernetes.io/metadata.name": "team-a"}, True),
    ("namespace_labels", {"tier": "intern", "zone": "a"}, False),
    ("namespace_labels", {"tier": "staff"}, False),
    ("namespace_labels", {"zone": ""}, False),
    ("pod_labels", {"app": "web"}, True),
    ("pod_labels", {"app": "web", "tier": "paid"}, False),
    ("service_accounts", ("train*",), True),
    ("service_accounts", ("default",), False),
]
CRITERIA = [field.name for field in fields(Match) if field.name != "exception"]
MET = {name: value for name, value, met in reversed(TABLE) if met}
UNMET = {name: value for name, value, met in reversed(TABLE) if not met}


def test_the_table_has_each_criterion_met_and_not():
    assert sorted(MET) == sorted(UNMET) == sorted(CRITERIA)


@pytest.mark.parametrize(("criterion", "value", "met"), TABLE)
def test_a_criterion_is_met_by(criterion, value, met):
    match = Match(**{criterion: value})
    assert match.matches(POD) is met
    assert Match(exception=match).matches(POD) is not met


@given(st.sets(st.sampled_from(CRITERIA)), st.sets(st.sampled_from(CRITERIA)))
def test_every_criterion_given_must_be_met_and_an_exception_in_all_of_its_own(met, unmet):
    criteria = {name: UNMET[name] if name in unmet else MET[name] for name in met | unmet}
    match = Match(**criteria)
    assert match.matches(POD) is (not unmet)
    assert Match(exception=match).matches(POD) is bool(unmet)
    assert replace(match, exception=match).matches(POD) is False


def test_nothing_given_is_met_by_all():
    assert Match().matches(Subject(namespace="x"))


UNKNOWN = replace(POD, namespace_labels=None)


@pytest.mark.parametrize("criteria", [MET, {"namespace_labels": {"tier": "staff"}}])
def test_a_namespace_that_is_not_known_gives_no_answer(criteria):
    match = Match(**criteria)
    for depends in (match, Match(exception=match)):
        with pytest.raises(NamespaceUnknownError, match=r"labels of namespace team-a are not"):
            depends.matches(UNKNOWN)


@pytest.mark.parametrize("name", sorted({*CRITERIA} - {"namespace_labels"}))
def test_it_need_not_be_known_where_something_else_is_not_met(name):
    match = Match(**{**MET, name: UNMET[name]})
    assert not match.matches(UNKNOWN)
    assert Match(exception=match).matches(UNKNOWN)


def test_rules_before_the_one_that_asks_for_labels_govern_without_them():
    first = a_rule(name="first", namespaces=("team-a",))
    asks = a_rule(name="asks", namespace_labels={"tier": "intern"})
    assert a_policy(first, asks).rule_for(UNKNOWN) is first
    with pytest.raises(NamespaceUnknownError):
        a_policy(asks, first).rule_for(UNKNOWN)


@pytest.mark.parametrize("name", CRITERIA)
def test_what_a_match_asks_for(name):
    match = Match(**{name: MET[name]})
    for item in (match, Match(exception=match)):
        assert item.depends_on_pod is (name in {"pod_labels", "service_accounts"})
        labels = a_policy(a_rule(match=item)).namespace_labels
        assert labels == (frozenset({"tier"}) if name == "namespace_labels" else frozenset())
