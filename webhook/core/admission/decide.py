"""The decision on a pod under review, for the webhook, the command line and policy examples.

`webhook/core/admission/rules/table.py` lists the rules that judge each kind of pod.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from webhook.core.admission.decision import Decision, Outcome, Phase, Skip
from webhook.core.admission.mutation import edit_variables, mutate_pod
from webhook.core.admission.rules.case import Case, CaseKind, new_case
from webhook.core.admission.rules.changes import new_debuggers
from webhook.core.admission.rules.oversized_pods import has_unjudgeable_parts, is_managed
from webhook.core.admission.rules.table import UNREAD_KEYS, collect_findings, collect_hints
from webhook.core.admission.rules.translation import mention_other_webhooks
from webhook.core.admission.whole_gpu_translation import ShareOffer, offer_share
from webhook.core.nvidia.variables import hide_devices_unless_set, hide_visible_devices
from webhook.core.pod.complexity import find_excesses, find_growth
from webhook.core.pod.demand import requests_vram
from webhook.core.pod.fields import Json, find_object
from webhook.core.pod.findings import MESSAGE_PREFIX, Finding, MalformedObjectError
from webhook.core.pod.patch import Edits, apply_patch
from webhook.core.pod.request import Request
from webhook.core.pod.suggestions import Suggestions
from webhook.core.pod.views import (
    preview_changes,
    read_annotations,
    read_labels,
    read_pod,
    read_service_account,
)
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.match import Subject
from webhook.core.policy.model import Action, Policy, Rollout, Rule, VisibleDevices
from webhook.names import ADMITTED_ANNOTATION, MIRROR_POD_ANNOTATION, NODES_GROUP

MAX_FOLLOW_UPS: Final = 10
"""Maximum number of findings shown that would remain after the suggested changes."""


def decide(request: Request, policy: Policy, cluster: Cluster, phase: Phase) -> Decision:
    """Decide a review. Raises NamespaceUnknownError if the pod's namespace is not known yet.

    Another webhook may have changed a pod that is created with vramwarden's annotation. The
    findings about such a pod mention this.
    """
    decision = evaluate(request, policy, cluster, phase)
    annotations = find_object(request.obj, "metadata", "annotations")
    is_denied = decision.outcome is Outcome.DENIED and request.operation == "CREATE"
    if is_denied and ADMITTED_ANNOTATION in annotations:
        return replace(decision, findings=tuple(map(mention_other_webhooks, decision.findings)))
    return decision


def evaluate(request: Request, policy: Policy, cluster: Cluster, phase: Phase) -> Decision:
    """Decide a review without mentioning other webhooks. Raises NamespaceUnknownError.

    Commands use this function to judge a stored pod as if created again: no other webhook can have
    changed such a pod.

    | request | decision |
    | --- | --- |
    | not a pod, DELETE, CONNECT, unknown subresource | skipped: allowed |
    | a pod with our annotations that grew over the bounds: `find_growth` | denied, under any rule |
    | no rule matches, or its action is Ignore | skipped: allowed |
    | a mirror pod, created by a kubelet | skipped: allowed |
    | a pod over the bounds of `find_excesses` | `_decide_oversized` |
    | CREATE of a pod | `_decide_creation` |
    | UPDATE of a pod, or its resize | the rule `immutable` |
    | UPDATE of its ephemeral containers | `_decide_debuggers` |
    """
    new_decision = partial(Decision, policy=policy.short_digest, original=request.obj)
    skip = _unsupported(request)
    if skip:
        return new_decision(outcome=Outcome.SKIPPED, skip=skip)
    rule = None
    try:
        excess = find_excesses(request.obj)
        growth = () if _is_mirror_pod(request) else find_growth(request.obj, excess, request.old)
        if growth:
            return new_decision(outcome=Outcome.DENIED, findings=growth)
        rule = governing_rule(request, policy, cluster)
        skip = _exemption(request, rule)
        if skip or rule is None:
            return new_decision(outcome=Outcome.SKIPPED, rule=rule.name if rule else "", skip=skip)
        if request.old and not excess:
            excess = find_excesses(request.old)
        if excess:
            findings = tuple(finding for finding, _ in excess.values())
            return _decide_oversized(request, rule, policy, cluster, findings)
        return _decide_readable(request, rule, policy, cluster, mutating=phase is Phase.MUTATE)
    except MalformedObjectError as error:
        guidance = _guidance(rule) if rule else ""
        return new_decision(outcome=Outcome.MALFORMED, malformed=str(error), guidance=guidance)


def governing_rule(request: Request, policy: Policy, cluster: Cluster) -> Rule | None:
    """Return the rule that applies to the pod of a request, or None if no rule matches.

    For an update, return the rule for the stored pod. Raises MalformedObjectError or
    NamespaceUnknownError.
    """
    pod = request.old if request.operation == "UPDATE" else request.obj
    subject = Subject(
        namespace=request.namespace,
        pod_labels=read_labels(pod),
        namespace_labels=cluster.labels_for(request.namespace),
        service_account=read_service_account(pod),
    )
    return policy.rule_for(subject)


_SUBRESOURCES: Final = frozenset({"", "ephemeralcontainers", "resize"})


def _unsupported(request: Request) -> Skip | None:
    """Return the reason to skip a request that no rule can judge, or None."""
    if request.kind != "Pod":
        return Skip.NOT_A_POD
    if request.operation not in {"CREATE", "UPDATE"}:
        return Skip.OPERATION
    if request.subresource not in _SUBRESOURCES or (
        request.subresource and request.operation != "UPDATE"
    ):
        return Skip.SUBRESOURCE
    return None


def _exemption(request: Request, rule: Rule | None) -> Skip | None:
    """Return the reason to skip a pod that its rule does not judge, or None."""
    if rule is None:
        return Skip.NO_RULE
    if rule.action is Action.IGNORE:
        return Skip.RULE_IGNORES
    return Skip.MIRROR_POD if _is_mirror_pod(request) else None


def _is_mirror_pod(request: Request) -> bool:
    return NODES_GROUP in request.groups and MIRROR_POD_ANNOTATION in read_annotations(request.obj)


def _decide_oversized(
    request: Request, rule: Rule, policy: Policy, cluster: Cluster, excess: tuple[Finding, ...]
) -> Decision:
    """Deny an oversized pod that must be judged; allow other oversized pods."""
    findings = excess if has_unjudgeable_parts(request, rule) else ()
    stored = request.old if request.operation == "UPDATE" else request.obj
    return _conclude(findings, rule, policy, cluster, request.obj, stored)


def _decide_readable(
    request: Request, rule: Rule, policy: Policy, cluster: Cluster, *, mutating: bool
) -> Decision:
    pod = read_pod(request.obj)
    if request.operation == "CREATE":
        case = new_case(pod, rule, policy, cluster, mutating=mutating)
        if not mutating:  # the caller would get hints of both phases twice
            return _decide_creation(case)
        share = None if case.requests_vram else offer_share(pod, rule, policy)
        return _decide_share(case, share) if share else _decide_creation_with_hints(case)
    case = Case(
        pod=pod,
        old=read_pod(request.old),
        rule=rule,
        policy=policy,
        cluster=cluster,
        suggestions=Suggestions(pod.containers),  # messages about updates have no suggestions
        mutating=mutating,
    )
    if request.subresource == "ephemeralcontainers":
        return _decide_debuggers(case)
    return _conclude_case(case, collect_findings(case, CaseKind.UPDATED))


def _decide_creation_with_hints(case: Case) -> Decision:
    decision = _decide_creation(case)
    if decision.silent:
        return decision
    is_fine = decision.allowed and not decision.findings
    unread_keys, notes = UNREAD_KEYS(case), collect_hints(case, fine=is_fine)
    if case.suggested_changes.annotations:
        remaining = _findings_after_suggestions(case, decision.findings)[:MAX_FOLLOW_UPS]
        notes += tuple(
            f"{finding.path}: beside that, {finding.reason}: {finding.detail}"
            for finding in remaining
        )
    if not (unread_keys or notes):
        return decision
    return replace(decision, unread_keys=unread_keys, notes=notes)


def _decide_share(case: Case, share: ShareOffer) -> Decision:
    """Decide a creation that may get a share for a whole GPU; see `whole_gpu_translation`."""
    operations = tuple(share.edits.operations)
    pod = read_pod(apply_patch(case.pod.raw, operations))
    try:
        decision = _decide_creation_with_hints(new_case(pod, case.rule, case.policy, case.cluster))
        problem = str(decision.findings[0]) if decision.findings else ""
    except MalformedObjectError as error:
        problem = str(error)
    is_observed = case.cluster.rollout is Rollout.OBSERVE
    if problem or is_observed:
        decision = _decide_creation_with_hints(case)
    else:
        patch = (*operations, *decision.patch)
        decision = replace(decision, patch=patch, original=case.pod.raw)
    note = share.rejection(problem) if problem else share.notice(foreseen=is_observed)
    return replace(decision, notes=(note, *decision.notes)) if decision.allowed else decision


def _decide_creation(case: Case) -> Decision:
    """Decide a creation: judge the pod, then translate it or verify its translation.

    | action | something is wrong | nothing is wrong |
    | --- | --- | --- |
    | Enforce | denied | translated |
    | Warn | unchanged, with warnings | translated |
    | Audit | unchanged, and recorded | unchanged |

    Under Audit the annotations have no effect: the pod is not managed, has no cap, and is assigned
    no GPU.
    """
    if not case.requests_vram:
        return _decide_without_demand(case)
    findings = collect_findings(case, _creation_kind(case))
    if findings or case.rule.action is Action.AUDIT:
        return _conclude_case(case, findings)
    if not case.mutating:
        return _conclude_case(case, collect_findings(case, CaseKind.TRANSLATED))
    edits = mutate_pod(case.pod, case.demand, case.rule, case.policy, case.cluster, case.enforcer)
    return _allow_with_edits(case, edits)


def _findings_after_suggestions(case: Case, known: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return the findings that remain after all suggested changes, without `known` findings.

    So the pod's author gets all findings at once. No pod is judged more than twice.
    """
    pod = preview_changes(
        case.pod, case.suggested_changes.annotations, case.suggested_changes.removed
    )
    after = new_case(pod, case.rule, case.policy, case.cluster)
    places = {(finding.reason, finding.path) for finding in known}
    return tuple(
        finding
        for finding in collect_findings(after, _creation_kind(after))
        if (finding.reason, finding.path) not in places
    )


