"""Whether the webhook is there, is trusted, answers, and follows its policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.policy.values import Action
from webhook.core.words import counted
from webhook.tools.check.judge.facts import OwnWorkload, PolicyFacts
from webhook.tools.check.judge.findings import (
    CheckFinding,
    failed,
    named,
    ok,
    warning,
)
from webhook.tools.snapshot.objects import Unreadable, known

if TYPE_CHECKING:
    from webhook.tools.check.judge.facts import Facts

MUTATING: Final = "MutatingWebhookConfiguration"
VALIDATING: Final = "ValidatingWebhookConfiguration"
EXPECTED: Final = {
    (MUTATING, "mutate.vramwarden.io"): "Fail",
    (MUTATING, "advise.vramwarden.io"): "Ignore",
    (MUTATING, "bind.vramwarden.io"): "Ignore",
    (VALIDATING, "validate.vramwarden.io"): "Fail",
    (VALIDATING, "advise.vramwarden.io"): "Ignore",
}
"""The chart's webhooks and their `failurePolicy`; of those that are not listed, it is `Ignore`."""
SOON_DAYS: Final = 7
"""As the alert `VramwardenCertificateExpires`."""
ROTATE_DAYS: Final = 365
"""As the alert `VramwardenCAExpires`: only `certs rotate` replaces a CA of mode `self`."""
_OURS: Final = " denied the request: "
_UNREACHED: Final = "failed calling webhook"
_BY_SECOND_LINE: Final = "vramwarden-second-line"
_INSTALL: Final = (
    "install it (deploy/install.md#install in the documentation): `helm install vramwarden CHART "
    "--namespace {} --create-namespace --set image.repository=IMAGE,enforcer.repository=SIDECAR`"
)
_UPGRADE: Final = "`helm upgrade vramwarden CHART --namespace {} --reset-then-reuse-values"
_SAME_CHART: Final = "`, with the CHART of `helm install`"
_MEANT: Final = "see whether that is meant"
_ANOTHER: Final = "; --test-namespace names another namespace"
_BY_POLICY: Final = (
    "its rule only records or warns, no rule applies to it, or the namespace is exempt"
)
_SEE_POLICY: Final = "ask who may read the policy which it is"
_CAUSES: Final = (
    ("signed by unknown authority", "the API server does not trust its certificate",
     "see ca-bundle above; in mode `self` a replica restores it within a second"),
    ("certificate has expired", "its certificate has expired",
     "in mode `self` see the replicas' log; else renew it"),
    ("no endpoints available", "no replica is ready",
     "`kubectl -n {} get pods -l app.kubernetes.io/component=webhook`"),
    ("connection refused", "nobody listens where its Service leads",
     "`kubectl -n {} get pods,endpointslices`"),
    ("deadline exceeded", "it does not answer in time",
     "let the API server reach port 8443 of its pods, past firewalls and NetworkPolicies"),
    ("not found", "its Service is gone", _UPGRADE + _SAME_CHART),
)  # fmt: skip
"""What an API server says where it does not reach a webhook, what that means, and what to do."""


def upgrade(facts: Facts, *values: str) -> str:
    """Return the command that restores what the chart wrote, with these values."""
    options = "".join(f" --set {value}" for value in values)
    return f"{_UPGRADE.format(facts.namespace)}{options}{_SAME_CHART}"


def release(facts: Facts) -> CheckFinding:
    """There is a release of ours.

    | Deployment `vramwarden-webhook` | result |
    | --- | --- |
    | there | ok |
    | missing | failed |
    """
    found = known(facts.webhook)
    if found is None:
        why = f"there is no Deployment vramwarden-webhook in namespace {facts.namespace}"
        cure = f"{_INSTALL.format(facts.namespace)}, or name its namespace by -n; --pre says what "
        return failed(why, f"{cure}this cluster lacks")
    return ok(f"{found.version or 'of an unknown version'} in namespace {found.namespace}")


def release_version(facts: Facts) -> CheckFinding:
    """This command is of the release's version, and so knows what to expect of it.

    | versions | result |
    | --- | --- |
    | equal | ok |
    | different | warning |
    """
    found = _release(facts)
    if found.version != facts.command:
        why = f"this command is {facts.command}, the release {found.version or 'unknown'}: some of "
        cure = f"use the release's: `kubectl -n {facts.namespace} exec deploy/vramwarden-webhook "
        return warning(f"{why}what it expects may differ", f"{cure}-- vramwarden --version`")
    return ok(facts.command)


