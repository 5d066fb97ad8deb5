"""Environment variables by which NVIDIA's runtime, driver and MPS show GPUs and limit memory.

`NVIDIA_VISIBLE_DEVICES` must name GPUs as the container runtime of the node resolves them:

| the node's runtime | `GPU-...` | `runtime.nvidia.com/gpu=GPU-...` |
| --- | --- | --- |
| mode `legacy`, or the hook of CRI-O | resolved | not resolved |
| mode `auto` of toolkit 1.18 and newer | resolved | resolved |
| mode `cdi`, default kind `nvidia.com/gpu` | resolved | resolved |
| mode `cdi`, default kind `management.nvidia.com/gpu` | no container starts | resolved |

The last row is the default of NVIDIA's GPU Operator from 25.10 on.

Functions that edit a list of variables return the same list, not a copy, if nothing changes.

Sources: NVIDIA Container Toolkit, "Environment variables (OCI spec)", internal/modifier/cdi.go and
pkg/nvcdi/management.go.
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
"""Driver libraries of a container with VRAM that requests no other libraries."""
NVML_LIBRARIES: Final = "utility"

CHOSEN_PATH: Final = f"metadata.annotations['{VISIBLE_DEVICES_ANNOTATION}']"
"""Field of the pod from which containers read the GPUs chosen at binding."""

_OF_MPS: Final = "CUDA_MPS_"
# Prefixes of variables from which the driver or MPS reads a memory limit.
_LIMITING: Final = ("NVIDIA_GPU_MEMORY_", _OF_MPS)
GPU_PREFIXES: Final = ("NVIDIA_", _OF_MPS)
"""Prefixes of all variables for which `widens_access`, `limits_memory` or `chooses_devices` is
true."""

# Variables that give a container access beyond its visible GPUs. NVIDIA_GDRCOPY, NVIDIA_GDS and
# NVIDIA_MOFED are not included: they show no GPU.
_WIDENING: Final = (
    *("NVIDIA_IMEX_CHANNELS", "NVIDIA_MIG_CONFIG_DEVICES"),
    *("NVIDIA_MIG_MONITOR_DEVICES", "NVIDIA_NVSWITCH"),
)


def widens_access(entry: Json) -> bool:
    """Return True if a variable gives a container access beyond its visible GPUs."""
    return entry["name"] in _WIDENING and not _says_none(entry)


def limits_memory(entry: Json) -> bool:
    """Return True if the driver or MPS reads a memory limit from a variable."""
    name: str = entry["name"]
    return name.startswith(_LIMITING)


def is_read_by_mps(entry: Json) -> bool:
    """Return True if MPS reads a variable."""
    name: str = entry["name"]
    return name.startswith(_OF_MPS)


def chooses_devices(entry: Json) -> bool:
    """Return True if a variable selects the GPUs that its container sees."""
    return bool(entry["name"] == VISIBLE_DEVICES_ENV)


def shows_bound_gpus(entry: Json) -> bool:
    """Return True if a variable shows the GPUs chosen at binding, exactly as mutation writes it."""
    return entry == _CHOSEN


def shows_all(entry: Json) -> bool:
    """Return True if a variable shows all GPUs, exactly as mutation writes it."""
    return entry == _ALL


def driver_capabilities(libraries: str) -> Json:
    """Return the variable that selects the driver libraries of a container."""
    return {"name": DRIVER_CAPABILITIES_ENV, "value": libraries}


def visible_devices(*, chosen: bool) -> Json:
    """Return the variable that selects the visible GPUs: the GPUs chosen at binding, or all."""
    return _CHOSEN if chosen else _ALL


# Shared by all pods and never modified.
_CHOSEN: Final[Json] = {
    "name": VISIBLE_DEVICES_ENV,
    "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": CHOSEN_PATH}},
}
_ALL: Final[Json] = {"name": VISIBLE_DEVICES_ENV, "value": "all"}
_VOID: Final[Json] = {"name": VISIBLE_DEVICES_ENV, "value": "void"}
_COMPUTES: Final = driver_capabilities(COMPUTE_LIBRARIES)


def hide_devices(env: list[Json]) -> list[Json]:
    """Hide all GPUs, replacing an existing variable."""
    return replace_by_name(env, VISIBLE_DEVICES_ENV, _VOID)


def hide_visible_devices(env: list[Json]) -> list[Json]:
    """Replace a variable that shows GPUs by one that hides them."""
    if all(map(hides_gpus, env)):
        return env
    return [entry if hides_gpus(entry) else _VOID for entry in env]


def unset_widening(env: list[Json]) -> list[Json]:
    """Add empty values for the variables of `widens_access` that a container does not set.

    They override variables from `envFrom`, which admission cannot read
    (kubernetes/pkg/kubelet/kubelet_pods.go, makeEnvironmentVariables). NVIDIA Container Toolkit
    1.20 treats an empty value as absent:

    | variable | effect if empty | source |
    | --- | --- | --- |
    | NVIDIA_IMEX_CHANNELS | no channel | internal/config/image/cuda_image.go, devicesFromEnvvars |
    | NVIDIA_MIG_*_DEVICES | none | cmd/nvidia-container-runtime-hook/container_config.go |
    | NVIDIA_NVSWITCH | off, as all but `enabled` | internal/modifier/cdi.go, gatedDevices |
    """
    names = {entry["name"] for entry in env}
    added = [{"name": name, "value": ""} for name in _WIDENING if name not in names]
    return [*env, *added] if added else env


def hide_devices_unless_set(env: list[Json]) -> list[Json]:
    """Hide all GPUs unless the variable is already set."""
    return env if any(map(chooses_devices, env)) else [*env, _VOID]


def show_devices(env: list[Json], *, chosen: bool, defaults: Iterable[Json]) -> list[Json]:
    """Show a container its GPUs, and add missing `defaults` and driver libraries."""
    # The kubelet uses the last of several entries with the same name.
    env = replace_by_name(env, VISIBLE_DEVICES_ENV, visible_devices(chosen=chosen))
    return _with_defaults(env, defaults)


def leave_to_device_plugin(env: list[Json], *, defaults: Iterable[Json]) -> list[Json]:
    """Remove the variable of visible GPUs, so that a device plugin sets it.

    A value in the pod would override the plugin's: the kubelet puts the variables of devices before
    those of the container (k8s.io/kubernetes/pkg/kubelet/kubelet_pods.go,
    GenerateRunContainerOptions).
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
    """Return True if a variable shows no GPU: it has another name, or is void, none or empty."""
    return not chooses_devices(entry) or _says_none(entry)


