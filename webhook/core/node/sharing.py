"""Whether a node's GPUs are shared by memory: one allocator per card.

A device plugin that offers whole GPUs knows nothing of shares, and who has a whole GPU nothing of
those who would share it; nor does another product that shares them, nor a driver that gives them
away by resource claims. So a card that somebody else gives away is not shared, unless the cluster
admin wants that; and a node begins to be shared only once its GPUs are free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from webhook.core.bounds import LONGEST_STORED
from webhook.core.node.events import EventReason
from webhook.core.node.inventory import Scan, skipped
from webhook.core.node.state import (
    NodeState,
    annotations_of,
    labels_of,
    read_inventory,
    shown_vram,
    withdrawn,
)
from webhook.core.pod.foreign import WHOLE_GPU
from webhook.core.pod.quantity import MIB
from webhook.core.pod.whole import AMD_DRA_DRIVER, gives_gpus, is_more_than_nothing
from webhook.core.words import printable
from webhook.names import (
    LONGEST_HELD,
    LONGEST_LABEL,
    NODE_ASKS_LABEL,
    NODE_DRA_ANNOTATION,
    NODE_HELD_ANNOTATION,
    NODE_SHARE_LABEL,
    NODE_SHARING_ANNOTATION,
    VRAM_RESOURCE,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


FREE_BYTES: Final = 256 * MIB
"""A GPU on which no more is in use is free: a CUDA context alone takes more, and what stays for
ever, such as a display server or a persistence daemon, less."""

SETTLE_S: Final = 60.0
"""So long no sign of another allocator must have stood before a node begins to be shared.

After a kubelet restarts, the amounts of a device plugin are 0 until it registers again, which
NVIDIA's tries each 30 s; a plugin that is new on its node waits for the driver and an image.
Sources: kubernetes/kubernetes, pkg/kubelet/cm/devicemanager/manager.go (readCheckpoint,
GetCapacity); NVIDIA/k8s-device-plugin, cmd/nvidia-device-plugin/main.go (startPlugins).
"""

YOUNG_S: Final = 600.0
"""So long after a node's creation NVIDIA's operator may be about to bring its plugin or driver."""

CLAIMED_S: Final = 300.0
"""So long ResourceSlices count after they are gone: a kubelet deletes those of a driver that
restarts (kubernetes/kubernetes, pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go)."""

DEPLOY_PLUGIN_LABEL: Final = "nvidia.com/gpu.deploy.device-plugin"
DEPLOY_DRA_LABEL: Final = "nvidia.com/gpu.deploy.dra-driver"
"""By which NVIDIA's operator brings its device plugin, and its DRA driver, to a node. It sets the
first also where the plugin is switched off (NVIDIA/gpu-operator, controllers/state_manager.go)."""
HAMI_ANNOTATION: Final = "hami.io/node-nvidia-register"  # its plugin lists the node's GPUs in it
HAMI_AMD_ANNOTATION: Final = "hami.io/node-amd-register"

_BOTH_WAYS: Final = f"or share both ways with {NODE_SHARE_LABEL}=true"
_CURES: Final = {
    "plugin": (
        f"label the node {DEPLOY_PLUGIN_LABEL}=false, which takes NVIDIA's plugin off it under its "
        f"operator, {_BOTH_WAYS}"
    ),
    "heedless": (
        f"the label {DEPLOY_PLUGIN_LABEL}=false is set, and the plugin does not heed it: give its "
        "DaemonSet the affinity of deploy/take-the-plugin-off.md in the documentation, "
        f"{_BOTH_WAYS}"
    ),
    "forgotten": (
        "the plugin is taken off, and the kubelet forgets it within five minutes; share at once "
        f"with {NODE_SHARE_LABEL}=true"
    ),
    "hami": (
        f"take HAMi's device plugin off the node by `kubectl label node NODE gpu-`, {_BOTH_WAYS}"
    ),
    "hami-amd": f"take HAMi's AMD plugin off the node and remove the annotation, {_BOTH_WAYS}",
    "others": f"take that product's device plugin off the node, {_BOTH_WAYS}",
    "operator": (
        "wait until the node is ten minutes old, or, where its plugin is switched off, share at "
        f"once with {NODE_SHARE_LABEL}=true"
    ),
    "claims": (
        f"take the driver off the node, with NVIDIA's operator by the label {DEPLOY_DRA_LABEL}"
        f"=false, {_BOTH_WAYS}"
    ),
    "amd": f"take AMD's driver off the node, {_BOTH_WAYS}",
}
_NAMED: Final = 3
"""So many GPUs or resources are named in a sentence."""


class Shared(Enum):
    """What becomes of a node's GPUs."""

    YES = "they are advertised"
    HELD = "what pods have stays advertised; nothing more is promised"
    NO = "they are not; what was advertised is withdrawn"
    NOT_YET = "they will be advertised, but cannot be yet; the node is left alone"


