"""Parse a pod's requests to another product, by the product's rules.

HAMi: a number of GPUs by container, and MiB or percent of each.

| limits (else requests) of a container | here, on each GPU |
| --- | --- |
| nvidia.com/gpumem above 0 | this number of memory units; the percentage is ignored |
| nvidia.com/gpumem-percentage 1 to 99 | this percentage of a GPU |
| neither of them, 0, or 100 percent | a whole GPU |
| nvidia.com/gpu N | gpu-count N; 1 if absent and the limits have one of the others |

KAI: MiB, or a part of a GPU, for one container of a pod, on one GPU or several. Pods that ask for
whole GPUs use no KAI annotation and stay unchanged.

| annotation | here |
| --- | --- |
| gpu-memory: "2000" | gpu-memory: 2000Mi |
| gpu-fraction: "0.5" | half of a GPU's memory |
| gpu-fraction-num-devices: "2" | gpu-count: "2" |
| gpu-fraction-container-name | container name in the annotation; by default, the first container |
| nvidia.com/container.NAME.gpu-memory.limit, .request | gpu-memory of that container |

gpushare of Alibaba Cloud: memory units per container, all on one GPU.

| the pod's | here |
| --- | --- |
| aliyun.com/gpu-mem: 3 of a container | 3Gi for the container if a unit is 1Gi |
| label aliyun.com/gpu-count: "2" (ACK) | gpu-count: "2", and half of the amounts on each |

Whole GPUs, and replicas of time-slicing: NVIDIA's device plugin names no amount of memory. MIG
slices stay unchanged.

| limits (else requests) of a container | here |
| --- | --- |
| nvidia.com/gpu: N | the amount of `--gpu-memory`, gpu-count N |
| nvidia.com/gpu.shared: N | that amount on one GPU, since all replicas may be on one GPU |

Sources, beside those of `core.pod.other_products`: HAMi's pkg/device/nvidia/device.go
(`GenerateResourceRequests`, `mutateContainerResource`, `Fit`); KAI's
pkg/binder/common/gpu_access.go (`GetFractionContainerRef`),
pkg/binder/plugins/gpusharing/gpu-request/gpu_request_validator.go and the README of
kai-scheduler/kai-gpu-fractioning (amounts by container); gpushare's pkg/utils/pod.go
(`GetGPUMemoryFromContainerResource`), docs/userguide.md, and "Enable Multi-GPU Sharing with Shared
GPU Scheduling" in alibabacloud.com/help/en/ack (the label; N of M GPUs is N/M of each); README.md
of NVIDIA/k8s-device-plugin ("Shared Access to GPUs": `renameByDefault`, and that more replicas
promise no more of a GPU).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Final

from webhook.core.bounds import MAX_GPU_COUNT, MAX_INT32
from webhook.core.pod.findings import annotation_path, quote
from webhook.core.pod.other_products import (
    DEVICE_PLUGIN,
    GPUSHARE,
    GPUSHARE_COUNT,
    GPUSHARE_MEMORY,
    HAMI,
    HAMI_CORES,
    HAMI_MEMORY,
    HAMI_PERCENTAGE,
    KAI,
    KAI_DEVICES,
    KAI_FRACTION,
    KAI_MEMORY,
    MAX_GPU_BYTES,
    SHARED_GPU,
    WHOLE_GPU,
    Product,
)
from webhook.core.pod.quantity import (
    MIB,
    QuantityError,
    format_bytes,
    parse_count,
    parse_quantity,
    parse_vram,
)
from webhook.core.pod.views import Container
from webhook.names import GPU_COUNT_ANNOTATION
from webhook.tools.admit.migration.foreign_pod import (
    ContainerRequest,
    ForeignPod,
    NotCarriedError,
    Note,
    Origin,
    PodRequest,
    amounts,
)

_HAMI_ALONE: Final = (HAMI_CORES, HAMI_MEMORY, HAMI_PERCENTAGE)
"""Resources that request one GPU if they are in the limits without a number of GPUs."""
_ALL: Final = 100
"""100 percent."""
_KAI_CONTAINER: Final = "gpu-fraction-container-name"
_KAI_OWN: Final = (KAI_MEMORY, KAI_FRACTION, KAI_DEVICES, _KAI_CONTAINER)
_KAI_BY_CONTAINER: Final = re.compile(r"nvidia\.com/container\.(.+)\.gpu-memory\.(limit|request)")
_DIGITS: Final = re.compile(r"[0-9]{1,18}")
_SHORT_NUMBER: Final = re.compile(r"\+?[0-9.]{1,32}([eE][+-]?[0-9]{1,2})?")
_GPUSHARE_LABEL: Final = f"metadata.labels[{GPUSHARE_COUNT}]"


def read_request(source: ForeignPod, origin: Origin) -> PodRequest:
    """Parse a pod's requests to a product. Unreadable requests become problems."""
    try:
        return _READERS[origin.product.name](source, origin)
    except NotCarriedError as error:
        return PodRequest(problems=(error.note,))