def webhook_ready(facts: Facts) -> CheckFinding:
    """Its replicas are ready.

    | ready | result |
    | --- | --- |
    | all | ok |
    | some | warning |
    | none | failed |
    """
    found = _release(facts)
    said = f"{found.ready} of {counted(found.desired, 'replica')}"
    if found.ready >= found.desired > 0:
        return ok(said)
    why, cure, _ = not_ready(facts, found.namespace, "webhook")
    return (warning if found.ready else failed)(f"ready: {said}{why}", cure)


def not_ready(facts: Facts, namespace: str, component: str) -> tuple[str, str, list[str]]:
    """Return why the first pod of a component is not ready, the cure, and the nodes of all."""
    pods = facts.own_pods if isinstance(facts.own_pods, tuple) else ()
    broken = [pod for pod in pods if pod.component == component]
    first = f": {broken[0].not_ready} (node {broken[0].node or 'unknown'})" if broken else ""
    which = broken[0].name if broken else f"-l app.kubernetes.io/component={component}"
    cure = f"`kubectl -n {namespace} describe pods {which}`"
    return first, cure, [pod.node for pod in broken if pod.node]


def configurations(facts: Facts) -> CheckFinding:
    """The API server is told to ask us, and whom it holds up while we are away.

    | our webhooks | `failurePolicy` | result |
    | --- | --- | --- |
    | also in a configuration of another name | - | failed |
    | all | as the chart has it | ok |
    | one is missing | - | failed |
    | all | Ignore in place of Fail | warning |
    | all | Fail in place of Ignore | failed |
    """
    release = facts.webhook if isinstance(facts.webhook, OwnWorkload) else None
    current = release.option("webhook-configuration") if release else ""
    old = sorted({one.configuration for one in known(facts.own_webhooks)} - {current})
    if current and old:
        why = f"left from an earlier webhook.configurationName, without a CA kept: {named(old)}"
        kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
        return failed(why, f"`kubectl delete {kinds} {' '.join(old)}`", old)
    found = {(one.kind, one.name): one.failure_policy for one in known(facts.own_webhooks)}
    missing = [f"{name} ({kind})" for kind, name in EXPECTED if (kind, name) not in found]
    if missing:
        return failed(f"not registered: {named(missing)}", upgrade(facts), missing)
    strict = [name for (kind, name), policy in found.items()
              if policy == "Fail" != EXPECTED.get((kind, name), "Ignore")]  # fmt: skip
    if strict:
        why = f"{named(strict)} has failurePolicy Fail, so pods of others wait for us"
        return failed(why, upgrade(facts), strict)
    lax = [name for key, policy in EXPECTED.items() for name in key[1:]
           if policy == "Fail" != found[key]]  # fmt: skip
    if lax:
        why = f"{named(lax)} has failurePolicy Ignore: while no replica answers, the fence "
        cure = "set webhook.failurePolicy to Fail"
        return warning(f"{why}alone denies pods that were not translated", cure, lax)
    return ok(counted(len(found), "webhook"))


def webhook_order(facts: Facts) -> CheckFinding:
    """No other webhook changes new pods after ours.

    | another configuration with mutating webhooks for new pods | result |
    | --- | --- |
    | none sorts after ours | ok |
    | one sorts after ours | warning |
    """
    later = known(facts.later_configurations)
    if later:
        why = f"changed afterwards by {named(later)}: a demand added there is denied"
        cure = "set webhook.configurationName to a name that sorts after these"
        return warning(why, cure, later)
    return ok()


def bind_path(facts: Facts) -> CheckFinding | None:
    """A replica has written where bindings are sent.

    | path of `bind.vramwarden.io` | result |
    | --- | --- |
    | written | ok |
    | empty | failed |
    """
    paths = [one.path for one in known(facts.own_webhooks) if one.name == "bind.vramwarden.io"]
    if not paths:
        return None
    if not paths[0].strip("/"):
        why = "nobody has written it, so pods get their GPU late"
        return failed(why, _logs(facts))
    return ok()


