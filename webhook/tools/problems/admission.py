"""Problems of what the API server does with pods: by the webhook, by the policy, by the fence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from webhook.adapters.policy.files import PolicyInvalidError
from webhook.core.admission.stray_keys import useless_bounds
from webhook.core.formatting import format_count, join_names
from webhook.core.policy.fence import RULES_KEY, fence_data
from webhook.core.policy.model import Action, Rollout
from webhook.tools.problems.creation import unreachable_cause
from webhook.tools.problems.installation import action_for, read_logs, upgrade
from webhook.tools.problems.problem import Code, Finding, Problem, ProblemSubject, Severity
from webhook.tools.snapshot.installation import Installation

FENCE_PARTS: Final = {
    "fence.secondLine": ("vramwarden-second-line",),
    "fence.sidecar": ("vramwarden-sidecar", "vramwarden-debuggers"),
    "fence.enforcer": ("vramwarden-enforcer",),
    "fence.exemption": ("vramwarden-exemption",),
    "fence.accounts": ("vramwarden-accounts",),
}
"""Values of the chart, and the admission policies that each installs."""
_BY_US: Final = '.vramwarden.io" denied the request: '
_BY_SECOND_LINE: Final = "vramwarden-second-line"
_ANOTHER: Final = "; --test-namespace names another namespace"
_UNREACHABLE_FIXES: Final = {
    "the API server does not trust its certificate": "see [ca-bundle] above; in mode `self` a "
    "replica restores it within a second",
    "its certificate has expired": "in mode `self` see the replicas' log; else renew it",
    "nothing listens where its Service leads": "`kubectl -n {} get pods,endpointslices`",
    "it does not answer in time": "let the API server reach port 8443 of its pods, past firewalls "
    "and NetworkPolicies",
}
"""Fixes of causes of `unreachable_cause`; of all others the webhook's pods show more."""


def judge_good_pod(installation: Installation) -> Finding:
    """Return why a pod that requests 1Gi is not translated, by a dry run.

    | dry run | translated | its rule's action | problem |
    | --- | --- | --- | --- |
    | created | yes | any | none |
    | created | no | Audit | warning: the policy only records |
    | created | no | the policy cannot be read | warning |
    | created | no | another, or no rule is known | error |
    | denied, since the webhook was not reached | - | any | error, with the cause |
    | denied by the second line | - | any | error: the webhook was not asked |
    | denied by the webhook | - | any | warning: it is the policy |
    | denied by another | - | any | warning |
    """
    tried, where = installation.tried_good, f"in namespace {installation.test_namespace}"
    what = f"a pod that requests 1Gi {where}"
    if tried.pod and tried.pod.rule:
        sidecar = "with a sidecar" if tried.pod.has_sidecar else "without a sidecar"
        return f"{what} is translated by rule {tried.pod.rule}, {sidecar}"
    if tried.pod:
        return [_left_alone(installation, what, {Action.AUDIT: "it only records"})]
    if found := _unreachable(installation, what, tried.denial):
        return [found]
    if _BY_SECOND_LINE in tried.denial:
        why = f"{what} is denied only by the fence: the webhook was not asked"
        return [Problem(Code.NOT_ASKED, Severity.ERROR, why, upgrade(installation))]
    by = " by the policy" if _BY_US in tried.denial else ""
    return [_denied(f"{what} is denied{by}: {tried.denial}")]


def judge_wrong_pod(installation: Installation) -> Finding:
    """Return why a pod that requests 8GB, which is no quantity, is not denied, by a dry run.

    | dry run | its rule's action | problem |
    | --- | --- | --- |
    | denied by the webhook | any | none |
    | created | Audit, Warn | warning: it is the policy |
    | created | the policy cannot be read | warning |
    | created | another, or no rule is known | error |
    | denied, since the webhook was not reached | any | error, with the cause |
    | denied by another | any | warning |
    """
    tried, where = installation.tried_wrong, f"in namespace {installation.test_namespace}"
    what = f"a pod that requests 8GB {where}"
    if tried.pod:
        lax = {Action.AUDIT: "it only records", Action.WARN: "it only warns"}
        return [_left_alone(installation, what, lax)]
    if _BY_US in tried.denial:
        return f"{what} is denied: {tried.denial.partition(_BY_US)[2]}"
    if found := _unreachable(installation, what, tried.denial):
        return [found]
    return [_denied(f"{what} is denied by another first: {tried.denial}")]


