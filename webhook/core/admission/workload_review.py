"""Review of a workload: the decision on the pods of its templates.

Controllers do not surface warnings about their pods, except in a ReplicaSet's events. So these
warnings are reported on the workload. The command `admit` and the webhook on workloads call this
module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Decision, Outcome, Phase, Skip
from webhook.core.admission.stray_keys import find_stray_keys, stray_key_warnings
from webhook.core.nvidia.programs import warn_of_size
from webhook.core.pod.fields import Json, find_string
from webhook.core.pod.patch import Operation, PatchError, apply_patch
from webhook.core.pod.pod_templates import Form, Template
from webhook.core.pod.request import Request
from webhook.core.pod.template_search import find_templates, is_builtin_kind
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.model import Policy

AdviceSource = Callable[[Request, Json, int], str]
"""Function that returns one sentence of advice or "", given a review, the pods' metadata and
their bytes of VRAM per GPU. The function does no I/O."""

_SILENT: Final = frozenset({Skip.NO_RULE, Skip.RULE_IGNORES})


def decide_both_phases(
    creation: Request, policy: Policy, cluster: Cluster
) -> tuple[Decision, Decision]:
    """Return the decisions of both phases of a creation: mutating, then validating.

    If the mutating phase denies the pod, its decision is returned for both.
    """
    first = decide(creation, policy, cluster, Phase.MUTATE)
    if not first.allowed:
        return first, first
    return first, decide(replace(creation, obj=first.obj), policy, cluster, Phase.VALIDATE)


def create_request(pod: Json, namespace: str) -> Request:
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


def pod_from_template(template: Template, owner: str) -> Json:
    """Return the pod that an object named `owner` creates from a template.

    The pod of a virtual machine is a stand-in with the same annotations, and is denied for the same
    annotations as the real pod. Another controller creates the real pod, with the container
    `compute`.
    """
    pod = template.named(owner)
    if template.form is not Form.MACHINE:
        return pod
    return {**pod, "spec": {"containers": [{"name": "compute", "image": "-"}]}}


def with_template_paths(decision: Decision, template: Template) -> Decision:
    """Return a decision on a pod with paths in the object that contains the template."""
    if not template.path:
        return decision
    return replace(
        decision,
        findings=tuple(
            replace(finding, path=template.shown(finding.path)) for finding in decision.findings
        ),
        malformed=template.shown_text(decision.malformed),
        notes=tuple(map(template.shown_text, decision.notes)),
        unread_keys=tuple(map(template.shown_text, decision.unread_keys)),
    )


@dataclass(kw_only=True)
class WorkloadAdvice(Decision):
    """Answer to the review of a workload: always allowed, with warnings about its pods."""

    outcome: Outcome = Outcome.ALLOWED
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def log_fields(self) -> dict[str, Any]:
        """Fields of the webhook's log entry, in addition to outcome and reasons."""
        return {**self.audit_annotations, "warnings": len(self.warnings)}


def size_warning(_request: Request, _pod: Json, per_gpu_bytes: int) -> str:
    """Return the warning about an amount that needs neither a history nor a cluster."""
    return warn_of_size(per_gpu_bytes)


def advise(
    request: Request, policy: Policy, cluster: Cluster, more: AdviceSource = size_warning
) -> WorkloadAdvice:
    """Return warnings about the pods of a workload, which is always allowed.

    | the template's pods | warnings |
    | --- | --- |
    | would be denied | each finding |
    | would get warnings | each finding |
    | are under a rule with action Audit | none |
    | are under no rule, or one with action Ignore | none |

    Hints follow: names of other products, near misses of vramwarden keys, vramwarden keys at the
    wrong level, and the sentence returned by `more`. A DELETE gets no warning, nor does an object
    of a kind outside of Kubernetes.

    Raises NamespaceUnknownError.
    """
    group, _, kind = request.kind.rpartition("/")
    version = f"{group}/v1" if group else "v1"
    is_written = request.operation in {"CREATE", "UPDATE"} and not request.subresource
    # The templates of other kinds would have to be searched for.
    if not is_written or not is_builtin_kind(kind, version):
        return WorkloadAdvice(outcome=Outcome.SKIPPED, policy=policy.short_digest)
    advice = WorkloadAdvice(policy=policy.short_digest)
    (template,) = find_templates(request.obj, kind, version)
    if template.pod is None or not template.path:
        return advice
    pod = pod_from_template(template, request.name)

    def decide_pod(pod: Json) -> Decision:
        return decide(create_request(pod, request.namespace), policy, cluster, Phase.MUTATE)

    decision = decide_pod(pod)
    advice_bytes, metadata = decision.advice_bytes, pod.get("metadata")
    if advice_bytes is not None and isinstance(metadata, dict):
        decision = decision.with_advice(more(request, metadata, advice_bytes))
    decision = with_template_paths(decision, template)
    if decision.skip in _SILENT:
        return replace(advice, outcome=Outcome.SKIPPED, reasons=decision.reasons)
    advice = replace(advice, reasons=decision.reasons, rule=decision.rule)
    if decision.silent:
        return replace(advice, outcome=decision.outcome)
    strays = find_stray_keys(request.obj, kind, [template])
    warnings = (
        *_expected_findings(decision),
        *decision.unread_keys,
        *decision.notes,
        *stray_key_warnings(strays, template, pod, decide_pod, decision.findings),
    )
    outcome = Outcome.WARNED if warnings else Outcome.ALLOWED
    return replace(advice, warnings=warnings, outcome=outcome)


def _expected_findings(decision: Decision) -> Iterator[str]:
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


def verify_patch(
    request: Request, patch: Sequence[Operation], policy: Policy, cluster: Cluster
) -> None:
    """Apply a patch and decide again. Raises PatchError if the result is wrong, which is a bug.

    A patch is derived from the edits of translation and sent without being applied. Property tests
    verify patches of random pods. This function verifies a sample of the patches of real pods.

    | the pod with the patch | result |
    | --- | --- |
    | cannot be made: an operation names a missing place | PatchError |
    | would be mutated again | PatchError |
    | would be denied in the validating phase | PatchError |
    | is allowed in both phases, unchanged | the patch is right |

    The API server rejects a pod whose patch does not apply, even with `failurePolicy: Ignore`.
    """
    patched = replace(request, obj=apply_patch(request.obj, patch))
    for phase in Phase:
        again = decide(patched, policy, cluster, phase)
        if not again.allowed or again.patch:
            why = again.message or ", ".join(operation["path"] for operation in again.patch)
            raise PatchError(f"a patch applies, but its pod is not as wanted ({phase}: {why})")
