"""GPU requests of a pod. The first row whose amount is above 0 counts.

| product | request | unit |
| --- | --- | --- |
| vramwarden | a demand | bytes on each GPU |
| KAI | annotations gpu-fraction or gpu-memory, gpu-fraction-num-devices | parts, MiB, GPUs |
| gpushare | resource aliyun.com/gpu-mem | GiB; MiB if no GPU has that many GiB |
| HAMi | resources nvidia.com/gpu with gpumem or gpumem-percentage | GPUs, MiB of each, percent |
| Volcano | resources volcano.sh/vgpu-number, vgpu-memory, vgpu-memory-percentage | as HAMi |
| device plugin | resources nvidia.com/mig-* | slices |
| device plugin | resource nvidia.com/gpu.shared | replicas of GPUs |
| device plugin | resource nvidia.com/gpu | GPUs, or replicas if the node has replicas |

Sources: README.md of NVIDIA/k8s-device-plugin; pkg/device/nvidia/device.go of Project-HAMi/HAMi
(`GenerateResourceRequests`); pkg/common/constants/constants.go of NVIDIA/KAI-Scheduler;
pkg/utils/const.go of AliyunContainerService/gpushare-scheduler-extender;
volcano-sh/volcano-vgpu-device-plugin.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from enum import Enum, auto
from fractions import Fraction
from functools import partial
from typing import Final

from webhook.core.nvidia.device_plugin import MIG_PREFIX
from webhook.core.pod import other_products
from webhook.core.pod.demand import read_demand
from webhook.core.pod.fields import Json
from webhook.core.pod.quantity import MIB, QuantityError, parse_count
from webhook.core.pod.views import Container, effective_amount, read_pod

_PREFIXES: Final = ("nvidia.com/", "volcano.sh/", "aliyun.com/")
_BY_MEMORY: Final = (
    (other_products.WHOLE_GPU, other_products.HAMI_MEMORY, other_products.HAMI_PERCENTAGE),
    (
        other_products.VOLCANO_NUMBER,
        other_products.VOLCANO_MEMORY,
        other_products.VOLCANO_PERCENTAGE,
    ),
)
_PLAIN: Final = re.compile(r"[0-9]{1,10}(\.[0-9]{1,10})?")


class RequestForm(Enum):
    """The form in which a pod requests GPUs."""

    WHOLE = auto()
    REPLICA = auto()
    SLICE = auto()
    SHARE = auto()
    """Memory on each GPU."""


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """GPU request of a pod."""

    form: RequestForm
    gpus: int
    """Number of GPUs, replicas or slices."""
    memory_bytes: int = 0
    """Memory of a share on each GPU, in bytes."""
    part: Fraction = Fraction(0)
    """Fraction of each GPU's memory, added to `memory_bytes`."""


def read_request(raw: Json) -> GpuRequest | None:
    """Return a pod's request, or None if it requests no GPU. Raises ValueError.

    Containers count by Kubernetes' effective-request rule. A container that requests a GPU from
    HAMi or Volcano without an amount takes all memory of the GPU.
    """
    pod = read_pod(raw)
    demand, findings = read_demand(pod)
    if findings:
        raise ValueError(str(findings[0]))
    share = partial(GpuRequest, RequestForm.SHARE)
    if demand is not None:
        return share(demand.gpu_count, demand.per_gpu_bytes)
    keys = (other_products.KAI_FRACTION, other_products.KAI_MEMORY, other_products.KAI_DEVICES)
    fraction, mebibytes, devices = (_plain(pod.annotations.get(key, "")) for key in keys)
    if fraction or mebibytes:
        amount = 0 if fraction else int(mebibytes) * MIB  # KAI denies a pod with both
        return share(int(devices) or 1, amount, min(fraction, Fraction(1)))
    each = {container.name: _counts(container) for container in pod.containers}
    total = Counter[str]()
    for name in {name for counts in each.values() for name in counts}:
        of_name = {container: counts[name] for container, counts in each.items()}
        total[name] = effective_amount(pod.containers, of_name, 0)
    if units := total[other_products.GPUSHARE_MEMORY]:
        amount = (
            units
            * other_products.UNITS[
                other_products.GPUSHARE.unit_for(units) or other_products.GPUSHARE.unit
            ]
        )
        return share(1, amount)
    for number, memory, percent in _BY_MEMORY:
        gpus = max((counts[number] for counts in each.values()), default=0)
        if total[memory] or total[percent] or (gpus and number == other_products.VOLCANO_NUMBER):
            takes_all = any(
                counts[number] and not (counts[memory] or counts[percent])
                for counts in each.values()
            )
            part = Fraction(100 if takes_all else min(total[percent], 100), 100)
            return share(max(1, gpus), total[memory] * MIB, part)
    numbers = {
        RequestForm.SLICE: sum(total[name] for name in total if name.startswith(MIG_PREFIX)),
        RequestForm.REPLICA: total[other_products.SHARED_GPU],
        RequestForm.WHOLE: total[other_products.WHOLE_GPU],
    }
    return next((GpuRequest(form, number) for form, number in numbers.items() if number), None)


def _counts(container: Container) -> Counter[str]:
    amounts = {**container.resources("requests"), **container.resources("limits")}
    counts = Counter[str]()
    for name, amount in amounts.items():
        if name.startswith(_PREFIXES):
            try:
                counts[name] = parse_count(amount)
            except QuantityError as error:
                raise ValueError(f"{name}: {amount} {error.why}") from error
    return counts


def _plain(text: str) -> Fraction:
    """Return a number without a unit, or 0 for any other string."""
    return Fraction(text) if _PLAIN.fullmatch(text) else Fraction(0)