def judge_plain_pod(installation: Installation) -> Finding:
    """Return that a pod that requests nothing is not left alone, by a dry run.

    | dry run | translated | problem |
    | --- | --- | --- |
    | created | no | none |
    | created | yes | error |
    | denied by the webhook, or since it was not reached | - | error |
    | denied by another | - | warning |
    """
    tried, namespace = installation.tried_plain, installation.test_namespace
    what = f"a pod that requests nothing in namespace {namespace}"
    if tried.pod and not (tried.pod.rule or tried.pod.has_sidecar):
        return f"{what} is left alone"
    if tried.pod:
        fix = "report it; to keep vramwarden out: "
        fix += f"`kubectl label namespace {namespace} vramwarden.io/webhook=disabled`"
        return [Problem(Code.WRONGLY_CHANGED, Severity.ERROR, f"{what} is translated", fix)]
    if "vramwarden" in tried.denial:
        why, fix = f"{what} is denied: {tried.denial}", upgrade(installation)
        return [Problem(Code.CREATION_DENIED, Severity.ERROR, why, fix)]
    return [_denied(f"{what} is denied: {tried.denial}")]


def _left_alone(installation: Installation, what: str, lax: Mapping[Action, str]) -> Problem:
    """Return that a pod was created as it is, which the policy may want; see the tables above.

    `lax`: actions of a rule by which that is so, and what they do.
    """
    namespace, code = installation.test_namespace, Code.NOT_IN_FORCE
    policy = installation.attempt(lambda: installation.policy)
    if "stored_policy" in installation.failures:
        why = f"{what} is left alone: its rule only records or warns, no rule applies to it, or "
        fix = f"ask a user who may read the policy which it is{_ANOTHER}"
        return Problem(code, Severity.WARNING, f"{why}the namespace is exempt", fix)
    rule, action = action_for(policy, namespace) if policy else ("", None)
    if action and action in lax:
        why = f"{what} is left alone: rule {rule} has action {action}, {lax[action]}"
        change = "Warn or Enforce" if len(lax) == 1 else "Enforce"
        fix = f"set {change} once you have seen enough{_ANOTHER}"
        return Problem(code, Severity.WARNING, why, fix)
    why = f"{what} is left alone: no rule applies to it, the rule's action is not Enforce, or the "
    fix = f"`kubectl get namespace {namespace} --show-labels`{_ANOTHER}"
    return Problem(Code.NOT_ASKED, Severity.ERROR, f"{why}namespace is exempt", fix)


def _unreachable(installation: Installation, what: str, denial: str) -> Problem | None:
    """Return that the API server could not call the webhook, if a denial says so."""
    cause = unreachable_cause(denial)
    if cause is None:
        return None
    namespace = installation.namespace
    pods = "`kubectl -n {} get pods -l app.kubernetes.io/component=webhook`"
    fix = _UNREACHABLE_FIXES.get(cause[1], pods).format(namespace)
    if cause[1] == "its Service is gone":
        fix = upgrade(installation)
    why = f"{what} is denied, since the API server cannot call the webhook ({cause[1]}): {denial}"
    return Problem(Code.WEBHOOK_UNREACHABLE, Severity.ERROR, why, fix)


def _denied(why: str) -> Problem:
    fix = f"see whether that is meant{_ANOTHER}"
    return Problem(Code.CREATION_DENIED, Severity.WARNING, why, fix)


