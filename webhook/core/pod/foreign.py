"""By which names other products are asked for GPU memory: what hints and migrations know of them.

| product | asks by | unit |
| --- | --- | --- |
| NVIDIA's device plugin | resources nvidia.com/gpu, gpu.shared | GPUs, replicas |
| HAMi | resources nvidia.com/gpumem, gpumem-percentage, gpucores | MiB |
| KAI | annotations gpu-memory, gpu-fraction | MiB, parts of a GPU |
| gpushare of Alibaba Cloud | resource aliyun.com/gpu-mem | GiB |
| Volcano | resources volcano.sh/vgpu-memory, gpu-memory, vgpu-cores, ... | MiB |

Sources: docs/config.md of Project-HAMi/HAMi; docs/gpu-sharing/README.md of NVIDIA/KAI-Scheduler;
AliyunContainerService/gpushare-scheduler-extender; volcano-sh/devices and
volcano-sh/volcano-vgpu-device-plugin; README.md of tkestack/gpu-manager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Foreign(NamedTuple):
    """A name by which another product is asked."""

    product: str
    unit: str = ""
    """What one of it is, as a quantity's suffix; empty where it is no amount of memory."""
    is_compute: bool = False


HAMI: Final = "HAMi"
VOLCANO: Final = "Volcano"
KAI: Final = "KAI"
GPUSHARE: Final = "gpushare"

WHOLE_GPU: Final = "nvidia.com/gpu"
SHARED_GPU: Final = "nvidia.com/gpu.shared"
"""What the device plugin offers where time-slicing has `renameByDefault: true`."""
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

FOREIGN_RESOURCES: Final[Mapping[str, Foreign]] = {
    HAMI_MEMORY: Foreign(HAMI, "Mi"),
    HAMI_PERCENTAGE: Foreign(HAMI),
    HAMI_CORES: Foreign(HAMI, is_compute=True),
    GPUSHARE_MEMORY: Foreign(GPUSHARE, "Gi"),
    GPUSHARE_COUNT: Foreign(GPUSHARE),
    VOLCANO_MEMORY: Foreign(VOLCANO, "Mi"),
    "volcano.sh/gpu-memory": Foreign(VOLCANO, "Mi"),
    VOLCANO_PERCENTAGE: Foreign(VOLCANO),
    VOLCANO_NUMBER: Foreign(VOLCANO),
    "volcano.sh/gpu-number": Foreign(VOLCANO),
    "volcano.sh/vgpu-cores": Foreign(VOLCANO, is_compute=True),
}
GIVEN_BY_OTHERS: Final = (
    GPUSHARE_MEMORY,
    VOLCANO_MEMORY,
    VOLCANO_NUMBER,
    "volcano.sh/gpu-memory",
    "volcano.sh/gpu-number",
    "tencent.com/vcuda-core",
    "tencent.com/vcuda-memory",
)
"""Resources by which a node shows that another product gives its GPUs away; HAMi's node offers
`nvidia.com/gpu`, as NVIDIA's own plugin does.

Not `aliyun.com/gpu-count`: the plugin writes that into the node's status itself, so it stays there
when the plugin is gone (gpushare-device-plugin, pkg/gpu/nvidia/podmanager.go: `patchGPUCount`).
"""
FOREIGN_ANNOTATIONS: Final[Mapping[str, Foreign]] = {
    KAI_MEMORY: Foreign(KAI, "Mi"),
    KAI_FRACTION: Foreign(KAI),
}
