"""Other products that share GPUs: names in requests, units and migration advice.

Warnings, `admit --migrate` and `simulate` use this table.

| product | request | unit |
| --- | --- | --- |
| NVIDIA's device plugin | resources nvidia.com/gpu, gpu.shared | GPUs, replicas |
| HAMi | resources nvidia.com/gpumem, gpumem-percentage, gpucores | MiB |
| KAI | annotations gpu-memory, gpu-fraction | MiB, fractions of a GPU |
| gpushare of Alibaba Cloud | resource aliyun.com/gpu-mem | GiB |
| Volcano | resources volcano.sh/vgpu-memory, gpu-memory, vgpu-cores, ... | MiB |

Sources: docs/config.md, pkg/device/nvidia/device.go (annotations), pkg/util/types.go,
pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go (environment variables),
charts/hami/values.yaml of Project-HAMi/HAMi; docs/gpu-sharing/README.md and
pkg/common/constants/constants.go of NVIDIA/KAI-Scheduler; pkg/utils/const.go and `--memory-unit` in
deployer/chart of AliyunContainerService/gpushare-scheduler-extender; volcano-sh/devices and
volcano-sh/volcano-vgpu-device-plugin; README.md of tkestack/gpu-manager.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from webhook.core.pod.fields import MAX_GPU_GIB

UNITS: Final = {"Mi": 2**20, "Gi": 2**30}
MAX_GPU_BYTES: Final = MAX_GPU_GIB * 2**30


class Meaning(Enum):
    """Meaning of a product's resource or annotation."""

    MEMORY = auto()
    """GPU memory in the product's unit."""
    PART = auto()
    """Part of a GPU's memory, as a percentage or a fraction."""
    GPUS = auto()
    COMPUTE = auto()
    OTHER = auto()


class Resource(NamedTuple):
    """Resource in requests to a product."""

    meaning: Meaning
    loss: str = ""
    """Sentence on the function that is lost with the resource; empty if none is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Another product: the names in its requests, and reasons for names without a counterpart.

    Names may be shell patterns. Harmless names without a counterpart are kept. Resources are
    removed: no node offers them, and a pod with such a resource and a share of a GPU is denied.
    """

    name: str
    unit: str = ""
    """Unit of the product's memory amounts, as a quantity suffix."""
    has_configurable_unit: bool = False
    resources: Mapping[str, Resource] = field(default_factory=dict)
    request_annotations: Mapping[str, Meaning] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    node_labels: Mapping[str, str] = field(default_factory=dict)
    """Advice on labels in node selectors, keyed by label."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Reasons why kept environment variables have no effect, keyed by variable."""
    objects: Mapping[str, str] = field(default_factory=dict)
    """Reasons why the product's objects have no counterpart, keyed by `group/Kind`."""
    schedulers: frozenset[str] = frozenset()
    """Names of the product's schedulers, on which the product's requests depend."""
    assigns_gpus_per_container: bool = False
    """True if each container of a pod may get a different GPU."""

    @property
    def unit_bytes(self) -> int:
        """Return the size of the product's default unit, in bytes."""
        return UNITS[self.unit]

    def unit_for(self, number: int) -> str:
        """Return the unit of an amount, or an empty string if no GPU has that much memory.

        If the unit is configurable, an amount larger than any GPU's memory is read as MiB.
        """
        units = (self.unit, "Mi") if self.has_configurable_unit else (self.unit,)
        return next((unit for unit in units if number * UNITS[unit] <= MAX_GPU_BYTES), "")

    def format_quantity(self, number: int) -> str:
        """Return an amount as a quantity, or an empty string if no GPU has that much memory."""
        unit = self.unit_for(number)
        return f"{number}{unit}" if unit else ""

    def has_scheduler(self, name: object) -> bool:
        """Return True if `name`, of any JSON type, is a scheduler of the product."""
        return isinstance(name, str) and name in self.schedulers


WHOLE_GPU: Final = "nvidia.com/gpu"
SHARED_GPU: Final = "nvidia.com/gpu.shared"
"""Resource for time-slicing if the device plugin is configured with `renameByDefault: true`."""
HAMI_MEMORY: Final = "nvidia.com/gpumem"
HAMI_PERCENTAGE: Final = "nvidia.com/gpumem-percentage"
HAMI_CORES: Final = "nvidia.com/gpucores"
GPUSHARE_MEMORY: Final = "aliyun.com/gpu-mem"
GPUSHARE_COUNT: Final = "aliyun.com/gpu-count"
KAI_MEMORY: Final = "gpu-memory"
KAI_FRACTION: Final = "gpu-fraction"
KAI_DEVICES: Final = "gpu-fraction-num-devices"
VOLCANO_MEMORY: Final = "volcano.sh/vgpu-memory"
VOLCANO_PERCENTAGE: Final = "volcano.sh/vgpu-memory-percentage"
VOLCANO_NUMBER: Final = "volcano.sh/vgpu-number"

_NO_COMPUTE_SHARES: Final = "compute is not divided here"
_GPU_TAKES_TURNS: Final = f"{_NO_COMPUTE_SHARES}, and pods of one GPU take turns"
_NO_ORDER: Final = "pods of one GPU have no order here"
_USE_GPU_CLASS: Final = (
    "GPUs are chosen by class here; name one of the policy in vramwarden.io/gpu-class, or a node "
    "label in nodeSelector"
)
_NO_SINGLE_GPU: Final = (
    "no pod chooses a single GPU here; choose the node, or ask for the amount alone"
)
_NO_HAMI_LIBRARY: Final = (
    "HAMi's library reads it, which is not there any more; the cap is the annotation's"
)
_QUEUES: Final = (
    "there are no queues here; a ResourceQuota on requests.vramwarden.io/vram bounds a namespace"
)

