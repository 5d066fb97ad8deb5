"""Rules about the variables that decide which GPUs a container sees, and how much of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from webhook.core.admission.accounting import counted_for, uncounted
from webhook.core.nvidia.variables import (
    DRIVER_CAPABILITIES_ENV,
    VISIBLE_DEVICES_ENV,
    limits_memory,
    sees_no_gpu,
    shows_all,
    shows_chosen,
    widens,
)
from webhook.core.pod.findings import Finding, Reason, annotation_path
from webhook.core.policy.values import VisibleDevices
from webhook.names import BINDING_ANNOTATIONS, GPU_MEMORY_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.core.admission.rules.case import Case
    from webhook.core.pod.fields import Json
    from webhook.core.pod.views import Container


def visible_devices_of_demand(case: Case) -> Iterator[Finding]:
    """Rule: with a demand, we alone set which GPUs a container sees, and how much of them.

    Fields: spec.[initContainers,containers][*].env[*], the annotations that a binding writes
    Allowed values: NVIDIA_VISIBLE_DEVICES void, none or empty, or as a release of ours writes it;
    no NVIDIA_GPU_MEMORY_* and no CUDA_MPS_* except the rule's own; none by which a container gets
    hold of more; annotations that are there before translation, which takes them off
    """
    rule = case.rule
    if not case.mutating:
        for key in filter(case.pod.annotations.__contains__, BINDING_ANNOTATIONS):
            detail = "the GPU is chosen when the pod is bound to a node; remove the annotation"
            yield Finding(Reason.VISIBLE_DEVICES_OVERRIDE, annotation_path(key), detail)
    denies = rule.visible_devices is VisibleDevices.DENY
    for container in case.pod.containers:
        env = container.env()
        if not env:
            continue
        names = [entry["name"] for entry in env]
        ours = names.count(VISIBLE_DEVICES_ENV) == 1 and DRIVER_CAPABILITIES_ENV in names
        for index, entry in enumerate(env):
            if widens(entry):
                detail = f"{entry['name']} gives more than the pod's share of a GPU; remove it"
                path = f"{container.path}.env[{index}]"
                yield Finding(Reason.VISIBLE_DEVICES_OVERRIDE, path, detail)
            elif limits_memory(entry):
                if entry not in rule.env:
                    detail = f"{entry['name']} is set by the platform for pods with VRAM; remove it"
                    path = f"{container.path}.env[{index}]"
                    yield Finding(Reason.VISIBLE_DEVICES_OVERRIDE, path, detail)
            elif (
                denies
                and not sees_no_gpu(entry)
                and not _is_translations(entry, container, case, beside=ours)
            ):
                yield _override(f"{container.path}.env[{index}]")


def _is_translations(entry: Json, container: Container, case: Case, *, beside: bool) -> bool:
    """Say whether translation set a variable, now or when the pod was there before.

    | container | the GPUs chosen | all |
    | --- | --- | --- |
    | without VRAM | by hand | by hand |
    | with VRAM, and all that translation writes into it | ours | ours |
    | with VRAM otherwise | ours | ours where the rule does not choose GPUs |

    `beside` says whether the container's variables are as translation leaves them.
    """
    demand = case.asked
    if demand is None:
        return shows_chosen(entry)
    if container.name not in demand.amounts:
        return False
    if shows_all(entry):
        if not case.rule.chooses_gpus or not beside:
            return not case.rule.chooses_gpus
        counted = counted_for(case.pod, demand, case.rule, case.policy, case.cluster)
        return not any(uncounted(container, counted))
    return shows_chosen(entry)


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