def ca_bundle(facts: Facts) -> CheckFinding | None:
    """The API server trusts the certificate: caBundle holds its CA.

    | caBundle | of this certificate | days left | result |
    | --- | --- | --- | --- |
    | empty or unreadable | - | - | failed |
    | readable | no | - | failed |
    | readable | yes or unknown | none | failed |
    | readable | yes or unknown | up to 7 | warning |
    | readable | yes or unknown | up to 365, in mode `self` | warning |
    | readable | yes or unknown | more | ok |
    """
    found = known(facts.authorities)
    if not found:
        return None  # see configurations
    cure = f"in mode `self` a replica restores it: {_logs(facts)}; else write it again"
    broken = [one for one in found if one.problem]
    if broken:
        names = [one.name for one in broken]
        return failed(f"{named(names)}: {broken[0].problem}", cure, names)
    strange = [one.name for one in found if one.trusts is False]
    if strange:
        why = f"it holds another CA than the certificate's: {named(strange)}"
        return failed(why, cure, strange)
    own = facts.webhook.option("cert-secret") if isinstance(facts.webhook, OwnWorkload) else ""
    if own:
        cure = f"`vramwarden certs rotate --secret {own}` makes another"
    days = min(one.days_left for one in found)
    said = f"its CA is valid for {counted(int(days), 'day')}"
    if days <= 0:
        return failed("its CA has expired", cure)
    return warning(said, cure) if days <= (ROTATE_DAYS if own else SOON_DAYS) else ok(said)


def certificate(facts: Facts) -> CheckFinding | None:
    """The certificate itself is valid.

    | Secret | days left | result |
    | --- | --- | --- |
    | none | - | nothing |
    | unreadable contents | - | failed |
    | readable | none | failed |
    | readable | up to 7 | warning |
    | readable | more | ok |
    """
    found = known(facts.certificate)
    if found is None:
        return None
    cure = f"in mode `self` the replicas renew it: {_logs(facts)}; else renew it"
    if found.problem:
        return failed(f"Secret {found.name}: {found.problem}", cure)
    said = f"Secret {found.name}: {counted(int(found.days_left), 'day')} left"
    if found.days_left <= 0:
        return failed(f"Secret {found.name}: it has expired", cure)
    return warning(said, cure) if found.days_left <= SOON_DAYS else ok(said)


def pod_asks(facts: Facts) -> CheckFinding:
    """A pod that asks for 1Gi is translated, by a dry run.

    | dry run | marks of ours | its rule's action | result |
    | --- | --- | --- | --- |
    | created | yes | - | ok |
    | created | no | Audit | warning: the policy only records |
    | created | no | the policy cannot be read | warning |
    | created | no | another, or no rule is known | failed |
    | denied, since we were not reached | - | - | failed, with the cause |
    | denied by the second line | - | - | failed: we were not asked |
    | denied by us | - | - | warning: it is the policy |
    | denied by others | - | - | warning |
    """
    found, where = known(facts.asks), f"in namespace {facts.test_namespace}"
    rule, action = _tried_by(facts)
    if found.created and found.admitted:
        sidecar = "with a sidecar" if found.has_sidecar else "without a sidecar, as the rule says"
        return ok(f"{where}, by rule {found.rule}, {sidecar}")
    if found.created and action == Action.AUDIT:
        why = f"{where} rule {rule} has action Audit: it only records, and changes no pod"
        return warning(why, f"set Warn or Enforce once you have seen enough{_ANOTHER}")
    if found.created and isinstance(facts.policy, Unreadable):
        return warning(f"{where} it was left alone: {_BY_POLICY}", _SEE_POLICY + _ANOTHER)
    if found.created:
        why = f"{where} it was left alone: no rule applies to it, or the namespace is exempt"
        return failed(
            why, f"`kubectl get namespace {facts.test_namespace} --show-labels`{_ANOTHER}"
        )
    if _UNREACHED in found.answer:
        return _not_reached(facts, found.answer)
    if _BY_SECOND_LINE in found.answer:
        why = f"{where} only the fence denied it: the webhook was not asked"
        return failed(why, upgrade(facts))
    who = "the policy denies it" if '.vramwarden.io" denied' in found.answer else "it was denied"
    return warning(f"{where} {who}: {found.answer}", _MEANT + _ANOTHER)


