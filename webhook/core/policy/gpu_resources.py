"""Names of extended resources that provide GPUs, and of resources that provide none."""

from __future__ import annotations

from typing import Final

from webhook.core.pod.other_products import OTHER_PRODUCT_RESOURCES

WHOLE_GPU_RESOURCES: Final = (
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-*",
    "nvidia.com/pgpu",
    "nvidia.com/gpumem*",
    "nvidia.com/gpucores",
    "volcano.sh/vgpu-*",
    "aliyun.com/gpu-*",
    "amd.com/gpu*",
    "amd.com/*_nps*",
    "deviceclass.resource.kubernetes.io/*gpu*",
    "deviceclass.resource.kubernetes.io/mig.nvidia.com",
    "deviceclass.resource.kubernetes.io/nvidia-*",
)
"""Default resources for whole GPUs, for policies that list none. policies/default.yaml explains
them."""

NVIDIA_DOMAIN: Final = "nvidia.com/"
AMD_DOMAIN: Final = "amd.com/"
GPU_RESOURCES: Final = (
    *(f"{NVIDIA_DOMAIN}*{word}*" for word in ("gpu", "mig-")),
    *OTHER_PRODUCT_RESOURCES,
)
"""Resources that provide GPUs under any policy, whatever else their names contain."""
NETWORK_RESOURCES: Final = tuple(
    f"{NVIDIA_DOMAIN}*{word}*"
    for word in (
        *("hostdev", "nic", "net", "eth", "vf", "rdma", "roce", "ibp", "infiniband", "sriov"),
        *("mlnx", "mlx", "connectx", "cx", "bf2", "bf3", "dpu"),
    )
)
"""Resources for network cards. NVIDIA's network operator uses any name below nvidia.com."""
