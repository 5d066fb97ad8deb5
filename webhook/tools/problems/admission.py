"""Problems of the admission of pods: webhook, policy, fence and quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from webhook.adapters.policy.files import PolicyInvalidError
from webhook.core.admission.stray_keys import find_ineffective_bounds
from webhook.core.formatting import format_count, join_names
from webhook.core.policy.fence import RULES_KEY, fence_data
from webhook.core.policy.match import NamespaceUnknownError, Subject
from webhook.core.policy.model import Action, Policy, Rollout
from webhook.tools.problems.creation import unreachable_cause
from webhook.tools.problems.installation import logs_command, upgrade_command
from webhook.tools.problems.problem import Code, Finding, Problem, ProblemSubject, Severity
from webhook.tools.snapshot.installation import Installation

FENCE_PARTS: Final = {
    "fence.secondLine": ("vramwarden-second-line",),
    "fence.sidecar": ("vramwarden-sidecar", "vramwarden-debuggers"),
    "fence.enforcer": ("vramwarden-enforcer",),
    "fence.exemption": ("vramwarden-exemption",),
    "fence.accounts": ("vramwarden-accounts",),
}
"""Admission policies, keyed by the chart value that installs them."""
_OWN_DENIAL: Final = '.vramwarden.io" denied the request: '
_BY_SECOND_LINE: Final = "vramwarden-second-line"
_OTHER_NAMESPACE: Final = "; --test-namespace names another namespace"
_UNREACHABLE_FIXES: Final = {
    "the API server does not trust its certificate": "see [ca-bundle] above; in mode `self` a "
    "replica restores it within a second",
    "its certificate has expired": "in mode `self` see the replicas' log; else renew it",
    "nothing listens where its Service leads": "`kubectl -n {} get pods,endpointslices`",
    "it does not answer in time": "let the API server reach port 8443 of its pods, past firewalls "
    "and NetworkPolicies",
}
"""Fixes keyed by cause; see `unreachable_cause`. For other causes, check the webhook's pods."""


def check_good_pod(installation: Installation) -> Finding:
    """Check by a dry run that the webhook mutates a pod that requests 1Gi.

    | dry run | translated | its rule's action | problem |
    | --- | --- | --- | --- |
    | created | yes | any | none |
    | created | no | Audit | warning: the policy only records |
    | created | no | the policy cannot be read | warning |
    | created | no | another, or no rule is known | error |
    | denied, because the webhook was not reached | - | any | error, with the cause |
    | denied by the second line | - | any | error: the webhook was not asked |
    | denied by the webhook | - | any | warning: it is the policy |
    | denied by another | - | any | warning |
    """
    tried, where = installation.good_pod_answer, f"in namespace {installation.test_namespace}"
    what = f"a pod that requests 1Gi {where}"
    if tried.pod and tried.pod.rule:
        sidecar = "with a sidecar" if tried.pod.has_sidecar else "without a sidecar"
        return f"{what} is translated by rule {tried.pod.rule}, {sidecar}"
    if tried.pod:
        return [_not_changed_problem(installation, what, {Action.AUDIT: "it only records"})]
    if found := _unreachable_problem(installation, what, tried.denial):
        return [found]
    if _BY_SECOND_LINE in tried.denial:
        why = f"{what} is denied only by the fence: the webhook was not asked"
        return [Problem(Code.NOT_ASKED, Severity.ERROR, why, upgrade_command(installation))]
    by = " by the policy" if _OWN_DENIAL in tried.denial else ""
    return [_denied_problem(f"{what} is denied{by}: {tried.denial}")]


