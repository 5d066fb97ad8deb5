"""Events of agent, sentry and webhook: their reasons, and a limit on their number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self


class EventReason(StrEnum):
    """Reasons of Events, each with the kind of object it is written on and its meaning.

    `make generate` writes the tables of Events from them.
    """

    about: str
    """Kind of the object: `Node` or `Pod`."""
    warning: bool
    """True if the type of the Event is `Warning`; otherwise it is `Normal`."""
    means: str
    cure: str
    """Remedy; empty if no action is needed."""

    def __new__(cls, value: str, about: str, kind: str, means: str, cure: str) -> Self:
        """Return a member whose value is `value`; `kind` is the type of the Event."""
        reason = str.__new__(cls, value)
        reason._value_ = value
        reason.about = about
        reason.warning = kind == "Warning"
        reason.means, reason.cure = means, cure
        return reason

    NOT_SHARED = (
        "GPUsNotShared",
        "Node",
        "Normal",
        (
            "somebody else gives the GPUs away, the label `share` is neither `true` nor `false`, "
            "or a GPU has no memory of its own, such as GB10"
        ),
        "take the device plugin off the node, or leave it so; correct the label",
    )
    DRAIN = (
        "DrainWholeGPUPods",
        "Node",
        "Warning",
        "more than 256Mi of a GPU are in use, or pods have whole GPUs, which may be idle",
        "let those pods end, or drain them; the agent then goes on by itself",
    )
    BESIDE_PLUGIN = (
        "SharedBesidePlugin",
        "Node",
        "Warning",
        "a device plugin or a DRA driver came while pods have VRAM: one card may be given twice",
        "take it off again, or drain the pods with VRAM",
    )
    UNTIL_PODS_END = (
        "SharedUntilPodsEnd",
        "Node",
        "Warning",
        "the label `share` says no, or neither `true` nor `false`, and pods may still have VRAM",
        "wait for those pods or drain them; correct the label",
    )
    GPUS_SHARED = (
        "GPUsShared",
        "Node",
        "Normal",
        "the node is shared, after one of the Events above",
        "",
    )
    NAMES_UNKNOWN = (
        "DeviceNamesUnknown",
        "Node",
        "Warning",
        "no pod is given a GPU there: nobody knows which names of GPUs its runtime resolves",
        "set `agent.deviceNames` or `agent.gpuAccess`, as the Event says",
    )
    DEFAULT_RUNTIME = (
        "DefaultRuntime",
        "Node",
        "Warning",
        (
            "the node is shared, `fence.void` is off, and images can show themselves its GPUs: by "
            "the default runtime, or by a RuntimeClass that every pod may name"
        ),
        "set `fence.void`",
    )
    GPU_LOST = (
        "GPULost",
        "Node",
        "Warning",
        "a GPU that was healthy is lost, does not answer, or left the list; it gets no further pod",
        "see `nvidia-smi` and the kernel's log on the node; reset the GPU, or reboot",
    )
    GPU_BACK = ("GPUBack", "Node", "Normal", "a GPU that was not there is as advertised again", "")
    GPU_UNHEALTHY = (
        "GPUUnhealthy",
        "Node",
        "Warning",
        (
            "a GPU is broken, or its compute mode is not Default; it gets no further pod, and "
            "those that have it keep it"
        ),
        "run the command that the Event names; else drain the node and reset the GPU, or reboot",
    )
    GPU_HEALTHY = ("GPUHealthy", "Node", "Normal", "a GPU that was unhealthy no longer is", "")
    RETIREMENT_PENDING = (
        "GPURetirementPending",
        "Node",
        "Warning",
        "a bad row of a GPU's memory is retired at its next reset; until then it stays healthy",
        "reset the GPU when it is idle",
    )
    DRIVER_UNFIT = (
        "GPUDriverUnfit",
        "Node",
        "Warning",
        "a sidecar cannot measure on the node: pods by `Sidecar` do not go there",
        (
            "if the Event names the driver, install 570 or newer, or write `enforcement.by: "
            "Sentry`; a GPU that lists no processes (WSL2, some vGPUs) can hold no caps"
        ),
    )
    CAPACITY_CHANGED = (
        "VRAMCapacityChanged",
        "Node",
        "Normal",
        "the node has another amount to share than before",
        "",
    )
    UNMANAGED = (
        "VRAMUnmanaged",
        "Node",
        "Warning",
        "a pod that was promised none, or a process of no pod, holds 256Mi or more of a GPU",
        "stop it; close the way by which images show themselves GPUs",
    )
    CAP_EXCEEDED = (
        "VRAMCapExceeded",
        "Pod",
        "Warning",
        "the pod was over its cap, and the node's sentry stopped or reported it",
        "`vramwarden explain POD` names the amount that would do",
    )
    LIMIT_RESET = (
        "VRAMLimitReset",
        "Pod",
        "Warning",
        "the driver cannot hold the pod to its cap, or a container had set a limit of its own",
        "nothing at once: sidecar and sentry hold the cap; the Event says what is wrong",
    )


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """Token bucket: `most` actions at once, then one per `every_s` seconds."""

    most: int
    every_s: float
    spent: float = 0.0
    """Number of tokens that were taken and not yet refilled."""
    counted_s: float = 0.0
    """Time at which `spent` was computed."""

    def take(self, now_s: float) -> Self | None:
        """Return the bucket after one more action, or None if the action is not allowed yet.

        | tokens left | time since the last action | action |
        | --- | --- | --- |
        | one or more | any | allowed |
        | less than one | too short to refill a token | not allowed |
        | less than one | long enough | allowed |

        The bucket never holds more than `most` tokens, however long it was unused.
        """
        spent = max(0.0, self.spent - (now_s - self.counted_s) / self.every_s)
        if self.most - spent < 1:
            return None
        return replace(self, spent=spent + 1, counted_s=now_s)
