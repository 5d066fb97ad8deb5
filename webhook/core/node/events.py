"""The Events that agent, sentry and webhook write: a closed set of reasons."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Self

_AGENT: Final = "agent", "Node"


class EventReason(StrEnum):
    """Each with who writes it, on what, and what it means.

    From these `make generate` writes the table of Events.
    """

    by: str
    """The part that writes it: `agent`, `sentry` or `webhook`."""
    about: str
    """The kind of the object: `Node` or `Pod`."""
    warning: bool
    """Whether its type is `Warning`; else it is `Normal`."""
    means: str
    cure: str
    """Empty where nobody has to do anything."""

    def __new__(cls, value: str, writes: tuple[str, str], kind: str, means: str, cure: str) -> Self:
        """Make a member whose value is the first text; `kind` is the type of the Event."""
        reason = str.__new__(cls, value)
        reason._value_ = value
        reason.by, reason.about = writes
        reason.warning = kind == "Warning"
        reason.means, reason.cure = means, cure
        return reason

    NOT_SHARED = (
        "GPUsNotShared",
        _AGENT,
        "Normal",
        "somebody else gives the GPUs away, or the label `share` is neither `true` nor `false`",
        "take the device plugin off the node, or leave it so; correct the label",
    )
    DRAIN = (
        "DrainWholeGPUPods",
        _AGENT,
        "Warning",
        "more than 256Mi of a GPU are in use, or pods have whole GPUs, which may be idle",
        "let those pods end, or drain them; the agent then goes on by itself",
    )
    BESIDE_PLUGIN = (
        "SharedBesidePlugin",
        _AGENT,
        "Warning",
        "a device plugin or a DRA driver came while pods have VRAM: one card may be given twice",
        "take it off again, or drain the pods with VRAM",
    )
    UNTIL_PODS_END = (
        "SharedUntilPodsEnd",
        _AGENT,
        "Warning",
        "the label `share` says no, or neither `true` nor `false`, and pods may still have VRAM",
        "wait for those pods or drain them; correct the label",
    )
    GPUS_SHARED = ("GPUsShared", _AGENT, "Normal", "the node is shared, after one of the four", "")
    NAMES_UNKNOWN = (
        "DeviceNamesUnknown",
        _AGENT,
        "Warning",
        "no pod is given a GPU there: nobody knows which names of GPUs its runtime resolves",
        "set `agent.deviceNames` or `agent.gpuAccess`, as the Event says",
    )
    DEFAULT_RUNTIME = (
        "DefaultRuntime",
        _AGENT,
        "Warning",
        "the node is shared, any image can show itself its GPUs, and `fence.void` is off",
        "set `fence.void`",
    )
    GPU_LOST = (
        "GPULost",
        _AGENT,
        "Warning",
        "a GPU that was healthy is lost, does not answer, or left the list; it gets no further pod",
        "see `nvidia-smi` and the kernel's log on the node; reset the GPU, or reboot",
    )
    GPU_BACK = ("GPUBack", _AGENT, "Normal", "a GPU that was not there is as advertised again", "")
    GPU_UNHEALTHY = (
        "GPUUnhealthy",
        _AGENT,
        "Warning",
        "the driver calls a GPU broken; it gets no further pod, and those that have it keep it",
        "drain the node and reset the GPU, or reboot",
    )
    GPU_HEALTHY = ("GPUHealthy", _AGENT, "Normal", "a GPU that was broken no longer is", "")
    RETIREMENT_PENDING = (
        "GPURetirementPending",
        _AGENT,
        "Warning",
        "a bad row of a GPU's memory is retired at its next reset; until then it stays healthy",
        "reset the GPU when it is idle",
    )
    DRIVER_UNFIT = (
        "GPUDriverUnfit",
        _AGENT,
        "Warning",
        "a sidecar cannot measure on the node: pods whose rule enforces do not go there",
        "install driver 565.57.01 or newer",
    )
    CAPACITY_CHANGED = (
        "VRAMCapacityChanged",
        _AGENT,
        "Normal",
        "the node has another amount to share than before",
        "",
    )
    UNMANAGED = (
        "VRAMUnmanaged",
        ("sentry", "Node"),
        "Warning",
        "a pod that was promised none, or a process of no pod, holds 256Mi or more of a GPU",
        "stop it; close the way by which images show themselves GPUs",
    )
    CAP_EXCEEDED = (
        "VRAMCapExceeded",
        ("sentry", "Pod"),
        "Warning",
        "the pod was over its cap, and not its sidecar but the sentry stopped it or reported it",
        "`vramwarden explain POD` says what would have been enough",
    )
    LIMIT_RESET = (
        "VRAMLimitReset",
        ("sentry", "Pod"),
        "Warning",
        "the driver cannot hold the pod to its cap, or a container had set a limit of its own",
        "nothing at once: sidecar and sentry hold the cap; the Event says what is wrong",
    )
    BOUND_WITHOUT_GPU = (
        "BoundWithoutGPU",
        ("webhook", "Pod"),
        "Warning",
        "the pod was bound while the webhook was away, and runs without a GPU",
        "delete it and create it again",
    )
