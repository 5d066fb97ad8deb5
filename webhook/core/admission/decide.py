"""From a request to a decision: the one function behind webhook, command and examples."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from webhook.core.admission.mutation import hide_devices_from, mutate_pod, void_visible_devices
from webhook.core.admission.rules.amounts import room_for_enforcer
from webhook.core.admission.rules.changes import debugging_containers, immutable
from webhook.core.admission.rules.keys import unread_keys
from webhook.core.admission.sidecar.container import enforcer_container
from webhook.core.admission.sidecar.profiles import enforcer_profiles
from webhook.core.admission.sidecar.user import enforcer_user
from webhook.core.admission.validation import (
    check_any_pod,
    check_asking,
    check_shape,
    check_translated,
    check_without_demand,
)
from webhook.core.pod.demand import read_demand
from webhook.core.pod.findings import Finding, MalformedObjectError, render
from webhook.core.pod.patch import proven_patch
from webhook.core.pod.views import read_containers, read_pod
from webhook.core.policy.values import Action, Policy, Rule, VisibleDevices
from webhook.names import MANAGED_LABEL, MIRROR_POD_ANNOTATION, NODES_GROUP

if TYPE_CHECKING:
    from collections.abc import Iterable

    from webhook.core.pod.demand import Demand
    from webhook.core.pod.fields import Json
    from webhook.core.pod.patch import Operation
    from webhook.core.pod.request import Request
    from webhook.core.pod.views import Pod


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
    """Why a review is allowed without a look at the pod."""

    NOT_A_POD = "NotAPod"
    OPERATION = "Operation"
    SUBRESOURCE = "Subresource"
    MIRROR_POD = "MirrorPod"
    NO_RULE = "NoRule"
    RULE_IGNORES = "RuleIgnores"


@dataclass(frozen=True, slots=True)
class Decision:
    """What is answered, and why."""

    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    patch: tuple[Operation, ...] = ()
    rule: str = ""
    policy: str = ""
    """The first 12 hex digits of the policy's digest."""
    skip: Skip | None = None
    malformed: str = ""
    notes: tuple[str, ...] = ()
    """What the user should know although it changes nothing: always told, as warnings."""
    obj: Json = field(default_factory=dict, repr=False, compare=False)
    """The object as it is after the decision."""

    @property
    def allowed(self) -> bool:
        """Whether the API server may go on."""
        return self.outcome not in {Outcome.DENIED, Outcome.MALFORMED}

    @property
    def message(self) -> str:
        """What the user reads where the answer is no."""
        return self.malformed or render(self.findings)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons found, each once, or why the review was skipped."""
        if self.skip:
            return (self.skip.value,)
        return tuple(dict.fromkeys(finding.reason.value for finding in self.findings))


def decide(request: Request, policy: Policy, phase: Phase) -> Decision:
    """Decide a review; raises PatchError where a patch of ours does not hold (a bug).

    | request | decided by |
    | --- | --- |
    | not a pod, DELETE, CONNECT, unknown subresource | skipped: allowed |
    | no rule matches, or it says Ignore | skipped: allowed |
    | a mirror pod, created by a kubelet | skipped: allowed |
    | CREATE of a pod | `_created` |
    | UPDATE of a pod, or its resize | `_updated` |
    | UPDATE of its ephemeral containers | `_debugged` |
    """
    skip = _not_ours(request)
    if skip:
        return Decision(Outcome.SKIPPED, skip=skip, policy=policy.short_digest, obj=request.obj)
    try:
        pod = read_pod(request.obj)
        old = read_pod(request.old) if request.operation == "UPDATE" else None
        rule = policy.rule_for(request.namespace, (old or pod).labels)
        if rule is None or rule.action is Action.IGNORE:
            skip = Skip.RULE_IGNORES if rule else Skip.NO_RULE
        elif MIRROR_POD_ANNOTATION in pod.annotations and NODES_GROUP in request.groups:
            skip = Skip.MIRROR_POD
        if skip or rule is None:
            return Decision(
                Outcome.SKIPPED,
                rule=rule.name if rule else "",
                policy=policy.short_digest,
                skip=skip,
                obj=request.obj,
            )
        if old is None:
            decision = _created(pod, rule, policy, phase)
            # Not in both phases: the user would read it twice.
            notes = unread_keys(pod) if phase is Phase.MUTATE else ()
            return replace(decision, notes=notes) if notes else decision
        if request.subresource == "ephemeralcontainers":
            return _debugged(old, pod, rule, policy, phase)
        return _judged(pod, rule, policy, immutable(old, pod))
    except MalformedObjectError as error:
        return Decision(
            Outcome.MALFORMED, policy=policy.short_digest, malformed=str(error), obj=request.obj
        )


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


def _created(pod: Pod, rule: Rule, policy: Policy, phase: Phase) -> Decision:
    """Decide the creation of a pod: read its demand, judge it, translate it."""
    demand, unreadable = read_demand(pod)
    findings = [*unreadable, *check_any_pod(pod, policy)]
    if demand is None and not unreadable:
        findings.extend(check_without_demand(pod, rule))
        return _without_demand(pod, rule, policy, phase, findings)

    check_shape(pod)
    findings.extend(check_asking(pod, demand, rule, policy))
    if demand is None:
        return _judged(pod, rule, policy, findings)
    enforcer, impossible = _enforcer(pod, demand, rule)
    findings.extend(impossible)
    if findings:
        return _judged(pod, rule, policy, findings)
    if phase is Phase.VALIDATE:
        return _judged(pod, rule, policy, check_translated(pod, demand, rule, policy, enforcer))
    return _mutated(pod, mutate_pod(pod, demand, rule, policy, enforcer), rule, policy)


def _enforcer(pod: Pod, demand: Demand, rule: Rule) -> tuple[Json | None, tuple[Finding, ...]]:
    """Return the sidecar that the rule wants, and why it could not do its work."""
    if not rule.has_sidecar:
        return None, ()
    user = enforcer_user(pod, demand, rule)
    profiles, differing = enforcer_profiles(pod, demand, rule)
    if isinstance(user, Finding):
        return None, (user, *differing)
    enforcer = enforcer_container(demand, rule, user, profiles)
    return enforcer, (*differing, *room_for_enforcer(pod, enforcer))


def _without_demand(
    pod: Pod, rule: Rule, policy: Policy, phase: Phase, findings: list[Finding]
) -> Decision:
    """Decide a pod that asks for no VRAM: left alone, but for GPUs made visible by hand."""
    void = rule.visible_devices is VisibleDevices.VOID and phase is Phase.MUTATE
    if void and not findings:
        for container in pod.containers:
            container.env()
        return _mutated(pod, void_visible_devices(pod), rule, policy)
    return _judged(pod, rule, policy, findings)


def _debugged(old: Pod, pod: Pod, rule: Rule, policy: Policy, phase: Phase) -> Decision:
    """Decide new debugging containers; those that exist cannot change any more.

    Where the mutating webhook sees them they get NVIDIA_VISIBLE_DEVICES=void, because an image may
    have that variable built in and admission cannot look into images.
    """
    if old.labels.get(MANAGED_LABEL) != "true" and not _asks(old):
        return _judged(pod, rule, policy, ())
    known = {container.name for container in read_containers(old.spec, "ephemeralContainers")}
    added = [
        container
        for container in read_containers(pod.spec, "ephemeralContainers")
        if container.name not in known
    ]
    findings = tuple(debugging_containers(added, may_be_hidden=phase is Phase.MUTATE))
    if findings or phase is Phase.VALIDATE:
        return _judged(pod, rule, policy, findings)
    names = {container.name for container in added}
    return _mutated(pod, hide_devices_from(pod, names), rule, policy)


def _asks(pod: Pod) -> bool:
    demand: Demand | None
    demand, unreadable = read_demand(pod)
    return demand is not None or bool(unreadable)


def _mutated(pod: Pod, wanted: Json, rule: Rule, policy: Policy) -> Decision:
    patch = proven_patch(pod.raw, wanted)
    outcome = Outcome.MUTATED if patch else Outcome.ALLOWED
    return Decision(
        outcome, patch=tuple(patch), rule=rule.name, policy=policy.short_digest, obj=wanted
    )


def _judged(pod: Pod, rule: Rule, policy: Policy, findings: Iterable[Finding]) -> Decision:
    """Turn findings into a decision, as the rule's action says."""
    found = tuple(dict.fromkeys(findings))
    outcomes: dict[Action, Outcome] = {
        Action.ENFORCE: Outcome.DENIED,
        Action.WARN: Outcome.WARNED,
        Action.AUDIT: Outcome.AUDITED,
    }
    outcome = outcomes[rule.action] if found else Outcome.ALLOWED
    return Decision(outcome, found, rule=rule.name, policy=policy.short_digest, obj=pod.raw)
