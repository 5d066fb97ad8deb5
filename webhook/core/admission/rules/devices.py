"""Rules about the variables that decide which GPUs a container sees, and how much of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from webhook.core.nvidia.variables import (
    VISIBLE_DEVICES_ENV,
    limits_memory,
    sees_no_gpu,
    visible_devices,
)
from webhook.core.pod.findings import Finding, Reason, annotation_path
from webhook.core.policy.values import VisibleDevices
from webhook.names import GPU_ANNOTATION, GPU_MEMORY_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.core.admission.rules.case import Case


def visible_devices_of_demand(case: Case) -> Iterator[Finding]:
    """Rule: with a demand, we alone set which GPUs a container sees, and how much of them.

    Fields: spec.[initContainers,containers][*].env[*]
    Allowed values: NVIDIA_VISIBLE_DEVICES void, none or empty, or as we write it; no
    NVIDIA_GPU_MEMORY_* and no CUDA_MPS_* except the rule's own
    """
    pod, rule, demand = case.pod, case.rule, case.asked
    if GPU_ANNOTATION in pod.annotations:
        detail = "the GPU is chosen when the pod is bound to a node; remove the annotation"
        yield Finding(Reason.VISIBLE_DEVICES_OVERRIDE, annotation_path(GPU_ANNOTATION), detail)
    ours = visible_devices(chosen=rule.chooses_gpus)
    for container in pod.containers:
        for index, entry in enumerate(container.env()):
            path = f"{container.path}.env[{index}]"
            if limits_memory(entry) and entry not in rule.env:
                detail = f"{entry['name']} is set by the platform for pods with VRAM; remove it"
                yield Finding(Reason.VISIBLE_DEVICES_OVERRIDE, path, detail)
            elif (
                rule.visible_devices is VisibleDevices.DENY
                and not sees_no_gpu(entry)
                and not (entry == ours and (demand is None or container.name in demand.amounts))
            ):
                yield _override(path)


def visible_devices_without_demand(case: Case) -> Iterator[Finding]:
    """Rule: without a demand no container makes GPUs visible by hand.

    Fields: spec.[initContainers,containers][*].env[*] named NVIDIA_VISIBLE_DEVICES
    Allowed values: void, none or empty; anything where the rule's visibleDevices is not Deny
    """
    if not case.finds_visible_devices:
        return
    for container in case.pod.containers:
        for index, entry in enumerate(container.env()):
            if not sees_no_gpu(entry):
                yield _override(f"{container.path}.env[{index}]")


def _override(path: str) -> Finding:
    detail = (
        f"{VISIBLE_DEVICES_ENV} set by hand shows GPUs that nobody accounts for; remove it: GPUs "
        f"come with the annotation {GPU_MEMORY_ANNOTATION}, or whole with nvidia.com/gpu"
    )
    return Finding(Reason.VISIBLE_DEVICES_OVERRIDE, path, detail)
