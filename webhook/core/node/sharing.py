"""Whether a node's GPUs are shared by memory: one allocator per card.

A device plugin that offers whole GPUs knows nothing of shares, and who has a whole GPU nothing of
those who would share it; nor does another product that shares them. So a card that somebody else
gives away is not shared, unless the cluster admin wants that; and a node begins to be shared only
once its GPUs are free.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from webhook.core.node.inventory import skipped
from webhook.core.node.state import NodeState, read_inventory, withdrawn
from webhook.core.pod.foreign import GIVEN_BY_OTHERS
from webhook.core.pod.quantity import MIB, QuantityError, parse_quantity
from webhook.names import NODE_SHARE_LABEL, VRAM_RESOURCE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.core.node.inventory import Scan

WHOLE_GPU_PREFIX: Final = "nvidia.com/gpu"
"""Of resources that NVIDIA's device plugin, or one in its place, offers: also `.shared`."""

FREE_BYTES: Final = 256 * MIB
"""A GPU on which no more is in use is free: a CUDA context alone takes more, and what stays for
ever, such as a display server or a persistence daemon, less."""

NOT_SHARED: Final = "GPUsNotShared"
DRAIN: Final = "DrainWholeGPUPods"
BESIDE_PLUGIN: Final = "SharedBesidePlugin"
UNTIL_PODS_END: Final = "SharedUntilPodsEnd"
"""Reasons of Node Events."""

SETTLE_S: Final = 15.0
"""So long whole GPUs must not have been offered before a node begins to be shared.

While a device plugin restarts its resource is 0, and after the kubelet restarts until it registers
again. The kubelet shows that with its next status, 10 s later and up to 4 % more. Source:
kubernetes/kubernetes, pkg/kubelet: devicemanager/manager.go (PluginDisconnected, readCheckpoint)
and kubelet.go (nodeStatusUpdateFrequency).
"""

_CURE: Final = (
    "label the node nvidia.com/gpu.deploy.device-plugin=false, which takes NVIDIA's plugin off it "
    f"under its operator, or share both ways with {NODE_SHARE_LABEL}=true"
)
_CURE_OF_OTHERS: Final = (
    "take that product's device plugin off the node, or share both ways with "
    f"{NODE_SHARE_LABEL}=true"
)
_NAMED: Final = 3
"""So many GPUs or resources are named in a sentence."""
_LONGEST_NAMED: Final = 63  # a resource's name has at most so many characters behind its domain


class Shared(Enum):
    """What becomes of a node's GPUs."""

    YES = "they are advertised"
    NO = "they are not; what was advertised is withdrawn"
    NOT_YET = "they will be advertised, but cannot be yet; the node is left alone"


@dataclass(frozen=True, slots=True)
class Sharing:
    """What becomes of a node's GPUs, and what is to be said about it."""

    shared: Shared
    reason: str = ""
    """Of a Node Event; empty where there is nothing to say."""
    sentence: str = ""
    """Why, and what to do about it."""


def judge(
    node: Mapping[str, Any],
    *,
    shares: bool,
    has_pods: bool | None,
    in_use: tuple[str, ...] | None,
    lately: bool = False,
) -> Sharing:
    """Decide whether a node's GPUs are shared.

    `shares`: whether they are advertised already; `has_pods`: whether pods have VRAM there, None
    where that cannot be read; `in_use`: see `gpus_in_use`; `lately`: whether whole GPUs were
    offered in the last `SETTLE_S`.

    | offered | `share` | advertised | pods | in use | shared | reason |
    | --- | --- | --- | --- | --- | --- | --- |
    | no | absent or true | no | - | no | YES | - |
    | no | absent or true | no | - | yes | NOT_YET | DrainWholeGPUPods |
    | no | absent or true | no | - | unknown | NOT_YET | - |
    | no | absent or true | yes | - | - | YES | - |
    | lately | absent | no | - | - | NOT_YET | - |
    | lately | absent | yes | - | - | YES | - |
    | yes or lately | true | no | - | no | YES | - |
    | yes or lately | true | no | - | yes | NOT_YET | DrainWholeGPUPods |
    | yes or lately | true | no | - | unknown | NOT_YET | - |
    | yes or lately | true | yes | - | - | YES | - |
    | yes | absent | no | - | - | NO | GPUsNotShared |
    | yes | absent | yes | no | - | NO | GPUsNotShared |
    | yes | absent | yes | yes or unknown | - | YES | SharedBesidePlugin |
    | - | false | no | - | - | NO | - |
    | - | false | yes | no | - | NO | - |
    | - | false | yes | yes or unknown | - | YES | SharedUntilPodsEnd |
    | - | anything else | no | - | - | NO | GPUsNotShared |
    | - | anything else | yes | no | - | NO | GPUsNotShared |
    | - | anything else | yes | yes or unknown | - | YES | SharedUntilPodsEnd |

    Offered now is what `given_away` finds. Capacity is never lowered under a pod: the kubelet would
    fail it when it starts again.
    """
    label = ((node.get("metadata") or {}).get("labels") or {}).get(NODE_SHARE_LABEL)
    offered = given_away(node)
    stays = shares and has_pods is not False
    if label == "false":
        why = f"its label {NODE_SHARE_LABEL} is false"
        drain = "drain them to end this now"
        return _staying(UNTIL_PODS_END, why, drain) if stays else Sharing(Shared.NO)
    if label not in {None, "true"}:
        why = f"its label {NODE_SHARE_LABEL} is {str(label)!r}, which is neither true nor false"
        cure = "correct it"
        return _staying(UNTIL_PODS_END, why, cure) if stays else _not_shared(why, cure)
    if offered and label is None:
        why, cure = _why_given_away(offered)
        return _staying(BESIDE_PLUGIN, why, cure) if stays else _not_shared(why, cure)
    if shares:
        return Sharing(Shared.YES)
    if lately and label is None:
        return Sharing(Shared.NOT_YET)
    if in_use == ():
        return Sharing(Shared.YES)
    if in_use is None:
        return Sharing(Shared.NOT_YET)
    why = f"more than 256Mi are in use, or nobody knows how much, on {_listed(in_use)}"
    sentence = f"drain the whole-GPU pods first: {why}; the GPUs are shared once they are free"
    return Sharing(Shared.NOT_YET, DRAIN, sentence)


