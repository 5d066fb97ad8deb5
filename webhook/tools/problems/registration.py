"""Problems of the webhook's registration with the API server and of its certificates."""

from __future__ import annotations

from typing import Final

from webhook.core.formatting import format_count, join_names
from webhook.tools.problems.installation import logs_command, upgrade_command
from webhook.tools.problems.problem import Code, Finding, Problem, Severity
from webhook.tools.snapshot.installation import Installation
from webhook.tools.snapshot.release import MUTATING, VALIDATING

EXPECTED: Final = {
    (MUTATING, "mutate.vramwarden.io"): "Fail",
    (MUTATING, "advise.vramwarden.io"): "Ignore",
    (MUTATING, "bind.vramwarden.io"): "Ignore",
    (VALIDATING, "validate.vramwarden.io"): "Fail",
    (VALIDATING, "advise.vramwarden.io"): "Ignore",
}
"""`failurePolicy` of the chart's webhooks, keyed by configuration kind and webhook name."""
SOON_DAYS: Final = 7
"""Days before expiry at which the alert `VramwardenCertificateExpires` fires."""
ROTATE_DAYS: Final = 365
"""Days before expiry at which `VramwardenCAExpires` fires. Only `certs rotate` replaces a CA."""


def check_registration(installation: Installation) -> Finding:
    """Check the webhook configurations, and that no other webhook changes pods after vramwarden.

    | vramwarden's webhooks | `failurePolicy` | another webhook sorts after them | problem |
    | --- | --- | --- | --- |
    | also in a configuration of another name | any | any | error |
    | one is missing | any | any | error |
    | all | Fail in place of Ignore | any | error |
    | all | Ignore in place of Fail | any | warning |
    | all | as the chart has it | yes | warning |
    | all | as the chart has it | no | none |
    """
    hooks, restore = installation.own_webhooks, upgrade_command(installation)
    release = installation.attempt(lambda: installation.webhook)
    current = release.option("webhook-configuration") if release else ""
    code = Code.NOT_REGISTERED
    old = sorted({hook.configuration for hook in hooks} - {current})
    if current and old:
        why = (
            f"left from an earlier webhook.configurationName, without a CA kept: {join_names(old)}"
        )
        kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
        return [Problem(code, Severity.ERROR, why, f"`kubectl delete {kinds} {' '.join(old)}`")]
    policies = {(hook.kind, hook.name): hook.failure_policy for hook in hooks}
    missing = sorted(f"{name} ({kind})" for kind, name in EXPECTED if (kind, name) not in policies)
    if missing:
        why = f"not registered with the API server: {join_names(missing)}"
        return [Problem(code, Severity.ERROR, why, restore)]
    expected = {key: EXPECTED.get(key, "Ignore") for key in policies}
    strict = sorted(key[1] for key in policies if policies[key] == "Fail" != expected[key])
    if strict:
        why = (
            f"{join_names(strict)} has failurePolicy Fail, so pods without VRAM wait for vramwarden"
        )
        return [Problem(code, Severity.ERROR, why, restore)]
    lax = sorted(key[1] for key in EXPECTED if policies[key] != "Fail" == expected[key])
    if lax:
        why = (
            f"{join_names(lax)} has failurePolicy Ignore: while no replica answers, only the fence "
        )
        why += "denies pods that were not translated"
        fix = "set webhook.failurePolicy to Fail"
        return [Problem(code, Severity.WARNING, why, fix)]
    if later := installation.later_configurations:
        why = (
            f"{join_names(later)} changes new pods after vramwarden: a demand added there is denied"
        )
        fix = "set webhook.configurationName to a name that sorts after these"
        return [Problem(Code.LATER_WEBHOOK, Severity.WARNING, why, fix)]
    count = format_count(len(policies), "webhook")
    return f"{count} are registered, and no other changes pods after them"


