"""Parts of a GPU that NVIDIA's device plugin offers: MIG slices and slots of time-slicing.

With the MIG strategy `mixed` a node offers the resource `nvidia.com/mig-1g.10gb` for each profile,
and bears the label `nvidia.com/mig-1g.10gb.memory`: what NVML reports of one slice, in MiB. The
name says more than that (1g.10gb of an A100 with 80 GB has 9728 MiB), so no name is ever believed.

With time-slicing each slot is a turn on a GPU that the plugin chooses when the pod starts. Nothing
divides the memory, and a second slot may be of the same GPU and is worth no more.

Sources: internal/rm/rm.go and README.md ("With CUDA Time-Slicing") of NVIDIA/k8s-device-plugin
(v0.20), internal/lm of its GPU feature discovery; NVIDIA Multi-Instance GPU User Guide, "MIG Device
ValueKind".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from webhook.core.pod.quantity import MIB

MIG_PREFIX: Final = "nvidia.com/mig-"
MIXED_STRATEGY_LABEL: Final = {"nvidia.com/mig.strategy": "mixed"}
"""The label of nodes that offer slices by profile."""
MIG_PROFILE: Final = r"[1-9][0-9]{0,2}g\.[1-9][0-9]{0,3}gb"
"""Without suffixes: a GPU has `1g.10gb.me`, with the media engines, only once."""

TIME_SLICING_NODES: Final = {
    "key": "nvidia.com/gpu.sharing-strategy",
    "operator": "In",
    "values": ["time-slicing"],
}
"""Required of nodes: elsewhere the same resource is a whole GPU."""

CARD_MEMORY_LABEL: Final = "nvidia.com/gpu.memory"
"""MiB of one GPU of a node, all of it."""

_MEMORY_LABEL: Final = re.compile(rf"nvidia\.com/mig-({MIG_PROFILE})\.memory")
_MIB: Final = re.compile("[1-9][0-9]{0,8}")


def mig_resource(profile: str) -> str:
    """Return the resource of a profile."""
    return f"{MIG_PREFIX}{profile}"


def mig_memory_label(resource: str) -> str:
    """Return the label that says how much memory a slice has, by its resource."""
    return f"{resource}.memory"


def is_mig_slice(resource: str) -> bool:
    """Say whether a resource is a slice, of whatever profile."""
    return resource.startswith(MIG_PREFIX)


def read_mig_profiles(labels: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes of one slice of each profile that a node's labels name.

    Anybody who may label nodes can write them; what is no amount is left out.
    """
    found: dict[str, int] = {}
    for key, value in labels.items():
        named = _MEMORY_LABEL.fullmatch(key)
        if named and type(value) is str and _MIB.fullmatch(value):
            found[named[1]] = int(value) * MIB
    return found
