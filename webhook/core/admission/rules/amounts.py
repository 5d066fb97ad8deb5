"""Rules about amounts: bounds, classes, whole GPUs beside shares."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from webhook.core.pod.demand import requests_limits_mismatch
from webhook.core.pod.fields import items, mapping
from webhook.core.pod.findings import Finding, Reason, annotation_path, quoted
from webhook.core.pod.quantity import QuantityError, format_bytes, parse_quantity
from webhook.core.pod.views import effective_amount
from webhook.core.policy.values import class_names
from webhook.names import GPU_CLASS_ANNOTATION, GPU_COUNT_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.core.pod.demand import Demand
    from webhook.core.pod.fields import Json
    from webhook.core.pod.views import Container, Pod
    from webhook.core.policy.values import Policy, Rule


def bounds(demand: Demand, rule: Rule, policy: Policy) -> Iterator[Finding]:
    """Rule: the demand lies within the bounds of the rule and of the class.

    Fields: metadata.annotations[gpu-memory|gpu-count], resources.limits[vram]
    Allowed values: min <= VRAM per GPU <= max of both; gpu-count <= the rule's max
    """
    asked = format_bytes(demand.per_gpu_bytes)
    gpu_class = policy.class_for(demand.gpu_class or rule.default_class)
    limits = [(f"rule {quoted(rule.name)}", rule.memory)]
    if gpu_class:
        limits.append((f"class {quoted(gpu_class.name)}", gpu_class.memory))
    for owner, bound in limits:
        if bound.max_bytes is not None and demand.per_gpu_bytes > bound.max_bytes:
            most = format_bytes(bound.max_bytes)
            detail = f"asks for {asked} per GPU; {owner} allows at most {most}"
            yield Finding(Reason.TOO_LARGE, demand.path, detail)
        if bound.min_bytes is not None and demand.per_gpu_bytes < bound.min_bytes:
            least = format_bytes(bound.min_bytes)
            detail = f"asks for {asked} per GPU; {owner} wants at least {least}"
            yield Finding(Reason.TOO_SMALL, demand.path, detail)
    if rule.max_gpu_count is not None and demand.gpu_count > rule.max_gpu_count:
        detail = (
            f"asks for {demand.gpu_count} GPUs; rule {quoted(rule.name)} allows at most "
            f"{rule.max_gpu_count}"
        )
        yield Finding(Reason.INVALID_COUNT, annotation_path(GPU_COUNT_ANNOTATION), detail)


def gpu_class_known(pod: Pod, rule: Rule, policy: Policy) -> Iterator[Finding]:
    """Rule: the class exists and the rule allows it.

    Fields: metadata.annotations[gpu-class]
    Allowed values: the names of the policy's classes that match the rule's `classes.allowed`
    """
    name = pod.annotations.get(GPU_CLASS_ANNOTATION)
    if name is None:
        return
    known = class_names(policy.classes, rule.allowed_classes)
    if name in known:
        return
    why = "is not allowed here" if name in policy.classes else "does not exist"
    choice = f"allows {', '.join(known)}" if known else "allows no class, so remove the annotation"
    detail = f"class {quoted(name)} {why}; rule {quoted(rule.name)} {choice}"
    yield Finding(Reason.UNKNOWN_CLASS, annotation_path(GPU_CLASS_ANNOTATION), detail)


def whole_gpus(container: Container, policy: Policy) -> Iterator[Finding]:
    """Rule: whole GPUs are whole, and requested as they are limited.

    Fields: spec.[initContainers,containers][*].resources.requests|limits[nvidia.com/gpu, ...]
    Allowed values: integers (`2000m` is 2); a limit alone, or both equal
    """
    requests, limits = container.resources("requests"), container.resources("limits")
    for resource in dict.fromkeys((*limits, *requests)):
        if not policy.is_whole_gpu(resource):
            continue
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
        "vramwarden.io/gpu-memory, e.g. to 8Gi"
    )
    return Finding(Reason.FRACTIONAL_WHOLE_GPU, path, detail)


def room_for_enforcer(pod: Pod, enforcer: Json) -> Iterator[Finding]:
    """Rule: amounts set for the whole pod leave room for the sidecar.

    Fields: spec.resources.requests|limits[cpu, memory] (KEP-2837)
    Allowed values: absent; requests of at least what all containers request together with the
    sidecar, limits of at least the sidecar's
    """
    whole = mapping(pod.spec, "resources", "spec")
    for kind, ours in enforcer["resources"].items():
        set_for_pod = mapping(whole, kind, "spec.resources")
        for resource, amount in ours.items():
            if resource not in set_for_pod:
                continue
            path = f"spec.resources.{kind}[{resource}]"
            need = parse_quantity(amount)
            if kind == "requests":
                need += _requested(pod, resource)
            if _amount(str(set_for_pod[resource]), need) < need:
                detail = (
                    f"{set_for_pod[resource]} leaves no room for the sidecar that holds the VRAM "
                    f"cap; add {amount} of {resource}"
                )
                yield Finding(Reason.ENFORCEMENT_IMPOSSIBLE, path, detail)


def _requested(pod: Pod, resource: str) -> Fraction:
    """Return what the user's containers request of a resource together."""
    zero = Fraction(0)
    amounts = {
        container.name: _amount(
            container.resources("requests").get(resource)
            or container.resources("limits").get(resource, "0"),
            zero,
        )
        for container in pod.containers
    }
    return effective_amount(pod.containers, amounts, zero)


def _amount(written: str, otherwise: Fraction) -> Fraction:
    """Read an amount that is not ours to judge."""
    try:
        return parse_quantity(written)
    except QuantityError:
        return otherwise


def whole_gpu_and_share(pod: Pod, policy: Policy) -> Iterator[Finding]:
    """Rule: a pod has a share of a GPU, or whole GPUs, or a claim; not two of them.

    Fields: spec.[initContainers,containers][*].resources, spec.resourceClaims
    Allowed values: no whole-GPU resource above zero, no claim
    """
    for container in pod.containers:
        requests, limits = container.resources("requests"), container.resources("limits")
        for resource, amount in {**requests, **limits}.items():
            if policy.is_whole_gpu(resource) and not _is_zero(amount):
                kind = "limits" if resource in limits else "requests"
                detail = (
                    f"the pod asks for {resource} and for a share of a GPU; remove "
                    f"{resource} to share one, or vramwarden.io/gpu-memory to have a whole one"
                )
                path = f"{container.path}.resources.{kind}[{resource}]"
                yield Finding(Reason.WHOLE_GPU_AND_SHARE, path, detail)
        resources = mapping(container.raw, "resources", container.path)
        if items(resources, "claims", f"{container.path}.resources"):
            yield _claimed(f"{container.path}.resources.claims")
    if items(pod.spec, "resourceClaims", "spec"):
        yield _claimed("spec.resourceClaims")


def _claimed(path: str) -> Finding:
    detail = (
        "the pod has a resource claim and asks for a share; remove the claim to share a GPU, "
        "or vramwarden.io/gpu-memory to keep the claim"
    )
    return Finding(Reason.WHOLE_GPU_AND_SHARE, path, detail)


def _is_zero(amount: str) -> bool:
    try:
        return parse_quantity(amount) == 0
    except QuantityError:
        return False