@dataclass(frozen=True, slots=True)
class Sharing:
    """What becomes of a node's GPUs, and what is to be said about it."""

    shared: Shared
    reason: EventReason | None = None
    """None where there is nothing to say."""
    sentence: str = ""
    """Why, and what to do about it."""


@dataclass(frozen=True, slots=True)
class Sign:
    """That somebody else gives a node's GPUs away."""

    why: str
    cure: str
    """What ends it on this node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What is known of a node beside its object."""

    claimed_by: tuple[str, ...] | None = ()
    """Drivers that offer its GPUs in ResourceSlices; None where slices cannot be read."""
    age_s: float = float("inf")
    """Since its creation."""
    settles: bool = False
    """No sign holds, but one did a moment ago, or may come."""
    shares: bool
    """Its GPUs are advertised already."""
    has_pods: bool | None
    """Pods have VRAM there; None where that cannot be read."""
    in_use: tuple[str, ...] | None
    """See `gpus_in_use`."""
    whole_pods: tuple[str, ...] | None = ()
    """Of the pods that run there with whole GPUs the first, `namespace/name`; None where that is
    not known yet."""
    whole_count: int = 0
    """How many they are, where that is more."""


def judge(node: Mapping[str, Any], beside: Beside) -> Sharing:
    """Decide whether a node's GPUs are shared.

    | offered | `share` | advertised | pods | in use | shared | reason |
    | --- | --- | --- | --- | --- | --- | --- |
    | no | absent or true | no | - | no | YES | - |
    | no | absent or true | no | - | yes | NOT_YET | DrainWholeGPUPods |
    | no | absent or true | no | - | unknown | NOT_YET | - |
    | no | absent or true | yes or held | - | - | YES | - |
    | settles | absent | no | - | no or unknown | NOT_YET | - |
    | settles | absent | no | - | yes | NOT_YET | DrainWholeGPUPods |
    | settles | absent | yes | - | - | YES | - |
    | settles | absent | held | - | - | HELD | SharedBesidePlugin |
    | yes or settles | true | no | - | no | YES | - |
    | yes or settles | true | no | - | yes | NOT_YET | DrainWholeGPUPods |
    | yes or settles | true | no | - | unknown | NOT_YET | - |
    | yes or settles | true | yes or held | - | - | YES | - |
    | yes | absent | no | - | - | NO | GPUsNotShared |
    | yes | absent | yes or held | no | - | NO | GPUsNotShared |
    | yes | absent | yes or held | yes or unknown | - | HELD | SharedBesidePlugin |
    | - | false | no | - | - | NO | - |
    | - | false | yes or held | no | - | NO | - |
    | - | false | yes or held | yes or unknown | - | HELD | SharedUntilPodsEnd |
    | - | anything else | no | - | - | NO | GPUsNotShared |
    | - | anything else | yes or held | no | - | NO | GPUsNotShared |
    | - | anything else | yes or held | yes or unknown | - | HELD | SharedUntilPodsEnd |

    Offered is what `sign` finds; held is what the node says it is. In use is a GPU (`gpus_in_use`),
    or, where `share` is absent, one that a pod has whole. Capacity is never lowered under a pod:
    the kubelet would fail it when it starts again.
    """
    label = labels_of(node).get(NODE_SHARE_LABEL)
    found = sign(node, beside.claimed_by, beside.age_s)
    stays = beside.shares and beside.has_pods is not False
    if label == "false":
        why = f"its label {NODE_SHARE_LABEL} is false"
        drain = "drain them to end this now"
        return _staying(EventReason.UNTIL_PODS_END, why, drain) if stays else Sharing(Shared.NO)
    if label not in {None, "true"}:
        why = f"its label {NODE_SHARE_LABEL} is {str(label)!r}, which is neither true nor false"
        cure = "correct it"
        return _staying(EventReason.UNTIL_PODS_END, why, cure) if stays else _not_shared(why, cure)
    if found and label is None:
        why, cure = found.why, found.cure
        return _staying(EventReason.BESIDE_PLUGIN, why, cure) if stays else _not_shared(why, cure)
    if beside.shares:
        held = why_held(node) if beside.settles and label is None else ""
        beside_plugin = Sharing(Shared.HELD, EventReason.BESIDE_PLUGIN, held)
        return beside_plugin if held else Sharing(Shared.YES)
    whole_pods = beside.whole_pods if label is None else ()
    if beside.in_use or whole_pods:
        return Sharing(Shared.NOT_YET, EventReason.DRAIN, _drain(beside, whole_pods or ()))
    waits = None in {beside.in_use, whole_pods} or (beside.settles and label is None)
    return Sharing(Shared.NOT_YET if waits else Shared.YES)