def judge_policy(installation: Installation) -> Finding:
    """Return the problem of the stored policy, or that it is not the one in force.

    | ConfigMap | rules | digest of the pod that is tried | problem |
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
        return [Problem(Code.POLICY_INVALID, Severity.ERROR, why, upgrade(installation))]
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
    tried = installation.attempt(lambda: installation.tried_good)
    digest = tried.pod.policy_digest if tried and tried.pod else ""
    if not digest or not _rollout(installation):
        return f"the {policy} is valid"
    if digest != found.short_digest:
        why = f"the {policy} is not in force yet: a pod was translated under {digest}"
        fix = "replicas take up an edit within a minute or so; if it stays: "
        fix += read_logs(namespace)
        return [Problem(Code.POLICY_NOT_LOADED, Severity.WARNING, why, fix)]
    return f"the {policy} is valid and in force"


def judge_fence(installation: Installation) -> Finding:
    """Return which admission policies have no effect, and that they read no or other rules.

    | admission policy | its binding | second line or void | ConfigMap | its rules | problem |
    | --- | --- | --- | --- | --- | --- |
    | there | missing, or denies nothing | any | any | any | error |
    | any | any | yes | missing | - | error |
    | missing | - | any | any | any | warning: a value may have left it out |
    | there | there | yes | there | not the policy's | warning |
    | there | there | yes | there | the policy's, or unknown | none |
    | there | there | no | any | any | none |
    """
    policies, code = installation.fence_policies, Code.FENCE_OPEN
    namespace, where = installation.namespace, f"{installation.namespace}/vramwarden-fence"
    loose = sorted(policies - installation.bound_policies)
    if loose:
        why = f"{join_names(loose)} has no binding that denies, so it has no effect"
        return [Problem(code, Severity.ERROR, why, upgrade(installation))]
    reads_rules = policies & {"vramwarden-second-line", "vramwarden-void"}
    data = installation.fence_data if reads_rules else {}
    if data is None:
        why = f"ConfigMap {where} does not exist, so the fence holds nothing"
        fix = f"the replicas write it; see why not: {read_logs(namespace)}"
        return [Problem(code, Severity.ERROR, why, fix)]
    missing = [value for value, names in FENCE_PARTS.items() if not policies >= {*names}]
    if missing:
        why = (
            f"{join_names(missing)} is off, or was deleted: what it holds is open while no replica "
        )
        fix = upgrade(installation, *(f"{one}=true" for one in missing))
        return [Problem(code, Severity.WARNING, f"{why}answers", fix)]
    rules, expected = data.get(RULES_KEY, ""), _expected_rules(installation)
    if reads_rules and expected and rules != expected:
        why = f"ConfigMap {where} holds other rules than the policy"
        fix = f"replicas follow within a minute or two; if it stays: {read_logs(namespace)}"
        return [Problem(Code.POLICY_NOT_LOADED, Severity.WARNING, why, fix)]
    parts = [value.removeprefix("fence.") for value in FENCE_PARTS]
    parts += ["void"] if "vramwarden-void" in policies else []
    knows = f", and knows {format_count(rules.count(chr(10)), 'rule')}" if reads_rules else ""
    return f"the fence holds {', '.join(parts)}{knows}"


def _expected_rules(installation: Installation) -> str:
    """Return the rules that the replicas write for the fence; empty if unknown."""
    policy, rollout = installation.attempt(lambda: installation.policy), _rollout(installation)
    return fence_data(policy, rollout)[RULES_KEY] if policy and rollout else ""


def _rollout(installation: Installation) -> Rollout | None:
    """Return the release's rollout; None unless it is of this command's version.

    Another version may write files and digests otherwise.
    """
    webhook = installation.attempt(lambda: installation.webhook)
    if webhook is None or webhook.version != installation.command_version:
        return None
    return next((one for one in Rollout if one == webhook.option("rollout")), None)


def judge_quotas(installation: Installation) -> Finding:
    """Return lines of ResourceQuotas about VRAM that Kubernetes does not count."""
    found = [
        Problem(
            Code.USELESS_QUOTA,
            Severity.WARNING,
            f"the ResourceQuota's line {one.key} bounds nothing",
            one.cure,
            ProblemSubject("ResourceQuota", quota.name, quota.namespace),
        )
        for quota in installation.quotas
        for one in useless_bounds({**quota.raw, "kind": "ResourceQuota"}, "v1")
    ]
    quotas = format_count(len(installation.quotas), "ResourceQuota")
    return found or (f"{quotas} of VRAM are counted" if installation.quotas else None)
