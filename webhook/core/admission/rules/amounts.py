"""Rules about amounts: bounds, classes, whole GPUs together with shares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import filterfalse
from typing import Final

from webhook.core.admission.accounting import is_translation_resource
from webhook.core.admission.rules.case import Case
from webhook.core.admission.rules.suggestions import rule_bounds, suggestions_for
from webhook.core.formatting import shorten
from webhook.core.nvidia.device_plugin import is_mig_slice
from webhook.core.pod.demand import both_fields_note, find_unequal_amounts
from webhook.core.pod.fields import get_object, get_objects, get_string_map
from webhook.core.pod.findings import Finding, Reason, annotation_path, quote
from webhook.core.pod.memory_annotation import (
    ambiguous_containers,
    annotation_value,
    default_candidates,
    find_default_container,
    is_helper_container,
)
from webhook.core.pod.other_products import OTHER_PRODUCTS_BY_RESOURCE, WHOLE_GPU
from webhook.core.pod.quantity import canonicalize, parse_quantity_or
from webhook.core.pod.views import Container, requested_amounts
from webhook.core.policy.gpu_resources import AMD_DOMAIN
from webhook.core.policy.model import ResourceClaims, allowed_class_names
from webhook.names import (
    DEFAULT_CONTAINER_ANNOTATION,
    GPU_CLASS_ANNOTATION,
    GPU_COUNT_ANNOTATION,
    GPU_MEMORY_ANNOTATION,
)

_OTHERS: Final = "if you did not write it, a LimitRange or another webhook did"


def readable_demand(case: Case) -> Iterable[Finding]:
    """Rule: the pod's request for VRAM is readable and unique.

    Fields: metadata.annotations[gpu-memory|gpu-count|gpu-class], resources.limits[vram]
    Allowed values: those that `read_demand` accepts
    """
    return case.demand_problems


def unnamed_container(case: Case) -> Iterator[str]:
    """Rule: a quantity without a name goes to the container that its author means.

    Fields: metadata.annotations[gpu-memory], spec.containers[*].name
    Allowed values: any, since such a pod is valid: it returns a warning and no finding. There is no
    warning about a list, one app container with known helpers, the only container that names our
    variables or runs a program of the table, or a default container that is no helper
    """
    pod, value = case.pod, case.pod.annotations.get(GPU_MEMORY_ANNOTATION)
    if value is None or "=" in value:
        return
    chosen, likely, found = (
        find_default_container(pod, []),
        case.likely_container,
        ambiguous_containers(pod),
    )
    is_named = DEFAULT_CONTAINER_ANNOTATION in pod.annotations
    if is_named and not likely and is_helper_container(chosen):
        likely = next(filterfalse(is_helper_container, default_candidates(pod)), "")
    where = f"the container that {DEFAULT_CONTAINER_ANNOTATION} names" if is_named else chosen
    if found and not likely:
        likely, where = chosen, f"the first of {shorten(', '.join(found), 96)}"
    elif likely in {"", chosen}:
        return
    path = annotation_path(GPU_MEMORY_ANNOTATION)
    yield f"{path}: write {likely}={value}; without a name it goes to {where}"


def bounds(case: Case) -> Iterator[Finding]:
    """Rule: the demand is within the bounds of the rule.

    Fields: metadata.annotations[gpu-memory|gpu-count], resources.limits[vram]
    Allowed values: the rule's memory.min <= VRAM per GPU <= its memory.max; gpu-count <= the rule's
    max
    """
    demand, rule = case.demand, case.rule
    for reason, sentence in rule_bounds(rule).violations(demand.per_gpu_bytes):
        yield Finding(reason, demand.path, sentence)
    if rule.max_gpu_count is not None and demand.gpu_count > rule.max_gpu_count:
        detail = (
            f"asks for {demand.gpu_count} GPUs; rule {quote(rule.name)} allows at most "
            f"{rule.max_gpu_count}"
        )
        yield Finding(Reason.INVALID_COUNT, annotation_path(GPU_COUNT_ANNOTATION), detail)


def gpu_class_known(case: Case) -> tuple[Finding, ...]:
    """Rule: the class exists and the rule allows it.

    Fields: metadata.annotations[gpu-class]
    Allowed values: the names of the policy's classes that match the rule's `classes.allowed`
    """
    name = case.pod.annotations.get(GPU_CLASS_ANNOTATION)
    if name is None:
        return ()
    rule, classes = case.rule, case.policy.classes
    allowed = allowed_class_names(classes, rule.allowed_classes)
    if name in allowed:
        return ()
    why = "is not allowed here" if name in classes else "does not exist"
    choice = _describe_fitting_classes(allowed, case)
    detail = f"class {quote(name)} {why}; rule {quote(rule.name)} {choice}"
    return (Finding(Reason.UNKNOWN_CLASS, annotation_path(GPU_CLASS_ANNOTATION), detail),)


def _describe_fitting_classes(allowed: list[str], case: Case) -> str:
    """Return the classes that admit the pod, or all classes with the reason if none does."""
    rejections = {name: _class_rejection(name, case) for name in allowed}
    fitting = [name for name, why in rejections.items() if why is None]
    if fitting:
        return f"{'allows' if fitting == allowed else 'has for this pod'} {', '.join(fitting)}"
    if not allowed:
        can_go = _class_rejection(None, case) is None
        return "allows no class" + (", so remove the annotation" if can_go else "")
    names = ", ".join(allowed)
    why = next(filter(None, rejections.values()), "")
    return f"allows {names}, with which the pod would be denied: {why}" if why else f"has {names}"


def _class_rejection(name: str | None, case: Case) -> str | None:
    """Return the reason why a pod of a class would be denied, or None if it would be admitted."""
    gpu_class = case.policy.class_for(name or case.rule.default_class)
    for key, value in (gpu_class.node_selector if gpu_class else {}).items():
        selected = get_string_map(case.pod.spec, "nodeSelector", "spec").get(key, value)
        if selected != value:
            return f"selects {quote(selected)} by {key}, but the class needs {quote(value)}"
    if case.demand_if_any is None:
        return None
    rule = case.rule.for_class(gpu_class)
    allowed = suggestions_for(case.pod, name, rule, case.policy, case.cluster)
    if allowed.max_count is not None and case.demand_if_any.gpu_count > allowed.max_count:
        return (
            f"asks for {case.demand_if_any.gpu_count} GPUs; at most {allowed.max_count} are allowed"
        )
    return allowed.rejection(case.demand_if_any.amounts)


def whole_gpus(case: Case) -> Iterator[Finding]:
    """Rule: whole GPUs are integers, and requests equal limits.

    Fields: spec.[initContainers,containers][*].resources.requests|limits[nvidia.com/gpu, ...]
    Allowed values: integers (`2000m` is 2); a limit alone, or both equal
    """
    if not case.names_whole_gpus:
        return
    for container in (*case.pod.containers, *case.pod.enforcers):
        for resource in filter(case.policy.is_whole_gpu, requested_amounts(container)):
            for kind in ("limits", "requests"):
                if not _is_whole(container.resources(kind).get(resource, "0")):
                    yield _fraction_finding(container, resource, kind, case)
                    break
            unequal = find_unequal_amounts(container, resource, _is_whole)
            if unequal and (case.requests_vram or _is_foreign(container, resource)):
                unequal = replace(unequal, detail=f"remove it; {unequal.detail.partition('; ')[2]}")
            if unequal:
                yield unequal


def _is_whole(amount: str) -> bool:
    value = parse_quantity_or(canonicalize(amount), None)
    return value is not None and value >= 0 and value.denominator == 1


def _fraction_finding(container: Container, resource: str, kind: str, case: Case) -> Finding:
    path = f"{container.path}.resources.{kind}[{resource}]"
    amount = container.resources(kind)[resource]
    value, both = parse_quantity_or(amount, None), both_fields_note(container, resource)
    reason = Reason.INVALID_QUANTITY if value is None else Reason.FRACTIONAL_WHOLE_GPU
    what = f"{quote(amount) if value is None else amount} is not a whole number of GPUs"
    if _is_foreign(container, resource):
        return Finding(reason, path, f"{what}; remove it{both}")
    if value is not None and value > 0 and not resource.startswith(AMD_DOMAIN):
        return Finding(reason, path, f"{what}; {_share_advice(container, resource, case)}")
    do = "remove it" if case.requests_vram else "write a positive integer, e.g. 1"
    return Finding(reason, path, f"{what}; {do}{both}")


def _is_foreign(container: Container, resource: str) -> bool:
    """Return True if a resource requests another product's GPU; a hint gives the advice."""
    return resource in OTHER_PRODUCTS_BY_RESOURCE or (
        resource == WHOLE_GPU
        and not OTHER_PRODUCTS_BY_RESOURCE.keys().isdisjoint(requested_amounts(container))
    )


