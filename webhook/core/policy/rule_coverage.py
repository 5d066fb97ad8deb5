"""Warnings about a policy, shown by `policy check` and in the webhook's log.

The warnings concern rules that apply to no pod, rules that tenants can avoid, and caps that are not
enforced. Only provable warnings are reported, so there are no false positives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from webhook.core.pod.quantity import format_bytes
from webhook.core.policy.match import Match, matches_any
from webhook.core.policy.model import Accounting, Action, EnforceBy, OnExcess, Policy, Rule


class PolicyWarning(NamedTuple):
    """Property of a rule that its author probably did not intend."""

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


def rule_warnings(rules: Sequence[Rule]) -> Iterator[PolicyWarning]:
    """Yield the warnings about rules, in rule order."""
    for index, rule in enumerate(rules):
        before = _find_covering(rule.match, rules[:index])
        if before:
            shown = " and ".join(f'"{item.name}"{_format_location(item)}' for item in before)
            verb = "match" if len(before) > 1 else "matches"
            yield PolicyWarning(
                rule.where,
                f'rule "{rule.name}" applies to no pod: {shown} {verb} all of its pods before it; '
                "move it up, or narrow what stands before it",
            )
        elif rule.match.pod_labels:
            yield from _label_warnings(rule, rules[index + 1 :])


def covers(wide: Match, narrow: Match) -> bool:
    """Return True if every pod that meets `narrow` provably meets `wide`.

    | criterion | condition |
    | --- | --- |
    | patterns of names | each pattern of `narrow` is covered by one of `wide` |
    | labels | the labels of `wide` are a subset of those of `narrow` |
    | exception | `narrow` excludes all pods that `wide` excludes |

    A star in a pattern is compared as a character that only a star matches. Then a pattern matches
    another pattern exactly if it matches all names that the other pattern matches.
    """
    return (
        _covers_names(wide.namespaces, narrow.namespaces)
        and _covers_names(wide.service_accounts, narrow.service_accounts)
        and wide.pod_labels.items() <= narrow.pod_labels.items()
        and wide.namespace_labels.items() <= narrow.namespace_labels.items()
        and (
            wide.exception is None
            or (narrow.exception is not None and covers(narrow.exception, wide.exception))
        )
    )


def _covers_names(wide: tuple[str, ...], narrow: tuple[str, ...]) -> bool:
    return not wide or all(matches_any(pattern, wide) for pattern in narrow or ("*",))


def _find_covering(match: Match, rules: Sequence[Rule]) -> list[Rule]:
    """Return rules that together provably match all pods of a match, or an empty list."""
    found: dict[str, Rule] = {}
    for pattern in match.namespaces or ("*",):
        part = replace(match, namespaces=(pattern,))
        covering = next((rule for rule in rules if covers(rule.match, part)), None)
        if covering is None:
            return []
        found[covering.name] = covering
    return list(found.values())


def _label_warnings(rule: Rule, after: Sequence[Rule]) -> Iterator[PolicyWarning]:
    """Yield warnings if tenants can get more permissions by choosing a pod's labels.

    | the rule with podLabels | the rule for the same pods without them | warning |
    | --- | --- | --- |
    | ignores, warns or audits | unknown, but a stricter one follows | setting the label avoids it |
    | | allows less | setting the label avoids it |
    | | allows more | leaving out the label avoids the rule |
    | | allows the same | none |
    """
    unlabelled = replace(rule.match, pod_labels={})
    other = next((item for item in after if covers(item.match, unlabelled)), None)
    cure = "match by namespaces or namespaceLabels, which they do not choose"
    if other is None:
        if any(
            _RANKS[item.action] > _RANKS[rule.action] and _may_overlap(item.match, rule.match)
            for item in after
        ):
            yield PolicyWarning(
                rule.where,
                f'rule "{rule.name}" matches by podLabels, which tenants choose: any pod may have '
                f"them and so take action {rule.action}; {cure}",
            )
        return
    more, less = [*_extra_permissions(rule, other)], [*_extra_permissions(other, rule)]
    for allowed, how in ((more, "by setting them"), (less, "by leaving them out")):
        if allowed:
            yield PolicyWarning(
                rule.where,
                f'rule "{rule.name}" matches by podLabels, which tenants choose: {how} a pod gets '
                f'{", ".join(allowed)}, beside rule "{other.name}"'
                f"{_format_location(other)}; {cure}",
            )


def _may_overlap(match: Match, other: Match) -> bool:
    """Return False if two matches provably have no namespace in common."""
    return any(
        _patterns_may_overlap(namespace, two)
        for namespace in match.namespaces or ("*",)
        for two in other.namespaces or ("*",)
    )


def _patterns_may_overlap(one: str, two: str) -> bool:
    if "*" not in one or "*" not in two:
        return matches_any(one, (two,)) or matches_any(two, (one,))
    head, other_head = one.partition("*")[0], two.partition("*")[0]
    tail, other_tail = one.rpartition("*")[2], two.rpartition("*")[2]
    return (head.startswith(other_head) or other_head.startswith(head)) and (
        tail.endswith(other_tail) or other_tail.endswith(tail)
    )


_RANKS: Final = {Action.IGNORE: 0, Action.AUDIT: 1, Action.WARN: 2, Action.ENFORCE: 3}


def _extra_permissions(rule: Rule, other: Rule) -> Iterator[str]:
    """Yield the policy fields whose permissions only `rule` gives."""
    if _RANKS[rule.action] < _RANKS[other.action]:
        yield f"action {rule.action} for {other.action}"
    if Action.IGNORE in {rule.action, other.action}:
        return
    most, others = rule.memory.max_bytes, other.memory.max_bytes
    if others is not None and (most is None or most > others):
        amount = "no bound" if most is None else format_bytes(most)
        yield f"memory.max {amount} for {format_bytes(others)}"
    count, others_count = rule.max_gpu_count, other.max_gpu_count
    if others_count is not None and (count is None or count > others_count):
        yield f"gpuCount.max {'no bound' if count is None else count} for {others_count}"
    held, others_held = rule.enforcement, other.enforcement
    if held.by is not others_held.by and held.by is EnforceBy.NONE:
        yield f"enforcement.by {held.by} for {others_held.by}"
    if held.on_excess is not others_held.on_excess and held.on_excess is OnExcess.REPORT:
        yield f"enforcement.onExcess {held.on_excess} for {others_held.on_excess}"


def _format_location(rule: Rule) -> str:
    return f" in {rule.where}" if rule.where else ""


def policy_warnings(policy: Policy) -> Iterator[PolicyWarning]:
    """Yield all warnings about a policy."""
    yield from rule_warnings(policy.rules)
    yield from _cap_warnings(policy)


def _cap_warnings(policy: Policy) -> Iterator[PolicyWarning]:
    """Yield a warning for each rule whose pods have no enforced cap and no reserved memory.

    | accounting of the rule or of a class that it allows | enforcement.by | warning |
    | --- | --- | --- |
    | CapOnly | None | yes, unless the rule ignores its pods |
    | CapOnly | Sidecar | no |
    | CapOnly | Sentry | such a policy is invalid |
    | VRAM: the scheduler counts it; MIG: the GPU divides it | any | no |
    """
    for rule in policy.rules:
        holds = rule.action is Action.IGNORE or rule.enforcement.by is not EnforceBy.NONE
        if not holds and Accounting.CAP_ONLY in policy.accountings_for(rule):
            yield PolicyWarning(
                rule.where,
                f'rule "{rule.name}" holds nobody to the memory asked for: accounting CapOnly is a '
                "cap alone, and enforcement.by None leaves it out; write enforcement.by: Sidecar",
            )
