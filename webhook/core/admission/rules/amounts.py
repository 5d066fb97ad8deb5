"""Rules about amounts: bounds, classes, whole GPUs beside shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from webhook.core.admission.accounting import is_counted_by_plugin
from webhook.core.nvidia.plugin import is_slice
from webhook.core.pod.annotated import amounts_line
from webhook.core.pod.demand import (
    Demand,
    of_resource,
    unequal_amounts,
)
from webhook.core.pod.fields import items, mapping
from webhook.core.pod.findings import Finding, Reason, annotation_path, quoted
from webhook.core.pod.foreign import FOREIGN_RESOURCES, WHOLE_GPU
from webhook.core.pod.quantity import amount_or, format_bytes
from webhook.core.pod.views import Change
from webhook.core.policy.match import matches_any
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
    from webhook.core.pod.lines import LineCheck
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
    for memory, owner, of_class in bounds_for(demand.gpu_class, rule, policy):
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


def bounds_for(
    gpu_class: str | None, rule: Rule, policy: Policy
) -> Iterator[tuple[Bounds, str, str]]:
    """Yield all bounds for a class that a pod names, or for none.

    Each with whose it is in words, and for which class.
    """
    owner = f"rule {quoted(rule.name)}"
    yield rule.memory, owner, ""
    known = policy.class_for(gpu_class or rule.default_class)
    if known is None or (gpu_class and not matches_any(gpu_class, rule.allowed_classes)):
        return  # what is wrong with it, `gpu_class_known` says
    if known.name in rule.class_memory:
        of_class = f" for class {quoted(known.name)} (its classes.memory)"
        yield rule.class_memory[known.name], owner, of_class
    yield known.memory, f"class {quoted(known.name)}", ""


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
    detail = f"class {quoted(name)} {why}; rule {quoted(rule.name)} {_choice(known, case.lines)}"
    return (Finding(Reason.UNKNOWN_CLASS, annotation_path(GPU_CLASS_ANNOTATION), detail),)


def _choice(known: list[str], lines: LineCheck) -> str:
    """Say what to write in place of a class: one of those known under which the pod is admitted."""
    refused = {name: lines.why_not(_of_class(name)) for name in known}
    fitting = [name for name, why in refused.items() if why is None]
    if fitting:
        lines.keep(_of_class(fitting[0]))
        return f"{'allows' if fitting == known else 'has for this pod'} {', '.join(fitting)}"
    if not known:
        removed = lines.why_not(_of_class(None))
        return "allows no class" + (", so remove the annotation" if removed is None else "")
    names = ", ".join(known)
    why = next(filter(None, refused.values()), "")
    return f"allows {names}, with which the pod would be denied: {why}" if why else f"has {names}"


def _of_class(name: str | None) -> Change:
    return Change({GPU_CLASS_ANNOTATION: name})


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
                    finding = _whole(container, resource, amounts[resource], path, case)
                    if finding:
                        yield finding
                        break
            unequal = unequal_amounts(container, resource)
            if unequal:
                path, cure = unequal
                detail = cure(case.lines)
                if _is_others(container, resource):
                    detail = f"{detail.partition('; ')[0]}; remove it"
                yield Finding(Reason.REQUESTS_LIMITS_MISMATCH, path, detail)


def _whole(
    container: Container, resource: str, amount: str, path: str, case: Case
) -> Finding | None:
    value = amount_or(amount, None)
    if value is not None and value >= 0 and value.denominator == 1:
        return None
    reason = Reason.INVALID_QUANTITY if value is None else Reason.FRACTIONAL_WHOLE_GPU
    what = f"{quoted(amount) if value is None else amount} is not a whole number of GPUs"
    if value is not None and value > 0 and not _is_others(container, resource):
        return Finding(reason, path, f"{what}; {_share_instead(container, resource, case)}")
    is_fine = not case.asks and not _is_others(container, resource)
    if is_fine and case.lines.admitted(of_resource(container, resource, "1")):
        return Finding(reason, path, f"{what}; write a positive integer, e.g. 1")
    return Finding(reason, path, f"{what}; remove it")


def _is_others(container: Container, resource: str) -> bool:
    """Say whether a resource asks a product that shares GPUs: what to do, a hint says."""
    kinds = ("limits", "requests")
    named = {name for kind in kinds for name in container.resources(kind)}
    return resource in FOREIGN_RESOURCES or (
        resource == WHOLE_GPU and not named.isdisjoint(FOREIGN_RESOURCES)
    )


def _share_instead(container: Container, resource: str, case: Case) -> str:
    """Say how to have a share of a GPU in place of a part of a whole one."""
    if case.asks:
        return "to share a GPU remove it"
    present = {**container.resources("requests"), **container.resources("limits")}
    others = [one for one in present if one != resource and case.policy.may_bring_gpus(one)]
    gone: dict[str, str | None] = dict.fromkeys((resource, *others))

    def value(amount: str) -> str:
        return amounts_line(case.pod, {container.name: amount})

    example = case.lines.example(
        lambda amount: Change({GPU_MEMORY_ANNOTATION: value(amount)}, {container.name: gone})
    )
    more = f", e.g. to {value(example)}" if example else ""
    remove = " and ".join(("it", *others))
    return f"to share a GPU remove {remove} and set the annotation {GPU_MEMORY_ANNOTATION}{more}"


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
            yield _claimed(f"{container.path}.resources.claims", case)
    if items(case.pod.spec, "resourceClaims", "spec") and denies_claims:
        yield _claimed("spec.resourceClaims", case)


def _beside_share(container: Container, case: Case) -> Iterator[Finding]:
    has_vram = case.asked is not None and container.name in case.asked.amounts
    requests, limits = container.resources("requests"), container.resources("limits")
    for resource, amount in {**requests, **limits}.items():
        if case.policy.may_bring_gpus(resource) and amount_or(amount, None) != 0:
            if has_vram and _is_translations(resource, amount, case):
                continue
            kind = "limits" if resource in limits else "requests"
            remove = _one_of(resource, case)
            detail = f"the pod asks for {resource} and for a share of a GPU; {remove}"
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


def _one_of(resource: str, case: Case) -> str:
    """Say which of the two to remove; another product's amount is nothing to keep."""
    if resource in FOREIGN_RESOURCES:
        return f"remove {resource}, which {FOREIGN_RESOURCES[resource][0].name} reads"
    keep = "have the slice" if is_slice(resource) else "keep it"
    if resource == WHOLE_GPU:
        keep = "have a whole one"
    return f"remove {resource} to share one, or {case.asked_by} to {keep}"


def _claimed(path: str, case: Case) -> Finding:
    detail = (
        "the pod has a resource claim and asks for a share; remove the claim to share a GPU, "
        f"or {case.asked_by} to keep the claim; where it is for another device, ask your "
        f"platform team for a rule with resourceClaims: {ResourceClaims.IGNORE}"
    )
    return Finding(Reason.WHOLE_GPU_AND_SHARE, path, detail)
