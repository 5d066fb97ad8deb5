"""Decide whether a node's GPUs are shared by memory: each card has one allocator.

A GPU that another allocator gives away is not shared, unless a cluster admin wants both. Other
allocators are a device plugin that offers whole GPUs, another product that shares them, and a DRA
driver. A node begins to be shared only once its GPUs are free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from webhook.core.bounds import LONGEST_STORED
from webhook.core.documentation import Page
from webhook.core.formatting import join_names_within, replace_unprintable
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
from webhook.core.node.verdict import SharingCode, SharingVerdict
from webhook.core.pod.foreign import WHOLE_GPU
from webhook.core.pod.quantity import MIB
from webhook.core.pod.whole import AMD_DRA_DRIVER, gives_gpus, is_more_than_nothing
from webhook.names import (
    NODE_ASKS_LABEL,
    NODE_DRA_ANNOTATION,
    NODE_SHARE_LABEL,
    NODE_SHARING_ANNOTATION,
    VRAM_RESOURCE,
)

FREE_BYTES: Final = 256 * MIB
"""Largest amount in use on a GPU that counts as free.

A CUDA context takes more. A display server or a persistence daemon takes less.
"""

SETTLE_S: Final = 60.0
"""Time without any sign of another allocator before a node begins to be shared, in seconds.

After a kubelet restarts, a device plugin's amounts are 0 until it registers again, which NVIDIA's
tries every 30 s. A plugin that is new on its node waits for the driver and an image.
Sources: kubernetes/kubernetes, pkg/kubelet/cm/devicemanager/manager.go (readCheckpoint,
GetCapacity); NVIDIA/k8s-device-plugin, cmd/nvidia-device-plugin/main.go (startPlugins).
"""

YOUNG_S: Final = 600.0
"""Age of a node up to which NVIDIA's operator may still bring its plugin or driver, in seconds."""

CLAIMED_S: Final = 300.0
"""Time for which ResourceSlices count after they were deleted, in seconds.

A kubelet deletes the slices of a driver that restarts (kubernetes/kubernetes,
pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go).
"""

DEPLOY_PLUGIN_LABEL: Final = "nvidia.com/gpu.deploy.device-plugin"
DEPLOY_DRA_LABEL: Final = "nvidia.com/gpu.deploy.dra-driver"
"""Labels by which NVIDIA's operator brings its device plugin and its DRA driver to a node.

It sets the first one even if the plugin is disabled (NVIDIA/gpu-operator,
controllers/state_manager.go).
"""
HAMI_ANNOTATION: Final = "hami.io/node-nvidia-register"
HAMI_AMD_ANNOTATION: Final = "hami.io/node-amd-register"
"""Annotations in which HAMi's device plugins list a node's GPUs."""

_BOTH_WAYS: Final = f", or share both ways ({NODE_SHARE_LABEL}=true)"
_PAGE: Final = "{page}"
"""Stands in a remedy for `Page.PLUGIN_AFFINITY`."""
_REMEDIES: Final = {
    "plugin": f"label the node {DEPLOY_PLUGIN_LABEL}=false{_BOTH_WAYS}",
    "heedless": (
        f"it ignores {DEPLOY_PLUGIN_LABEL}=false: give its DaemonSet the affinity of {_PAGE}"
    ),
    "forgotten": (
        "the plugin is gone, and the kubelet forgets it within five minutes: wait, or share at "
        f"once ({NODE_SHARE_LABEL}=true)"
    ),
    "hami": f"take HAMi's device plugin off by removing the node's label `gpu`{_BOTH_WAYS}",
    "hami-amd": f"take HAMi's AMD plugin off the node and remove the annotation{_BOTH_WAYS}",
    "others": f"take that product's device plugin off the node{_BOTH_WAYS}",
    "operator": (
        "wait until the node is ten minutes old; if none comes, share at once "
        f"({NODE_SHARE_LABEL}=true)"
    ),
    "claims": (
        f"take the driver off the node (NVIDIA's operator: {DEPLOY_DRA_LABEL}=false){_BOTH_WAYS}"
    ),
    "amd": f"take AMD's driver off the node{_BOTH_WAYS}",
}


class Shared(Enum):
    """What the agent does with a node's GPUs."""

    YES = "they are advertised"
    DRAINING = "what pods have stays advertised; nothing more is promised"
    NO = "they are not advertised; what was advertised is withdrawn"
    NOT_YET = "they will be advertised, but cannot be yet; only the verdict is written"