def _read_hami(container: Container, *, origin: Origin) -> ContainerRequest | None:
    path, count = _whole_number(container, WHOLE_GPU) or ("", -1)
    if count < 0:
        limits = container.resources("limits")
        named = next((name for name in _HAMI_ALONE if name in limits), None)
        if named is None:
            return None
        path, count = f"{container.path}.resources.limits[{named}]", 1
    if not count:
        return None
    return ContainerRequest(_hami_bytes(container, path, origin), _gpu_count(path, count))


def _hami_bytes(container: Container, path: str, origin: Origin) -> int:
    at, units = _whole_number(container, HAMI_MEMORY) or ("", 0)
    if units > MAX_INT32:
        detail = "is a plain number of MiB for HAMi, which rejects a unit; write the number first"
        raise NotCarriedError(at, detail)
    if units:
        return _in_units(at, units, origin.unit_bytes or HAMI.unit_bytes)
    at, percent = _whole_number(container, HAMI_PERCENTAGE) or ("", 0)
    if percent > _ALL:
        raise NotCarriedError(at, f"{percent} is no percentage, and HAMi denies it; correct it")
    if percent in {0, _ALL}:
        return _part_of_gpu(path, "asks for all memory of a GPU", Fraction(1), origin)
    return _part_of_gpu(at, f"asks for {percent} percent of a GPU", Fraction(percent, _ALL), origin)


def _kai_by_pod(source: ForeignPod, origin: Origin) -> PodRequest:
    """Parse the annotations that apply to one container of the pod."""
    annotations = source.pod.annotations
    used = tuple(key for key in _KAI_OWN if key in annotations)
    asking = [key for key in KAI.request_annotations if key in annotations]
    if not asking:
        if used:
            detail = f"says nothing without {KAI_MEMORY} or {KAI_FRACTION}; remove it"
            raise NotCarriedError(annotation_path(used[0]), detail)
        return PodRequest()
    path = annotation_path(asking[0])
    if len(asking) > 1:
        raise NotCarriedError(path, f"stands beside {asking[1]}, which KAI denies; keep one")
    for container in source.pod.containers:
        if any(amounts(container, WHOLE_GPU)):
            detail = f"stands beside {WHOLE_GPU}, which KAI denies; keep one"
            raise NotCarriedError(path, detail)
    text = annotations[asking[0]]
    if asking[0] == KAI_MEMORY:
        amount_bytes = _in_units(path, _positive(path, text), KAI.unit_bytes)
    else:
        what = f"asks for {quote(text)} of a GPU"
        amount_bytes = _part_of_gpu(path, what, _fraction(path, text), origin)
    count = 1
    if KAI_DEVICES in annotations:
        at = annotation_path(KAI_DEVICES)
        count = _gpu_count(at, _positive(at, annotations[KAI_DEVICES]))
    containers = {_kai_container(source): ContainerRequest(amount_bytes, count)}
    return PodRequest(containers, annotations=used)


