"""HAMi: a number of GPUs by container, and MiB or percent of each.

| limits (else requests) of a container | here, on each GPU |
| --- | --- |
| nvidia.com/gpumem above 0 | so many units of memory, whatever the percentage says |
| nvidia.com/gpumem-percentage 1 to 99 | so much of a GPU |
| neither, or 0, or 100 percent | all of a GPU |
| nvidia.com/gpu N | gpu-count N; without it and with one of the others in the limits, 1 |

Sources: pkg/device/nvidia/device.go (`GenerateResourceRequests`, `mutateContainerResource`, `Fit`,
the annotations), pkg/util/types.go, pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go
(variables), charts/hami/values.yaml of Project-HAMi/HAMi.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Final

from webhook.core.pod.foreign import (
    HAMI,
    HAMI_CORES,
    HAMI_MEMORY,
    HAMI_PERCENTAGE,
    WHOLE_GPU,
)
from webhook.core.pod.quantity import MIB
from webhook.tools.admit.judge.migration.amounts import (
    by_container,
    gpu_count,
    in_units,
    part_of_gpu,
    whole_number,
)
from webhook.tools.admit.judge.migration.values import NotCarriedError, Product, Share

if TYPE_CHECKING:
    from webhook.core.pod.views import Container
    from webhook.tools.admit.judge.migration.source import Source
    from webhook.tools.admit.judge.migration.values import Asked, Scale

_PRIORITY: Final = "nvidia.com/priority"
_ALONE: Final = (HAMI_CORES, HAMI_MEMORY, HAMI_PERCENTAGE)
"""Each of them in the limits asks for one GPU where no number of GPUs is said."""
_ALL: Final = 100
"""Percent."""
_MOST_UNITS: Final = 2**31 - 1
_CLASS: Final = (
    "GPUs are chosen by class here; name one of the policy in vramwarden.io/gpu-class, or a node "
    "label in nodeSelector"
)
_ONE_GPU: Final = "no pod chooses a single GPU here; choose the node, or ask for the amount alone"
_CAPPED: Final = "HAMi's library reads it, which is not there any more; the cap is the annotation's"


def _read(source: Source, scale: Scale) -> Asked:
    return by_container(source, partial(_share, scale=scale))


def _share(container: Container, *, scale: Scale) -> Share | None:
    """Read what a container asks for; None for nothing."""
    path, count = whole_number(container, WHOLE_GPU) or ("", -1)
    if count < 0:
        limits = container.resources("limits")
        named = next((name for name in _ALONE if name in limits), None)
        if named is None:
            return None
        path, count = f"{container.path}.resources.limits[{named}]", 1
    if not count:
        return None
    return Share(_memory_bytes(container, path, scale), gpu_count(path, count))


def _memory_bytes(container: Container, path: str, scale: Scale) -> int:
    at, units = whole_number(container, HAMI_MEMORY) or ("", 0)
    if units > _MOST_UNITS:
        detail = "is a plain number of MiB for HAMi, which rejects a unit; write the number first"
        raise NotCarriedError(at, detail)
    if units:
        return in_units(at, units, scale.unit_bytes or MIB)
    at, percent = whole_number(container, HAMI_PERCENTAGE) or ("", 0)
    if percent > _ALL:
        raise NotCarriedError(at, f"{percent} is no percentage, and HAMi denies it; correct it")
    if percent in {0, _ALL}:
        return part_of_gpu(path, "asks for all memory of a GPU", Fraction(1), scale.gpu_bytes)
    what = f"asks for {percent} percent of a GPU"
    return part_of_gpu(at, what, Fraction(percent, _ALL), scale.gpu_bytes)


PRODUCT: Final = Product(
    name=HAMI,
    read=_read,
    unit_bytes=MIB,
    resources={
        WHOLE_GPU: "",
        HAMI_MEMORY: "",
        HAMI_PERCENTAGE: "",
        HAMI_CORES: "compute is not divided here, and pods of one GPU take turns",
        _PRIORITY: "pods of one GPU have no order here",
    },
    annotations={
        "nvidia.com/use-gputype": _CLASS,
        "nvidia.com/nouse-gputype": _CLASS,
        "nvidia.com/use-gpuuuid": _ONE_GPU,
        "nvidia.com/nouse-gpuuuid": _ONE_GPU,
        "nvidia.com/numa-bind": "GPUs are not chosen by NUMA node here",
        "nvidia.com/vgpu-mode": "the policy's rule chooses how a share is held (accounting)",
        "hami.io/node-scheduler-policy": "nodes are chosen by the default scheduler's scores",
        "hami.io/gpu-scheduler-policy": "the GPU with the least room that is enough is taken",
        "hami.io/*": "only HAMi reads it",
    },
    labels={"hami.io/*": "only HAMi reads it"},
    node_labels={"gpu": "HAMi's nodes are labelled so by hand; keep the label, or remove this"},
    variables={
        "CUDA_DEVICE_MEMORY_LIMIT*": _CAPPED,
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": _CAPPED,
        "CUDA_DEVICE_SM_LIMIT": "compute is not divided here",
        "CUDA_TASK_PRIORITY": "pods of one GPU have no order here",
        "CUDA_DISABLE_CONTROL": "no pod switches its cap off here",
        "CUDA_OVERSUBSCRIBE": "no GPU's memory is promised twice here",
        "GPU_CORE_UTILIZATION_POLICY": "compute is not divided here",
        "LIBCUDA_LOG_LEVEL": "only HAMi's library reads it",
    },
    schedulers=frozenset({"hami-scheduler"}),
    gives_gpus_by_container=True,
)
"""`--migrate hami`."""
