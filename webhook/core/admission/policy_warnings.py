"""All that `policy check` and the webhook's log warn of: what authors of a policy rarely mean."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from webhook.core.admission.creators import CONTROLLERS, controllers_of
from webhook.core.policy import reach
from webhook.core.policy.match import Match, Subject
from webhook.core.policy.reach import PolicyWarning
from webhook.core.policy.values import Accounting, Action, EnforceBy, Policy, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator


def policy_warnings(policy: Policy) -> Iterator[PolicyWarning]:
    """Yield what is doubtful about a policy."""
    yield from reach.rule_warnings(policy.rules)
    yield from _overlooked(policy)
    yield from _unheld(policy)


def _unheld(policy: Policy) -> Iterator[PolicyWarning]:
    """Yield each rule whose pods have a cap that nobody holds and memory that nobody promises.

    | accounting, of the rule or a class that it allows | enforcement.by | warning |
    | --- | --- | --- |
    | CapOnly | None | yes, unless the rule ignores its pods |
    | CapOnly | Sidecar | no |
    | VRAM: the scheduler counts it; MIG: the GPU divides it | either | no |
    """
    for rule in policy.rules:
        holds = rule.action is Action.IGNORE or rule.enforcement.by is not EnforceBy.NONE
        if not holds and Accounting.CAP_ONLY in policy.accountings_of(rule):
            yield PolicyWarning(
                rule.where,
                f'rule "{rule.name}" holds nobody to the memory asked for: accounting CapOnly is a '
                "cap alone, and enforcement.by None leaves it out; write enforcement.by: Sidecar",
            )


def _overlooked(policy: Policy) -> Iterator[PolicyWarning]:
    """Yield each rule that restricts people and not what controllers make for them.

    | a rule | its users and groups | warning |
    | --- | --- | --- |
    | Enforce, Warn or Audit | are met by the controllers of Deployments, Jobs, ... | no |
    | Enforce, Warn or Audit | are met by none of those | yes |
    | Ignore | - | no: such a pod is left to stricter rules |
    | any | are not asked for | no |
    """
    for rule in policy.rules:
        if rule.action is not Action.IGNORE and _overlooks_controllers(rule):
            yield PolicyWarning(
                rule.where,
                f'rule "{rule.name}" governs no pods of Deployments, Jobs and the like: a '
                "controller creates them, which its users and groups leave out; use "
                "namespaceLabels or serviceAccounts for them, in a rule of their own",
            )


def _overlooks_controllers(rule: Rule) -> bool:
    asks = Match(users=rule.match.users, groups=rule.match.groups)
    subject = Subject("")
    return asks.asks_who and not any(
        asks.holds(replace(subject, user=one.user, groups=one.groups))
        for kind in CONTROLLERS
        for one in controllers_of(kind)
    )