def pod_wrong(facts: Facts) -> CheckFinding:
    """A pod that asks for 8GB, which is no quantity, is denied in our words, by a dry run.

    | dry run | its rule's action | result |
    | --- | --- | --- |
    | denied by us | - | ok |
    | created | Audit, Warn | warning: it is the policy |
    | created | the policy cannot be read | warning |
    | created | another, or no rule is known | failed |
    | denied, since we were not reached | - | failed, with the cause |
    | denied by others | - | warning |
    """
    found, where = known(facts.wrong), f"in namespace {facts.test_namespace}"
    rule, action = _tried_by(facts)
    if found.created and action in {Action.AUDIT, Action.WARN}:
        does = "only records" if action == Action.AUDIT else "only warns"
        why = f"{where} rule {rule} has action {action}: it {does}, and denies no pod"
        return warning(why, f"set Enforce once you have seen enough{_ANOTHER}")
    if found.created and isinstance(facts.policy, Unreadable):
        return warning(f"{where} it was created: {_BY_POLICY}", _SEE_POLICY + _ANOTHER)
    if found.created:
        why = f"{where} it was created"
        cure = f"`kubectl get namespace {facts.test_namespace} --show-labels`, and see whether the "
        return failed(why, f"{cure}rule's action is Enforce; --test-namespace names another")
    if '.vramwarden.io" denied' in found.answer:
        return ok(found.answer.partition(_OURS)[2])
    if _UNREACHED in found.answer:
        return _not_reached(facts, found.answer)
    return warning(f"{where} others denied it first: {found.answer}", _MEANT + _ANOTHER)


def pod_plain(facts: Facts) -> CheckFinding:
    """A pod that asks for nothing is left alone, by a dry run.

    | dry run | marks of ours | result |
    | --- | --- | --- |
    | created | no | ok |
    | created | yes | failed |
    | denied by us, or since we were not reached | - | failed |
    | denied by others | - | warning |
    """
    found, where = known(facts.plain), f"in namespace {facts.test_namespace}"
    if found.created and not (found.admitted or found.has_sidecar):
        return ok(where)
    if found.created:
        why = f"{where} it was translated"
        return failed(why, f"report it; to keep us out: `kubectl label namespace "
                      f"{facts.test_namespace} vramwarden.io/webhook=disabled`")  # fmt: skip
    if "vramwarden" in found.answer:
        return failed(f"{where} it was denied: {found.answer}", upgrade(facts))
    return warning(f"{where} others denied it: {found.answer}", _MEANT + _ANOTHER)


def policy_valid(facts: Facts) -> CheckFinding:
    """The policy in the release's ConfigMap is valid, and its examples pass.

    | ConfigMap | rules | result |
    | --- | --- | --- |
    | missing | - | failed |
    | not valid | - | failed |
    | valid | none | warning |
    | valid | some | ok |
    """
    found = known(facts.policy)
    where = f"ConfigMap {facts.namespace}/vramwarden-policies"
    if found is None:
        return failed(f"{where} does not exist", upgrade(facts))
    if found.problems:
        more = f" and {len(found.problems) - 1} more" if len(found.problems) > 1 else ""
        cure = "correct it, and see the rest: `vramwarden policy check FOLDER`; the last good "
        cure += "policy stays in force, but a replica that starts does not come up"
        return failed(f"{found.problems[0]}{more}", cure)
    if not found.rules:
        return warning("it has no rule, so every pod is left alone", "set policies.files")
    return ok(f"{counted(found.rules, 'rule')}, digest {found.digest}")


def policy_in_force(facts: Facts) -> CheckFinding | None:
    """What is in force is what the ConfigMap holds: the pod of the dry run bears its digest.

    | the pod's digest | the ConfigMap's | result |
    | --- | --- | --- |
    | equal to it | valid | ok |
    | another | valid | warning |
    | - | not valid, or of another version of this command | nothing |
    """
    held, found = known(facts.policy), known(facts.asks)
    if held is None or held.problems or not held.fence or not found.digest:
        return None
    if found.digest != held.digest:
        why = f"a pod was translated under {found.digest}, the ConfigMap holds {held.digest}"
        cure = f"replicas take up an edit within a minute or so; if it stays: {_logs(facts)}"
        return warning(why, cure)
    return ok(f"digest {held.digest}")


def _tried_by(facts: Facts) -> tuple[str, str]:
    policy = facts.policy
    return policy.tried_by if isinstance(policy, PolicyFacts) else ("", "")


def _release(facts: Facts) -> OwnWorkload:
    """Return the release's Deployment, without which what asks for it is not asked itself."""
    found = known(facts.webhook)
    if found is None:
        raise Unreadable("there is no release")
    return found


def _logs(facts: Facts) -> str:
    return f"`kubectl -n {facts.namespace} logs -l app.kubernetes.io/component=webhook`"


def _not_reached(facts: Facts, answer: str) -> CheckFinding:
    """Return what an API server means that could not call us."""
    for words, why, cure in _CAUSES:
        if words in answer:
            return failed(f"{why}: {answer}", cure.format(facts.namespace))
    cure = f"`kubectl -n {facts.namespace} describe pods -l app.kubernetes.io/component=webhook`"
    return failed(f"the API server does not reach it: {answer}", cure)