def _share_advice(container: Container, resource: str, case: Case) -> str:
    both = both_fields_note(container, resource)
    if case.requests_vram:
        return f"to share a GPU remove it{both}"
    others = [
        name
        for name in requested_amounts(container)
        if name != resource and case.policy.may_provide_gpus(name)
    ]
    remove = " and ".join(("it", *others))
    do = f"to share a GPU remove {remove}{both} and set the annotation {GPU_MEMORY_ANNOTATION}"
    users = [
        each
        for each in case.pod.containers
        if each is container or any(map(case.policy.may_provide_gpus, requested_amounts(each)))
    ]
    if users != [container] or get_objects(case.pod.spec, "resourceClaims", "spec"):
        return do
    name = container.name
    example = case.suggestions.example(lambda amount: {name: amount})
    if not example:
        return do
    line = annotation_value(case.pod, {name: example})
    case.suggested_changes.annotations[GPU_MEMORY_ANNOTATION] = line
    case.suggested_changes.remove(name, (resource, *others))
    return f"{do}, e.g. to {line}"


def whole_gpu_and_share(case: Case) -> Iterator[Finding]:
    """Rule: a pod has only one of these: a share of a GPU, whole GPUs, a resource claim.

    Fields: spec.[initContainers,containers][*].resources, spec.resourceClaims
    Allowed values: no resource above zero that may bring GPUs, except the slices and slots of
    NVIDIA's device plugin that translation writes under the rule; no claim, unless the rule's
    `resourceClaims` is Ignore
    """
    denies_claims = case.rule.resource_claims is ResourceClaims.DENY
    for container in case.pod.containers:
        if case.names_whole_gpus:
            yield from _gpus_with_share(container, case)
        resources = get_object(container.raw, "resources", container.path)
        if (
            resources
            and get_objects(resources, "claims", container.path, "resources")
            and denies_claims
        ):
            yield _claim_finding(f"{container.path}.resources.claims", case)
    if get_objects(case.pod.spec, "resourceClaims", "spec") and denies_claims:
        yield _claim_finding("spec.resourceClaims", case)