def check_wrong_pod(installation: Installation) -> Finding:
    """Check by a dry run that the webhook denies a pod that requests 8GB, which is no quantity.

    | dry run | its rule's action | problem |
    | --- | --- | --- |
    | denied by the webhook | any | none |
    | created | Audit, Warn | warning: it is the policy |
    | created | the policy cannot be read | warning |
    | created | another, or no rule is known | error |
    | denied, because the webhook was not reached | any | error, with the cause |
    | denied by another | any | warning |
    """
    tried, where = installation.wrong_pod_answer, f"in namespace {installation.test_namespace}"
    what = f"a pod that requests 8GB {where}"
    if tried.pod:
        lax = {Action.AUDIT: "it only records", Action.WARN: "it only warns"}
        return [_not_changed_problem(installation, what, lax)]
    if _OWN_DENIAL in tried.denial:
        return f"{what} is denied: {tried.denial.partition(_OWN_DENIAL)[2]}"
    if found := _unreachable_problem(installation, what, tried.denial):
        return [found]
    return [_denied_problem(f"{what} is denied by another first: {tried.denial}")]


def check_plain_pod(installation: Installation) -> Finding:
    """Check by a dry run that the webhook does not change a pod that requests nothing.

    | dry run | translated | problem |
    | --- | --- | --- |
    | created | no | none |
    | created | yes | error |
    | denied by the webhook, or because it was not reached | - | error |
    | denied by another | - | warning |
    """
    tried, namespace = installation.plain_pod_answer, installation.test_namespace
    what = f"a pod that requests nothing in namespace {namespace}"
    if tried.pod and not (tried.pod.rule or tried.pod.has_sidecar):
        return f"{what} is left alone"
    if tried.pod:
        fix = "report it; to keep vramwarden out: "
        fix += f"`kubectl label namespace {namespace} vramwarden.io/webhook=disabled`"
        return [Problem(Code.WRONGLY_CHANGED, Severity.ERROR, f"{what} is translated", fix)]
    if "vramwarden" in tried.denial:
        why, fix = f"{what} is denied: {tried.denial}", upgrade_command(installation)
        return [Problem(Code.CREATION_DENIED, Severity.ERROR, why, fix)]
    return [_denied_problem(f"{what} is denied: {tried.denial}")]


def _not_changed_problem(
    installation: Installation, what: str, lax: Mapping[Action, str]
) -> Problem:
    """Return the problem of a pod that was created unchanged; see the tables above.

    `lax` describes each rule action under which that is expected.
    """
    namespace, code = installation.test_namespace, Code.NOT_IN_FORCE
    policy = installation.attempt(lambda: installation.policy)
    if "stored_policy" in installation.failures:
        why = f"{what} is left alone: its rule only records or warns, no rule applies to it, or "
        fix = f"ask a user who may read the policy which it is{_OTHER_NAMESPACE}"
        return Problem(code, Severity.WARNING, f"{why}the namespace is exempt", fix)
    rule, action = action_for(policy, namespace) if policy else ("", None)
    if action and action in lax:
        why = f"{what} is left alone: rule {rule} has action {action}, {lax[action]}"
        change = "Warn or Enforce" if len(lax) == 1 else "Enforce"
        fix = f"set {change} once you have seen enough{_OTHER_NAMESPACE}"
        return Problem(code, Severity.WARNING, why, fix)
    why = f"{what} is left alone: no rule applies to it, the rule's action is not Enforce, or the "
    fix = f"`kubectl get namespace {namespace} --show-labels`{_OTHER_NAMESPACE}"
    return Problem(Code.NOT_ASKED, Severity.ERROR, f"{why}namespace is exempt", fix)


def _unreachable_problem(installation: Installation, what: str, denial: str) -> Problem | None:
    """Return a problem if the denial shows that the API server could not call the webhook."""
    cause = unreachable_cause(denial)
    if cause is None:
        return None
    namespace = installation.namespace
    pods = "`kubectl -n {} get pods -l app.kubernetes.io/component=webhook`"
    fix = _UNREACHABLE_FIXES.get(cause[1], pods).format(namespace)
    if cause[1] == "its Service is gone":
        fix = upgrade_command(installation)
    why = f"{what} is denied, since the API server cannot call the webhook ({cause[1]}): {denial}"
    return Problem(Code.WEBHOOK_UNREACHABLE, Severity.ERROR, why, fix)


