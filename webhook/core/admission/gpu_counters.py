"""Controllers that count a pod's GPUs by resources named `gpu`, of which a share has none.

| kind | counts for | without such a resource | written instead |
| --- | --- | --- | --- |
| RayCluster, RayJob, RayService | each group | 0, so its autoscaler adds no worker | `num-gpus` |
| TrainingRuntime with `torch` | each node | as many processes as CPUs | `numProcPerNode` |

PyTorchJob's `nprocPerNode: auto` is none of them: torchrun itself counts the GPUs it sees.

Sources: ray-project/kuberay ray-operator/controllers/ray/common/pod.go
(`addWellKnownAcceleratorResources`, `updateRayStartParamsResources`), utils/validation.go
(`validateRayGroupResources`), Ray's python/ray/autoscaler/_private/kuberay/autoscaling_config.py;
kubeflow/trainer pkg/runtime/framework/plugins/torch/torch.go (`EnforceMLPolicy`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.pod.fields import as_objects, part
from webhook.core.pod.shapes import shown_path, value_at

if TYPE_CHECKING:
    from webhook.core.pod.fields import Json
    from webhook.core.pod.shapes import Template

_RAY: Final = "ray.io"
_GROUPS: Final = ("headGroupSpec", "workerGroupSpecs")
_NUM_GPUS: Final = "num-gpus"
_TRAINER: Final = "trainer.kubeflow.org"


def uncounted_gpus(owner: Json, version: str, template: Template, gpu_count: int) -> str:
    """Return the line for a controller that would count no GPU; empty for others.

    The template's pods ask for a share of so many GPUs.
    """
    group = version.partition("/")[0]
    if group == _RAY and any(key in template.path for key in _GROUPS):
        return _of_ray(owner, template, gpu_count)
    if group == _TRAINER and type(part(owner, "spec", "mlPolicy").get("torch")) is dict:
        return (
            f"spec.mlPolicy.torch: write numProcPerNode: {gpu_count} under spec.trainer of its "
            "TrainJobs; Trainer counts GPUs by nvidia.com/gpu, and starts a process per CPU without"
        )
    return ""


def _of_ray(owner: Json, template: Template, gpu_count: int) -> str:
    path = template.path[:-1]
    at = value_at(owner, path)
    resources = part(at, "resources")
    first = as_objects(part(template.pod, "spec").get("containers"))[:1]
    counted = (*resources, *(key for one in first for key in part(one, "resources", "limits")))
    if _NUM_GPUS in part(at, "rayStartParams") or any(
        str(key).lower().endswith("gpu") for key in counted
    ):
        return ""
    # KubeRay accepts one of the two alone.
    field, line = ("resources", "GPU") if resources else ("rayStartParams", _NUM_GPUS)
    return (
        f'{shown_path((*path, field))}: write {line}: "{gpu_count}"; KubeRay counts GPUs by '
        "nvidia.com/gpu, and without it Ray's autoscaler sees none in this group"
    )
