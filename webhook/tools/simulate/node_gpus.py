"""GPUs of a node, even if vramwarden's agent does not run there.

| source | reports | about |
| --- | --- | --- |
| vramwarden's agent | annotation vramwarden.io/gpus | each GPU; the usable memory |
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from webhook.core.nvidia.device_plugin import CARD_MEMORY_LABEL, MIG_PREFIX, MIXED_STRATEGY_LABEL
from webhook.core.pod.fields import Json, as_objects
from webhook.core.pod.gpus import Gpu
from webhook.core.pod.other_products import GPUSHARE_COUNT, GPUSHARE_MEMORY, SHARED_GPU, WHOLE_GPU
from webhook.core.pod.quantity import MIB, QuantityError, parse_quantity_or, parse_vram
from webhook.core.policy.match import matches_any
from webhook.tools.snapshot.node import ClusterNode

_HAMI_FIELDS: Final = 7
_COUNT: Final = re.compile(r"[0-9]{1,9}")
_MOST_GPUS: Final = 256
"""Maximum number of GPUs of a node, since its labels may state any number."""
_SLICED: Final = re.compile(r"-MIG(-|$)")
_RESERVE_BYTES: Final = 512 * MIB
_RESERVE_PER_MILLE: Final = 15
_GIVEN: Final = re.compile(r"(?:([^=]+)=)?(?:([1-9][0-9]?)x)?([^x=]+)")


class Given(NamedTuple):
    """GPU memory that an option assigns to nodes or to pods of workloads."""

    names: str
    """Name or `*` pattern; empty for all nodes or pods without a known size."""
    gpus: int
    """Number of GPUs; 0 for the number of the node or pod."""
    memory_bytes: int
    """Memory of each GPU, in bytes; 0 if the pods keep whole GPUs."""


def parse_gpu_size(text: str) -> Given:
    """Parse `80Gi`, `4x24Gi`, `old-*=4x24Gi` or `train/*=whole`. Raises ValueError."""
    match = _GIVEN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not [NAMES=][COUNTx]SIZE; write e.g. 80Gi or 'a-*=4x24Gi'")
    names, gpus, size = match[1] or "", int(match[2] or 0), match[3]
    try:
        return Given(names, gpus, 0 if names and size == "whole" else parse_vram(size))
    except QuantityError as error:
        raise ValueError(f"{size!r} {error}") from error


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """A node with GPUs."""

    name: str
    gpus: tuple[Gpu, ...]
    """GPUs of the node that MIG does not divide; `memory_bytes` is 0 if unknown."""
    labels: Mapping[str, str] = field(default_factory=dict)
    replicas: int = 1
    """Replicas that the device plugin offers for each GPU."""

    @property
    def memory_bytes(self) -> int:
        """Memory of the largest GPU, in bytes; 0 without a GPU."""
        return max((gpu.memory_bytes for gpu in self.gpus), default=0)


def read_node_gpus(node: ClusterNode, given: Sequence[Given] = ()) -> NodeGpus | None:
    """Return the GPUs of a node, or None without any.

    GPU failures are temporary, so every GPU counts as healthy.
    """
    if node.gpus:
        ours = tuple(replace(gpu, healthy=True) for gpu in node.gpus)
        return NodeGpus(node.name, ours, node.labels)
    found = _discover(node)
    if found is None:
        return None
    totals, product = found
    for item in given:
        if matches_any(node.name, (item.names,)) if item.names else 0 in totals:
            totals = [item.memory_bytes] * (item.gpus or len(totals))
            break
    gpus = tuple(
        Gpu(
            uuid=f"GPU-{node.name}-{index}",
            memory_bytes=max(MIB, usable_estimate(total)) if total else 0,
            product=product,
            index=index,
            total_bytes=total,
        )
        for index, total in enumerate(totals)
    )
    return NodeGpus(node.name, gpus, node.labels, _replicas(node))


def usable_estimate(total_bytes: int) -> int:
    """Estimate the usable memory of a GPU: the total less the driver's reserve, in whole MiB.

    The agent reads the exact amount from NVML. The estimated reserve is the larger of 512 MiB and
    1.5 %, which is rather too much: an A100 of 80 GB reserves 883 MiB of 81,920.
    """
    reserve = max(_RESERVE_BYTES, total_bytes * _RESERVE_PER_MILLE // 1000)
    return max(0, total_bytes - reserve) // MIB * MIB


def _discover(node: ClusterNode) -> tuple[list[int], str] | None:
    """Return memory and product of GPUs that other products report, or None without any.

    The memory includes the driver's reserve; 0 means unknown. The first source that reports memory
    counts, else the first that reports a number of GPUs. GPUs divided by MIG are excluded.
    """
    labels, capacity = node.labels, node.part("status", "capacity")
    product = labels.get(f"{WHOLE_GPU}.product", "").removesuffix("-SHARED")
    if _SLICED.search(product):
        return [], product
    slots = _amount(capacity, WHOLE_GPU) + _amount(capacity, SHARED_GPU)
    offered = slots // _replicas(node)
    number = counted = _count(labels.get(f"{WHOLE_GPU}.count"))
    counts = capacity | {key: label for key, label in labels.items() if key.endswith(".count")}
    is_sliced = any(_amount(counts, key) for key in counts if key.startswith(MIG_PREFIX))
    is_mixed = (
        MIXED_STRATEGY_LABEL.items() <= labels.items()
        and labels.get("nvidia.com/mig.capable") == "true"
    )
    if is_sliced or is_mixed:
        number = min(number or offered, offered)
        is_sliced = is_sliced or number < counted
    memory_bytes = _count(labels.get(CARD_MEMORY_LABEL)) * MIB
    if not is_sliced and not (number and memory_bytes):
        hami = _by_hami(node.annotations.get("hami.io/node-nvidia-register"))
        if found := hami or _by_gpushare(capacity, product):
            return found
        number = number or offered
    return ([memory_bytes] * min(number, _MOST_GPUS), product) if number or is_sliced else None


def _by_hami(written: object) -> tuple[list[int], str] | None:
    """Parse HAMi's annotation: its current form, or the form of older releases.

    `[{"id": "GPU-1", "devmem": 81920, "type": "NVIDIA A100", "mode": "hami-core"}]`
    `GPU-1,10,81920,100,NVIDIA A100,0,true,0,hami-core:`
    """
    text = written if isinstance(written, str) else ""
    try:
        listed = as_objects(json.loads(text))
    except (ValueError, RecursionError):
        rows = [item.split(",") for item in text.split(":")]
        listed = [
            {"devmem": row[2], "type": row[4], "mode": "".join(row[8:])}
            for row in rows
            if len(row) >= _HAMI_FIELDS
        ]
    whole = [item for item in listed if item.get("mode") != "mig"]
    totals = [_count(str(item.get("devmem"))) * MIB for item in whole]
    product = str(whole[0].get("type") or "") if whole else ""
    return (totals, product) if listed else None


def _by_gpushare(capacity: Json, product: str) -> tuple[list[int], str] | None:
    number, gibibytes = _amount(capacity, GPUSHARE_COUNT), _amount(capacity, GPUSHARE_MEMORY)
    if not number or not gibibytes:
        return None
    return [gibibytes // number * 2**30] * min(number, _MOST_GPUS), product


def _replicas(node: ClusterNode) -> int:
    return max(1, _count(node.labels.get(f"{WHOLE_GPU}.replicas")))


def _count(text: object) -> int:
    return int(text) if isinstance(text, str) and _COUNT.fullmatch(text) else 0


def _amount(capacity: Mapping[str, object], name: str) -> int:
    return max(0, int(parse_quantity_or(capacity.get(name) or "0", 0)))
