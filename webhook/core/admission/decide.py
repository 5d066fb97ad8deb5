"""From a request to a decision: the one function behind webhook, command and examples.

`webhook/core/admission/rules/table.py` lists which rules judge which pod.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, partial
from typing import Any, Final

from webhook.core.admission.mutation import edit_variables, mutate_pod
from webhook.core.admission.rules.case import Case, CaseKind, case_of
from webhook.core.admission.rules.changes import new_debuggers
from webhook.core.admission.rules.complexity import is_managed, is_ours_to_deny
from webhook.core.admission.rules.other_webhooks import found_late
from webhook.core.admission.rules.table import UNREAD, findings_of, hints_of
from webhook.core.admission.whole_gpu import Offer, offer
from webhook.core.bounds import LONGEST_SENTENCE
from webhook.core.formatting import shorten
from webhook.core.nvidia.variables import hide_devices_unless_set, hide_visible_devices
from webhook.core.pod.complexity import outgrown, too_complex
from webhook.core.pod.demand import asks_for_vram
from webhook.core.pod.fields import Json, part
from webhook.core.pod.findings import GUIDANCE, Finding, MalformedObjectError, render
from webhook.core.pod.patch import Edits, Operation, apply_patch
from webhook.core.pod.request import BAD_REQUEST, FORBIDDEN, Request
from webhook.core.pod.suggestions import Suggestions
from webhook.core.pod.views import (
    annotations_of,
    changed,
    labels_of,
    read_pod,
    service_account_of,
)
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.match import Subject
from webhook.core.policy.values import Action, Policy, Rollout, Rule, VisibleDevices
from webhook.names import ADMITTED_ANNOTATION, MIRROR_POD_ANNOTATION, NODES_GROUP

SHOWN_BESIDE: Final = 10
"""Of what else would be wrong with a pod that follows a hint."""
LOGGED_FINDINGS: Final = 16
"""Of which the sentence in the logs is made."""


class Phase(StrEnum):
    """The phases of admission, as Kubernetes names them."""

    MUTATE = "mutate"
    VALIDATE = "validate"


class Outcome(StrEnum):
    """What became of a review."""

    ALLOWED = "allowed"
    MUTATED = "mutated"
    DENIED = "denied"
    WARNED = "warned"
    AUDITED = "audited"
    SKIPPED = "skipped"
    MALFORMED = "malformed"


class Skip(StrEnum):
    """Why a review is allowed without judging the pod."""

    NOT_A_POD = "NotAPod"
    OPERATION = "Operation"
    SUBRESOURCE = "Subresource"
    MIRROR_POD = "MirrorPod"
    NO_RULE = "NoRule"
    RULE_IGNORES = "RuleIgnores"


# Not frozen, as `views.Pod`. No slots: the object after it is made once, if it is read at all.
@dataclass(kw_only=True)
class Decision:
    """The answer to a review, and the reasons for it; immutable by convention."""

    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    patch: tuple[Operation, ...] = ()
    rule: str = ""
    policy: str = ""
    """The first 12 hex digits of the policy's digest."""
    skip: Skip | None = None
    malformed: str = ""
    notes: tuple[str, ...] = ()
    """What the user should know although it changes nothing: always returned, as warnings."""
    unread: tuple[str, ...] = ()
    """Warnings about keys of ours that nothing reads; `admit` counts them as findings."""
    guidance: str = ""
    """What the platform team says behind what the user reads about findings; empty for nothing."""
    advises_on_bytes: int | None = None
    """What a new pod asks for per GPU, where who creates it is to be told if that is too much or
    too little."""
    advises_at: str = ""
    """Path of the field that asks for it."""
    silent: bool = False
    """Whether it is only recorded: who creates the pod reads nothing of it, nor advice."""
    before: Json = field(default_factory=dict, repr=False, compare=False)
    """The object that came."""

    def advised(self, sentence: str) -> Decision:
        """Return the decision with a warning about the amount; itself if there is none."""
        warning = f"{self.advises_at}: {sentence}"
        return replace(self, notes=(*self.notes, warning)) if sentence else self

    @cached_property
    def obj(self) -> Json:
        """The object as it is after the decision: the patch applied."""
        return apply_patch(self.before, self.patch) if self.patch else self.before

    @property
    def allowed(self) -> bool:
        """Whether the API server may go on."""
        return self.outcome not in {Outcome.DENIED, Outcome.MALFORMED}

    @property
    def message(self) -> str:
        """What the user reads where the request is denied."""
        said = self.malformed or render(self.findings)
        return f"{said}. {self.guidance}" if self.guidance else said

    @property
    def code(self) -> int:
        """The HTTP status code where the request is denied."""
        return BAD_REQUEST if self.malformed else FORBIDDEN

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user reads where the request is allowed."""
        said = (*self.unread, *self.notes)
        if self.outcome is not Outcome.WARNED:
            return said
        guidance = (self.guidance,) if self.guidance else ()
        return (*map(str, self.findings), *guidance, *said)

    @cached_property
    def sentence(self) -> str:
        """What is wrong, in one line as our log and the audit log keep it; empty for nothing.

        A tenant can have it grow with their pod, so it is cut; the answer to them is not.
        """
        return shorten(
            self.malformed or render(self.findings[:LOGGED_FINDINGS], "; "), LONGEST_SENTENCE
        )

    @property
    def audit(self) -> dict[str, str]:
        """What the audit log keeps besides outcome and reasons."""
        kept = {"rule": self.rule, "policy": self.policy}
        return {**kept, "message": self.sentence} if self.sentence else kept

    @property
    def logged(self) -> dict[str, Any]:
        """What our own log keeps besides outcome and reasons."""
        logged: dict[str, Any] = {
            "rule": self.rule,
            "policy": self.policy,
            "patchOps": len(self.patch),
        }
        if self.sentence:
            logged["why"] = self.sentence
        if self.unread or self.notes:
            logged["notes"] = (*self.unread, *self.notes)
        return logged

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons found, each once, or why the review was skipped."""
        if self.skip:
            return (self.skip.value,)
        return tuple(dict.fromkeys(finding.reason.value for finding in self.findings))


