"""Other allocators of a node's GPUs, and how to remove each of them.

They are device plugins that offer whole GPUs, other products that share GPUs, and DRA drivers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from webhook.core.bounds import MAX_STRING_LENGTH
from webhook.core.documentation import Page
from webhook.core.formatting import join_names_within, replace_unprintable
from webhook.core.node.node_fields import node_annotations, node_labels
from webhook.core.pod.other_products import WHOLE_GPU
from webhook.core.pod.whole_gpus import AMD_DRA_DRIVER, is_gpu_resource, is_positive_amount
from webhook.names import NODE_DRA_ANNOTATION, NODE_SHARE_LABEL

SETTLE_S: Final = 60.0
"""Time without any sign of another allocator before a node begins to be shared, in seconds.

After a restart of the kubelet, a device plugin's amounts are 0 until it registers again. NVIDIA's
plugin tries every 30 s. A plugin that is new on its node waits for the driver and an image.
Sources: kubernetes/kubernetes, pkg/kubelet/cm/devicemanager/manager.go (readCheckpoint,
GetCapacity); NVIDIA/k8s-device-plugin, cmd/nvidia-device-plugin/main.go (startPlugins).
"""

YOUNG_S: Final = 600.0
"""Age of a node up to which NVIDIA's operator may still deploy its plugin or driver, in seconds."""

SLICE_GRACE_S: Final = 300.0
"""Time for which ResourceSlices count after they were deleted, in seconds.

A kubelet deletes the slices of a driver that restarts (kubernetes/kubernetes,
pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go).
"""
DEPLOY_PLUGIN_LABEL: Final = "nvidia.com/gpu.deploy.device-plugin"

DEPLOY_DRA_LABEL: Final = "nvidia.com/gpu.deploy.dra-driver"
"""Labels by which NVIDIA's operator deploys its device plugin and its DRA driver to a node.

The operator sets the label of the plugin even if the plugin is disabled (NVIDIA/gpu-operator,
controllers/state_manager.go).
"""
HAMI_ANNOTATION: Final = "hami.io/node-nvidia-register"

HAMI_AMD_ANNOTATION: Final = "hami.io/node-amd-register"
"""Annotations in which HAMi's device plugins list a node's GPUs."""
_BOTH_WAYS: Final = f", or share both ways ({NODE_SHARE_LABEL}=true)"

_PAGE: Final = "{page}"
"""Placeholder for the URL of `Page.PLUGIN_AFFINITY` in a remedy."""

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


@dataclass(frozen=True, slots=True)
class OtherAllocator:
    """Another allocator of a node's GPUs."""

    what: str
    names: tuple[str, ...]
    """Resources, drivers, annotations or labels that identify the allocator."""
    remedy: str
    """Step that removes the allocator from this node."""


def find_other_allocator(
    node: Mapping[str, Any], dra_drivers: tuple[str, ...] | None = (), age_s: float = float("inf")
) -> OtherAllocator | None:
    """Return the other allocator of a node's GPUs, or None if there is none.

    | sign | counts |
    | --- | --- |
    | a device plugin's amount | if it is above 0 (`find_allocator_resources`) |
    | a ResourceSlice with one of its GPUs, or of AMD's driver | as long as the caller passes it |
    | HAMi's annotation for AMD's GPUs | while it exists |
    | the label of NVIDIA's operator for its device plugin | while the node is young |
    | the label for its DRA driver, if slices cannot be read | while the node is young |
    """
    offered, labels = find_allocator_resources(node), node_labels(node)
    if offered:
        return _find_plugin(node, offered)
    if dra_drivers:
        remedy = _REMEDIES["amd" if dra_drivers == (AMD_DRA_DRIVER,) else "claims"]
        return OtherAllocator("a DRA driver gives the GPUs away", dra_drivers, remedy)
    if HAMI_AMD_ANNOTATION in node_annotations(node):
        what = "HAMi gives AMD's GPUs away"
        return OtherAllocator(what, (HAMI_AMD_ANNOTATION,), _REMEDIES["hami-amd"])
    expected = [DEPLOY_PLUGIN_LABEL, *([DEPLOY_DRA_LABEL] if dra_drivers is None else [])]
    for key in expected if age_s < YOUNG_S else ():
        if labels.get(key) == "true":
            what = "device plugin" if key == DEPLOY_PLUGIN_LABEL else "DRA driver"
            what = f"NVIDIA's operator is to bring its {what}"
            return OtherAllocator(what, (f"{key}=true",), _REMEDIES["operator"])
    return None


