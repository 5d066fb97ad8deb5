"""How the container runtime of a node wants its GPUs named in `NVIDIA_VISIBLE_DEVICES`.

| the node's runtime | `GPU-...` | `runtime.nvidia.com/gpu=GPU-...` |
| --- | --- | --- |
| mode `legacy`, or the hook of CRI-O | resolved | not resolved |
| mode `auto` of toolkit 1.18 and newer | resolved | resolved |
| mode `cdi`, default kind `nvidia.com/gpu` | resolved | resolved |
| mode `cdi`, default kind `management.nvidia.com/gpu` | no container starts | resolved |

The last row is the default of NVIDIA's GPU Operator from 25.10 on.
Source: NVIDIA Container Toolkit, internal/modifier/cdi.go and pkg/nvcdi/management.go.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class DeviceNames(StrEnum):
    """Which names a node's runtime resolves: values of the node label `device-names`."""

    UUID = "uuid"
    RUNTIME = "runtime.nvidia.com"
    """The runtime makes the specification of each GPU itself."""
    DEVICE_PLUGIN = "k8s.device-plugin.nvidia.com"
    """NVIDIA's device plugin wrote one."""
    SPECIFICATION = "nvidia.com"
    """`nvidia-ctk cdi generate`, or somebody by hand, wrote one."""
    NONE = "none"
    """None is known to work, so no pod may be given a GPU there."""


def spell(uuids: Iterable[str], names: DeviceNames) -> str:
    """Return the value of `NVIDIA_VISIBLE_DEVICES` that shows these GPUs.

    Raises ValueError for `NONE`. All have one kind: names of `runtime.nvidia.com` may not be mixed
    with those of another.
    """
    if names is DeviceNames.NONE:
        raise ValueError("the node resolves no name of a GPU")
    kind = "" if names is DeviceNames.UUID else f"{names.value}/gpu="
    return ",".join(f"{kind}{uuid}" for uuid in uuids)


def read_device_names(label: str | None) -> DeviceNames | None:
    """Read the label of a node: bare UUIDs without it, None for an unknown value."""
    if label is None:
        return DeviceNames.UUID
    try:
        return DeviceNames(label)
    except ValueError:
        return None