def _why_given_away(offered: tuple[str, ...]) -> tuple[str, str]:
    if any(name.startswith(WHOLE_GPU_PREFIX) for name in offered):
        return f"a device plugin offers them whole ({_listed(offered)})", _CURE
    return f"another product gives them away ({_listed(offered)})", _CURE_OF_OTHERS


def _staying(reason: str, why: str, cure: str) -> Sharing:
    sentence = (
        f"{why}, but pods may have VRAM here, so the GPUs stay shared until these have ended; "
        f"until then one card may be given twice; {cure}"
    )
    return Sharing(Shared.YES, reason, sentence)


def _not_shared(why: str, cure: str) -> Sharing:
    sentence = f"the GPUs of this node are not shared by memory: {why}; {cure}"
    return Sharing(Shared.NO, NOT_SHARED, sentence)


def limited(node: Mapping[str, Any], whole: NodeState, shared: Shared) -> NodeState:
    """Return what a node should carry, given what it would carry if its GPUs are shared.

    Where it shows no GPUs of ours there is nothing to withdraw: its labels are somebody else's, and
    may be what brings the agent there.
    """
    state = {Shared.YES: whole, Shared.NO: withdrawn(), Shared.NOT_YET: NodeState()}[shared]
    return NodeState() if state == withdrawn() and not is_advertised(node) else state


def whole_gpus(node: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of resources in which a node offers whole GPUs, sorted."""
    return tuple(name for name in given_away(node) if name.startswith(WHOLE_GPU_PREFIX))


def given_away(node: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of resources in which others give a node's GPUs away, sorted.

    An amount that cannot be read counts as offered.
    """
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return tuple(
        name
        for name in sorted(allocatable)
        if _gives_gpus(name) and _is_more_than_nothing(allocatable[name])
    )


def has_offered(node: Mapping[str, Any]) -> bool:
    """Say whether others give GPUs away, or did at some time: the kubelet keeps the name."""
    amounts = (node.get("status") or {}).get("capacity") or {}
    return bool(given_away(node)) or any(map(_gives_gpus, amounts))


def _gives_gpus(name: str) -> bool:
    return name.startswith(WHOLE_GPU_PREFIX) or name in GIVEN_BY_OTHERS


def is_advertised(node: Mapping[str, Any]) -> bool:
    """Say whether a node shows GPUs of ours, so that an agent that starts goes on sharing them.

    By the list of GPUs or the capacity. Labels alone say nothing: autoscalers set them beforehand.
    """
    capacity = (node.get("status") or {}).get("capacity") or {}
    return read_inventory(node).advertised or _is_more_than_nothing(capacity.get(VRAM_RESOURCE, 0))


def gpus_in_use(scan: Scan | None) -> tuple[str, ...] | None:
    """Return the GPUs on which more than 256Mi are in use, or nobody knows how much, by UUID.

    Of those that would be shared. None where the driver gave no answer.
    """
    if scan is None or scan.failed:
        return None
    aside = skipped(scan)
    return tuple(
        gpu.uuid
        for gpu in scan.gpus
        if gpu.uuid not in aside and (gpu.used_bytes is None or gpu.used_bytes > FREE_BYTES)
    )


def _is_more_than_nothing(amount: object) -> bool:
    try:
        return parse_quantity(str(amount)) > 0
    except QuantityError:
        return True


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(name[: 2 * _LONGEST_NAMED] for name in names[:_NAMED]) + more