def _kai_container(source: ForeignPod) -> str:
    """Return the name of the container that gets the GPU: the annotated one, else the first."""
    names = [container.name for container in source.pod.containers]
    wanted = source.pod.annotations.get(_KAI_CONTAINER)
    if wanted in names:
        return wanted
    path = annotation_path(_KAI_CONTAINER)
    if wanted is not None:
        raise NotCarriedError(path, f"the pod has no container {quote(wanted)}; correct it first")
    if not names or source.pod.containers[0].field != "containers":
        raise NotCarriedError("spec.containers", "has no container that could get the GPU")
    return names[0]


def _kai_by_names(source: ForeignPod) -> PodRequest | None:
    """Parse the annotations that name containers; their limit becomes the cap. None if absent."""
    found: dict[str, dict[str, int]] = {}
    used: list[str] = []
    for key, text in source.pod.annotations.items():
        match = _KAI_BY_CONTAINER.fullmatch(key)
        if match is None:
            continue
        used.append(key)
        try:
            amount_bytes = parse_vram(text)
        except QuantityError as error:
            raise NotCarriedError(annotation_path(key), f"{quote(text)} {error}") from None
        found.setdefault(match[1], {})[match[2]] = amount_bytes
    known = {container.name for container in source.pod.containers}
    notes: list[Note] = []
    for name, both in found.items():
        path = annotation_path(f"nvidia.com/container.{name}.gpu-memory.{min(both)}")
        if name not in known:
            raise NotCarriedError(path, f"the pod has no container {quote(name)}; correct it")
        request, limit = both.get("request"), both.get("limit")
        if request is not None and limit is not None and request != limit:
            detail = (
                f"nothing is promised twice here, so the limit of {format_bytes(limit)} is "
                f"reserved as well; the request was {format_bytes(request)}"
            )
            notes.append(Note(path, detail))
    containers = {
        name: ContainerRequest(both.get("limit") or max(both.values()), 1)
        for name, both in found.items()
    }
    return PodRequest(containers, notes=tuple(notes), annotations=tuple(used)) if used else None


def _positive(path: str, text: str) -> int:
    if not _DIGITS.fullmatch(text) or not int(text):
        detail = f"{quote(text)} is not a whole number above 0, and KAI denies it; correct it first"
        raise NotCarriedError(path, detail)
    return int(text)


def _fraction(path: str, text: str) -> Fraction:
    try:
        part = parse_quantity(text) if _SHORT_NUMBER.fullmatch(text) else Fraction(0)
    except QuantityError:
        part = Fraction(0)
    if not 0 < part < 1:
        detail = f"{quote(text)} is not between 0 and 1, and KAI denies it; correct it first"
        raise NotCarriedError(path, detail)
    return part


def _gpushare(source: ForeignPod, origin: Origin) -> PodRequest:
    labels = source.pod.labels
    if GPUSHARE_COUNT not in labels:
        return _by_container(source, partial(_read_gpushare, origin=origin, count=1))
    number = _parse_whole_number(_GPUSHARE_LABEL, labels[GPUSHARE_COUNT])
    count = _gpu_count(_GPUSHARE_LABEL, number)
    asked = _by_container(source, partial(_read_gpushare, origin=origin, count=count))
    if not asked.containers:
        return asked
    each = ", ".join(
        format_bytes(container.memory_bytes) for container in asked.containers.values()
    )
    detail = f"the memory was that of {count} GPUs together; each gets its part, {each}"
    notes = (Note(_GPUSHARE_LABEL, detail),) if count > 1 else ()
    return replace(asked, labels=(GPUSHARE_COUNT,), notes=notes)