HAMI: Final = Product(
    name="HAMi",
    unit="Mi",
    has_configurable_unit=True,
    resources={
        WHOLE_GPU: Resource(Meaning.GPUS),
        HAMI_MEMORY: Resource(Meaning.MEMORY),
        HAMI_PERCENTAGE: Resource(Meaning.PART),
        HAMI_CORES: Resource(Meaning.COMPUTE, _GPU_TAKES_TURNS),
        "nvidia.com/priority": Resource(Meaning.OTHER, _NO_ORDER),
    },
    annotations={
        "nvidia.com/use-gputype": _USE_GPU_CLASS,
        "nvidia.com/nouse-gputype": _USE_GPU_CLASS,
        "nvidia.com/use-gpuuuid": _NO_SINGLE_GPU,
        "nvidia.com/nouse-gpuuuid": _NO_SINGLE_GPU,
        "nvidia.com/numa-bind": "GPUs are not chosen by NUMA node here",
        "nvidia.com/vgpu-mode": "the policy's rule chooses how a share is held (accounting)",
        "hami.io/node-scheduler-policy": "nodes are chosen by the default scheduler's scores",
        "hami.io/gpu-scheduler-policy": "the GPU with the least room that is enough is taken",
        "hami.io/*": "only HAMi reads it",
    },
    labels={"hami.io/*": "only HAMi reads it"},
    node_labels={"gpu": "HAMi's nodes are labelled so by hand; keep the label, or remove this"},
    variables={
        "CUDA_DEVICE_MEMORY_LIMIT*": _NO_HAMI_LIBRARY,
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": _NO_HAMI_LIBRARY,
        "CUDA_DEVICE_SM_LIMIT": _NO_COMPUTE_SHARES,
        "CUDA_TASK_PRIORITY": _NO_ORDER,
        "CUDA_DISABLE_CONTROL": "no pod switches its cap off here",
        "CUDA_OVERSUBSCRIBE": "no GPU's memory is promised twice here",
        "GPU_CORE_UTILIZATION_POLICY": _NO_COMPUTE_SHARES,
        "LIBCUDA_LOG_LEVEL": "only HAMi's library reads it",
    },
    schedulers=frozenset({"hami-scheduler"}),
    assigns_gpus_per_container=True,
)
KAI: Final = Product(
    name="KAI",
    unit="Mi",
    request_annotations={KAI_MEMORY: Meaning.MEMORY, KAI_FRACTION: Meaning.PART},
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
GPUSHARE: Final = Product(
    name="gpushare",
    unit="Gi",
    has_configurable_unit=True,
    resources={
        GPUSHARE_MEMORY: Resource(Meaning.MEMORY),
        GPUSHARE_COUNT: Resource(
            Meaning.GPUS, "of a node's GPUs; a pod says its number in vramwarden.io/gpu-count"
        ),
        "aliyun.com/gpu-core*": Resource(Meaning.OTHER, _GPU_TAKES_TURNS),
    },
    annotations={"ALIYUN_COM_GPU_MEM_*": "only gpushare reads it"},
    node_labels={
        "gpushare": "gpushare's nodes are labelled so by hand; keep the label, or remove this",
        "ack.node.gpu.*": "ACK's nodes are labelled so; keep the label, or remove this",
    },
    variables={
        "ALIYUN_COM_GPU_MEM_*": "nobody sets it any more; programs find their part in "
        "VRAMWARDEN_GPU_MEMORY_FRACTION and VRAMWARDEN_GPU_MEMORY_MIB"
    },
)
DEVICE_PLUGIN: Final = Product(
    name="whole GPUs",
    resources={WHOLE_GPU: Resource(Meaning.GPUS), SHARED_GPU: Resource(Meaning.GPUS)},
    assigns_gpus_per_container=True,
)
VOLCANO: Final = Product(
    name="Volcano",
    unit="Mi",
    resources={
        VOLCANO_MEMORY: Resource(Meaning.MEMORY),
        "volcano.sh/gpu-memory": Resource(Meaning.MEMORY),
        VOLCANO_PERCENTAGE: Resource(Meaning.PART),
        VOLCANO_NUMBER: Resource(Meaning.GPUS),
        "volcano.sh/gpu-number": Resource(Meaning.GPUS),
        "volcano.sh/vgpu-cores": Resource(Meaning.COMPUTE),
    },
)
_SHARING: Final = (HAMI, KAI, GPUSHARE, VOLCANO)

OTHER_PRODUCTS_BY_RESOURCE: Final[Mapping[str, tuple[Product, Meaning]]] = {
    name: (product, resource.meaning)
    for product in _SHARING
    for name, resource in product.resources.items()
    if resource.meaning is not Meaning.OTHER and name != WHOLE_GPU
}
OTHER_PRODUCTS_BY_ANNOTATION: Final[Mapping[str, tuple[Product, Meaning]]] = {
    key: (product, meaning)
    for product in _SHARING
    for key, meaning in product.request_annotations.items()
}
OTHER_PRODUCT_RESOURCES: Final = (
    GPUSHARE_MEMORY,
    VOLCANO_MEMORY,
    VOLCANO_NUMBER,
    "volcano.sh/gpu-memory",
    "volcano.sh/gpu-number",
    "tencent.com/vcuda-core",
    "tencent.com/vcuda-memory",
)
"""Resources of nodes whose GPUs another product allocates. Nodes with HAMi offer `nvidia.com/gpu`,
like nodes with NVIDIA's plugin.

`aliyun.com/gpu-count` is left out: the plugin writes this resource into the node's status, where it
stays after the plugin is removed (gpushare-device-plugin, pkg/gpu/nvidia/podmanager.go:
`patchGPUCount`).
"""
