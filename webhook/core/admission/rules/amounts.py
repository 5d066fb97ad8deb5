"""Rules about amounts: bounds, classes, whole GPUs beside shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from webhook.core.admission.accounting import is_counted_by_plugin
from webhook.core.pod.demand import Demand, requests_limits_mismatch
from webhook.core.pod.fields import items, mapping
from webhook.core.pod.findings import Finding, Reason, annotation_path, quoted
from webhook.core.pod.quantity import QuantityError, amount_or, format_bytes, parse_quantity
from webhook.core.policy.values import Accounting, Bounds, Policy, ResourceClaims, Rule, class_names
from webhook.names import (
    ADMITTED_ANNOTATION,
    GPU_CLASS_ANNOTATION,
    GPU_COUNT_ANNOTATION,
    GPU_MEMORY_ANNOTATION,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from webhook.core.admission.rules.case import Case
    from webhook.core.pod.views import Container


def readable_demand(case: Case) -> Iterable[Finding]:
    """Rule: what the pod asks for can be read, and is asked for once.

    Fields: metadata.annotations[gpu-memory|gpu-count|gpu-class], resources.limits[vram]
    Allowed values: as `read_demand` reads them
    """
    return case.unreadable


def bounds(case: Case) -> Iterator[Finding]:
    """Rule: the demand lies within the bounds of the rule and of the class.

    Fields: metadata.annotations[gpu-memory|gpu-count], resources.limits[vram]
    Allowed values: min <= VRAM per GPU <= max, of all bounds that there are, so that the tightest
    counts; gpu-count <= the rule's max

    | bounds of | stand in |
    | --- | --- |
    | the rule | spec.rules[].memory |
    | the rule, for the pod's class or the rule's default | spec.rules[].classes.memory.NAME |
    | that class, under every rule | spec.classes.NAME.memory |
    """
    demand, rule, policy = case.demand, case.rule, case.policy
    asked = demand.per_gpu_bytes
    for memory, owner, of_class in _bounds_on(demand, rule, policy):
        least, most = memory.min_bytes, memory.max_bytes
        if most is not None and asked > most:
            detail = f"{owner} allows at most {format_bytes(most)}{of_class}"
            yield _out_of_bounds(Reason.TOO_LARGE, demand, detail)
        if least is not None and asked < least:
            detail = f"{owner} wants at least {format_bytes(least)}{of_class}"
            yield _out_of_bounds(Reason.TOO_SMALL, demand, detail)
    if rule.max_gpu_count is not None and demand.gpu_count > rule.max_gpu_count:
        detail = (
            f"asks for {demand.gpu_count} GPUs; rule {quoted(rule.name)} allows at most "
            f"{rule.max_gpu_count}"
        )
        yield Finding(Reason.INVALID_COUNT, annotation_path(GPU_COUNT_ANNOTATION), detail)


def _bounds_on(demand: Demand, rule: Rule, policy: Policy) -> Iterator[tuple[Bounds, str, str]]:
    """Yield all bounds on a demand, each with whose they are in words, and for which class."""
    owner = f"rule {quoted(rule.name)}"
    yield rule.memory, owner, ""
    gpu_class = policy.class_for(demand.gpu_class or rule.default_class)
    if gpu_class is None:
        return
    if gpu_class.name in rule.class_memory:
        of_class = f" for class {quoted(gpu_class.name)} (its classes.memory)"
        yield rule.class_memory[gpu_class.name], owner, of_class
    yield gpu_class.memory, f"class {quoted(gpu_class.name)}", ""


def _out_of_bounds(reason: Reason, demand: Demand, why: str) -> Finding:
    asked = format_bytes(demand.per_gpu_bytes)
    return Finding(reason, demand.path, f"asks for {asked} per GPU; {why}")


def gpu_class_known(case: Case) -> tuple[Finding, ...]:
    """Rule: the class exists and the rule allows it.

    Fields: metadata.annotations[gpu-class]
    Allowed values: the names of the policy's classes that match the rule's `classes.allowed`
    """
    name = case.pod.annotations.get(GPU_CLASS_ANNOTATION)
    if name is None:
        return ()
    rule, classes = case.rule, case.policy.classes
    known = class_names(classes, rule.allowed_classes)
    if name in known:
        return ()
    why = "is not allowed here" if name in classes else "does not exist"
    choice = f"allows {', '.join(known)}" if known else "allows no class, so remove the annotation"
    detail = f"class {quoted(name)} {why}; rule {quoted(rule.name)} {choice}"
    return (Finding(Reason.UNKNOWN_CLASS, annotation_path(GPU_CLASS_ANNOTATION), detail),)


def whole_gpus(case: Case) -> Iterator[Finding]:
    """Rule: whole GPUs are integers, and requests equal limits.

    Fields: spec.[initContainers,containers][*].resources.requests|limits[nvidia.com/gpu, ...]
    Allowed values: integers (`2000m` is 2); a limit alone, or both equal
    """
    if not case.names_whole_gpus:
        return
    for container in (*case.pod.containers, *case.pod.enforcers):
        requests, limits = container.resources("requests"), container.resources("limits")
        for resource in filter(case.policy.is_whole_gpu, dict.fromkeys((*limits, *requests))):
            for kind, amounts in (("limits", limits), ("requests", requests)):
                if resource in amounts:
                    path = f"{container.path}.resources.{kind}[{resource}]"
                    finding = _whole(amounts[resource], path)
                    if finding:
                        yield finding
                        break
            request, limit = requests.get(resource), limits.get(resource)
            mismatch = requests_limits_mismatch(container, resource, request, limit)
            if mismatch:
                yield mismatch


def _whole(amount: str, path: str) -> Finding | None:
    try:
        value = parse_quantity(amount)
    except QuantityError:
        detail = f"{quoted(amount)} is not a number of GPUs; write a positive integer, e.g. 1"
        return Finding(Reason.INVALID_QUANTITY, path, detail)
    if value < 0:
        detail = f"{amount} is not a whole number of GPUs; write a positive integer, e.g. 1"
        return Finding(Reason.FRACTIONAL_WHOLE_GPU, path, detail)
    if value.denominator == 1:
        return None
    detail = (
        f"{amount} is not a whole number of GPUs; to share a GPU remove it and set the annotation "
        f"{GPU_MEMORY_ANNOTATION}, e.g. to 8Gi"
    )
    return Finding(Reason.FRACTIONAL_WHOLE_GPU, path, detail)


def whole_gpu_and_share(case: Case) -> Iterator[Finding]:
    """Rule: a pod has a share of a GPU, whole GPUs, or a claim; only one of the three.

    Fields: spec.[initContainers,containers][*].resources, spec.resourceClaims
    Allowed values: no resource above zero that may bring GPUs, except the slices and slots of
    NVIDIA's device plugin by which translation counts under the rule; no claim, unless the rule's
    `resourceClaims` is Ignore
    """
    denies_claims = case.rule.resource_claims is ResourceClaims.DENY
    for container in case.pod.containers:
        if case.names_whole_gpus:
            yield from _beside_share(container, case)
        resources = mapping(container.raw, "resources", container.path)
        if resources and items(resources, "claims", container.path, "resources") and denies_claims:
            yield _claimed(f"{container.path}.resources.claims")
    if items(case.pod.spec, "resourceClaims", "spec") and denies_claims:
        yield _claimed("spec.resourceClaims")


def _beside_share(container: Container, case: Case) -> Iterator[Finding]:
    has_vram = case.asked is not None and container.name in case.asked.amounts
    requests, limits = container.resources("requests"), container.resources("limits")
    for resource, amount in {**requests, **limits}.items():
        if case.policy.may_bring_gpus(resource) and amount_or(amount, None) != 0:
            if has_vram and _is_translations(resource, amount, case):
                continue
            kind = "limits" if resource in limits else "requests"
            detail = (
                f"the pod asks for {resource} and for a share of a GPU; remove "
                f"{resource} to share one, or {GPU_MEMORY_ANNOTATION} to have a whole one"
            )
            path = f"{container.path}.resources.{kind}[{resource}]"
            yield Finding(Reason.WHOLE_GPU_AND_SHARE, path, detail)


def _is_translations(resource: str, amount: str, case: Case) -> bool:
    """Say whether translation writes a resource, now or when the pod was there before.

    | the rule's accounting | slices, slots |
    | --- | --- |
    | VRAM | by hand |
    | MIG | a slice, of a pod that bears our mark: which one is for translation to say |
    | CapOnly | one slot, also written by hand: that is what translation writes |
    """
    if not is_counted_by_plugin(resource, amount, case.rule):
        return False
    is_slot = case.rule.accounting is Accounting.CAP_ONLY
    return is_slot or ADMITTED_ANNOTATION in case.pod.annotations


def _claimed(path: str) -> Finding:
    detail = (
        "the pod has a resource claim and asks for a share; remove the claim to share a GPU, "
        f"or {GPU_MEMORY_ANNOTATION} to keep the claim; where it is for another device, ask your "
        f"platform team for a rule with resourceClaims: {ResourceClaims.IGNORE}"
    )
    return Finding(Reason.WHOLE_GPU_AND_SHARE, path, detail)