def _read_gpushare(container: Container, *, origin: Origin, count: int) -> ContainerRequest | None:
    path, units = _whole_number(container, GPUSHARE_MEMORY) or ("", 0)
    if not units:
        return None
    total_bytes = _in_units(path, units, origin.unit_bytes or GPUSHARE.unit_bytes)
    return ContainerRequest(-(-total_bytes // (count * MIB)) * MIB, count)


def _whole(source: ForeignPod, origin: Origin) -> PodRequest:
    asked = _by_container(source, partial(_read_whole_gpus, origin=origin))
    return replace(asked, notes=tuple(_several_replicas(source))) if asked.containers else asked


def _several_replicas(source: ForeignPod) -> Iterator[Note]:
    for container in source.pod.containers:
        path, replicas = _whole_number(container, SHARED_GPU) or ("", 0)
        if replicas > 1:
            detail = f"{replicas} replicas become one share, since they promised no second GPU"
            yield Note(path, f'{detail}; for two GPUs add {GPU_COUNT_ANNOTATION}: "2"')


def _read_whole_gpus(container: Container, *, origin: Origin) -> ContainerRequest | None:
    at, replicas = _whole_number(container, SHARED_GPU) or ("", 0)
    path, count = _whole_number(container, WHOLE_GPU) or ("", 0)
    if replicas and count:
        raise NotCarriedError(at, f"stands beside {WHOLE_GPU}; keep one")
    if not replicas and not count:
        return None
    amount_bytes = _part_of_gpu(path or at, "asks for a GPU", Fraction(1), origin)
    return ContainerRequest(amount_bytes, _gpu_count(path, count) if count else 1)


PRODUCTS: Final[Mapping[str, Product]] = {
    "hami": HAMI,
    "kai": KAI,
    "gpushare": GPUSHARE,
    "whole": DEVICE_PLUGIN,
}
"""Products keyed by the name that users type."""
_READERS: Final[Mapping[str, Callable[[ForeignPod, Origin], PodRequest]]] = {
    HAMI.name: lambda source, origin: _by_container(source, partial(_read_hami, origin=origin)),
    KAI.name: lambda source, origin: _kai_by_names(source) or _kai_by_pod(source, origin),
    GPUSHARE.name: _gpushare,
    DEVICE_PLUGIN.name: _whole,
}


def _by_container(
    source: ForeignPod, read: Callable[[Container], ContainerRequest | None]
) -> PodRequest:
    """Parse each container, so that all problems are reported at once."""
    found: dict[str, ContainerRequest] = {}
    problems: list[Note] = []
    for container in source.pod.containers:
        try:
            if (request := read(container)) is not None:
                found[container.name] = request
        except NotCarriedError as error:
            problems.append(error.note)
    return PodRequest(found, tuple(problems))


def _whole_number(container: Container, name: str) -> tuple[str, int] | None:
    """Return path and number of a container's limit or request; None if both are absent."""
    found = next(amounts(container, name), None)
    return None if found is None else (found[0], _parse_whole_number(*found))


def _parse_whole_number(path: str, text: str) -> int:
    try:
        return parse_count(text)
    except QuantityError:
        detail = f"{quote(text)} is not a whole number; correct it first"
        raise NotCarriedError(path, detail) from None


def _gpu_count(path: str, number: int) -> int:
    """Return the number of GPUs if the annotation allows it. Raises NotCarriedError."""
    if 0 < number <= MAX_GPU_COUNT:
        return number
    raise NotCarriedError(path, f"no pod gets {number} GPUs; correct the number first")


def _in_units(path: str, number: int, unit_bytes: int) -> int:
    """Convert a number of memory units to bytes, rounded up to whole MiB."""
    amount_bytes = -(-number * unit_bytes // MIB) * MIB
    if amount_bytes <= MAX_GPU_BYTES:
        return amount_bytes
    say = ""
    if unit_bytes > MIB and number * MIB <= MAX_GPU_BYTES:
        say = "say what one unit is, e.g. --gpu-memory-unit 1Mi, or "
    detail = f"{number} units of {format_bytes(unit_bytes)} are more than any GPU has"
    raise NotCarriedError(path, f"{detail}; {say}correct the number")


def _part_of_gpu(path: str, what: str, part: Fraction, origin: Origin) -> int:
    """Return the bytes of a fraction of a GPU, rounded down to MiB so that the parts fit."""
    if origin.gpu_bytes is None:
        detail = f"{what}, and nothing here says how much that is; say it: --gpu-memory 16Gi"
        raise NotCarriedError(path, detail)
    return max(MIB, int(origin.gpu_bytes * part) // MIB * MIB)