def _denied_problem(why: str) -> Problem:
    fix = f"see whether that is meant{_OTHER_NAMESPACE}"
    return Problem(Code.CREATION_DENIED, Severity.WARNING, why, fix)


def check_policy(installation: Installation) -> Finding:
    """Check that the stored policy is valid and in force.

    | ConfigMap | rules | digest in a pod of a dry run | problem |
    | --- | --- | --- | --- |
    | missing or empty | - | any | error |
    | invalid | - | any | error |
    | valid | none | any | warning |
    | valid | some | another | warning |
    | valid | some | equal, unknown, or the command is of another version | none |
    """
    found, namespace = installation.stored_policy, installation.namespace
    if found is None:
        why = f"ConfigMap {namespace}/vramwarden-policies is missing or empty"
        return [Problem(Code.POLICY_INVALID, Severity.ERROR, why, upgrade_command(installation))]
    if isinstance(found, PolicyInvalidError):
        more = f" and {len(found.problems) - 1} more" if len(found.problems) > 1 else ""
        fix = (
            "correct it, and see the rest: `vramwarden policy check FOLDER`; the last good policy "
        )
        fix += "stays in force, but a replica that starts does not come up"
        why = f"the policy is invalid: {found.problems[0]}{more}"
        return [Problem(Code.POLICY_INVALID, Severity.ERROR, why, fix)]
    if not found.rules:
        why = "the policy has no rule, so every pod is left alone"
        return [Problem(Code.POLICY_INVALID, Severity.WARNING, why, "set policies.files")]
    policy = f"policy with {format_count(len(found.rules), 'rule')} (digest {found.short_digest})"
    tried = installation.attempt(lambda: installation.good_pod_answer)
    digest = tried.pod.policy_digest if tried and tried.pod else ""
    if not digest or not _read_rollout(installation):
        return f"the {policy} is valid"
    if digest != found.short_digest:
        why = f"the {policy} is not in force yet: a pod was translated under {digest}"
        fix = "replicas take up an edit within a minute or so; if it stays: "
        fix += logs_command(namespace)
        return [Problem(Code.POLICY_NOT_LOADED, Severity.WARNING, why, fix)]
    return f"the {policy} is valid and in force"


def check_fence(installation: Installation) -> Finding:
    """Check that the fence's admission policies are effective and know the policy's rules.

    | admission policy | its binding | second line or void | ConfigMap | its rules | problem |
    | --- | --- | --- | --- | --- | --- |
    | there | missing, or denies nothing | any | any | any | error |
    | any | any | yes | missing | - | error |
    | missing | - | any | any | any | warning: a chart value may exclude it |
    | there | there | yes | there | not the policy's | warning |
    | there | there | yes | there | the policy's, or unknown | none |
    | there | there | no | any | any | none |
    """
    policies, code = installation.fence_policies, Code.FENCE_OPEN
    namespace, where = installation.namespace, f"{installation.namespace}/vramwarden-fence"
    loose = sorted(policies - installation.bound_policies)
    if loose:
        why = f"{join_names(loose)} has no binding that denies, so it has no effect"
        return [Problem(code, Severity.ERROR, why, upgrade_command(installation))]
    reads_rules = policies & {"vramwarden-second-line", "vramwarden-void"}
    data = installation.fence_data if reads_rules else {}
    if data is None:
        why = f"ConfigMap {where} does not exist, so the fence holds nothing"
        fix = f"the replicas write it; see why not: {logs_command(namespace)}"
        return [Problem(code, Severity.ERROR, why, fix)]
    missing = [value for value, names in FENCE_PARTS.items() if not policies >= {*names}]
    if missing:
        why = (
            f"{join_names(missing)} is off, or was deleted: what it holds is open while no replica "
        )
        fix = upgrade_command(installation, *(f"{value}=true" for value in missing))
        return [Problem(code, Severity.WARNING, f"{why}answers", fix)]
    rules, expected = data.get(RULES_KEY, ""), _expected_rules(installation)
    if reads_rules and expected and rules != expected:
        why = f"ConfigMap {where} holds other rules than the policy"
        fix = f"replicas follow within a minute or two; if it stays: {logs_command(namespace)}"
        return [Problem(Code.POLICY_NOT_LOADED, Severity.WARNING, why, fix)]
    parts = [value.removeprefix("fence.") for value in FENCE_PARTS]
    parts += ["void"] if "vramwarden-void" in policies else []
    knows = f", and knows {format_count(rules.count(chr(10)), 'rule')}" if reads_rules else ""
    return f"the fence holds {', '.join(parts)}{knows}"


