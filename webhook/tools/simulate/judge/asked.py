"""What a pod asks of GPUs, by whatever product: whole ones, replicas, slices, or memory.

| product | asks by | unit |
| --- | --- | --- |
| device plugin | resource nvidia.com/gpu | GPUs, or replicas where the node has such |
| device plugin | resource nvidia.com/gpu.shared | replicas of GPUs |
| device plugin | resources nvidia.com/mig-* | slices |
| HAMi | resources nvidia.com/gpu, gpumem, gpumem-percentage | GPUs, MiB of each, percent |
| Volcano | resources volcano.sh/vgpu-number, vgpu-memory, vgpu-memory-percentage | as HAMi |
| KAI | annotations gpu-fraction or gpu-memory, gpu-fraction-num-devices | parts, MiB, GPUs |
| gpushare | resource aliyun.com/gpu-mem | GiB; MiB where no GPU has so many |

Sources: README.md of NVIDIA/k8s-device-plugin; pkg/device/nvidia/device.go of Project-HAMi/HAMi
(`GenerateResourceRequests`); pkg/common/constants/constants.go of NVIDIA/KAI-Scheduler;
pkg/utils/const.go of AliyunContainerService/gpushare-scheduler-extender;
volcano-sh/volcano-vgpu-device-plugin.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Final

from webhook.core.nvidia.plugin import SLICE_PREFIX
from webhook.core.pod.demand import read_demand
from webhook.core.pod.findings import MalformedObjectError, render
from webhook.core.pod.foreign import (
    GPUSHARE,
    GPUSHARE_MEMORY,
    HAMI_MEMORY,
    HAMI_PERCENTAGE,
    KAI_DEVICES,
    KAI_FRACTION,
    KAI_MEMORY,
    SHARED_GPU,
    UNITS,
    VOLCANO_MEMORY,
    VOLCANO_NUMBER,
    VOLCANO_PERCENTAGE,
    WHOLE_GPU,
)
from webhook.core.pod.quantity import MIB, QuantityError, parse_count
from webhook.core.pod.views import effective_amount, read_pod
from webhook.names import GPU_ANNOTATION
from webhook.tools.shared.bounds import LONGEST_GIVEN, LONGEST_NAMED, MOST_CARDS, MOST_POD_GPUS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from webhook.core.pod.fields import Json
    from webhook.core.pod.views import Container, Pod

GIB: Final = 2**30
HUNDRED: Final = 100

_KAI_GROUP: Final = "runai-gpu-group"
_HAMI_GIVEN: Final = "hami.io/vgpu-devices-allocated"
_GPUSHARE_GIVEN: Final = "ALIYUN_COM_GPU_MEM_IDX"
_PLAIN: Final = re.compile(r"[0-9]{1,10}(\.[0-9]{1,10})?")


class How(StrEnum):
    """By which product a pod asks."""

    WHOLE = "whole GPUs"
    REPLICA = "replicas (time-slicing, MPS)"
    SLICE = "MIG slices"
    HAMI = "HAMi"
    VOLCANO = "Volcano"
    KAI = "KAI"
    GPUSHARE = "gpushare"
    OURS = "vramwarden"


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """What a pod asks for."""

    how: How
    gpus: int
    """Of WHOLE and REPLICA all of them, of SLICE slices, else those that it has a part of each."""
    memory_bytes: int = 0
    """On each of them; 0 where it names no amount."""
    part: Fraction = Fraction(0)
    """Of the memory of each, besides."""
    cards: tuple[str, ...] = ()
    """Which GPUs of its node it has, where it says so: any text that differs by GPU."""

    @property
    def has_size(self) -> bool:
        """Whether it says how much memory it asks for."""
        return bool(self.memory_bytes or self.part)


class AskError(ValueError):
    """What a pod asks for cannot be read; a sentence."""


def asked_of(raw: Json) -> GpuRequest | None:
    """Return what a pod asks for, None where it asks for no GPU; raises AskError.

    | it has | then |
    | --- | --- |
    | a demand of ours | that |
    | KAI's annotation with a plain number | KAI; others are nobody's |
    | aliyun.com/gpu-mem above 0 | gpushare |
    | memory or percent of HAMi or Volcano | theirs; a container with neither takes all of it |
    | nvidia.com/mig-* above 0 | slices |
    | nvidia.com/gpu.shared above 0 | replicas |
    | nvidia.com/gpu above 0 | whole GPUs |

    Containers count by Kubernetes' effective-request rule.
    """
    try:
        pod = read_pod(raw)
        demand, findings = read_demand(pod)
        if findings:
            raise AskError(render(findings))
        if demand is not None:
            cards = tuple(filter(None, pod.annotations.get(GPU_ANNOTATION, "").split(",")))
            cards = cards[:MOST_CARDS]
            return GpuRequest(How.OURS, demand.gpu_count, demand.per_gpu_bytes, cards=cards)
        readers = (_kai, _gpushare, *_BY_FAMILY, _by_count)
        return next(filter(None, (read(pod) for read in readers)), None)
    except MalformedObjectError as error:
        raise AskError(str(error)) from error


def _kai(pod: Pod) -> GpuRequest | None:
    fraction = _plain(pod.annotations.get(KAI_FRACTION, ""))
    mebibytes = _plain(pod.annotations.get(KAI_MEMORY, ""))
    if not fraction and not mebibytes:
        return None
    count = _plain(pod.annotations.get(KAI_DEVICES, "")) or Fraction(1)
    gpus = int(count) if count.denominator == 1 and 1 <= count <= MOST_POD_GPUS else 1
    groups = {
        value[:LONGEST_NAMED]
        for key, value in pod.labels.items()
        if key == _KAI_GROUP or key.startswith(f"{_KAI_GROUP}/")
    }
    cards = tuple(sorted(groups))[:MOST_CARDS]
    if fraction:  # KAI denies a pod that has both
        return GpuRequest(How.KAI, gpus, part=min(fraction, Fraction(1)), cards=cards)
    return GpuRequest(How.KAI, gpus, int(mebibytes) * MIB, cards=cards)


def _gpushare(pod: Pod) -> GpuRequest | None:
    units = _summed(pod, partial(_whole, name=GPUSHARE_MEMORY))
    if not units:
        return None
    memory_bytes = units * UNITS[GPUSHARE.unit_of(units) or GPUSHARE.unit]
    index = pod.annotations.get(_GPUSHARE_GIVEN, "")
    cards = (f"index {index}",) if _PLAIN.fullmatch(index) else ()
    return GpuRequest(How.GPUSHARE, 1, memory_bytes, cards=cards)


def _by_family(pod: Pod, *, how: How, number: str, memory: str, percent: str) -> GpuRequest | None:
    """Return what HAMi and Volcano, whose rules are the same, give the pod.

    Without a number of GPUs it gets one; with a number, and neither memory nor percent, all memory.
    """

    def part(amounts: Mapping[str, str]) -> int:
        takes_all = _whole(amounts, number) and not _whole(amounts, memory)
        return _whole(amounts, percent) or (HUNDRED if takes_all else 0)

    numbers = [_whole(_amounts(one), number) for one in pod.containers]
    mebibytes = _summed(pod, partial(_whole, name=memory))
    names_memory = mebibytes or _summed(pod, partial(_whole, name=percent))
    if not names_memory and (number == WHOLE_GPU or not any(numbers)):
        return None
    parts = min(Fraction(_summed(pod, part), HUNDRED), Fraction(1))
    return GpuRequest(how, max([1, *numbers]), mebibytes * MIB, parts, _hami(pod))


_BY_FAMILY: Final[tuple[Callable[[Pod], GpuRequest | None], ...]] = tuple(
    partial(_by_family, how=how, number=number, memory=memory, percent=percent)
    for how, number, memory, percent in (
        (How.HAMI, WHOLE_GPU, HAMI_MEMORY, HAMI_PERCENTAGE),
        (How.VOLCANO, VOLCANO_NUMBER, VOLCANO_MEMORY, VOLCANO_PERCENTAGE),
    )
)


def _hami(pod: Pod) -> tuple[str, ...]:
    """Return the UUIDs of `GPU-1,NVIDIA,3000,30:;GPU-2,NVIDIA,3000,30:;`."""
    given = pod.annotations.get(_HAMI_GIVEN, "")[:LONGEST_GIVEN]
    listed = (one.partition(",")[0].strip() for one in re.split("[:;]", given))
    return tuple(sorted({one[:LONGEST_NAMED] for one in listed if one}))[:MOST_CARDS]


def _by_count(pod: Pod) -> GpuRequest | None:
    def slices(amounts: Mapping[str, str]) -> int:
        return sum(_whole(amounts, name) for name in amounts if name.startswith(SLICE_PREFIX))

    for how, read in (
        (How.SLICE, slices),
        (How.REPLICA, partial(_whole, name=SHARED_GPU)),
        (How.WHOLE, partial(_whole, name=WHOLE_GPU)),
    ):
        if number := _summed(pod, read):
            return GpuRequest(how, number)
    return None


def _summed(pod: Pod, read: Callable[[Mapping[str, str]], int]) -> int:
    amounts = {one.name: read(_amounts(one)) for one in pod.containers}
    return effective_amount(pod.containers, amounts, 0)


def _amounts(container: Container) -> Mapping[str, str]:
    """Return what a container asks for: limits, and requests where there is no limit."""
    return {**container.resources("requests"), **container.resources("limits")}


def _whole(amounts: Mapping[str, str], name: str) -> int:
    """Return a whole number of a resource; 0 where it is absent."""
    text = amounts.get(name)
    if text is None:
        return 0
    try:
        return parse_count(text)
    except QuantityError as error:
        raise AskError(f"{name}: {text[:LONGEST_NAMED]} {error.why}") from error


def _plain(text: str) -> Fraction:
    """Return a number without a unit; 0 where it is none."""
    return Fraction(text) if _PLAIN.fullmatch(text) else Fraction(0)