def _drain(beside: Beside, whole_pods: tuple[str, ...]) -> str:
    whys = []
    if whole_pods:
        pods = listed(whole_pods, beside.whole_count)
        whys.append(f"they may use nothing now, and have GPUs all the same: {pods}")
    if beside.in_use:
        gpus = listed(beside.in_use)
        whys.append(f"more than 256Mi are in use, or nobody knows how much, on {gpus}")
    cause = "; ".join(whys)
    return f"drain the whole-GPU pods first: {cause}; the GPUs are shared once they are free"


def sign(
    node: Mapping[str, Any], claimed_by: tuple[str, ...] | None = (), age_s: float = float("inf")
) -> Sign | None:
    """Return that somebody else gives a node's GPUs away, and what ends it there.

    | sign | counts |
    | --- | --- |
    | a device plugin's amount | while capacity or allocatable is more than 0 (`given_away`) |
    | a ResourceSlice with one of its GPUs, or of AMD's driver | as long as the caller says so |
    | HAMi's annotation for AMD's GPUs | while it exists |
    | the label of NVIDIA's operator for its device plugin | while the node is young |
    | that for its DRA driver, where slices cannot be read | while the node is young |
    """
    offered, labels = given_away(node), labels_of(node)
    if offered:
        return _sign_of_plugin(node, offered)
    if claimed_by:
        why = f"a DRA driver ({listed(claimed_by)}) gives them away by resource claims"
        return Sign(why, _CURES["amd" if claimed_by == (AMD_DRA_DRIVER,) else "claims"])
    if HAMI_AMD_ANNOTATION in annotations_of(node):
        return Sign(f"HAMi gives AMD's away (annotation {HAMI_AMD_ANNOTATION})", _CURES["hami-amd"])
    expected = [DEPLOY_PLUGIN_LABEL, *([DEPLOY_DRA_LABEL] if claimed_by is None else [])]
    for key in expected if age_s < YOUNG_S else ():
        if labels.get(key) == "true":
            what = "device plugin" if key == DEPLOY_PLUGIN_LABEL else "DRA driver"
            return Sign(
                f"NVIDIA's operator is to bring its {what} ({key}=true)", _CURES["operator"]
            )
    return None


def _sign_of_plugin(node: Mapping[str, Any], offered: tuple[str, ...]) -> Sign:
    if not any(name.startswith(WHOLE_GPU) for name in offered):
        why = f"another product gives them away ({listed(offered)})"
        return Sign(why, _CURES["others"])
    why = f"a device plugin offers them whole ({listed(offered)})"
    if HAMI_ANNOTATION in annotations_of(node):
        name = str((node.get("metadata") or {}).get("name") or "NODE")
        return Sign(why, _CURES["hami"].replace("NODE", name))
    if labels_of(node).get(DEPLOY_PLUGIN_LABEL) != "false":
        return Sign(why, _CURES["plugin"])
    return Sign(why, _CURES["heedless" if _offers(node, "allocatable") else "forgotten"])


def _staying(reason: EventReason, why: str, cure: str) -> Sharing:
    sentence = (
        f"{why}, but pods may have VRAM here, so the GPUs stay shared until these have ended, and "
        f"no other pod is given any; until then one card may be given twice; {cure}"
    )
    return Sharing(Shared.HELD, reason, sentence)


def _not_shared(why: str, cure: str) -> Sharing:
    sentence = f"the GPUs of this node are not shared by memory: {why}; {cure}"
    return Sharing(Shared.NO, EventReason.NOT_SHARED, sentence)


