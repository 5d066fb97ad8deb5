"""Rules that do not govern the pods which their author probably means: `policy check` warns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from webhook.core.admission.creators import CONTROLLERS, controllers_of
from webhook.core.policy.match import Match, Subject
from webhook.core.policy.values import Action

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.core.policy.values import Policy, Rule


def overlooked(policy: Policy) -> Iterator[str]:
    """Yield a warning for each rule that restricts people and not what controllers make for them.

    | a rule | its users and groups | warning |
    | --- | --- | --- |
    | Enforce, Warn or Audit | are met by the controllers of Deployments, Jobs, ... | no |
    | Enforce, Warn or Audit | are met by none of those | yes |
    | Ignore | - | no: such a pod is left to stricter rules |
    | any | are not asked for | no |
    """
    for rule in policy.rules:
        if rule.action is not Action.IGNORE and _overlooks_controllers(rule):
            where = f"{rule.where}: " if rule.where else ""
            yield (
                f"{where}rule {rule.name}: the pods of Deployments, Jobs and the like are created "
                "by a controller, which its users and groups leave out; use namespaceLabels or "
                "serviceAccounts for them, in a rule of their own"
            )


def _overlooks_controllers(rule: Rule) -> bool:
    asks = Match(users=rule.match.users, groups=rule.match.groups)
    subject = Subject("")
    return asks.asks_who and not any(
        asks.holds(replace(subject, user=one.user, groups=one.groups))
        for kind in CONTROLLERS
        for one in controllers_of(kind)
    )