def _creation_kind(case: Case) -> CaseKind:
    return CaseKind.READABLE if case.demand_if_any else CaseKind.UNREADABLE


def _decide_without_demand(case: Case) -> Decision:
    """Decide a pod that requests no VRAM: only GPUs made visible by hand are changed."""
    findings = collect_findings(case, CaseKind.WITHOUT_DEMAND)
    if _hides_devices(case) and not findings:
        for container in case.pod.containers:
            container.env()  # may raise MalformedObjectError
        return _allow_with_edits(case, edit_variables(case.pod.containers, hide_visible_devices))
    return _conclude_case(case, findings)


def _decide_debuggers(case: Case) -> Decision:
    """Decide new debugging containers. Existing containers cannot change.

    | pod | in the mutating phase, without findings |
    | --- | --- |
    | with a demand | they get NVIDIA_VISIBLE_DEVICES=void: an image may set it |
    | without, visibleDevices Void | a variable set by hand is voided |
    | without, otherwise | unchanged |

    Under Audit, debugging containers are unchanged.
    """
    debuggers = new_debuggers(case.old, case.pod)
    if not is_managed(case.old.raw):
        findings = collect_findings(case, CaseKind.DEBUGGED_WITHOUT_DEMAND)
        if findings or not _hides_devices(case):
            return _conclude_case(case, findings)
        return _allow_with_edits(case, edit_variables(debuggers, hide_visible_devices))
    findings = collect_findings(case, CaseKind.DEBUGGED)
    is_audited = case.rule.action is Action.AUDIT
    if findings or is_audited or not case.mutating or _is_observed(case.cluster, case.old.raw):
        return _conclude_case(case, findings)
    return _allow_with_edits(case, edit_variables(debuggers, hide_devices_unless_set))