def limited(
    node: Mapping[str, Any],
    whole: NodeState,
    sharing: Sharing,
    *,
    promised_bytes: int | None = None,
    asks: str = "",
    claimed_by: tuple[str, ...] = (),
    unshared: str = "",
) -> NodeState:
    """Return what a node should carry, given what it would carry if its GPUs are shared.

    `promised_bytes`: what its pods have, None where that is not known; `asks`: the question for
    pods with whole GPUs, empty for none; `claimed_by`: DRA drivers that offer its GPUs, of which an
    agent that starts anew must know before they do; `unshared`: see `Inventory`.

    Where it shows no GPUs of ours there is nothing to withdraw: its labels are somebody else's, and
    may be what brings the agent there. What is held has as much as its pods have, and as much as it
    shows while nobody knows how much that is.
    """
    shared = sharing.shared
    state = {Shared.NO: withdrawn(), Shared.NOT_YET: NodeState()}.get(shared, whole)
    if state == withdrawn() and not is_advertised(node):
        state = NodeState()
    amount = state.vram_bytes
    if shared is Shared.HELD and amount:
        amount = shown_vram(node) or amount
        amount = amount if promised_bytes is None else min(promised_bytes, state.vram_bytes or 0)
    unshared = "" if shared is Shared.NO else unshared
    marks = {
        NODE_DRA_ANNOTATION: ",".join(claimed_by)[:LONGEST_STORED] or None,
        NODE_SHARING_ANNOTATION: f"{EventReason.NOT_SHARED}: {unshared}" if unshared else None,
    }
    if shared is not Shared.NOT_YET:
        marks[NODE_HELD_ANNOTATION] = sharing.sentence if shared is Shared.HELD else None
    return replace(
        state,
        vram_bytes=amount,
        labels={**state.labels, **_marked(labels_of(node), {NODE_ASKS_LABEL: asks or None})},
        annotations={**state.annotations, **_marked(annotations_of(node), marks)},
    )


def _marked(carried: Mapping[str, Any], marks: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the marks that are to be set, or removed where they are carried."""
    return {key: value for key, value in marks.items() if value or key in carried}


def whole_gpus(node: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of resources in which a node offers whole GPUs, sorted."""
    return tuple(name for name in given_away(node) if name.startswith(WHOLE_GPU))


def given_away(node: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of resources in which others give a node's GPUs away, sorted.

    By allocatable or capacity: a kubelet keeps the capacity of a plugin that is gone for five
    minutes, and of one that calls all of its GPUs unhealthy for ever, while allocatable is 0. An
    amount that cannot be read counts as offered.
    """
    return tuple(sorted({*_offers(node, "allocatable"), *_offers(node, "capacity")}))


def has_offered(node: Mapping[str, Any]) -> bool:
    """Say whether others give GPUs away, or did at some time: the kubelet keeps the name."""
    return any(map(gives_gpus, _amounts(node, "capacity"))) or bool(given_away(node))


def _offers(node: Mapping[str, Any], part: str) -> list[str]:
    amounts = _amounts(node, part)
    return [name for name in amounts if gives_gpus(name) and is_more_than_nothing(amounts[name])]


def _amounts(node: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    amounts: Mapping[str, Any] = (node.get("status") or {}).get(part) or {}
    return amounts


def claimed_before(node: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the DRA drivers that offer a node's GPUs, or did five minutes ago, as it shows."""
    shown = str(annotations_of(node).get(NODE_DRA_ANNOTATION) or "")
    return tuple(filter(None, printable(shown, LONGEST_STORED).split(",")))


def why_held(node: Mapping[str, Any]) -> str:
    """Return why nothing more of a node's GPUs is promised; empty where it is not held."""
    why = annotations_of(node).get(NODE_HELD_ANNOTATION)
    if why is None:
        return ""
    return printable(str(why), LONGEST_HELD) or f"annotation {NODE_HELD_ANNOTATION}"


def is_advertised(node: Mapping[str, Any]) -> bool:
    """Say whether a node shows GPUs of ours, so that an agent that starts goes on sharing them.

    By the list of GPUs or the capacity. Labels alone say nothing: autoscalers set them beforehand.
    """
    capacity = (node.get("status") or {}).get("capacity") or {}
    return read_inventory(node).advertised or is_more_than_nothing(capacity.get(VRAM_RESOURCE, 0))


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


def listed(names: tuple[str, ...], count: int = 0) -> str:
    """Return the first names, and the number of those left out; `count` if there are more."""
    left = max(count, len(names)) - min(len(names), _NAMED)
    more = f" and {left} more" if left else ""
    return ", ".join(name[: 2 * LONGEST_LABEL] for name in names[:_NAMED]) + more
