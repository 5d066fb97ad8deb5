"""Rules for pods whose GPUs NVIDIA's device plugin gives: slices of MIG, slots of time-slicing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from webhook.core.admission.accounting import selected_nodes
from webhook.core.pod.findings import Finding, Reason, annotation_path
from webhook.core.pod.quantity import format_bytes
from webhook.core.policy.cluster import largest, smallest
from webhook.core.policy.values import Accounting, Warnings
from webhook.names import GPU_COUNT_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.core.admission.rules.case import Case


def slices(case: Case) -> Iterator[Finding]:
    """Rule: under `accounting: MIG` a node is known whose slices hold what the pod asks for.

    Fields: metadata.annotations[gpu-memory], spec.nodeSelector
    Allowed values: for each container no more than the largest slice of one node that the pod
    selects. Judged before translation alone, which chooses the slices
    """
    if case.rule.accounting is not Accounting.MIG or not case.mutating:
        return
    demand, rule, policy = case.demand, case.rule, case.policy
    gpu_class = policy.class_for(demand.gpu_class or rule.default_class)
    nodes = selected_nodes(case.pod, rule, gpu_class, case.cluster)
    amounts = [*demand.amounts.values()]
    if smallest(nodes, amounts) is not None:
        return
    asked_bytes = max(amounts)
    most_bytes, profile = largest(nodes)
    if not nodes:
        which = "that this pod selects " if case.cluster.sliced_nodes else ""
        detail = (
            f"no node {which}is known to have slices of GPUs (MIG), so nothing would hold the pod "
            f"to {format_bytes(asked_bytes)}; tell your platform team that rule {rule.name} wants "
            "nodes with the labels nvidia.com/mig-<profile>.memory of GPU feature discovery"
        )
        yield Finding(Reason.ENFORCEMENT_IMPOSSIBLE, demand.path, detail)
    else:
        # A node whose largest slice holds the largest amount holds the others as well.
        detail = (
            f"asks for {format_bytes(asked_bytes)} in one container; the largest slice (MIG) that "
            f"this pod can get is {profile}, which allows at most {format_bytes(most_bytes)}"
        )
        yield Finding(Reason.TOO_LARGE, demand.path, detail)


def one_slot(case: Case) -> Iterator[Finding]:
    """Rule: under `accounting: CapOnly` a pod asks for one GPU.

    Fields: metadata.annotations[gpu-count]
    Allowed values: absent, or 1: two slots of time-slicing may be of the same GPU
    """
    if case.rule.accounting is Accounting.CAP_ONLY and case.demand.gpu_count > 1:
        detail = (
            f"asks for {case.demand.gpu_count} GPUs; under rule {case.rule.name} GPUs are shared "
            "by time-slicing, where two slots may be of one GPU: remove the annotation"
        )
        path = annotation_path(GPU_COUNT_ANNOTATION)
        yield Finding(Reason.INVALID_COUNT, path, detail)


def unpromised(case: Case) -> tuple[str, ...]:
    """Rule: who creates a pod under `accounting: CapOnly` knows what nobody promises.

    Fields: metadata.annotations[gpu-memory]
    Allowed values: any; it returns a warning and not a finding, unless the rule's `advice` is Off
    """
    rule = case.rule
    warns = rule.advice is Warnings.WARN and rule.accounting is Accounting.CAP_ONLY
    if case.asked is None or not warns:
        return ()
    cap = format_bytes(case.asked.per_gpu_bytes)
    hint = (
        f"{case.asked.path}: {cap} is the most that this pod may use, and nobody keeps it free: "
        "its GPU is shared by time-slicing, and others there may take the memory first"
    )
    return (hint,)