def _hides_devices(case: Case) -> bool:
    """Return True if translation hides GPUs that a pod without a demand makes visible.

    With rollout Observe, and under Audit, such GPUs are findings instead and are not hidden.
    """
    return case.mutating and case.rule.visible_devices is VisibleDevices.VOID


def _allow_with_edits(case: Case, edits: Edits) -> Decision:
    # Advice on the amount does not apply to a slice, whose size is fixed.
    advises = case.demand_if_any is not None and not case.rule.uses_device_plugin
    return Decision(
        outcome=Outcome.MUTATED if edits.operations else Outcome.ALLOWED,
        patch=tuple(edits.operations),
        rule=case.rule.name,
        policy=case.policy.short_digest,
        advice_bytes=case.demand.per_gpu_bytes if advises else None,
        advice_path=case.demand.path if advises else "",
        original=case.pod.raw,
    )


def _conclude_case(case: Case, findings: tuple[Finding, ...]) -> Decision:
    return _conclude(findings, case.rule, case.policy, case.cluster, case.pod.raw, case.old.raw)


def _conclude(
    findings: tuple[Finding, ...],
    rule: Rule,
    policy: Policy,
    cluster: Cluster,
    pod: Json,
    stored: Json,
) -> Decision:
    """Return the decision for findings, given the rule's action and the rollout.

    `stored` is the pod before an update, or the same pod at its creation.
    """
    outcome = _OUTCOMES[rule.action] if findings else Outcome.ALLOWED
    if outcome is Outcome.DENIED and _is_observed(cluster, pod, stored):
        outcome = Outcome.WARNED
    return Decision(
        outcome=outcome,
        findings=findings,
        rule=rule.name,
        policy=policy.short_digest,
        guidance=_guidance(rule) if findings and outcome is not Outcome.AUDITED else "",
        silent=rule.action is Action.AUDIT,
        original=pod,
    )


def _guidance(rule: Rule) -> str:
    return f"{MESSAGE_PREFIX}{rule.message}" if rule.message else ""


def _is_observed(cluster: Cluster, *pods: Json) -> bool:
    """Return True if the rollout turns findings into warnings for pods that request no VRAM."""
    return cluster.rollout is Rollout.OBSERVE and not any(map(requests_vram, pods))


_OUTCOMES: Final[dict[Action, Outcome]] = {
    Action.ENFORCE: Outcome.DENIED,
    Action.WARN: Outcome.WARNED,
    Action.AUDIT: Outcome.AUDITED,
}
