"""How the agent gets to see its node's GPUs, and what that says about the GPUs of pods."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from webhook.core.bounds import LONGEST_WORD
from webhook.core.node.events import EventReason
from webhook.core.node.inventory import Inventory, Scan
from webhook.core.nvidia.variables import VISIBLE_DEVICES_ENV, DeviceNames

_INJECTED: Final = {"void": DeviceNames.RUNTIME, "all": DeviceNames.UUID}
"""By what a runtime that read `all` leaves in the container; see `find_device_names`."""


class GpuAccess(StrEnum):
    """How the agent's own container gets the GPUs; the values of `--gpu-access`."""

    ENVIRONMENT = "Environment"
    """`NVIDIA_VISIBLE_DEVICES=all`, unprivileged: as pods get theirs."""
    VOLUME_MOUNTS = "VolumeMounts"
    """A mount whose path names them, for runtimes that ignore that variable."""
    PRIVILEGED = "Privileged"
    """`NVIDIA_VISIBLE_DEVICES=all`, which such runtimes read in privileged containers alone."""


@dataclass(frozen=True, slots=True)
class Access:
    """What is known when the agent starts, and does not change while its container runs."""

    by: GpuAccess = GpuAccess.ENVIRONMENT
    visible_devices: str = ""
    """What `NVIDIA_VISIBLE_DEVICES` says in the agent's container; empty where it is not set."""
    device_names: DeviceNames | None = None
    """What an option says instead of what is found here."""
    runtime_class: str = ""
    """The RuntimeClass of the agent's pod; empty for none."""
    voided: bool = False
    """Whether the fence shows no GPU to containers that nobody promised one (`fence.void`)."""


@dataclass(frozen=True, slots=True)
class AccessProblem:
    """What a cluster admin should change: for a log line and an Event."""

    reason: EventReason
    what: str
    why: str
    """With the cure."""


def find_device_names(access: Access) -> DeviceNames:
    """Return which names of GPUs the node's container runtime resolves for pods.

    | `--device-names` | access | `NVIDIA_VISIBLE_DEVICES` inside | then |
    | --- | --- | --- | --- |
    | given | any | any | as given |
    | empty | Environment | void | runtime.nvidia.com |
    | empty | Environment | all | uuid |
    | empty | Environment | another, or not set | none |
    | empty | VolumeMounts | any | none |
    | empty | Privileged | any | none |

    CDI specifications set the variable to `void` so that nothing else injects (it is added, and of
    two values runc and crun keep the last). Toolkits that write such ones, 1.15 and newer, resolve
    `runtime.nvidia.com/gpu=` with a UUID, too. The hook changes no variable, nor did specifications
    before. Another value is somebody's own access, which pods do not have. Mounts and privileges
    serve where the runtime ignores the variable, and then it ignores that of pods.
    Source: NVIDIA Container Toolkit, pkg/nvcdi/wrapper.go, internal/modifier/cdi.go and
    internal/config/image/cuda_image.go; CHANGELOG.md, 1.15.0.
    """
    if access.device_names is not None:
        return access.device_names
    if access.by is not GpuAccess.ENVIRONMENT:
        return DeviceNames.NONE
    return _INJECTED.get(access.visible_devices, DeviceNames.NONE)


def named(inventory: Inventory, scan: Scan, access: Access) -> Inventory:
    """Return the inventory with the names that its GPUs have for pods.

    | the scan | `inventory.device_names` |
    | --- | --- |
    | shows a GPU | as found: at once, since a new container has new access |
    | shows none, or failed | as it was: the access of this container was not seen to work |
    """
    if not scan.gpus:
        return inventory
    return replace(inventory, device_names=find_device_names(access).value)


def advise(access: Access) -> tuple[AccessProblem, ...]:
    """Return what to change where a GPU is seen by this access; nothing where all is well.

    | a GPU is seen | advice |
    | --- | --- |
    | names are `none`, and the option does not say so | `DeviceNamesUnknown` |
    | by a runtime that read the variable, without `void` | `DefaultRuntime` |

    Every pod may name the RuntimeClass by which the agent sees GPUs.
    """
    found = []
    if access.device_names is None and find_device_names(access) is DeviceNames.NONE:
        found.append(_unknown_names(access))
    injected = access.by is GpuAccess.ENVIRONMENT and access.visible_devices in _INJECTED
    if injected and not access.voided:
        found.append(_shown_by_images(access.runtime_class[:LONGEST_WORD]))
    return tuple(found)


def _shown_by_images(runtime_class: str) -> AccessProblem:
    if runtime_class:
        what = f"any image can show itself GPUs here if its pod names RuntimeClass {runtime_class}"
        why = "the agent sees GPUs by that class, which every pod may name"
    else:
        what = "NVIDIA's runtime is the default one here: any image can show itself GPUs"
        why = "the agent sees GPUs without a RuntimeClass"
    cure = "the chart's value fence.void closes that"
    return AccessProblem(EventReason.DEFAULT_RUNTIME, what, f"{why}; {cure}")


def _unknown_names(access: Access) -> AccessProblem:
    if access.by is GpuAccess.ENVIRONMENT:
        shown = access.visible_devices[:LONGEST_WORD]
        why = f"{VISIBLE_DEVICES_ENV} is {shown!r} in the agent, neither `all` nor `void`"
    else:
        why = f"the agent's own access, {access.by}, does not tell"
    return AccessProblem(
        EventReason.NAMES_UNKNOWN,
        "no pod is given a GPU here: nobody knows which names of GPUs the node's runtime resolves",
        f"{why}; if the runtime reads {VISIBLE_DEVICES_ENV} of unprivileged containers (toolkit:"
        " accept-nvidia-visible-devices-envvar-when-unprivileged = true), use the chart's value"
        " agent.gpuAccess: Environment, or set agent.deviceNames to uuid (modes legacy and auto) or"
        " runtime.nvidia.com (mode cdi, as under NVIDIA's GPU operator)",
    )
