"""Run a policy's own examples: a pod, and what its author expects of admission.

The decision is the webhook's own, in both phases, so an example proves what a cluster would do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from webhook.core.admission.accounting import counted_bytes, limited
from webhook.core.admission.decide import Decision, Outcome, Phase, Skip, decide
from webhook.core.pod.fields import strings, text
from webhook.core.pod.findings import Finding, MalformedObjectError, quoted, render
from webhook.core.pod.patch import PatchError
from webhook.core.pod.quantity import format_bytes
from webhook.core.pod.request import Request
from webhook.core.pod.views import read_pod
from webhook.core.policy.slices import SlicedNode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from fractions import Fraction

    from webhook.core.pod.fields import Json
    from webhook.core.policy.values import Example, Policy


def run_example(example: Example, policy: Policy) -> tuple[str, ...]:
    """Return in words what differs from the expected result; empty where the example holds."""
    nodes = (SlicedNode(example.mig_profiles),) if example.mig_profiles else ()
    policy = replace(policy, runtime_classes=example.runtime_classes, sliced_nodes=nodes)
    try:
        first = _decide(example, example.pod, policy, Phase.MUTATE)
        last = _decide(example, first.obj, policy, Phase.VALIDATE) if first.allowed else first
    except PatchError as error:
        return (f"vramwarden failed on this pod, which is a bug: {error}",)
    findings = tuple(dict.fromkeys((*first.findings, *last.findings)))
    elsewhere = _other_file(example, first.rule, policy)
    return tuple(found + elsewhere for found in _mismatches(example, first, last, findings))


def _other_file(example: Example, name: str, policy: Policy) -> str:
    """Say that a rule of another file governs the pod, which the example's author cannot see."""
    rule = next((rule for rule in policy.rules if rule.name == name), None)
    if rule is None or not rule.where:
        return ""
    own, others = example.where.rpartition(":")[0], rule.where.rpartition(":")[0]
    if own == others:
        return ""
    why = (
        "matched first: files are read in the order of their names; narrow its match, "
        "or rename a file"
        if others < own
        else "governs the pod, for no rule of this file matches it"
    )
    return f"; rule {rule.name} in {rule.where} {why}"


def _decide(example: Example, pod: Json, policy: Policy, phase: Phase) -> Decision:
    request = Request(
        uid="example",
        kind="Pod",
        operation="CREATE",
        subresource="",
        namespace=example.subject.namespace,
        name=str(pod["metadata"]["name"]),
        dry_run=True,
        obj=pod,
        old={},
        user=example.subject.user,
        groups=example.subject.groups,
    )
    return decide(request, policy, phase)


def _mismatches(
    example: Example, first: Decision, last: Decision, findings: tuple[Finding, ...]
) -> Iterator[str]:
    allowed = first.allowed and last.allowed
    if allowed != example.allowed:
        yield f"wanted allowed: {_yes(example.allowed)}, got {_became(first, last)}"
    if example.reasons is not None:
        reasons = tuple(dict.fromkeys(finding.reason.value for finding in findings))
        if set(reasons) != set(example.reasons):
            said = first.malformed or last.malformed or render(findings)
            wanted, got = ", ".join(example.reasons), ", ".join(reasons)
            yield f"wanted reasons [{wanted}], got [{got}]{': ' * bool(said)}{said}"
    if example.rule is not None and example.rule != first.rule:
        yield f"wanted rule {example.rule}, got {first.rule or 'none'}"
    try:
        yield from _mismatches_of_result(example, last.obj)
    except MalformedObjectError as error:
        expected = (
            example.vram,
            example.resources,
            example.node_selector,
            example.runtime_class_name,
        )
        if any(each is not None for each in expected):
            yield f"the pod cannot be read: {error}"


def _mismatches_of_result(example: Example, pod: Json) -> Iterator[str]:
    if example.vram is not None:
        vram = counted_bytes(read_pod(pod))
        if vram != example.vram:
            got = "an amount that cannot be read" if vram is None else format_bytes(vram)
            yield f"wanted vram {_amount(example.vram)}, got {got}"
    for resource, expected in (example.resources or {}).items():
        amount = limited(read_pod(pod), resource)
        if amount != expected:
            got = "an amount that cannot be read" if amount is None else _amount(amount)
            yield f"wanted resources {resource}: {_amount(expected)}, got {got}"
    if example.node_selector is not None:
        selector = strings(read_pod(pod).spec, "nodeSelector", "spec")
        for key, value in example.node_selector.items():
            if selector.get(key) != value:
                got = quoted(selector[key]) if key in selector else "none"
                yield f"wanted nodeSelector {key}: {quoted(value)}, got {got}"
    if example.runtime_class_name is not None:
        name = text(read_pod(pod).spec, "runtimeClassName", "spec")
        if name != example.runtime_class_name:
            wanted = example.runtime_class_name or "none"
            yield f"wanted runtimeClassName {wanted}, got {name or 'none'}"


def _became(first: Decision, last: Decision) -> str:
    """Say in words what was decided."""
    if not last.allowed:
        by = f" by rule {last.rule}" if last.rule else ""
        return f"denied{by}: {last.message}"
    words = {
        Outcome.MUTATED: f"allowed (mutated by rule {first.rule})",
        Outcome.WARNED: f"allowed (with warnings, by rule {first.rule})",
        Outcome.AUDITED: f"allowed (recorded by rule {first.rule})",
        Outcome.SKIPPED: "allowed (no rule matches)",
    }
    if first.skip is Skip.RULE_IGNORES:
        return f"allowed (ignored by rule {first.rule})"
    return words.get(first.outcome, f"allowed (unchanged, by rule {first.rule})")


def _amount(wanted: Fraction) -> str:
    return format_bytes(int(wanted)) if wanted.denominator == 1 else str(wanted)


def _yes(value: bool) -> str:
    return "true" if value else "false"
