"""The variables by which NVIDIA's container runtime, driver and MPS show GPUs and limit memory.

A list of variables that an edit leaves alone is returned itself, not a copy.
Source: NVIDIA Container Toolkit, "Environment variables (OCI spec)".
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from webhook.core.pod.fields import Json, replace_by_name
from webhook.names import VISIBLE_DEVICES_ANNOTATION

VISIBLE_DEVICES_ENV: Final = "NVIDIA_VISIBLE_DEVICES"
DRIVER_CAPABILITIES_ENV: Final = "NVIDIA_DRIVER_CAPABILITIES"

COMPUTE_LIBRARIES: Final = "compute,utility"
"""The driver's libraries that a container with VRAM gets, where it asks for no others."""
NVML_LIBRARIES: Final = "utility"
"""Those that NVML needs."""

CHOSEN_PATH: Final = f"metadata.annotations['{VISIBLE_DEVICES_ANNOTATION}']"
"""Field from which containers read the GPUs chosen at binding."""

_OF_MPS: Final = "CUDA_MPS_"
# Prefixes of the variables that the driver and MPS read a memory limit from.
_LIMITING: Final = ("NVIDIA_GPU_MEMORY_", _OF_MPS)
GPU_PREFIXES: Final = ("NVIDIA_", _OF_MPS)
"""Prefixes of all variables that `widens_access`, `limits_memory` or `chooses_devices` finds."""

# Those by which a container gets hold of more than the GPUs that it sees. Not NVIDIA_GDRCOPY,
# NVIDIA_GDS and NVIDIA_MOFED, which show none.
_WIDENING: Final = (
    *("NVIDIA_IMEX_CHANNELS", "NVIDIA_MIG_CONFIG_DEVICES"),
    *("NVIDIA_MIG_MONITOR_DEVICES", "NVIDIA_NVSWITCH"),
)


def widens_access(entry: Json) -> bool:
    """Say whether a variable gives a container more than the GPUs that it sees."""
    return entry["name"] in _WIDENING and not _says_none(entry)


def limits_memory(entry: Json) -> bool:
    """Say whether the driver or MPS reads a memory limit from a variable."""
    name: str = entry["name"]
    return name.startswith(_LIMITING)


def is_read_by_mps(entry: Json) -> bool:
    """Return True if MPS reads a variable."""
    name: str = entry["name"]
    return name.startswith(_OF_MPS)


def chooses_devices(entry: Json) -> bool:
    """Say whether a variable says which GPUs its container sees."""
    return bool(entry["name"] == VISIBLE_DEVICES_ENV)


def shows_bound_gpus(entry: Json) -> bool:
    """Return True if a variable shows the GPUs chosen at binding, as translation writes it."""
    return entry == _CHOSEN


def shows_all(entry: Json) -> bool:
    """Return True if a variable shows all GPUs, as translation writes it."""
    return entry == _ALL


def driver_capabilities(libraries: str) -> Json:
    """Build the variable that says which of the driver's libraries a container gets."""
    return {"name": DRIVER_CAPABILITIES_ENV, "value": libraries}


def visible_devices(*, chosen: bool) -> Json:
    """Build the variable that says which GPUs a container sees: the `chosen` ones, or all."""
    return _CHOSEN if chosen else _ALL


# Shared by all pods, and never changed.
_CHOSEN: Final[Json] = {
    "name": VISIBLE_DEVICES_ENV,
    "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": CHOSEN_PATH}},
}
_ALL: Final[Json] = {"name": VISIBLE_DEVICES_ENV, "value": "all"}
_VOID: Final[Json] = {"name": VISIBLE_DEVICES_ENV, "value": "void"}
_COMPUTES: Final = driver_capabilities(COMPUTE_LIBRARIES)


def hide_devices(env: list[Json]) -> list[Json]:
    """Hide all GPUs; where the variable exists, it is overwritten."""
    return replace_by_name(env, VISIBLE_DEVICES_ENV, _VOID)


def hide_visible_devices(env: list[Json]) -> list[Json]:
    """Hide the GPUs that a variable makes visible."""
    if all(map(hides_gpus, env)):
        return env
    return [entry if hides_gpus(entry) else _VOID for entry in env]


def unset_widening(env: list[Json]) -> list[Json]:
    """Add the variables that give more than a share, empty, where a container does not set them.

    They override those of `envFrom`, which admission cannot read
    (kubernetes/pkg/kubelet/kubelet_pods.go, makeEnvironmentVariables). To NVIDIA Container Toolkit
    1.20 an empty value means the same as none:

    | variable | empty | source |
    | --- | --- | --- |
    | NVIDIA_IMEX_CHANNELS | no channel | internal/config/image/cuda_image.go, devicesFromEnvvars |
    | NVIDIA_MIG_*_DEVICES | none | cmd/nvidia-container-runtime-hook/container_config.go |
    | NVIDIA_NVSWITCH | off, as all but `enabled` | internal/modifier/cdi.go, gatedDevices |
    """
    names = {entry["name"] for entry in env}
    added = [{"name": name, "value": ""} for name in _WIDENING if name not in names]
    return [*env, *added] if added else env


def hide_devices_unless_set(env: list[Json]) -> list[Json]:
    """Hide all GPUs, unless the variable is already set."""
    return env if any(map(chooses_devices, env)) else [*env, _VOID]


def show_devices(env: list[Json], *, chosen: bool, defaults: Iterable[Json]) -> list[Json]:
    """Show a container its GPUs, and add `defaults` and the driver's where they are not set."""
    # Of entries with the same name the kubelet lets the last one win.
    shown = replace_by_name(env, VISIBLE_DEVICES_ENV, visible_devices(chosen=chosen))
    return _with_defaults(shown, defaults)


def leave_to_device_plugin(env: list[Json], *, defaults: Iterable[Json]) -> list[Json]:
    """Leave it to a device plugin which GPUs a container sees: what a pod says beats the plugin.

    Source: the kubelet puts the variables of devices before those of the container
    (k8s.io/kubernetes/pkg/kubelet/kubelet_pods.go, GenerateRunContainerOptions).
    """
    return _with_defaults(replace_by_name(env, VISIBLE_DEVICES_ENV, None), defaults)


def _with_defaults(env: list[Json], defaults: Iterable[Json]) -> list[Json]:
    names = {entry["name"] for entry in env}
    added = []
    for variable in (*defaults, _COMPUTES):
        if variable["name"] not in names:
            added.append(variable)
            names.add(variable["name"])
    return [*env, *added] if added else env


def hides_gpus(entry: Json) -> bool:
    """Say whether a variable leaves the GPUs hidden: another name, or void, none or empty."""
    return not chooses_devices(entry) or _says_none(entry)


def _says_none(entry: Json) -> bool:
    return not entry.get("valueFrom") and entry.get("value") in {None, "", "void", "none"}


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


def format_visible_devices(uuids: Iterable[str], names: DeviceNames) -> str:
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
