"""gpushare of Alibaba Cloud: units of memory by container, all of them on one GPU.

| of a pod | here |
| --- | --- |
| aliyun.com/gpu-mem: 3 of a container | 3Gi for it, where a unit is 1Gi |
| label aliyun.com/gpu-count: "2" (ACK) | gpu-count: "2", and half of the amounts on each |

Sources: pkg/utils/const.go and pkg/utils/pod.go (`GetGPUMemoryFromContainerResource`),
docs/userguide.md, `--memory-unit` in deployer/chart of
AliyunContainerService/gpushare-scheduler-extender; "Enable Multi-GPU Sharing with Shared GPU
Scheduling" in alibabacloud.com/help/en/ack (the label; N of M GPUs is N/M of each).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from webhook.core.pod.foreign import GPUSHARE, GPUSHARE_COUNT, GPUSHARE_MEMORY
from webhook.core.pod.quantity import MIB, format_bytes
from webhook.tools.admit.judge.migration.amounts import (
    by_container,
    gpu_count,
    in_units,
    read_whole,
    whole_number,
)
from webhook.tools.admit.judge.migration.values import Asked, NotCarriedError, Note, Product, Share

if TYPE_CHECKING:
    from webhook.core.pod.views import Container
    from webhook.tools.admit.judge.migration.source import Source
    from webhook.tools.admit.judge.migration.values import Scale

_UNIT_BYTES: Final = 2**30
_LABEL: Final = f"metadata.labels[{GPUSHARE_COUNT}]"


def _read(source: Source, scale: Scale) -> Asked:
    labels = source.pod.labels
    count = 1
    if GPUSHARE_COUNT in labels:
        try:
            count = gpu_count(_LABEL, read_whole(_LABEL, labels[GPUSHARE_COUNT]))
        except NotCarriedError as error:
            return Asked(problems=(error.note,))
    asked = by_container(source, partial(_share, scale=scale, count=count))
    if not asked.shares or GPUSHARE_COUNT not in labels:
        return asked
    amounts = ", ".join(format_bytes(share.memory_bytes) for share in asked.shares.values())
    detail = f"the memory was that of {count} GPUs together; each gets its part, {amounts}"
    notes = (Note(_LABEL, detail),) if count > 1 else ()
    return replace(asked, labels=(GPUSHARE_COUNT,), notes=notes)


def _share(container: Container, *, scale: Scale, count: int) -> Share | None:
    path, units = whole_number(container, GPUSHARE_MEMORY) or ("", 0)
    if not units:
        return None
    total_bytes = in_units(path, units, scale.unit_bytes or _UNIT_BYTES)
    return Share(-(-total_bytes // (count * MIB)) * MIB, count)


_READ_BY_PROGRAMS: Final = (
    "nobody sets it any more; programs find their part in VRAMWARDEN_GPU_MEMORY_FRACTION and "
    "VRAMWARDEN_GPU_MEMORY_MIB"
)

PRODUCT: Final = Product(
    name=GPUSHARE,
    read=_read,
    unit_bytes=_UNIT_BYTES,
    resources={
        GPUSHARE_MEMORY: "",
        GPUSHARE_COUNT: "of a node's GPUs; a pod says its number in vramwarden.io/gpu-count",
        "aliyun.com/gpu-core*": "compute is not divided here, and pods of one GPU take turns",
    },
    annotations={"ALIYUN_COM_GPU_MEM_*": "only gpushare reads it"},
    node_labels={
        "gpushare": "gpushare's nodes are labelled so by hand; keep the label, or remove this",
        "ack.node.gpu.*": "ACK's nodes are labelled so; keep the label, or remove this",
    },
    variables={"ALIYUN_COM_GPU_MEM_*": _READ_BY_PROGRAMS},
)
"""`--migrate gpushare`."""