@dataclass(frozen=True, slots=True)
class Sharing:
    """Decision on a node's GPUs."""

    shared: Shared
    reason: EventReason | None = None
    """Reason of the Event that reports it; None if there is none."""
    sentence: str = ""
    """Cause and remedy; empty if the GPUs are shared."""

    def verdict(self, unshared: str, *, has_gpus: bool) -> SharingVerdict:
        """Return what the node shows; `unshared` is the sentence about GPUs without memory."""
        if self.shared is not Shared.YES:
            waits = SharingCode.IN_USE if self.reason else SharingCode.SETTLING
            codes = {Shared.NO: SharingCode.NOT_SHARED, Shared.DRAINING: SharingCode.DRAINING}
            return SharingVerdict(codes.get(self.shared, waits), self.sentence)
        if not has_gpus:
            return SharingVerdict(SharingCode.NONE_FIT, unshared or _NO_GPU)
        if unshared:
            return SharingVerdict(SharingCode.SOME_UNFIT, unshared)
        return SharingVerdict(SharingCode.SHARED, "its GPUs are shared by memory")


_NO_GPU: Final = "the driver shows no GPU that could be shared (MIG mode?); see its agent's log"


@dataclass(frozen=True, slots=True)
class OtherAllocator:
    """Another allocator that gives a node's GPUs away."""

    what: str
    names: tuple[str, ...]
    """Resources, drivers, annotations or labels by which it shows."""
    remedy: str
    """Step that ends it on this node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingInputs:
    """Facts about a node that its object does not show."""

    claimed_by: tuple[str, ...] | None = ()
    """Drivers that offer its GPUs in ResourceSlices; None if slices cannot be read."""
    age_s: float = float("inf")
    """Time since its creation."""
    settles: bool = False
    """True if no other allocator is found, but one was a moment ago, or may come."""
    shares: bool
    """True if its GPUs are advertised already."""
    draining: str = ""
    """Why the node drained when it was last judged; empty if it did not."""
    has_pods: bool | None
    """True if pods have VRAM there; None if unknown."""
    in_use: tuple[str, ...] | None
    """See `gpus_in_use`."""
    whole_pods: tuple[str, ...] | None = ()
    """First pods that run there with whole GPUs, as `namespace/name`; None if not known yet."""
    whole_count: int = 0
    """Number of these pods, if it is larger."""
    documentation_url: str = ""
    """See `core.documentation`."""


def judge(node: Mapping[str, Any], inputs: SharingInputs) -> Sharing:
    """Decide whether a node's GPUs are shared.

    | offered | `share` | advertised | pods | in use | shared | reason |
    | --- | --- | --- | --- | --- | --- | --- |
    | no | absent or true | no | - | no | YES | - |
    | no | absent or true | no | - | yes | NOT_YET | DrainWholeGPUPods |
    | no | absent or true | no | - | unknown | NOT_YET | - |
    | no | absent or true | yes or draining | - | - | YES | - |
    | settles | absent | no | - | no or unknown | NOT_YET | - |
    | settles | absent | no | - | yes | NOT_YET | DrainWholeGPUPods |
    | settles | absent | yes | - | - | YES | - |
    | settles | absent | draining | - | - | DRAINING | SharedBesidePlugin |
    | yes or settles | true | no | - | no | YES | - |
    | yes or settles | true | no | - | yes | NOT_YET | DrainWholeGPUPods |
    | yes or settles | true | no | - | unknown | NOT_YET | - |
    | yes or settles | true | yes or draining | - | - | YES | - |
    | yes | absent | no | - | - | NO | GPUsNotShared |
    | yes | absent | yes or draining | no | - | NO | GPUsNotShared |
    | yes | absent | yes or draining | yes or unknown | - | DRAINING | SharedBesidePlugin |
    | - | false | no | - | - | NO | - |
    | - | false | yes or draining | no | - | NO | - |
    | - | false | yes or draining | yes or unknown | - | DRAINING | SharedUntilPodsEnd |
    | - | anything else | no | - | - | NO | GPUsNotShared |
    | - | anything else | yes or draining | no | - | NO | GPUsNotShared |
    | - | anything else | yes or draining | yes or unknown | - | DRAINING | SharedUntilPodsEnd |

    Offered is what `find_other_allocator` finds. Advertised and draining are inputs. In use is a
    GPU (`gpus_in_use`) or, if `share` is absent, one that a pod has whole. Capacity is never
    lowered under a pod: the kubelet would fail that pod when it restarts.
    """
    label = labels_of(node).get(NODE_SHARE_LABEL)
    found = find_other_allocator(node, inputs.claimed_by, inputs.age_s)
    stays = inputs.shares and inputs.has_pods is not False
    reason = EventReason.BESIDE_PLUGIN if label is None else EventReason.UNTIL_PODS_END
    if label not in {None, "true"}:
        found = _find_exclusion(str(label))
    if found and label != "true":
        if stays:
            then = " while pods may have VRAM here, so a card may be given twice"
            sentence = _allocator_sentence(found, then, inputs.documentation_url)
            return Sharing(Shared.DRAINING, reason, sentence)
        sentence = _allocator_sentence(found, "", inputs.documentation_url)
        return Sharing(Shared.NO, None if label == "false" else EventReason.NOT_SHARED, sentence)
    settles = inputs.settles and label is None
    if inputs.shares:
        if settles and inputs.draining:
            return Sharing(Shared.DRAINING, EventReason.BESIDE_PLUGIN, inputs.draining)
        return Sharing(Shared.YES)
    whole_pods = inputs.whole_pods if label is None else ()
    if inputs.in_use or whole_pods:
        return Sharing(Shared.NOT_YET, EventReason.DRAIN, _in_use(inputs, whole_pods or ()))
    waits = [
        what
        for what, is_awaited in (
            ("the driver", inputs.in_use is None),
            ("a replica of the webhook", whole_pods is None),
            ("any sign of another allocator", settles),
        )
        if is_awaited
    ]
    if waits:
        sentence = f"its agent waits for {', '.join(waits)}; if it still does in ten minutes, see "
        return Sharing(Shared.NOT_YET, sentence=f"{sentence}the agent's log")
    return Sharing(Shared.YES)


def _sentence(what: str, names: tuple[str, ...], then: str, count: int = 0) -> str:
    """Return `what (names)then` in at most 256 characters; only the names are shortened for that.

    `count` is the number of all names, if it is larger.
    """
    room = LONGEST_STORED - len(f"{what} (){then}")
    return f"{what} ({join_names_within(names, room, count)}){then}" if names else what + then


def _allocator_sentence(found: OtherAllocator, then: str, documentation_url: str) -> str:
    """Return cause and remedy; the page's URL only if it leaves room for the first name."""
    name = "".join(found.names[:1])
    for pattern in (documentation_url, ""):
        remedy = found.remedy.replace(_PAGE, Page.PLUGIN_AFFINITY.at(pattern))
        ending = f"{then}; {remedy}"
        if len(f"{found.what} ({name}){ending}") <= LONGEST_STORED:
            break
    return _sentence(found.what, found.names, ending)