def _says_none(entry: Json) -> bool:
    return not entry.get("valueFrom") and entry.get("value") in {None, "", "void", "none"}


class DeviceNames(StrEnum):
    """Device-name schemes that runtimes resolve: values of the node label `device-names`."""

    UUID = "uuid"
    RUNTIME = "runtime.nvidia.com"
    """CDI names whose specifications the runtime generates itself."""
    DEVICE_PLUGIN = "k8s.device-plugin.nvidia.com"
    """CDI names from a specification that NVIDIA's device plugin wrote."""
    SPECIFICATION = "nvidia.com"
    """CDI names from a specification written by `nvidia-ctk cdi generate` or by hand."""
    NONE = "none"
    """No scheme is known to work, so no pod may be given a GPU on the node."""


def format_visible_devices(uuids: Iterable[str], names: DeviceNames) -> str:
    """Return the value of `NVIDIA_VISIBLE_DEVICES` that shows these GPUs.

    Raises ValueError for `DeviceNames.NONE`. All names have the same kind: names of
    `runtime.nvidia.com` must not be mixed with names of another kind.
    """
    if names is DeviceNames.NONE:
        raise ValueError("the node resolves no name of a GPU")
    kind = "" if names is DeviceNames.UUID else f"{names.value}/gpu="
    return ",".join(f"{kind}{uuid}" for uuid in uuids)


def read_device_names(label: str | None) -> DeviceNames | None:
    """Parse a node's label: bare UUIDs if it is absent, None for an unknown value."""
    if label is None:
        return DeviceNames.UUID
    try:
        return DeviceNames(label)
    except ValueError:
        return None