def _gpus_with_share(container: Container, case: Case) -> Iterator[Finding]:
    has_vram = case.demand_if_any is not None and container.name in case.demand_if_any.amounts
    limits = container.resources("limits")
    for resource, amount in requested_amounts(container).items():
        if case.policy.may_provide_gpus(resource) and parse_quantity_or(amount, None) != 0:
            if has_vram and is_translation_resource(case.pod, resource, amount, case.rule):
                continue
            kind = "limits" if resource in limits else "requests"
            remove = _removal_advice(resource, both_fields_note(container, resource), case)
            which = "an NVIDIA GPU" if resource.startswith(AMD_DOMAIN) else "a GPU"
            detail = f"{remove}; the pod asks for {resource} and for a share of {which}; {_OTHERS}"
            path = f"{container.path}.resources.{kind}[{resource}]"
            yield Finding(Reason.WHOLE_GPU_AND_SHARE, path, detail)


def _removal_advice(resource: str, both: str, case: Case) -> str:
    """Return the advice to remove the resource or, unless it is another product's, the share."""
    if resource in OTHER_PRODUCTS_BY_RESOURCE:
        return (
            f"remove {resource}{both}, which {OTHER_PRODUCTS_BY_RESOURCE[resource][0].name} reads"
        )
    keep = "have the slice" if is_mig_slice(resource) else "keep it"
    if resource == WHOLE_GPU:
        keep = "have a whole one"
    return f"remove {resource}{both} to share one, or {case.requested_by} to {keep}"


def _claim_finding(path: str, case: Case) -> Finding:
    detail = (
        f"remove the claim to share a GPU, or {case.requested_by} to keep the claim; the pod has a "
        "resource claim and asks for a share; if the claim is for another device, ask your "
        f"platform team for a rule with resourceClaims: {ResourceClaims.IGNORE}"
    )
    return Finding(Reason.WHOLE_GPU_AND_SHARE, path, detail)
