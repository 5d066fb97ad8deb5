"""From what was seen to facts: what takes the packages for certificates and policies to read."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from certs import Bundle, describe, holds
from webhook.adapters.policy.files import PolicyInvalidError, load_config_map, shipped_policy_path
from webhook.adapters.policy.objects import policy_text
from webhook.core.policy.fence import fence_data
from webhook.core.policy.values import Accounting, EnforceBy, Rollout
from webhook.tools.check.judge.facts import Authorities, Certificate, PolicyFacts, Workload
from webhook.tools.shared.facts import Unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.core.policy.values import Policy
    from webhook.tools.check.judge.facts import Facts
    from webhook.tools.check.read import RawFacts

_ANOTHER_VERSION: Final = Unreadable(
    "this command and the release are of different versions, and read policies differently"
)


def completed(raw: RawFacts, *, pre: bool) -> Facts:
    """Return all facts; where nothing is installed the policy is the shipped one."""
    facts = raw.facts
    if pre or facts.webhook is None:
        shipped = shipped_policy_path()
        return replace(facts, policy=_policy({shipped.name: shipped.read_text()}, (), None, facts))
    webhook = None if isinstance(facts.webhook, Unreadable) else facts.webhook
    files = raw.policies
    return replace(
        facts,
        policy=_policy(files, raw.objects, webhook, facts),
        authorities=_authorities(raw, facts.now_s),
        certificate=_certificate(raw, facts.now_s),
    )


def _policy(
    files: Mapping[str, str] | Unreadable | None,
    objects: tuple[tuple[str, bytes], ...] | Unreadable,
    webhook: Workload | None,
    facts: Facts,
) -> PolicyFacts | Unreadable | None:
    if isinstance(files, Unreadable) or files is None:
        return files
    if isinstance(objects, Unreadable):
        return objects
    image = webhook.option("enforcer-image") if webhook else ""
    comparable = webhook is not None and webhook.version == facts.command
    where = f"{facts.namespace}/vramwarden-policies"
    try:
        beside = [policy_text(name, data) for name, data in objects]
        policy = load_config_map(files, where, beside, enforcer_image=image)
    except PolicyInvalidError as error:
        if webhook is not None and not comparable:
            return _ANOTHER_VERSION
        return PolicyFacts(problems=tuple(map(str, error.problems)))
    rollout = webhook.option("rollout") if webhook else ""
    known = rollout in tuple(Rollout)
    fence = fence_data(policy, Rollout(rollout)) if comparable and known else {}
    return _facts_of(policy, image, fence)


def _facts_of(policy: Policy, image: str, fence: Mapping[str, str]) -> PolicyFacts:
    held = [rule for rule in policy.rules if rule.enforcement.by is EnforceBy.SIDECAR]
    given = (policy.rules, policy.classes.values())
    return PolicyFacts(
        rules=len(policy.rules),
        digest=policy.short_digest,
        comparable=bool(fence),
        pinned=tuple(
            (rule.name, rule.enforcement.image) for rule in held if rule.enforcement.image != image
        ),
        restarts=tuple(rule.name for rule in held if rule.enforcement.restarts_pod),
        tolerations=tuple(one for owners in given for owner in owners for one in owner.tolerations),
        fence=fence,
        slots=tuple(
            (rule.name, rule.time_sliced_resource)
            for rule in policy.rules
            if rule.accounting is Accounting.CAP_ONLY
        ),
    )


def _authorities(raw: RawFacts, now_s: float) -> tuple[Authorities, ...] | Unreadable:
    if isinstance(raw.bundles, Unreadable):
        return raw.bundles
    files = raw.secret[1] if isinstance(raw.secret, tuple) else {}
    served = Bundle.from_files(files)
    now = datetime.fromtimestamp(now_s, UTC)
    return tuple(_authority(name, pem, served, now) for name, pem in raw.bundles)


def _authority(name: str, pem: bytes, served: Bundle, now: datetime) -> Authorities:
    found = describe(Bundle(ca_pem=pem), now).authorities
    if not found:
        what = "holds no readable certificate" if pem.strip() else "is empty"
        return Authorities(name, f"caBundle {what}")
    days = max(one.days_left for one in found)
    return Authorities(name, days_left=days, trusts=holds(pem, served) if served.ca_pem else None)


def _certificate(raw: RawFacts, now_s: float) -> Certificate | Unreadable | None:
    if raw.secret is None or isinstance(raw.secret, Unreadable):
        return raw.secret
    title, files = raw.secret
    serving = describe(Bundle.from_files(files), datetime.fromtimestamp(now_s, UTC)).serving
    if serving is None:
        return Certificate(title, "there is no readable certificate in it")
    return Certificate(title, days_left=serving.days_left)
