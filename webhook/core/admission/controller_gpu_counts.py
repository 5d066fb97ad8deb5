"""Controllers that count a pod's GPUs by resources named `gpu`, which a pod with a GPU share lacks.

| kind | counts per | without such a resource | field to write instead |
| --- | --- | --- | --- |
| RayCluster, RayJob, RayService | group | 0, so its autoscaler adds no worker | `num-gpus` |
| TrainingRuntime with `torch` | node | one process per CPU | `numProcPerNode` |

PyTorchJob's `nprocPerNode: auto` needs no field: torchrun counts the visible GPUs. Ray accepts only
integers (python/ray/scripts/scripts.py).

Sources: ray-project/kuberay ray-operator/controllers/ray/common/pod.go
(`addWellKnownAcceleratorResources`, `updateRayStartParamsResources`), utils/validation.go
(`validateRayGroupResources`), Ray's python/ray/autoscaler/_private/kuberay/autoscaling_config.py;
kubeflow/trainer pkg/runtime/framework/plugins/torch/torch.go (`EnforceMLPolicy`).
"""

from __future__ import annotations

import re
from typing import Final

from webhook.core.pod.fields import Json, as_objects, find_object
from webhook.core.pod.pod_templates import CONTAINER_FIELDS, Template, format_path, value_at

_PROCESSES: Final = (
    ("spec", "mlPolicy", "torch", "numProcPerNode"),  # TrainingRuntime
    ("spec", "nprocPerNode"),  # PyTorchJob
)
"""Paths of fields with the number of processes in a pod. Each process needs a GPU."""


def requests_gpus(owner: Json, template: Template) -> bool:
    """Return True if a container of the template has a GPU limit, or if Ray counts GPUs."""
    spec, group = find_object(template.pod, "spec"), value_at(owner, template.path[:-1])
    containers = (each for field in CONTAINER_FIELDS for each in as_objects(spec.get(field)))
    amounts = [find_object(container, "resources", "limits") for container in containers]
    amounts += (find_object(group, field) for field in ("resources", "rayStartParams"))
    return any(
        "gpu" in str(name).lower() and str(amount) != "0"
        for resources in amounts
        for name, amount in resources.items()
    )


def gpu_count_advice(owner: Json, version: str, template: Template, gpu_count: int) -> str:
    """Return the line to write if a controller would count a wrong number of GPUs, or "".

    `gpu_count` is the number of GPUs on which the template's pods request a share.
    """
    group = version.partition("/")[0]
    if group == "ray.io" and {"headGroupSpec", "workerGroupSpecs"} & {*template.path}:
        return _ray_advice(owner, template, gpu_count)
    if not group.endswith("kubeflow.org"):
        return ""
    for path in _PROCESSES:
        value = find_object(owner, *path[:-1]).get(path[-1])
        if re.fullmatch("[0-9]{1,9}", str(value)):
            if int(str(value)) <= gpu_count:
                return ""
            right = f'"{gpu_count}"' if type(value) is str else gpu_count
            why = f"each process needs its own GPU, and each pod has {gpu_count}"
            return f"{format_path(path)}: write {right}; {why}"
    if type(find_object(owner, "spec", "mlPolicy").get("torch")) is dict:
        return (
            f"spec.mlPolicy.torch: write numProcPerNode: {gpu_count} under spec.trainer of its "
            "TrainJobs; Trainer counts GPUs by nvidia.com/gpu, and starts a process per CPU without"
        )
    return ""


def _ray_advice(owner: Json, template: Template, gpu_count: int) -> str:
    path = template.path[:-1]
    at = value_at(owner, path)
    resources = find_object(at, "resources")
    # KubeRay accepts only one of these two fields.
    field, name = ("resources", "GPU") if resources else ("rayStartParams", "num-gpus")
    value = find_object(at, field).get(name)
    why = f"Ray counts GPUs by this number, and each pod of this group has {gpu_count}"
    if value is None:
        if requests_gpus(owner, template):
            return ""
        why = (
            "KubeRay counts GPUs by nvidia.com/gpu, and without it Ray's autoscaler sees none in "
            "this group"
        )
    elif str(value) in map(str, range(1, gpu_count + 1)):
        return ""
    return f'{format_path((*path, field))}: write {name}: "{gpu_count}"; {why}'