def decide(request: Request, policy: Policy, cluster: Cluster, phase: Phase) -> Decision:
    """Decide a review; raises NamespaceUnknownError where it cannot yet."""
    decision = decide_anew(request, policy, cluster, phase)
    notes = part(request.obj, "metadata", "annotations")
    is_denied = decision.outcome is Outcome.DENIED and request.operation == "CREATE"
    if is_denied and ADMITTED_ANNOTATION in notes:
        return replace(decision, findings=tuple(map(found_late, decision.findings)))
    return decision


def decide_anew(request: Request, policy: Policy, cluster: Cluster, phase: Phase) -> Decision:
    """Decide a review as this table says; raises NamespaceUnknownError.

    Findings do not mention other webhooks, which cannot have changed a stored pod that is judged
    as if it were created again.

    | request | decided by |
    | --- | --- |
    | not a pod, DELETE, CONNECT, unknown subresource | skipped: allowed |
    | what bears our marks and outgrows the bounds: `outgrown` | denied, by whatever rule |
    | no rule matches, or it says Ignore | skipped: allowed |
    | a mirror pod, created by a kubelet | skipped: allowed |
    | a pod over the bounds of `too_complex` | `_unread` |
    | CREATE of a pod | `_created` |
    | UPDATE of a pod, or its resize | the rule `immutable` |
    | UPDATE of its ephemeral containers | `_debugged` |
    """
    answer = partial(Decision, policy=policy.short_digest, before=request.obj)
    skip = _not_ours(request)
    if skip:
        return answer(outcome=Outcome.SKIPPED, skip=skip)
    rule = None
    try:
        excess = too_complex(request.obj)
        grown = () if _is_mirror(request) else outgrown(request.obj, excess, request.old)
        if grown:
            return answer(outcome=Outcome.DENIED, findings=grown)
        rule = governing_rule(request, policy, cluster)
        skip = _left_alone(request, rule)
        if skip or rule is None:
            return answer(outcome=Outcome.SKIPPED, rule=rule.name if rule else "", skip=skip)
        if request.old and not excess:
            excess = too_complex(request.old)
        if excess:
            findings = tuple(finding for finding, _ in excess.values())
            return _unread(request, rule, policy, cluster, findings)
        return _read(request, rule, policy, cluster, mutating=phase is Phase.MUTATE)
    except MalformedObjectError as error:
        guidance = _guidance(rule) if rule else ""
        return answer(outcome=Outcome.MALFORMED, malformed=str(error), guidance=guidance)


def governing_rule(request: Request, policy: Policy, cluster: Cluster) -> Rule | None:
    """Return the rule that applies to the pod of a request; None if no rule matches it.

    The rule for an update is the one for the pod as it is stored. Raises MalformedObjectError,
    NamespaceUnknownError.
    """
    pod = request.old if request.operation == "UPDATE" else request.obj
    subject = Subject(
        namespace=request.namespace,
        pod_labels=labels_of(pod),
        namespace_labels=cluster.labels_of(request.namespace),
        service_account=service_account_of(pod),
    )
    return policy.rule_for(subject)