def _expected_rules(installation: Installation) -> str:
    """Return the rules that the replicas write for the fence, or "" if they are unknown."""
    policy, rollout = installation.attempt(lambda: installation.policy), _read_rollout(installation)
    return fence_data(policy, rollout)[RULES_KEY] if policy and rollout else ""


def _read_rollout(installation: Installation) -> Rollout | None:
    """Return the release's rollout, or None if the release has another version than this command.

    Other versions may write other files and digests.
    """
    webhook = installation.attempt(lambda: installation.webhook)
    if webhook is None or webhook.version != installation.command_version:
        return None
    return next((rollout for rollout in Rollout if rollout == webhook.option("rollout")), None)


def check_quotas(installation: Installation) -> Finding:
    """Check that ResourceQuotas limit VRAM by keys that Kubernetes counts."""
    found = [
        Problem(
            Code.USELESS_QUOTA,
            Severity.WARNING,
            f"the ResourceQuota's line {stray_key.key} bounds nothing",
            stray_key.cure,
            ProblemSubject("ResourceQuota", quota.name, quota.namespace),
        )
        for quota in installation.quotas
        for stray_key in find_ineffective_bounds({**quota.raw, "kind": "ResourceQuota"}, "v1")
    ]
    quotas = format_count(len(installation.quotas), "ResourceQuota")
    return found or (f"{quotas} of VRAM are counted" if installation.quotas else None)


def check_validators(installation: Installation) -> Finding:
    """Check that the policy does not deny validator pods of NVIDIA's GPU operator.

    The operator creates these pods with `spec.nodeName` and a whole GPU.

    | validator pods in namespaces that are not exempt | rule there | problem |
    | --- | --- | --- |
    | none | any | not judged |
    | some | none, or its action is Ignore | none |
    | some | another | warning |
    """
    namespaces = sorted(installation.validated_namespaces)
    if not namespaces or installation.is_missing(lambda: installation.stored_policy):
        return None
    policy = installation.policy
    why = "rollout Enforce denies pods nvidia-device-plugin-validator of NVIDIA's operator here"
    fix = "add the namespace to a rule with action: Ignore, before all others, as `system` in "
    fix += "policies/default.yaml"
    return [
        Problem(
            Code.VALIDATOR_DENIED,
            Severity.WARNING,
            why,
            fix,
            ProblemSubject("Namespace", namespace),
        )
        for namespace in namespaces
        if action_for(policy, namespace)[1] not in {None, Action.IGNORE}
    ] or f"the policy leaves NVIDIA's validator pods in {join_names(namespaces)} alone"


def action_for(policy: Policy, namespace: str) -> tuple[str, Action | None]:
    """Return the name and action of the rule for pods of a namespace.

    The action is None if no rule applies or the rule needs more than the namespace's name.
    """
    try:
        rule = policy.rule_for(Subject(namespace=namespace, namespace_labels=None))
    except NamespaceUnknownError:
        return "", None
    return (rule.name, rule.action) if rule else ("", None)
