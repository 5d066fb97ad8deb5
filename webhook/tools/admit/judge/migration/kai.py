"""KAI: MiB, or a part of a GPU, for one container of a pod, on one GPU or several.

| annotation | here |
| --- | --- |
| gpu-memory: "2000" | gpu-memory: 2000Mi |
| gpu-fraction: "0.5" | half of a GPU |
| gpu-fraction-num-devices: "2" | gpu-count: "2" |
| gpu-fraction-container-name | the container's name in the list; without it, the first container |
| nvidia.com/container.NAME.gpu-memory.limit, .request | gpu-memory of that container |

Pods that ask for whole GPUs ask KAI for nothing of its own: they are left as they are.

Sources: pkg/common/constants/constants.go, pkg/binder/common/gpu_access.go
(`GetFractionContainerRef`), pkg/binder/plugins/gpusharing/gpu-request/gpu_request_validator.go of
NVIDIA/KAI-Scheduler; README of kai-scheduler/kai-gpu-fractioning (amounts by container).
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from webhook.core.pod.findings import annotation_path, quoted
from webhook.core.pod.foreign import KAI, KAI_DEVICES, KAI_FRACTION, KAI_MEMORY, WHOLE_GPU
from webhook.core.pod.quantity import MIB, QuantityError, format_bytes, parse_quantity, parse_vram
from webhook.tools.admit.judge.migration.amounts import gpu_count, in_units, part_of_gpu
from webhook.tools.admit.judge.migration.source import amounts
from webhook.tools.admit.judge.migration.values import Asked, NotCarriedError, Note, Product, Share

if TYPE_CHECKING:
    from webhook.tools.admit.judge.migration.source import Source
    from webhook.tools.admit.judge.migration.values import Scale

_CONTAINER: Final = "gpu-fraction-container-name"
_OWN: Final = (KAI_MEMORY, KAI_FRACTION, KAI_DEVICES, _CONTAINER)
_BY_CONTAINER: Final = re.compile(r"nvidia\.com/container\.(.+)\.gpu-memory\.(limit|request)")
_QUEUES: Final = (
    "there are no queues here; a ResourceQuota on requests.vramwarden.io/vram bounds a namespace"
)
_DIGITS: Final = re.compile(r"[0-9]{1,18}")
_SHORT_NUMBER: Final = re.compile(r"\+?[0-9.]{1,32}([eE][+-]?[0-9]{1,2})?")


def _read(source: Source, scale: Scale) -> Asked:
    try:
        return _by_names(source) or _by_pod(source, scale)
    except NotCarriedError as error:
        return Asked(problems=(error.note,))


def _by_pod(source: Source, scale: Scale) -> Asked:
    """Read the annotations that are about one container of the pod."""
    annotations = source.pod.annotations
    used = tuple(key for key in _OWN if key in annotations)
    asking = [key for key in (KAI_MEMORY, KAI_FRACTION) if key in annotations]
    if not asking:
        if used:
            detail = f"says nothing without {KAI_MEMORY} or {KAI_FRACTION}; remove it"
            raise NotCarriedError(annotation_path(used[0]), detail)
        return Asked()
    path = annotation_path(asking[0])
    if len(asking) > 1:
        raise NotCarriedError(path, f"stands beside {asking[1]}, which KAI denies; keep one")
    for container in source.pod.containers:
        if any(amounts(container, WHOLE_GPU)):
            detail = f"stands beside {WHOLE_GPU}, which KAI denies; keep one"
            raise NotCarriedError(path, detail)
    text = annotations[asking[0]]
    if asking[0] == KAI_MEMORY:
        amount_bytes = in_units(path, _positive(path, text), MIB)
    else:
        what = f"asks for {quoted(text)} of a GPU"
        amount_bytes = part_of_gpu(path, what, _fraction(path, text), scale.gpu_bytes)
    count = 1
    if KAI_DEVICES in annotations:
        at = annotation_path(KAI_DEVICES)
        count = gpu_count(at, _positive(at, annotations[KAI_DEVICES]))
    return Asked({_container(source): Share(amount_bytes, count)}, annotations=used)


def _container(source: Source) -> str:
    """Return the container that gets the GPU: the one named, else the first."""
    names = [one.name for one in source.pod.containers]
    wanted = source.pod.annotations.get(_CONTAINER)
    if wanted in names:
        return wanted
    path = annotation_path(_CONTAINER)
    if wanted is not None:
        raise NotCarriedError(path, f"the pod has no container {quoted(wanted)}; correct it first")
    if not names or source.pod.containers[0].field != "containers":
        raise NotCarriedError("spec.containers", "has no container that could get the GPU")
    return names[0]


def _by_names(source: Source) -> Asked | None:
    """Read the annotations that name containers, where the limit is the cap; None without them."""
    found: dict[str, dict[str, int]] = {}
    used: list[str] = []
    for key, text in source.pod.annotations.items():
        match = _BY_CONTAINER.fullmatch(key)
        if match is None:
            continue
        used.append(key)
        try:
            amount_bytes = parse_vram(text)
        except QuantityError as error:
            raise NotCarriedError(annotation_path(key), f"{quoted(text)} {error}") from None
        found.setdefault(match[1], {})[match[2]] = amount_bytes
    known = {container.name for container in source.pod.containers}
    notes: list[Note] = []
    for name, both in found.items():
        path = annotation_path(f"nvidia.com/container.{name}.gpu-memory.{min(both)}")
        if name not in known:
            raise NotCarriedError(path, f"the pod has no container {quoted(name)}; correct it")
        request, limit = both.get("request"), both.get("limit")
        if request is not None and limit is not None and request != limit:
            detail = (
                f"nothing is promised twice here, so the limit of {format_bytes(limit)} is "
                f"reserved as well; the request was {format_bytes(request)}"
            )
            notes.append(Note(path, detail))
    shares = {
        name: Share(both.get("limit") or max(both.values()), 1) for name, both in found.items()
    }
    return Asked(shares, notes=tuple(notes), annotations=tuple(used)) if used else None


def _positive(path: str, text: str) -> int:
    if not _DIGITS.fullmatch(text) or not int(text):
        detail = (
            f"{quoted(text)} is not a whole number above 0, and KAI denies it; correct it first"
        )
        raise NotCarriedError(path, detail)
    return int(text)


def _fraction(path: str, text: str) -> Fraction:
    try:
        part = parse_quantity(text) if _SHORT_NUMBER.fullmatch(text) else Fraction(0)
    except QuantityError:
        part = Fraction(0)
    if not 0 < part < 1:
        detail = f"{quoted(text)} is not between 0 and 1, and KAI denies it; correct it first"
        raise NotCarriedError(path, detail)
    return part


PRODUCT: Final = Product(
    name=KAI,
    read=_read,
    annotations={
        "mps": "shares are kept apart by their caps here, without MPS",
        "kai.scheduler/*": "only KAI reads it",
        "pod-group-name": "pods are not started as a group here; keep a scheduler that does",
    },
    labels={
        "kai.scheduler/queue": _QUEUES,
        "kai.scheduler/*": "only KAI reads it",
    },
    node_labels={"kai.scheduler/*": "KAI's nodes are labelled so; keep the label, or remove this"},
    objects={"scheduling.run.ai/Queue": _QUEUES},
    schedulers=frozenset({"kai-scheduler"}),
)
"""`--migrate kai`."""