def _find_plugin(node: Mapping[str, Any], offered: tuple[str, ...]) -> OtherAllocator:
    if not any(name.startswith(WHOLE_GPU) for name in offered):
        return OtherAllocator("another product gives the GPUs away", offered, _REMEDIES["others"])
    if HAMI_ANNOTATION in node_annotations(node):
        remedy = "hami"
    elif node_labels(node).get(DEPLOY_PLUGIN_LABEL) != "false":
        remedy = "plugin"
    else:
        remedy = "heedless" if _offers(node, "allocatable") else "forgotten"
    return OtherAllocator("a device plugin offers the GPUs whole", offered, _REMEDIES[remedy])


def find_exclusion(label: str) -> OtherAllocator:
    """Return the label by which a cluster admin excludes the node, as an allocator."""
    what = f"its label {NODE_SHARE_LABEL} is"
    if label == "false":
        return OtherAllocator(f"{what} false", (), "remove it to share the node")
    return OtherAllocator(f"{what} neither true nor false", (label,), "correct it")


def find_allocator_resources(node: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the sorted names of resources by which other allocators offer a node's GPUs.

    Allocatable and capacity both count. A kubelet keeps the capacity of a removed plugin for five
    minutes, and the capacity of a plugin with only unhealthy GPUs forever, while allocatable is 0.
    A malformed amount counts as offered.
    """
    return tuple(sorted({*_offers(node, "allocatable"), *_offers(node, "capacity")}))


def had_other_allocator(node: Mapping[str, Any]) -> bool:
    """Return True if other allocators offer GPUs, or did: the kubelet keeps resource names."""
    return any(map(is_gpu_resource, _amounts(node, "capacity"))) or bool(
        find_allocator_resources(node)
    )


def _offers(node: Mapping[str, Any], part: str) -> list[str]:
    amounts = _amounts(node, part)
    return [name for name in amounts if is_gpu_resource(name) and is_positive_amount(amounts[name])]


def _amounts(node: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    amounts: Mapping[str, Any] = (node.get("status") or {}).get(part) or {}
    return amounts


def read_dra_drivers(node: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the DRA drivers in a node's annotation, which offer its GPUs or did recently."""
    drivers = str(node_annotations(node).get(NODE_DRA_ANNOTATION) or "")
    return tuple(filter(None, replace_unprintable(drivers, MAX_STRING_LENGTH).split(",")))


def allocator_sentence(found: OtherAllocator, then: str, documentation_url: str) -> str:
    """Return cause and remedy, with the page's URL if the first name still fits."""
    name = "".join(found.names[:1])
    for pattern in (documentation_url, ""):
        remedy = found.remedy.replace(_PAGE, Page.PLUGIN_AFFINITY.url(pattern))
        ending = f"{then}; {remedy}"
        if len(f"{found.what} ({name}){ending}") <= MAX_STRING_LENGTH:
            break
    return limited_sentence(found.what, found.names, ending)


def limited_sentence(what: str, names: tuple[str, ...], then: str, count: int = 0) -> str:
    """Return `what (names)then` in at most 256 characters; only the names are shortened."""
    room = MAX_STRING_LENGTH - len(f"{what} (){then}")
    return f"{what} ({join_names_within(names, room, count)}){then}" if names else what + then
