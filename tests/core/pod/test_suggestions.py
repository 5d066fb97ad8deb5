"""Suggestions are computed from bounds, within a work budget."""

import pytest

from tests.core.admission.decisions import decide_pod, decide_update, stored_pod
from tests.core.admission.test_suggested_lines import PODS, POLICIES, judged
from tests.support.pods import a_container, a_pod, a_rule
from webhook.core.admission import decide as decisions
from webhook.core.admission.rules import case, changes
from webhook.core.pod import suggestions
from webhook.core.pod.quantity import QuantityError, parse_vram
from webhook.core.pod.suggestions import AmountBounds, Suggestions
from webhook.core.pod.views import read_pod
from webhook.core.policy.model import MemoryBounds

GI = 2**30
VRAM = "vramwarden.io/vram"


def error_of(text):
    with pytest.raises(QuantityError) as caught:
        parse_vram(text)
    return caught.value


def suggested(text, most=None, least=None, others=()):
    """Return the sentence and the suggested amount for one container's malformed amount."""
    names = ["main", *(name for name, _ in others)]
    pod = read_pod(a_pod(containers=[a_container(name) for name in names]))
    bounds = [AmountBounds('rule "r"', least, most)]
    return Suggestions(pod.containers, bounds).describe_malformed(
        error_of(text), lambda amount: {**dict(others), "main": amount}
    )


@pytest.mark.parametrize(
    ("text", "bounds", "sentence", "amount"),
    [
        ("8GB", {}, "is not a Kubernetes quantity; use 8G or 8Gi", "8G"),
        ("8GB", {"most": 7630 * 2**20}, "is not a Kubernetes quantity; use 8G", "8G"),
        (
            "8GB",
            {"most": 4 * GI},
            (
                "is not a Kubernetes quantity; 8G would be denied: asks for 7630Mi per GPU; "
                'rule "r" allows at most 4Gi; write e.g. 4Gi'
            ),
            "4Gi",
        ),
        ("", {"least": 16 * GI}, "is blank; write a size, e.g. 16Gi", "16Gi"),
        (
            "",
            {"most": 8 * GI, "others": [("side", 6 * GI)]},
            "is blank; write a size, e.g. 1Gi",
            "1Gi",
        ),
        ("", {"most": GI, "others": [("side", GI)]}, "is blank; write a size", ""),
    ],
)
def test_a_suggestion_fits_the_bounds_and_the_other_amounts(text, bounds, sentence, amount):
    assert suggested(text, **bounds) == (sentence, amount)


def wrong_lists(count):
    names = [f"c{number}" for number in range(count)]
    memory = ",".join(f"{name}=8GB" for name in names)
    return a_pod(memory, containers=[a_container(name) for name in names])


def test_beyond_the_budget_the_verdict_is_the_same_without_suggestions(monkeypatch):
    rule = a_rule(memory=MemoryBounds(max_bytes=400 * GI))
    helped = decide_pod(wrong_lists(16), rule)
    monkeypatch.setattr(suggestions, "WORK_BUDGET", 0)
    spent = decide_pod(wrong_lists(16), rule)
    assert [(finding.reason, finding.path) for finding in spent.findings] == [
        (finding.reason, finding.path) for finding in helped.findings
    ]
    assert all("; use 8G" in finding.detail for finding in helped.findings)
    assert all(finding.detail.endswith("; write a size") for finding in spent.findings)


def test_a_pod_of_many_wrong_amounts_spends_the_budget_and_no_more(monkeypatch):
    added = []
    real = suggestions.effective_amount

    def counting(containers, amounts, zero):
        added.append(len(containers) + len(amounts))
        return real(containers, amounts, zero)

    monkeypatch.setattr(suggestions, "effective_amount", counting)
    limits = {"limits": {VRAM: "8GB"}, "requests": {VRAM: "9GB"}}
    containers = [a_container(f"c{number}", resources=limits) for number in range(256)]
    assert decide_pod(a_pod(containers=containers)).findings
    assert 0 < sum(added) <= suggestions.WORK_BUDGET


@pytest.fixture(name="readings")
def counted_readings(monkeypatch):
    """Count the reads of a demand: each judgment of a pod reads its demand once."""
    found = []
    real = case.new_case

    def counting(pod, *arguments, **options):
        found.append(pod)
        return real(pod, *arguments, **options)

    for module in (decisions, changes):
        monkeypatch.setattr(module, "new_case", counting)
    return found


def test_a_creation_is_judged_at_most_twice_whatever_is_suggested(readings):
    """The second read is for all suggestions together, the third for a share instead of a GPU."""
    for pod in PODS.values():
        for name, policy in POLICIES.items():
            readings.clear()
            judged(pod, policy)
            assert len(readings) <= (3 if name == "a share for a GPU" else 2)


def test_an_update_of_many_amounts_judges_the_new_pod_once(readings):
    names = [a_container(f"c{number}") for number in range(32)]
    old = stored_pod(pod=a_pod("c0=1Gi", containers=names))
    readings.clear()
    new = a_pod(
        containers=[
            a_container(f"c{number}", resources={"limits": {VRAM: "8 GB"}}) for number in range(32)
        ]
    )
    decision = decide_update(old, new)
    assert len([finding for finding in decision.findings if finding.reason == "Immutable"]) >= 32
    assert len(readings) == 1
