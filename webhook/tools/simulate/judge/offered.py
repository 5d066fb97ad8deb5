"""Which GPUs a node has, by what others wrote on it: before our agent runs there.

| source | says | of |
| --- | --- | --- |
| GPU feature discovery | labels gpu.count, .memory, .product, .replicas | one kind of GPU |
| HAMi | annotation hami.io/node-nvidia-register | each GPU; memory times its scaling |
| gpushare | capacity aliyun.com/gpu-count, aliyun.com/gpu-mem | GPUs, GiB of all |
| device plugin | capacity nvidia.com/gpu | GPUs; no memory |

Sources: internal/lm of NVIDIA/k8s-device-plugin (`gpu.count` counts GPUs, not replicas; with MIG
strategy single it counts slices, and the product has `-MIG-`; with mixed it counts all GPUs, also
those in MIG mode that have no slices);
pkg/device/devices.go of Project-HAMi/HAMi (`UnMarshalNodeDevices`, and `DecodeNodeDevices` of older
releases); pkg/cache/nodeinfo.go of AliyunContainerService/gpushare-scheduler-extender.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from webhook.core.nvidia.plugin import SLICE_PREFIX
from webhook.core.pod.fields import as_objects
from webhook.core.pod.foreign import (
    GPUSHARE_COUNT,
    GPUSHARE_MEMORY,
    SHARED_GPU,
    WHOLE_GPU,
)
from webhook.core.pod.quantity import MIB, QuantityError, parse_quantity, parse_vram
from webhook.core.policy.match import matches_any
from webhook.names import LONGEST_LABEL
from webhook.tools.shared.bounds import LONGEST_HAMI, MOST_GPU_MIB, MOST_NODE_GPUS
from webhook.tools.simulate.judge.asked import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from webhook.core.kinds.workloads import Workload
    from webhook.core.pod.fields import Json
    from webhook.core.pod.gpus import Gpu
    from webhook.tools.shared.node import ClusterNode

_HAMI: Final = "hami.io/node-nvidia-register"
_COUNT: Final = re.compile(r"[0-9]{1,9}")
_MIG_STRATEGY: Final = "nvidia.com/mig.strategy"
_MIG_CAPABLE: Final = "nvidia.com/mig.capable"
_SLICED: Final = re.compile(r"-MIG(-|$)")
_HAMI_FIELDS: Final = 7
_RESERVE_BYTES: Final = 512 * MIB
_RESERVE_PER_MILLE: Final = 15


class GpuSource(StrEnum):
    """Who says which GPUs a node has."""

    AGENT = "vramwarden's agent"
    GFD = "GPU feature discovery"
    HAMI = "HAMi"
    GPUSHARE = "gpushare"
    PLUGIN = "the device plugin"
    GIVEN = "--gpu-memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """The GPUs of a node that are not divided by MIG."""

    source: GpuSource
    totals_bytes: tuple[int | None, ...]
    """The memory of each, with what the driver keeps; None where nobody says it."""
    product: str = ""
    replicas: int = 1
    """As how many the device plugin offers each."""
    is_sliced: bool = False
    """Others of its GPUs are divided by MIG, or all."""
    counted: bool = True
    """Whether it is known how many there are."""


@dataclass(frozen=True, slots=True)
class TodayNode:
    """A node with GPUs that are not divided by MIG."""

    name: str
    gpus: tuple[Gpu, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    replicas: int = 1
    """As how many the device plugin offers each."""
    is_sliced: bool = False
    """All that its pods have of nvidia.com/gpu are slices: MIG strategy single."""


def usable_estimate(total_bytes: int) -> int:
    """Return what is left of a GPU's memory when the driver took its reserve, in whole MiB.

    The agent reads the exact figure from NVML. This is 512 MiB or 1.5 %, whichever is more: rather
    too much (an A100 of 80 GB keeps 883 MiB of 81,920).
    """
    reserve = max(_RESERVE_BYTES, total_bytes * _RESERVE_PER_MILLE // 1000)
    return max(0, total_bytes - reserve) // MIB * MIB


def offered_of(node: ClusterNode) -> Offered | None:
    """Return what others say of a node's GPUs; None where it has none. Never fails.

    The first source that says the memory counts; where none does, the first that says the number.
    Where MIG divides some GPUs, the whole ones are those that the device plugin offers.
    """
    labels = node.labels
    capacity = node.part("status", "capacity") or node.part("status", "allocatable")
    product = labels.get(f"{WHOLE_GPU}.product", "")[:LONGEST_LABEL].removesuffix("-SHARED")
    replicas = max(1, _count(labels.get(f"{WHOLE_GPU}.replicas")))
    if _SLICED.search(product):
        return Offered(source=GpuSource.GFD, totals_bytes=(), product=product, is_sliced=True)
    sliced = any(
        _count(labels[key])
        for key in labels
        if key.startswith(SLICE_PREFIX) and key.endswith(".count")
    ) or any(_amount(capacity, key) for key in capacity if key.startswith(SLICE_PREFIX))
    counted = number = _count(labels.get(f"{WHOLE_GPU}.count"))
    mixed = (labels.get(_MIG_STRATEGY), labels.get(_MIG_CAPABLE)) == ("mixed", "true")
    if sliced or (mixed and counted):
        slots = _amount(capacity, WHOLE_GPU) + _amount(capacity, SHARED_GPU)
        number = min(number or MOST_NODE_GPUS, slots // replicas)
        sliced = sliced or number < counted
        if not number:
            return Offered(source=GpuSource.GFD, totals_bytes=(), product=product, is_sliced=True)
    mebibytes = min(MOST_GPU_MIB, _count(labels.get(f"{WHOLE_GPU}.memory")))
    if number and mebibytes:
        totals = (mebibytes * MIB,) * min(number, MOST_NODE_GPUS)
        return Offered(
            source=GpuSource.GFD,
            totals_bytes=totals,
            product=product,
            replicas=replicas,
            is_sliced=sliced,
        )
    found = _by_hami(node.annotations.get(_HAMI)) or _by_gpushare(capacity, product)
    if found and not sliced:
        return found
    source = GpuSource.GFD
    if not number:
        source, number, sliced = GpuSource.PLUGIN, _amount(capacity, WHOLE_GPU) // replicas, False
    if number:
        unsaid = (None,) * min(number, MOST_NODE_GPUS)
        return Offered(
            source=source, totals_bytes=unsaid, product=product, replicas=replicas, is_sliced=sliced
        )
    if _amount(capacity, SHARED_GPU):
        return Offered(
            source=GpuSource.PLUGIN,
            totals_bytes=(),
            product=product,
            replicas=replicas,
            counted=False,
        )
    return None


def _by_hami(written: object) -> Offered | None:
    if not isinstance(written, str) or len(written) > LONGEST_HAMI:
        return None
    found = _hami_objects(written) if written.lstrip().startswith("[") else _hami_lines(written)
    cards = [(memory, kind) for memory, kind, mode in found if memory and mode != "mig"]
    if not cards:
        return Offered(source=GpuSource.HAMI, totals_bytes=(), is_sliced=True) if found else None
    totals = tuple(min(memory, MOST_GPU_MIB) * MIB for memory, _ in cards[:MOST_NODE_GPUS])
    sliced = len(cards) < len(found)
    product = "".join(filter(str.isprintable, cards[0][1][:LONGEST_LABEL]))
    return Offered(source=GpuSource.HAMI, totals_bytes=totals, product=product, is_sliced=sliced)


def _hami_objects(written: str) -> list[tuple[int, str, str]]:
    """Read `[{"id": "GPU-1", "devmem": 81920, "type": "NVIDIA A100", "mode": "hami-core"}]`."""
    try:
        listed = json.loads(written)
    except (ValueError, RecursionError):
        return []
    return [
        (_count(str(one.get("devmem"))), str(one.get("type") or ""), str(one.get("mode") or ""))
        for one in as_objects(listed)
    ]


def _hami_lines(written: str) -> list[tuple[int, str, str]]:
    """Read `GPU-1,10,81920,100,NVIDIA A100,0,true,0,hami-core:`; the last two may be missing."""
    cut = [one.split(",") for one in written.split(":")]
    return [
        (_count(one[2]), one[4], one[-1] if len(one) > _HAMI_FIELDS else "")
        for one in cut
        if len(one) >= _HAMI_FIELDS
    ]


def _by_gpushare(capacity: Json, product: str) -> Offered | None:
    number, gibibytes = _amount(capacity, GPUSHARE_COUNT), _amount(capacity, GPUSHARE_MEMORY)
    if not number or gibibytes < number:
        return None
    each = min(gibibytes // number * GIB, MOST_GPU_MIB * MIB)
    return Offered(
        source=GpuSource.GPUSHARE,
        totals_bytes=(each,) * min(number, MOST_NODE_GPUS),
        product=product,
    )


def _count(text: object) -> int:
    return int(text) if isinstance(text, str) and _COUNT.fullmatch(text) else 0


def _amount(capacity: Json, name: str) -> int:
    try:
        return max(0, int(parse_quantity(str(capacity.get(name) or "0"))))
    except QuantityError:
        return 0


_ANY: Final = "*"
_GIVEN: Final = re.compile(r"(?:([^=]+)=)?(?:([1-9][0-9]?)x)?([^x=]+)")


@dataclass(frozen=True, slots=True)
class Size:
    """How large the shares of some workloads are."""

    namespace: str
    workload: str
    """Both are names or `*` patterns."""
    memory_bytes: int
    """Per GPU; 0 where their pods are to stay whole."""


class SizeIndex:
    """What a file of sizes says; of the lines that fit a pod, the first counts.

    Lines without a pattern are found by name, so that there may be one for each workload.
    """

    def __init__(self, sizes: Sequence[Size]) -> None:
        self._named: dict[tuple[str, str], tuple[int, int]] = {}
        """Of each name the first: its number and memory."""
        self._patterns: list[tuple[int, Size]] = []
        self._of_namespace: dict[str, list[tuple[int, Size]]] = {}
        """Of these, those that fit it."""
        for number, size in enumerate(sizes):
            names = (size.namespace, size.workload)
            if "*" in size.workload or ("*" in size.namespace and size.namespace != _ANY):
                self._patterns.append((number, size))
            else:
                self._named.setdefault(names, (number, size.memory_bytes))

    def find(self, namespace: str, pod: str, workload: Workload) -> int | None:
        """Return the bytes per GPU of a workload, as `llama` or `Deployment/llama`, or of the pod.

        None where no line fits.
        """
        names = (str(workload), workload.name, pod)
        keys = ((where, name) for where in (namespace, _ANY) for name in names)
        number, memory_bytes = min(filter(None, map(self._named.get, keys)), default=(None, None))
        for earlier, size in self._patterns_of(namespace):
            if number is not None and number < earlier:
                break
            if any(matches_any(name, (size.workload,)) for name in names):
                return size.memory_bytes
        return memory_bytes

    def _patterns_of(self, namespace: str) -> list[tuple[int, Size]]:
        if namespace not in self._of_namespace:
            self._of_namespace[namespace] = [
                (number, size)
                for number, size in self._patterns
                if matches_any(namespace, (size.namespace,))
            ]
        return self._of_namespace[namespace]


@dataclass(frozen=True, slots=True)
class GivenMemory:
    """What `--gpu-memory` says of nodes."""

    nodes: str
    """A name or `*` pattern; empty where it is for those of which nobody says it."""
    count: int | None
    total_bytes: int


def read_given(text: str) -> GivenMemory:
    """Read `80Gi`, `4x24Gi`, `old-*=24Gi` or `old-*=4x24Gi`; raises ValueError with a sentence."""
    match = _GIVEN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not [NODES=][COUNTx]SIZE; write e.g. 80Gi or 'old-*=4x24Gi'")
    try:
        total_bytes = parse_vram(match[3])
    except QuantityError as error:
        raise ValueError(f"{match[3]!r} {error}") from error
    return GivenMemory(match[1] or "", int(match[2]) if match[2] else None, total_bytes)


def with_given(name: str, offered: Offered, given: Sequence[GivenMemory]) -> Offered:
    """Return what a node offers with what the user says of it, who knows best of a node by name."""
    is_known = offered.counted and None not in offered.totals_bytes
    for one in given:
        applies = matches_any(name, (one.nodes,)) if one.nodes else not is_known
        count = one.count or (len(offered.totals_bytes) if offered.counted else 0)
        if applies and count:
            totals = (one.total_bytes,) * count
            return replace(offered, source=GpuSource.GIVEN, totals_bytes=totals, counted=True)
    return offered
