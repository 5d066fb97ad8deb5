"""Controllers that count a pod's GPUs by resources named `gpu`, of which a share has none.

| kind | counts for | without such a resource | written instead |
| --- | --- | --- | --- |
| RayCluster, RayJob, RayService | each group | 0, so its autoscaler adds no worker | `num-gpus` |
| TrainingRuntime with `torch` | each node | as many processes as CPUs | `numProcPerNode` |

PyTorchJob's `nprocPerNode: auto` is none of them: torchrun itself counts the GPUs it sees. Ray
takes only integers (python/ray/scripts/scripts.py).

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
"""Paths of a number of processes of a pod, each with its own GPU."""


def asks_for_gpus(owner: Json, template: Template) -> bool:
    """Return True if a container of a template limits a resource for GPUs, or Ray counts some."""
    spec, group = find_object(template.pod, "spec"), value_at(owner, template.path[:-1])
    containers = (one for field in CONTAINER_FIELDS for one in as_objects(spec.get(field)))
    amounts = [find_object(one, "resources", "limits") for one in containers]
    amounts += (find_object(group, field) for field in ("resources", "rayStartParams"))
    return any(
        "gpu" in str(name).lower() and str(amount) != "0"
        for one in amounts
        for name, amount in one.items()
    )


def uncounted_gpus(owner: Json, version: str, template: Template, gpu_count: int) -> str:
    """Return the line for a controller that would count no GPU, or too many; empty for others.

    The template's pods ask for a share of so many GPUs.
    """
    group = version.partition("/")[0]
    if group == "ray.io" and {"headGroupSpec", "workerGroupSpecs"} & {*template.path}:
        return _of_ray(owner, template, gpu_count)
    if not group.endswith("kubeflow.org"):
        return ""
    for path in _PROCESSES:
        given = find_object(owner, *path[:-1]).get(path[-1])
        if re.fullmatch("[0-9]{1,9}", str(given)):
            if int(str(given)) <= gpu_count:
                return ""
            right = f'"{gpu_count}"' if type(given) is str else gpu_count
            why = f"each process needs its own GPU, and each pod has {gpu_count}"
            return f"{format_path(path)}: write {right}; {why}"
    if type(find_object(owner, "spec", "mlPolicy").get("torch")) is dict:
        return (
            f"spec.mlPolicy.torch: write numProcPerNode: {gpu_count} under spec.trainer of its "
            "TrainJobs; Trainer counts GPUs by nvidia.com/gpu, and starts a process per CPU without"
        )
    return ""


def _of_ray(owner: Json, template: Template, gpu_count: int) -> str:
    path = template.path[:-1]
    at = value_at(owner, path)
    resources = find_object(at, "resources")
    # KubeRay accepts one of the two alone.
    field, name = ("resources", "GPU") if resources else ("rayStartParams", "num-gpus")
    given = find_object(at, field).get(name)
    why = f"Ray counts GPUs by this number, and each pod of this group has {gpu_count}"
    if given is None:
        if asks_for_gpus(owner, template):
            return ""
        why = (
            "KubeRay counts GPUs by nvidia.com/gpu, and without it Ray's autoscaler sees none in "
            "this group"
        )
    elif str(given) in map(str, range(1, gpu_count + 1)):
        return ""
    return f'{format_path((*path, field))}: write {name}: "{gpu_count}"; {why}'
