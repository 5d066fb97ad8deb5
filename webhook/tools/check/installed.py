"""What takes the packages for certificates and policies to read: facts of files."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from certs import Bundle, describe, holds
from webhook.adapters.policy.files import PolicyInvalidError, load_config_map, shipped_policy_path
from webhook.core.policy.fence import fence_data
from webhook.core.policy.match import NamespaceUnknownError, Subject
from webhook.core.policy.values import Action, Rollout
from webhook.tools.check.judge.facts import Certificate, OwnWorkload, PolicyFacts
from webhook.tools.snapshot.objects import Unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.core.policy.values import Policy
    from webhook.tools.check.judge.facts import Facts, OurWebhook

    Secret = tuple[str, Mapping[str, bytes]]
    """Name and files of the Secret with our certificate, without keys."""

_ANOTHER_VERSION: Final = Unreadable(
    "this command and the release are of different versions, and read policies differently"
)


def shipped_policy(facts: Facts) -> PolicyFacts | Unreadable | None:
    """Read the policy that counts where nothing is installed."""
    shipped = shipped_policy_path()
    return read_policy({shipped.name: shipped.read_text()}, facts)


def read_policy(
    files: Mapping[str, str] | Unreadable | None, facts: Facts
) -> PolicyFacts | Unreadable | None:
    """Read the files of a release's policy; return None if there is no ConfigMap."""
    if isinstance(files, Unreadable) or files is None:
        return files
    webhook = facts.webhook if isinstance(facts.webhook, OwnWorkload) else None
    image = webhook.option("enforcer-image") if webhook else ""
    comparable = webhook is not None and webhook.version == facts.command
    where = f"{facts.namespace}/vramwarden-policies"
    try:
        policy = load_config_map(files, where, enforcer_image=image)
    except PolicyInvalidError as error:
        if webhook is not None and not comparable:
            return _ANOTHER_VERSION
        return PolicyFacts(problems=tuple(map(str, error.problems)))
    rollout = webhook.option("rollout") if webhook else ""
    known = rollout in tuple(Rollout)
    fence = fence_data(policy, Rollout(rollout)) if comparable and known else {}
    return _facts_of(policy, fence, facts)


def _facts_of(policy: Policy, fence: Mapping[str, str], facts: Facts) -> PolicyFacts:
    validators = () if isinstance(facts.validators, Unreadable) else sorted(facts.validators)
    given = (policy.rules, policy.classes.values())
    return PolicyFacts(
        rules=len(policy.rules),
        digest=policy.short_digest,
        tried_by=_tried_by(policy, facts.test_namespace),
        validated=tuple(
            name for name in validators if _tried_by(policy, name)[1] not in {"", Action.IGNORE}
        ),
        tolerations=tuple(one for owners in given for owner in owners for one in owner.tolerations),
        enforcers=frozenset(
            rule.of_class(None).enforcement.by
            for rule in policy.rules
            if rule.action is not Action.IGNORE
        ),
        fence=fence,
    )


def _tried_by(policy: Policy, namespace: str) -> tuple[str, str]:
    try:
        rule = policy.rule_for(Subject(namespace=namespace, namespace_labels=None))
    except NamespaceUnknownError:
        return "", ""
    return (rule.name, rule.action.value) if rule else ("", "")


def read_authorities(
    hooks: tuple[OurWebhook, ...] | Unreadable,
    secret: Secret | Unreadable | None,
    now_s: float,
) -> tuple[Certificate, ...] | Unreadable:
    """Read the caBundle of each of our webhooks, by its name, for the certificate in a Secret."""
    if isinstance(hooks, Unreadable):
        return hooks
    served = Bundle.from_files(secret[1] if isinstance(secret, tuple) else {})
    now = datetime.fromtimestamp(now_s, UTC)
    return tuple(_authority(hook, served, now) for hook in hooks)


def _authority(hook: OurWebhook, served: Bundle, now: datetime) -> Certificate:
    name, pem = f"{hook.name} ({hook.kind})", hook.ca_pem
    found = describe(Bundle(ca_pem=pem), now).authorities
    if not found:
        what = "holds no readable certificate" if pem.strip() else "is empty"
        return Certificate(name, f"caBundle {what}")
    days = max(one.days_left for one in found)
    return Certificate(name, days_left=days, trusts=holds(pem, served) if served.ca_pem else None)


def read_certificate(
    secret: Secret | Unreadable | None, now_s: float
) -> Certificate | Unreadable | None:
    """Read the certificate that the webhook is served with; None where it has none."""
    if secret is None or isinstance(secret, Unreadable):
        return secret
    title, files = secret
    serving = describe(Bundle.from_files(files), datetime.fromtimestamp(now_s, UTC)).serving
    if serving is None:
        return Certificate(title, "there is no readable certificate in it")
    return Certificate(title, days_left=serving.days_left)
