"""The variables by which NVIDIA's container runtime, driver and MPS show GPUs and limit memory.

Source: NVIDIA Container Toolkit, "Environment variables (OCI spec)".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.names import GPU_ANNOTATION

if TYPE_CHECKING:
    from webhook.core.pod.fields import Json

VISIBLE_DEVICES_ENV: Final = "NVIDIA_VISIBLE_DEVICES"
DRIVER_CAPABILITIES_ENV: Final = "NVIDIA_DRIVER_CAPABILITIES"

GPU_LIMIT_VARIABLES: Final = ("NVIDIA_GPU_MEMORY_", "CUDA_MPS_")
"""Prefixes of the variables that the driver and MPS read a memory limit from."""


def visible_devices(*, chosen: bool) -> Json:
    """Build the variable that says which GPUs a container sees: the `chosen` ones, or all."""
    if not chosen:
        return {"name": VISIBLE_DEVICES_ENV, "value": "all"}
    field = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{GPU_ANNOTATION}']"}
    return {"name": VISIBLE_DEVICES_ENV, "valueFrom": {"fieldRef": field}}


def sees_no_gpu(entry: Json) -> bool:
    """Say whether a variable leaves the GPUs hidden: another name, or void, none or empty."""
    if entry["name"] != VISIBLE_DEVICES_ENV:
        return True
    return not entry.get("valueFrom") and entry.get("value") in {None, "", "void", "none"}
