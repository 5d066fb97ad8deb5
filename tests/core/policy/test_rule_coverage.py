"""Warnings about rules that apply to no pod and rules that tenants can avoid."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pods import A100, a_policy, a_rule
from webhook.core.policy.match import Match, Subject
from webhook.core.policy.model import Accounting, Action, EnforceBy, MemoryBounds, OnExcess
from webhook.core.policy.rule_coverage import covers, policy_warnings, rule_warnings

GI = 2**30
NAMES = st.sampled_from(["a", "ab", "abc", "b", "ba", ""])
PATTERNS = st.lists(
    st.sampled_from(["*", "a", "ab", "a*", "*a", "a*b*", "*b*", "ab*", "b"]), max_size=2
).map(tuple)
LABELS = st.dictionaries(st.sampled_from("xy"), st.sampled_from("12"), max_size=2)
CRITERIA = st.builds(
    Match,
    namespaces=PATTERNS,
    pod_labels=LABELS,
    namespace_labels=LABELS,
    service_accounts=PATTERNS,
)
MATCHES = st.builds(
    lambda match, exception: replace(match, exception=exception), CRITERIA, st.none() | CRITERIA
)
SUBJECTS = st.builds(
    Subject,
    namespace=NAMES,
    pod_labels=LABELS,
    namespace_labels=LABELS,
    service_account=NAMES,
)


def narrowed(match: Match) -> st.SearchStrategy[Match]:
    """Draw matches that `match` often covers."""
    return st.builds(
        lambda other, keep: replace(match, **{name: getattr(other, name) for name in keep}),
        MATCHES,
        st.lists(
            st.sampled_from(["namespaces", "pod_labels", "service_accounts", "exception"]),
            max_size=2,
        ),
    )


@given(st.data(), MATCHES, st.lists(SUBJECTS, min_size=8, max_size=8))
def test_whoever_meets_a_covered_match_meets_the_one_that_covers_it(data, wide, subjects):
    narrow = data.draw(narrowed(wide))
    if covers(wide, narrow):
        assert not [
            subject for subject in subjects if narrow.matches(subject) and not wide.matches(subject)
        ]


@given(st.lists(MATCHES, min_size=2, max_size=4), SUBJECTS)
def test_a_rule_that_is_said_to_govern_no_pod_governs_none(matches, subject):
    rules = [a_rule(name=str(n), match=match) for n, match in enumerate(matches)]
    dead = [warning.text for warning in rule_warnings(rules) if "applies to no pod" in warning.text]
    first = next((rule for rule in rules if rule.match.matches(subject)), None)
    assert not [text for text in dead if first and text.startswith(f'rule "{first.name}"')]


COVERED = [
    (Match(), Match()),
    (Match(namespaces=("*",)), Match(namespaces=("a",), pod_labels={"x": "1"})),
    (Match(namespaces=("team-*",)), Match(namespaces=("team-a", "team-b-*"))),
    (Match(namespaces=("a", "b*")), Match(namespaces=("bc", "a"))),
    (Match(pod_labels={"x": "1"}), Match(pod_labels={"x": "1", "y": "1"})),
    (Match(namespace_labels={"x": "1"}), Match(namespaces=("a",), namespace_labels={"x": "1"})),
    (Match(service_accounts=("ci-*",)), Match(service_accounts=("ci-a",))),
    (Match(exception=Match(namespaces=("a",))), Match(exception=Match(namespaces=("a*",)))),
]
NOT_COVERED = [
    (Match(namespaces=("team-a",)), Match(namespaces=("team-*",))),
    (Match(namespaces=("a*b",)), Match(namespaces=("a*",))),
    (Match(namespaces=("a",)), Match()),
    (Match(pod_labels={"x": "1"}), Match(pod_labels={"x": "2"})),
    (Match(namespace_labels={"x": "1"}), Match(namespaces=("a",))),
    (Match(service_accounts=("*x",)), Match(service_accounts=("*",))),
    (Match(service_accounts=("ci",)), Match()),
    (Match(exception=Match(namespaces=("a",))), Match()),
    (Match(exception=Match(namespaces=("a*",))), Match(exception=Match(namespaces=("a",)))),
]


@pytest.mark.parametrize(("wide", "narrow"), [*COVERED, *NOT_COVERED])
def test_what_a_match_covers(wide, narrow):
    assert covers(wide, narrow) is ((wide, narrow) in COVERED)


def said(*rules) -> list[str]:
    return [str(warning) for warning in rule_warnings(rules)]


def test_a_rule_after_a_catch_all_is_named_with_both_places():
    rules = (
        a_rule(name="all", where="a.yaml:3"),
        a_rule(name="team", where="b.yaml:9", namespaces=("team-a",)),
    )
    (text,) = said(*rules)
    assert text == (
        'b.yaml:9: rule "team" applies to no pod: "all" in a.yaml:3 matches all of its pods before '
        "it; move it up, or narrow what stands before it"
    )


def test_several_rules_may_leave_one_without_pods_together():
    rules = (
        a_rule(name="a", namespaces=("a-*",)),
        a_rule(name="b", namespaces=("b", "c")),
        a_rule(name="both", namespaces=("a-1", "c")),
    )
    (text,) = said(*rules)
    assert text.startswith('rule "both" applies to no pod: "a" and "b" match all of its pods ')
    assert said(*rules[:2], a_rule(name="both", namespaces=("a-1", "d"))) == []


BOUND = MemoryBounds(max_bytes=8 * GI)
LABELLED = {"name": "gold", "pod_labels": {"tier": "gold"}}


@pytest.mark.parametrize(
    ("rule", "other", "how", "what"),
    [
        ({"action": Action.IGNORE}, {}, "setting", "action Ignore for Enforce"),
        ({"action": Action.AUDIT}, {}, "setting", "action Audit for Enforce"),
        ({}, {"action": Action.WARN}, "leaving", "action Warn for Enforce"),
        ({}, {"memory": BOUND}, "setting", "memory.max no bound for 8Gi"),
        (
            {"memory": MemoryBounds(max_bytes=9 * GI)},
            {"memory": BOUND},
            "setting",
            "memory.max 9Gi for",
        ),
        ({"memory": BOUND}, {}, "leaving", "memory.max no bound for 8Gi"),
        ({"max_gpu_count": 2}, {"max_gpu_count": 1}, "setting", "gpuCount.max 2 for 1"),
        ({"enforcement": {"by": EnforceBy.NONE}}, {}, "setting", "enforcement.by None for Sidecar"),
        (
            {"enforcement": {"by": EnforceBy.NONE}},
            {"enforcement": {"by": EnforceBy.SENTRY}},
            "setting",
            "enforcement.by None for Sentry",
        ),
        (
            {},
            {"enforcement": {"on_excess": OnExcess.REPORT}},
            "leaving",
            "enforcement.onExcess Report for Stop",
        ),
    ],
)
def test_labels_by_which_tenants_choose_the_laxer_rule_are_warned_of(rule, other, how, what):
    (text,) = said(a_rule(**LABELLED, **rule), a_rule(name="all", **other))
    by = "by setting them" if how == "setting" else "by leaving them out"
    start = 'rule "gold" matches by podLabels, which tenants choose: '
    assert text.startswith(f"{start}{by} a pod gets {what}")
    assert text.endswith(
        'beside rule "all"; match by namespaces or namespaceLabels, which they do not choose'
    )


def test_an_ignored_label_is_a_way_round_any_rule_of_the_same_namespaces():
    ignored = a_rule(**LABELLED, action=Action.IGNORE)
    (text,) = said(ignored, a_rule(name="team", namespaces=("team-*",)))
    assert "any pod may have them and so take action Ignore; match by namespaces" in text
    apart = replace(ignored, match=replace(ignored.match, namespaces=("a-*", "team", "*-x")))
    assert said(apart, a_rule(name="team", namespaces=("team-*z",))) == []
    assert said(ignored, a_rule(name="also", namespaces=("a",), action=Action.IGNORE)) == []


def test_labels_that_allow_as_much_either_way_are_fine():
    assert said(a_rule(**LABELLED, programs=("jax",)), a_rule(name="all")) == []
    assert said(a_rule(**LABELLED)) == []
    by_sentry = a_rule(**LABELLED, enforcement={"by": EnforceBy.SENTRY})
    assert said(by_sentry, a_rule(name="all")) == []


@pytest.mark.parametrize(
    ("rule", "of_class", "warned"),
    [
        (Accounting.CAP_ONLY, None, True),
        (Accounting.VRAM, Accounting.CAP_ONLY, True),
        (Accounting.VRAM, None, False),
        (Accounting.MIG, None, False),
    ],
)
def test_a_cap_that_nobody_holds_is_doubtful(rule, of_class, warned):
    def said(**changes):
        first = a_rule(name="first", where="a.yaml:7", accounting=rule, **changes)
        gpu_class = replace(A100, accounting=of_class)
        return [
            str(warning)
            for warning in policy_warnings(a_policy(first, classes={"a100": gpu_class}))
        ]

    found = said(enforcement={"by": EnforceBy.NONE})
    assert len(found) == warned
    assert all(item.startswith('a.yaml:7: rule "first" holds nobody to') for item in found)
    assert not said()
    assert not said(enforcement={"by": EnforceBy.NONE}, action=Action.IGNORE)
