"""What becomes of the pods of a template: behind the command `admit` and the webhook on workloads.

A controller shows nobody what its pods are told: their author reads it here, or in the events of a
ReplicaSet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Decision, Outcome, Phase, Skip
from webhook.core.admission.stray_keys import find_stray_keys, warnings_about
from webhook.core.nvidia.programs import warn_of_size
from webhook.core.pod.fields import Json, find_string
from webhook.core.pod.patch import Operation, PatchError, apply_patch
from webhook.core.pod.pod_templates import Form, Template
from webhook.core.pod.request import Request
from webhook.core.pod.template_search import find_templates, is_builtin_kind
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.model import Policy

MoreAdvice = Callable[[Request, Json, int], str]
"""From a review, the metadata of its pods and what each asks for per GPU to one sentence more,
or none; without asking anybody."""

_SILENT: Final = frozenset({Skip.NO_RULE, Skip.RULE_IGNORES})


def decide_both(creation: Request, policy: Policy, cluster: Cluster) -> tuple[Decision, Decision]:
    """Decide a creation as the API server would have it decided: mutate, then validate.

    Returns the first decision and the last, which is the same where the first one denies.
    """
    first = decide(creation, policy, cluster, Phase.MUTATE)
    if not first.allowed:
        return first, first
    return first, decide(replace(creation, obj=first.obj), policy, cluster, Phase.VALIDATE)


def creation_of(pod: Json, namespace: str) -> Request:
    """Return the request that the API server would send for a pod's creation."""
    return Request(
        uid="template",
        kind="Pod",
        operation="CREATE",
        subresource="",
        namespace=namespace,
        name=find_string(pod, "metadata", "name"),
        dry_run=True,
        obj=pod,
        old={},
    )


def pod_of(template: Template, owner: str) -> Json:
    """Return the pod of a template that an object of this name makes.

    A virtual machine's is a stand-in: its own is made elsewhere, of one container `compute`, and
    with the same annotations, so what is wrong with those is denied there as well.
    """
    pod = template.named(owner)
    if template.form is not Form.MACHINE:
        return pod
    return {**pod, "spec": {"containers": [{"name": "compute", "image": "-"}]}}


def relocated(decision: Decision, template: Template) -> Decision:
    """Return a decision about a pod with the paths of the object that makes it."""
    if not template.path:
        return decision
    return replace(
        decision,
        findings=tuple(replace(one, path=template.shown(one.path)) for one in decision.findings),
        malformed=template.shown_text(decision.malformed),
        notes=tuple(map(template.shown_text, decision.notes)),
        unread_keys=tuple(map(template.shown_text, decision.unread_keys)),
    )


@dataclass(kw_only=True)
class WorkloadAdvice(Decision):
    """The answer to a review of a workload: it is allowed, and its author reads what is wrong."""

    outcome: Outcome = Outcome.ALLOWED
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def log_fields(self) -> dict[str, Any]:
        """Entries of our log in addition to outcome and reasons."""
        return {**self.audit_annotations, "warnings": len(self.warnings)}


def size_alone(_request: Request, _pod: Json, requested_bytes: int) -> str:
    """Return the warning that needs neither a history nor a cluster."""
    return warn_of_size(requested_bytes)


def advise(
    request: Request, policy: Policy, cluster: Cluster, more: MoreAdvice = size_alone
) -> WorkloadAdvice:
    """Say what would become of the pods of a workload; it is allowed, whatever that is.

    | the template's pods | warnings |
    | --- | --- |
    | would be denied | each finding |
    | would be warned of | each finding |
    | come under a rule that records alone (Audit) | none at all |
    | come under no rule, or one that ignores them | none at all |

    Beside them stand hints: names of other products, near misses of ours, keys at the wrong level,
    and what `more` says. What was deleted, and what is no workload of Kubernetes' own, is silent.

    Raises NamespaceUnknownError.
    """
    group, _, kind = request.kind.rpartition("/")
    version = f"{group}/v1" if group else "v1"
    is_written = request.operation in {"CREATE", "UPDATE"} and not request.subresource
    # Only there a template is found without a search.
    if not is_written or not is_builtin_kind(kind, version):
        return WorkloadAdvice(outcome=Outcome.SKIPPED, policy=policy.short_digest)
    advice = WorkloadAdvice(policy=policy.short_digest)
    (template,) = find_templates(request.obj, kind, version)
    if template.pod is None or not template.path:
        return advice
    pod = pod_of(template, request.name)

    def decided(pod: Json) -> Decision:
        return decide(creation_of(pod, request.namespace), policy, cluster, Phase.MUTATE)

    decision = decided(pod)
    requested_bytes, metadata = decision.advice_bytes, pod.get("metadata")
    if requested_bytes is not None and isinstance(metadata, dict):
        decision = decision.with_advice(more(request, metadata, requested_bytes))
    decision = relocated(decision, template)
    if decision.skip in _SILENT:
        return replace(advice, outcome=Outcome.SKIPPED, reasons=decision.reasons)
    advice = replace(advice, reasons=decision.reasons, rule=decision.rule)
    if decision.silent:
        return replace(advice, outcome=decision.outcome)
    strays = find_stray_keys(request.obj, kind, [template])
    warnings = (
        *_foreseen(decision),
        *decision.unread_keys,
        *decision.notes,
        *warnings_about(strays, template, pod, decided, decision.findings),
    )
    outcome = Outcome.WARNED if warnings else Outcome.ALLOWED
    return replace(advice, warnings=warnings, outcome=outcome)


def _foreseen(decision: Decision) -> Iterator[str]:
    """Yield the findings of the pods' review."""
    if decision.malformed:
        yield f"the API server would reject its pods: {decision.malformed}"
    elif decision.outcome is Outcome.DENIED:
        for finding in decision.findings:
            yield f"its pods would be denied: {finding}"
    elif decision.outcome is Outcome.WARNED:
        for finding in decision.findings:
            yield f"its pods bring a warning: {finding}"
    if decision.guidance:
        yield decision.guidance


def prove(request: Request, patch: Sequence[Operation], policy: Policy, cluster: Cluster) -> None:
    """Apply a patch and decide again; raises PatchError where it does not hold (a bug).

    A patch is derived from the edits that translation makes and is not applied where it is sent.
    Laws in the tests hold for drawn pods; this holds for a sample of those that people create.

    | the pod with the patch | |
    | --- | --- |
    | cannot be made: an operation names what is not there | does not hold |
    | would be mutated again | does not hold |
    | would not be stored: the validating phase finds something | does not hold |
    | is decided as it is in both phases | holds |

    The API server rejects a pod whose patch does not apply, even where `failurePolicy` is Ignore.
    """
    patched = replace(request, obj=apply_patch(request.obj, patch))
    for phase in Phase:
        again = decide(patched, policy, cluster, phase)
        if not again.allowed or again.patch:
            why = again.message or ", ".join(operation["path"] for operation in again.patch)
            raise PatchError(f"a patch applies, but its pod is not as wanted ({phase}: {why})")