_SUBRESOURCES: Final = frozenset({"", "ephemeralcontainers", "resize"})


def _not_ours(request: Request) -> Skip | None:
    if request.kind != "Pod":
        return Skip.NOT_A_POD
    if request.operation not in {"CREATE", "UPDATE"}:
        return Skip.OPERATION
    if request.subresource not in _SUBRESOURCES or (
        request.subresource and request.operation != "UPDATE"
    ):
        return Skip.SUBRESOURCE
    return None


def _left_alone(request: Request, rule: Rule | None) -> Skip | None:
    if rule is None:
        return Skip.NO_RULE
    if rule.action is Action.IGNORE:
        return Skip.RULE_IGNORES
    return Skip.MIRROR_POD if _is_mirror(request) else None


def _is_mirror(request: Request) -> bool:
    return NODES_GROUP in request.groups and MIRROR_POD_ANNOTATION in annotations_of(request.obj)


def _unread(
    request: Request, rule: Rule, policy: Policy, cluster: Cluster, excess: tuple[Finding, ...]
) -> Decision:
    """Decide about a pod that is too complex to be judged: denied where it would have to be."""
    findings = excess if is_ours_to_deny(request, rule) else ()
    before = request.old if request.operation == "UPDATE" else request.obj
    return _answered(findings, rule, policy, cluster, request.obj, before)


def _read(
    request: Request, rule: Rule, policy: Policy, cluster: Cluster, *, mutating: bool
) -> Decision:
    pod = read_pod(request.obj)
    if request.operation == "CREATE":
        case = case_of(pod, rule, policy, cluster, mutating=mutating)
        if not mutating:  # hints in both phases the user would read twice
            return _created(case)
        found = None if case.asks else offer(pod, rule, policy)
        return _hinted(case) if found is None else _offered(case, found)
    case = Case(
        pod=pod,
        old=read_pod(request.old),
        rule=rule,
        policy=policy,
        cluster=cluster,
        suggestions=Suggestions(pod.containers),  # no message about an update has one
        mutating=mutating,
    )
    if request.subresource == "ephemeralcontainers":
        return _debugged(case)
    return _judged(case, findings_of(case, CaseKind.UPDATED))


def _hinted(case: Case) -> Decision:
    """Decide a creation, with what its user should know beside."""
    decision = _created(case)
    if decision.silent:
        return decision
    fine = decision.allowed and not decision.findings
    unread, notes = UNREAD(case), hints_of(case, fine=fine)
    if case.lines.annotations:
        beside = _found_after_lines(case, decision.findings)[:SHOWN_BESIDE]
        notes += tuple(f"{one.path}: beside that, {one.reason}: {one.detail}" for one in beside)
    return replace(decision, unread=unread, notes=notes) if unread or notes else decision


def _offered(case: Case, found: Offer) -> Decision:
    """Decide a creation where a share may take the place of a whole GPU: see `whole_gpu`."""
    asking = tuple(found.edits.operations)
    pod = read_pod(apply_patch(case.pod.raw, asking))
    try:
        shared = _hinted(case_of(pod, case.rule, case.policy, case.cluster))
        wrong = str(shared.findings[0]) if shared.findings else ""
    except MalformedObjectError as error:
        wrong = str(error)
    if wrong:
        return _noted(_hinted(case), found.declined(wrong))
    if case.cluster.rollout is Rollout.OBSERVE:
        return _noted(_hinted(case), found.said(foreseen=True))
    shared = replace(shared, patch=(*asking, *shared.patch), before=case.pod.raw)
    return _noted(shared, found.said(foreseen=False))


def _noted(decision: Decision, note: str) -> Decision:
    return replace(decision, notes=(note, *decision.notes)) if decision.allowed else decision


def _created(case: Case) -> Decision:
    """Decide the creation of a pod: judge it, then translate it or check that it is translated.

    | action | something is wrong | nothing is wrong |
    | --- | --- | --- |
    | Enforce | denied | translated |
    | Warn | as its user wrote it, with warnings | translated |
    | Audit | as its user wrote it, and recorded | as its user wrote it |

    So under Audit the annotations ask nobody for anything, and no pod becomes ours: none is held to
    a cap, and none is given a GPU.
    """
    if not case.asks:
        return _without_demand(case)
    findings = findings_of(case, _kind_of(case))
    if findings or case.rule.action is Action.AUDIT:
        return _judged(case, findings)
    if not case.mutating:
        return _judged(case, findings_of(case, CaseKind.TRANSLATED))
    edits = mutate_pod(case.pod, case.demand, case.rule, case.policy, case.cluster, case.enforcer)
    return _mutated(case, edits)