def _in_use(inputs: SharingInputs, whole_pods: tuple[str, ...]) -> str:
    then = "; drain the whole-GPU pods first: the node is shared once its GPUs are free"
    if whole_pods:
        what = "pods have whole GPUs, even if they use nothing"
        return _sentence(what, whole_pods, then, inputs.whole_count)
    return _sentence("more than 256Mi, or an unknown amount, are in use", inputs.in_use or (), then)


def find_other_allocator(
    node: Mapping[str, Any], claimed_by: tuple[str, ...] | None = (), age_s: float = float("inf")
) -> OtherAllocator | None:
    """Return the other allocator of a node's GPUs; None if there is none.

    | sign | counts |
    | --- | --- |
    | a device plugin's amount | if capacity or allocatable is above 0 (`other_allocators`) |
    | a ResourceSlice with one of its GPUs, or of AMD's driver | as long as the caller passes it |
    | HAMi's annotation for AMD's GPUs | while it exists |
    | the label of NVIDIA's operator for its device plugin | while the node is young |
    | the label for its DRA driver, if slices cannot be read | while the node is young |
    """
    offered, labels = other_allocators(node), labels_of(node)
    if offered:
        return _find_plugin(node, offered)
    if claimed_by:
        remedy = _REMEDIES["amd" if claimed_by == (AMD_DRA_DRIVER,) else "claims"]
        return OtherAllocator("a DRA driver gives the GPUs away", claimed_by, remedy)
    if HAMI_AMD_ANNOTATION in annotations_of(node):
        what = "HAMi gives AMD's GPUs away"
        return OtherAllocator(what, (HAMI_AMD_ANNOTATION,), _REMEDIES["hami-amd"])
    expected = [DEPLOY_PLUGIN_LABEL, *([DEPLOY_DRA_LABEL] if claimed_by is None else [])]
    for key in expected if age_s < YOUNG_S else ():
        if labels.get(key) == "true":
            what = "device plugin" if key == DEPLOY_PLUGIN_LABEL else "DRA driver"
            what = f"NVIDIA's operator is to bring its {what}"
            return OtherAllocator(what, (f"{key}=true",), _REMEDIES["operator"])
    return None


def _find_plugin(node: Mapping[str, Any], offered: tuple[str, ...]) -> OtherAllocator:
    if not any(name.startswith(WHOLE_GPU) for name in offered):
        return OtherAllocator("another product gives the GPUs away", offered, _REMEDIES["others"])
    if HAMI_ANNOTATION in annotations_of(node):
        remedy = "hami"
    elif labels_of(node).get(DEPLOY_PLUGIN_LABEL) != "false":
        remedy = "plugin"
    else:
        remedy = "heedless" if _offers(node, "allocatable") else "forgotten"
    return OtherAllocator("a device plugin offers the GPUs whole", offered, _REMEDIES[remedy])


