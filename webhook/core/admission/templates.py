"""What becomes of the pods of a template: behind the command `admit` and the webhook on workloads.

A controller shows nobody what its pods are told: their author reads it here, or in the events of a
ReplicaSet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from webhook.core.admission.decide import Decision, Outcome, Phase, Skip, decide
from webhook.core.admission.rules.hints import SHOWN, candidates, near_miss
from webhook.core.bounds import LONGEST_KEY
from webhook.core.nvidia.gpu_sizes import warn_of_size
from webhook.core.pod.carried import is_filled_in
from webhook.core.pod.demand import read_demand
from webhook.core.pod.fields import part, text_of
from webhook.core.pod.findings import Finding, Reason, annotation_path
from webhook.core.pod.patch import Operation, PatchError, apply_patch
from webhook.core.pod.review import Request
from webhook.core.pod.shapes import Form, Template, shown_path
from webhook.core.pod.templates import find_templates, is_own_kind
from webhook.core.pod.views import read_pod
from webhook.core.words import shortened
from webhook.names import (
    ASKING_ANNOTATIONS,
    GPU_COUNT_ANNOTATION,
    GPU_MEMORY_ANNOTATION,
    VRAM_RESOURCE,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from webhook.core.pod.fields import Json
    from webhook.core.policy.cluster import Cluster
    from webhook.core.policy.values import Policy

    MoreAdvice = Callable[[Request, Json, int], str]
    """From a review, the metadata of its pods and what each asks for per GPU to one sentence more,
    or none; without asking anybody."""

_SILENT: Final = frozenset({Skip.NO_RULE, Skip.RULE_IGNORES})
_MACHINE_CONTAINER: Final = "compute"
"""How KubeVirt calls the container in which a machine runs."""
_OF_FORM: Final = frozenset({Reason.INVALID_QUANTITY, Reason.INVALID_COUNT, Reason.TOO_SMALL})
"""What an amount is wrong for, whatever its pod and the rule."""


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
        name=text_of(pod, "metadata", "name"),
        dry_run=True,
        obj=pod,
        old={},
    )


def pod_of(template: Template, owner: str) -> Json:
    """Return the pod of a template that an object of this name makes.

    A virtual machine's is a stand-in: its own is made elsewhere, of one container and with the same
    annotations, so what is wrong with those is denied there as well.
    """
    pod = template.named(owner)
    if template.form is not Form.MACHINE:
        return pod
    return {**pod, "spec": {"containers": [{"name": _MACHINE_CONTAINER, "image": "-"}]}}


def hints_for_machine(template: Template) -> tuple[str, ...]:
    """Return a hint for each key by which a virtual machine asks: no share reaches one."""
    if template.form is not Form.MACHINE:
        return ()
    asked = part(template.pod, "metadata", "annotations")
    devices = shown_path((*template.path, "spec", "domain", "devices", "gpus"))
    detail = f"a share of a GPU reaches no virtual machine; remove the annotation and use {devices}"
    return tuple(f"{annotation_path(key)}: {detail}" for key in ASKING_ANNOTATIONS if key in asked)


def wrong_amounts(key: str, value: object, path: str) -> Iterator[Finding]:
    """Yield what is wrong with a key that asks for VRAM, at a path, whatever pod it is for.

    A number is read as its digits, since a chart may put it in quotes.
    """
    if type(value) is bool or not isinstance(value, str | int | float) or is_filled_in(value):
        return
    text = str(value)
    annotations: Json = {GPU_MEMORY_ANNOTATION: text} if key == GPU_MEMORY_ANNOTATION else {}
    entries = (entry.partition("=") for entry in text.split(","))
    names = dict.fromkeys(name.strip(" ") for name, equals, _ in entries if equals) or ("main",)
    first: Json = {}
    if key == GPU_COUNT_ANNOTATION:
        annotations = {key: text, GPU_MEMORY_ANNOTATION: "1Gi"}
    elif key == VRAM_RESOURCE:
        first = {"resources": {"limits": {key: text}}}
    containers = [{"name": name, **first} for name in names]
    pod = {"metadata": {"annotations": annotations}, "spec": {"containers": containers}}
    for finding in read_demand(read_pod(pod))[1]:
        if finding.reason in _OF_FORM:
            yield replace(finding, path=path)


def misplaced(owner: Json, kind: str, template: Template) -> tuple[str, ...]:
    """Return hints about keys that stand above the template, where nothing reads them."""
    place = template.annotations_field
    own = part(template.pod, "metadata", "annotations")
    labels = part(template.pod, "metadata", "labels")
    hints: list[str] = []
    for where, holder in _elsewhere(owner, kind, template):
        for key, value in _asking(part(holder, "metadata", "annotations")):
            if key not in own:
                hints.append(_belongs(key, value, where, place))
        for key, value in _asking(part(holder, "metadata", "labels")):
            if key not in own and key not in labels and "/" in key:
                hints.append(_belongs(key, value, f"as a label of the {kind}", place))
    return tuple(dict.fromkeys(hints))[:SHOWN]


def _belongs(key: str, value: str, where: str, place: str) -> str:
    shown = shortened(key, LONGEST_KEY)
    if key in ASKING_ANNOTATIONS:
        return f"{shown} {where} has no effect; put it under {place}"
    return f"{shown} {where} has no effect; write {near_miss(key, value)} under {place}"


def _elsewhere(owner: Json, kind: str, template: Template) -> Iterator[tuple[str, Json]]:
    """Yield what has metadata that the pods do not get, and where that is, in words.

    That is the object and what of it holds the template; or the template itself, where its pods
    get the object's metadata.
    """
    if template.pod is None or not template.path:
        return
    holder: Any = owner
    for key in template.path:
        if type(holder) is dict and template.metadata_path is None:
            yield f"on the {kind} itself", holder
        holder = holder[key]
    if template.metadata_path is not None:
        yield f"under {template.field}", holder


def _asking(keys: Json) -> Iterator[tuple[str, str]]:
    """Yield the keys that ask for VRAM, or are nearly ones that do."""
    for key in ASKING_ANNOTATIONS:
        if key in keys:
            yield key, str(keys[key])
    for key in candidates(keys):
        value = keys[key]
        if key not in ASKING_ANNOTATIONS and type(value) is str and near_miss(key, value):
            yield key, value


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadAdvice:
    """The answer to a review of a workload: it is allowed, and its author reads what is wrong."""

    warnings: tuple[str, ...] = ()
    outcome: Outcome = Outcome.ALLOWED
    reasons: tuple[str, ...] = ()
    rule: str = ""
    policy: str = ""

    allowed = True
    code = 200
    message = ""
    findings: tuple[Finding, ...] = ()
    patch: tuple[Operation, ...] = ()

    @property
    def audit(self) -> dict[str, str]:
        """What the audit log keeps besides outcome and reasons."""
        return {"rule": self.rule, "policy": self.policy}

    @property
    def logged(self) -> dict[str, Any]:
        """What our own log keeps besides outcome and reasons."""
        return {**self.audit, "warnings": len(self.warnings)}


def size_alone(_request: Request, _pod: Json, asked_bytes: int) -> str:
    """Return the warning that needs neither a history nor a cluster."""
    return warn_of_size(asked_bytes)


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
    if not is_written or not is_own_kind(kind, version):
        return WorkloadAdvice(outcome=Outcome.SKIPPED, policy=policy.short_digest)
    advice = WorkloadAdvice(policy=policy.short_digest)
    for template in find_templates(request.obj, kind, version):
        if template.pod is None or not template.path:
            continue
        pod = pod_of(template, request.name)
        decision = decide(creation_of(pod, request.namespace), policy, cluster, Phase.MUTATE)
        if decision.skip in _SILENT:
            return replace(advice, outcome=Outcome.SKIPPED, reasons=decision.reasons)
        if decision.silent:
            return replace(
                advice, outcome=decision.outcome, reasons=decision.reasons, rule=decision.rule
            )
        found = (*_foreseen(decision, template), *decision.notes)
        warnings = (*found, *misplaced(request.obj, kind, template))
        asked_bytes, metadata = decision.advises_on_bytes, pod.get("metadata")
        if asked_bytes is not None and isinstance(metadata, dict):
            warnings += tuple(filter(None, [more(request, metadata, asked_bytes)]))
        return replace(
            advice,
            warnings=warnings,
            outcome=_outcome(warnings),
            reasons=decision.reasons,
            rule=decision.rule,
        )
    return advice


def _outcome(warnings: tuple[str, ...]) -> Outcome:
    return Outcome.WARNED if warnings else Outcome.ALLOWED


def _foreseen(decision: Decision, template: Template) -> Iterator[str]:
    """Yield what the pods' review would say, with the paths that the workload has."""
    if decision.malformed:
        yield f"the API server would reject its pods: {template.field}.{decision.malformed}"
    elif decision.outcome is Outcome.DENIED:
        for finding in decision.findings:
            yield f"its pods would be denied: {_at(finding, template)}"
    elif decision.outcome is Outcome.WARNED:
        for finding in decision.findings:
            yield f"its pods bring a warning: {_at(finding, template)}"
    if decision.guidance:
        yield decision.guidance


def _at(finding: Finding, template: Template) -> str:
    return f"{finding.reason}: {template.field}.{finding.path}: {finding.detail}"


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