def _found_after_lines(case: Case, found: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return what else would be found if the pod's author follows all suggested lines.

    So the author reads it at once. This is the only second judgement of a pod.
    """
    pod = changed(case.pod, case.lines.annotations, case.lines.removed)
    after = case_of(pod, case.rule, case.policy, case.cluster)
    known = {(one.reason, one.path) for one in found}
    return tuple(
        one for one in findings_of(after, _kind_of(after)) if (one.reason, one.path) not in known
    )


def _kind_of(case: Case) -> CaseKind:
    return CaseKind.READABLE if case.asked else CaseKind.UNREADABLE


def _without_demand(case: Case) -> Decision:
    """Decide a pod that asks for no VRAM: left alone, except for GPUs made visible by hand."""
    findings = findings_of(case, CaseKind.WITHOUT_DEMAND)
    if _voids(case) and not findings:
        for container in case.pod.containers:
            container.env()  # raises MalformedObjectError
        return _mutated(case, edit_variables(case.pod.containers, hide_visible_devices))
    return _judged(case, findings)


def _debugged(case: Case) -> Decision:
    """Decide new debugging containers; those that exist cannot change any more.

    | pod | where the mutating webhook sees them and nothing is wrong |
    | --- | --- |
    | with a demand | they get NVIDIA_VISIBLE_DEVICES=void: an image may have it built in |
    | without, visibleDevices Void | a variable set by hand is voided |
    | without, otherwise | left alone: nobody's debugging is our business |

    Under Audit they are left as they are.
    """
    debuggers = new_debuggers(case.old, case.pod)
    if not is_managed(case.old.raw):
        findings = findings_of(case, CaseKind.DEBUGGED_WITHOUT_DEMAND)
        if findings or not _voids(case):
            return _judged(case, findings)
        return _mutated(case, edit_variables(debuggers, hide_visible_devices))
    findings = findings_of(case, CaseKind.DEBUGGED)
    audited = case.rule.action is Action.AUDIT
    if findings or audited or not case.mutating or _is_observed(case.cluster, case.old.raw):
        return _judged(case, findings)
    return _mutated(case, edit_variables(debuggers, hide_devices_unless_set))


def _voids(case: Case) -> bool:
    """Say whether GPUs that a pod without a demand makes visible are hidden now.

    While a rollout observes, and under Audit, they are findings instead, so that nothing is left to
    hide.
    """
    return case.mutating and case.rule.visible_devices is VisibleDevices.VOID


def _mutated(case: Case, edits: Edits) -> Decision:
    # Advice on the amount does not apply to a slice, whose size is fixed.
    advises = case.asked is not None and not case.rule.leaves_to_plugin
    return Decision(
        outcome=Outcome.MUTATED if edits.operations else Outcome.ALLOWED,
        patch=tuple(edits.operations),
        rule=case.rule.name,
        policy=case.policy.short_digest,
        advises_on_bytes=case.demand.per_gpu_bytes if advises else None,
        advises_at=case.demand.path if advises else "",
        before=case.pod.raw,
    )


def _judged(case: Case, findings: tuple[Finding, ...]) -> Decision:
    return _answered(findings, case.rule, case.policy, case.cluster, case.pod.raw, case.old.raw)


def _answered(
    findings: tuple[Finding, ...],
    rule: Rule,
    policy: Policy,
    cluster: Cluster,
    pod: Json,
    before: Json,
) -> Decision:
    """Turn findings into a decision, as the rule's action and the rollout say."""
    outcome = _OUTCOMES[rule.action] if findings else Outcome.ALLOWED
    if outcome is Outcome.DENIED and _is_observed(cluster, pod, before):
        outcome = Outcome.WARNED
    return Decision(
        outcome=outcome,
        findings=findings,
        rule=rule.name,
        policy=policy.short_digest,
        guidance=_guidance(rule) if findings and outcome is not Outcome.AUDITED else "",
        silent=rule.action is Action.AUDIT,
        before=pod,
    )


def _guidance(rule: Rule) -> str:
    return f"{GUIDANCE}{rule.message}" if rule.message else ""


def _is_observed(cluster: Cluster, *pods: Json) -> bool:
    """Say whether findings are only warned of: during a rollout, on pods that never asked."""
    return cluster.rollout is Rollout.OBSERVE and not any(map(asks_for_vram, pods))


_OUTCOMES: Final[dict[Action, Outcome]] = {
    Action.ENFORCE: Outcome.DENIED,
    Action.WARN: Outcome.WARNED,
    Action.AUDIT: Outcome.AUDITED,
}
