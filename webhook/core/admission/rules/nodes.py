"""Rules about the nodes of a pod, and about MIG slices and time-slicing slots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from webhook.core.admission.mutation import required_node_terms
from webhook.core.admission.rules.case import Case
from webhook.core.admission.rules.suggestions import slice_bounds
from webhook.core.pod.fields import get_object, get_string, get_string_map
from webhook.core.pod.findings import Finding, Reason, annotation_path, quote
from webhook.core.pod.quantity import format_bytes
from webhook.core.pod.views import Pod
from webhook.core.policy.model import Accounting, DriverLimit
from webhook.names import (
    GPU_CLASS_ANNOTATION,
    GPU_COUNT_ANNOTATION,
    NODE_DRIVER_LIMIT_LABEL,
    OS_LABEL,
)

_OTHERS: Final = "if you did not write it, your namespace or another webhook did"


def node_selector(case: Case) -> Iterator[Finding]:
    """Rule: the pod's node selector agrees with the one that translation writes.

    Fields: spec.nodeSelector
    Allowed values: absent, or the same value for the keys of the rule's and the class's selector;
    for the labels `enforcement` and `device-names` one that the required affinity allows
    """
    pod, rule = case.pod, case.rule
    present = _selector(pod)
    if not present:
        return
    name = pod.annotations.get(GPU_CLASS_ANNOTATION) or rule.default_class
    gpu_class = case.policy.class_for(name)
    for key, value in rule.node_selector_for(gpu_class).items():
        if key in present and present[key] != value:
            yield _conflict(case, key, f"pods with VRAM need {quote(value)}")
    for term in required_node_terms(rule):
        key = term["key"]
        if key in present and (present[key] in term["values"]) is not (term["operator"] == "In"):
            yield _conflict(case, key, "no pod with VRAM can run on such a node")


def _conflict(case: Case, key: str, why: str) -> Finding:
    selected, rule = quote(_selector(case.pod)[key]), quote(case.rule.name)
    detail = f"remove the line; it selects {selected}, and {why} (rule {rule}); {_OTHERS}"
    return Finding(Reason.NODE_SELECTOR_CONFLICT, f"spec.nodeSelector[{key}]", detail)


def operating_system(case: Case) -> tuple[Finding, ...]:
    """Rule: VRAM is shared on Linux only.

    Fields: spec.os.name, spec.nodeSelector[kubernetes.io/os]
    Allowed values: absent, or anything but windows
    """
    if get_string(get_object(case.pod.spec, "os", "spec"), "name", "spec.os") == "windows":
        path = "spec.os.name"
    elif _selector(case.pod).get(OS_LABEL) == "windows":
        path = f"spec.nodeSelector[{OS_LABEL}]"
    else:
        return ()
    detail = "remove the request for VRAM; it cannot be shared on Windows"
    return (Finding(Reason.UNSUPPORTED_OS, path, detail),)


def node_name(case: Case) -> tuple[Finding, ...]:
    """Rule: the scheduler chooses the node of a pod with VRAM or whole GPUs.

    Fields: spec.nodeName
    Allowed values: absent at creation; anything in a pod without VRAM and whole GPUs

    A kubelet ignores a resource that its node does not have, so only the scheduler checks that the
    GPUs exist (kubernetes/pkg/kubelet/lifecycle/predicate.go, removeMissingExtendedResources).
    """
    if not (case.requests_vram or case.has_whole_gpus):
        return ()
    name = get_string(case.pod.spec, "nodeName", "spec")
    if not name:
        return ()
    counted = (
        "VRAM"
        if case.requests_vram
        else "GPUs (DaemonSets use node affinity since Kubernetes 1.12)"
    )
    detail = (
        "remove it and use nodeSelector kubernetes.io/hostname; with "
        f"{quote(name)} it bypasses the scheduler, which counts the {counted}"
    )
    return (Finding(Reason.NODE_NAME_PRESET, "spec.nodeName", detail),)


def _selector(pod: Pod) -> Mapping[str, str]:
    return get_string_map(pod.spec, "nodeSelector", "spec")


def slices(case: Case) -> Iterator[Finding]:
    """Rule: under `accounting: MIG` a known node has slices with the requested amount.

    Fields: metadata.annotations[gpu-memory], spec.nodeSelector
    Allowed values: for each container at most the largest slice of one node that the pod selects.
    Only judged in the mutating phase, in which translation chooses the slices
    """
    if case.rule.accounting is not Accounting.MIG or not case.mutating:
        return
    demand, rule = case.demand, case.rule
    bounds = slice_bounds(case.pod, demand.gpu_class, rule, case.policy, case.cluster)
    largest_bytes = max(demand.amounts.values())
    bound = next(bounds, None)
    if bound is not None:
        for reason, sentence in bound.violations(largest_bytes):
            yield Finding(reason, demand.path, sentence)
        return
    which = "that this pod selects " if case.cluster.sliced_nodes else ""
    detail = (
        f"tell your platform team that rule {rule.name} wants nodes with the labels "
        "nvidia.com/mig-<profile>.memory of GPU feature discovery; "
        f"no node {which}is known to have slices of GPUs (MIG), so nothing would hold the pod "
        f"to {format_bytes(largest_bytes)}"
    )
    yield Finding(Reason.ENFORCEMENT_IMPOSSIBLE, demand.path, detail)


def one_slot(case: Case) -> Iterator[Finding]:
    """Rule: under `accounting: CapOnly` a pod requests one GPU.

    Fields: metadata.annotations[gpu-count]
    Allowed values: absent, or 1, since two time-slicing slots may be on the same GPU
    """
    if case.rule.accounting is Accounting.CAP_ONLY and case.demand.gpu_count > 1:
        detail = (
            f"remove the annotation; it asks for {case.demand.gpu_count} GPUs, and under rule "
            f"{case.rule.name} these are slots of time-slicing, of which two may be of one GPU"
        )
        path = annotation_path(GPU_COUNT_ANNOTATION)
        yield Finding(Reason.INVALID_COUNT, path, detail)


def no_driver_limit(case: Case) -> tuple[str, ...]:
    """Rule: the creator of a pod that requires the driver's limit is warned if no node has it now.

    Fields: spec.nodeSelector[vramwarden.io/driver-limit]
    Allowed values: any; it returns a warning and not a finding, since such a node may be added
    """
    rule = case.rule
    requires = rule.driver_limit is DriverLimit.REQUIRE
    if case.demand_if_any is None or not requires or case.cluster.limits is not False:
        return ()
    hint = (
        f"spec.nodeSelector[{NODE_DRIVER_LIMIT_LABEL}]: rule {rule.name} requires a node whose "
        "driver holds caps, and no node has that label now: the pod waits until one has"
    )
    return (hint,)


def unreserved_memory(case: Case) -> tuple[str, ...]:
    """Rule: the creator of a pod under `accounting: CapOnly` is warned that no memory is reserved.

    Fields: metadata.annotations[gpu-memory]
    Allowed values: any; it returns a warning and not a finding
    """
    if case.demand_if_any is None or case.rule.accounting is not Accounting.CAP_ONLY:
        return ()
    demand = case.demand
    cap = format_bytes(demand.per_gpu_bytes)
    hint = (
        f"{demand.path}: {cap} is the most that this pod may use, and nobody keeps it free: "
        "its GPU is shared by time-slicing, and others there may take the memory first"
    )
    return (hint,)