def _find_exclusion(label: str) -> OtherAllocator:
    """Return the cluster admin's label in the place of an allocator."""
    what = f"its label {NODE_SHARE_LABEL} is"
    if label == "false":
        return OtherAllocator(f"{what} false", (), "remove it to share the node")
    return OtherAllocator(f"{what} neither true nor false", (label,), "correct it")


def apply_sharing(
    node: Mapping[str, Any],
    whole: NodeState,
    sharing: Sharing,
    *,
    promised_bytes: int | None = None,
    question: str = "",
    claimed_by: tuple[str, ...] = (),
    unshared: str = "",
) -> NodeState:
    """Return what a node should carry, given what it would carry if its GPUs are shared.

    `promised_bytes`: amount that its pods have, None if unknown. `question`: the question for pods
    with whole GPUs, empty for none. `claimed_by`: DRA drivers that offer its GPUs, which the next
    agent has to know before they come back. `unshared`: see `Inventory`.

    If the node shows no GPUs of ours nothing is withdrawn: its labels belong to another controller,
    and may be what brings the agent there. A node that drains shows what its pods have, or what it
    shows already while that is unknown. The verdict on such a node stays while it is judged anew.
    """
    shared, is_shown = sharing.shared, is_advertised(node)
    state = {Shared.NO: withdrawn(), Shared.NOT_YET: NodeState()}.get(shared, whole)
    if state == withdrawn() and not is_shown:
        state = NodeState()
    amount = state.vram_bytes
    if shared is Shared.DRAINING and amount:
        amount = shown_vram(node) or amount
        amount = amount if promised_bytes is None else min(promised_bytes, state.vram_bytes or 0)
    marks = {NODE_DRA_ANNOTATION: ",".join(claimed_by)[:LONGEST_STORED] or None}
    if shared is not Shared.NOT_YET or not is_shown:
        verdict = sharing.verdict(unshared, has_gpus=bool(state.vram_bytes))
        marks[NODE_SHARING_ANNOTATION] = str(verdict)
    return replace(
        state,
        vram_bytes=amount,
        labels={**state.labels, **_marked(labels_of(node), {NODE_ASKS_LABEL: question or None})},
        annotations={**state.annotations, **_marked(annotations_of(node), marks)},
    )


def _marked(carried: Mapping[str, Any], marks: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the marks that are to be set, or removed where they are carried."""
    return {key: value for key, value in marks.items() if value or key in carried}


def other_allocators(node: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of resources by which others give a node's GPUs away, sorted.

    Allocatable and capacity count. A kubelet keeps the capacity of a plugin that is gone for five
    minutes, and of one whose GPUs are all unhealthy forever, while allocatable is 0. An amount that
    cannot be read counts as offered.
    """
    return tuple(sorted({*_offers(node, "allocatable"), *_offers(node, "capacity")}))


def had_other_allocator(node: Mapping[str, Any]) -> bool:
    """Return True if others give GPUs away, or did at some time: the kubelet keeps the name."""
    return any(map(gives_gpus, _amounts(node, "capacity"))) or bool(other_allocators(node))


def _offers(node: Mapping[str, Any], part: str) -> list[str]:
    amounts = _amounts(node, part)
    return [name for name in amounts if gives_gpus(name) and is_more_than_nothing(amounts[name])]


def _amounts(node: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    amounts: Mapping[str, Any] = (node.get("status") or {}).get(part) or {}
    return amounts


def claimed_before(node: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the DRA drivers that offer a node's GPUs, or did five minutes ago, as it shows."""
    shown = str(annotations_of(node).get(NODE_DRA_ANNOTATION) or "")
    return tuple(filter(None, replace_unprintable(shown, LONGEST_STORED).split(",")))


def is_advertised(node: Mapping[str, Any]) -> bool:
    """Return True if a node shows GPUs of ours, so that an agent that starts keeps sharing them.

    The list of GPUs or the capacity decides. Labels do not count: autoscalers set them beforehand.
    """
    capacity = (node.get("status") or {}).get("capacity") or {}
    return read_inventory(node).advertised or is_more_than_nothing(capacity.get(VRAM_RESOURCE, 0))


def gpus_in_use(scan: Scan | None) -> tuple[str, ...] | None:
    """Return the UUIDs of GPUs on which more than 256Mi, or an unknown amount, are in use.

    GPUs that would not be shared are left out. None if the driver gave no answer.
    """
    if scan is None or scan.failed:
        return None
    aside = skipped(scan)
    return tuple(
        gpu.uuid
        for gpu in scan.gpus
        if gpu.uuid not in aside and (gpu.used_bytes is None or gpu.used_bytes > FREE_BYTES)
    )