def check_bind_path(installation: Installation) -> Finding:
    """Check that a replica has set the path for bindings, and that replicas have a key.

    | path of `bind.vramwarden.io` | Secret `vramwarden-key` | problem |
    | --- | --- | --- |
    | any | missing | warning; error if the path is empty |
    | empty | there, or unknown | error |
    | written | there | none |
    """
    hooks = [
        own_webhook
        for own_webhook in installation.own_webhooks
        if own_webhook.name == "bind.vramwarden.io"
    ]
    namespace, is_empty = installation.namespace, any(not hook.path.strip("/") for hook in hooks)
    has_key = installation.attempt(lambda: installation.has_key)
    late = "no replica has written the path for bindings, so pods get their GPU late"
    severity = Severity.ERROR if is_empty else Severity.WARNING
    if has_key is False:
        why = "there is no Secret vramwarden-key: "
        why += late if is_empty else "the webhook's token suffices to forge what the fence reads"
        fix = f"`kubectl -n {namespace} create secret generic vramwarden-key "
        fix += '--from-literal=key="$(openssl rand -hex 32)"`, then '
        fix += f"`kubectl -n {namespace} rollout restart deployment vramwarden-webhook`"
        return [Problem(Code.NO_BIND_PATH, severity, why, fix)]
    if is_empty:
        return [Problem(Code.NO_BIND_PATH, severity, late, logs_command(namespace))]
    if not hooks or not installation.has_key:  # raises FactUnavailable if the key is unknown
        return None
    return "the path for bindings is written, and the replicas have their key"


def check_ca_bundle(installation: Installation) -> Finding:
    """Check that the API server trusts the webhook's certificate, and for how many days.

    | caBundle | is of the webhook's certificate | days left | problem |
    | --- | --- | --- | --- |
    | empty or unreadable | any | any | error |
    | readable | no | any | error |
    | readable | yes or unknown | none | error |
    | readable | yes or unknown | up to 7 | warning |
    | readable | yes or unknown | up to 365, in mode `self` | warning |
    | readable | yes or unknown | more | none |
    """
    hooks, code = installation.own_webhooks, Code.CERTIFICATE
    if not hooks:
        return None  # `check_registration` reports it
    trusted = {f"{hook.name} ({hook.kind})": installation.ca_days_left(hook) for hook in hooks}
    days_left = [days for days in trusted.values() if days is not None]
    fix = f"in mode `self` a replica restores it: {logs_command(installation.namespace)}; "
    fix += "else write it again"
    if unreadable := [name for name, days in trusted.items() if days is None]:
        why = f"caBundle of {join_names(sorted(unreadable))} has no readable certificate"
        return [Problem(code, Severity.ERROR, why, fix)]
    if other_ca := [f"{hook.name} ({hook.kind})" for hook in hooks if installation.lacks_ca(hook)]:
        why = f"caBundle of {join_names(sorted(other_ca))} holds another CA than the certificate's"
        return [Problem(code, Severity.ERROR, why, fix)]
    release = installation.attempt(lambda: installation.webhook)
    own_secret = release.option("cert-secret") if release else ""
    if own_secret:
        fix = f"`vramwarden certs rotate --secret {own_secret}` makes another"
    days = min(days_left)
    problems = find_expiry("the webhook's CA", days, ROTATE_DAYS if own_secret else SOON_DAYS, fix)
    return (
        problems
        or f"the API server trusts the webhook, by a CA for {format_count(int(days), 'day')}"
    )


def check_certificate(installation: Installation) -> Finding:
    """Check that the webhook's certificate is readable and does not expire soon."""
    if installation.certificate is None:
        return None
    what, days = f"Secret {installation.certificate.title}", installation.certificate.days_left
    fix = f"in mode `self` the replicas renew it: {logs_command(installation.namespace)}; "
    fix += "else renew it"
    if days is None:
        why = f"{what} has no readable certificate"
        return [Problem(Code.CERTIFICATE, Severity.ERROR, why, fix)]
    what = f"the certificate in {what}"
    problems = find_expiry(what, days, SOON_DAYS, fix)
    return problems or f"{what} is valid for {format_count(int(days), 'day')}"


def find_expiry(what: str, days: float, soon_days: int, fix: str) -> list[Problem]:
    """Return a problem if a certificate has expired or expires within `soon_days`."""
    if days > soon_days:
        return []
    severity = Severity.WARNING if days > 0 else Severity.ERROR
    when = f"expires in {format_count(int(days), 'day')}" if days > 0 else "has expired"
    return [Problem(Code.CERTIFICATE, severity, f"{what} {when}", fix)]
