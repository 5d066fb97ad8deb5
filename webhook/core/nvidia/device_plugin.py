"""Parts of a GPU that NVIDIA's device plugin offers: MIG slices and slots of time-slicing.

With the MIG strategy `mixed` a node offers the resource `nvidia.com/mig-1g.10gb` for each profile.
Its label `nvidia.com/mig-1g.10gb.memory` has the memory of one slice that NVML reports, in MiB.
That is less than the profile's name suggests: 1g.10gb of an A100 with 80 GB has 9728 MiB. Amounts
are therefore read from labels, never from names.

With time-slicing each slot is a turn on a GPU that the plugin chooses when the pod starts. The
memory is not divided. A second slot may be on the same GPU and adds nothing.

Sources: internal/rm/rm.go and README.md ("With CUDA Time-Slicing") of NVIDIA/k8s-device-plugin
(v0.20), internal/lm of its GPU feature discovery; NVIDIA Multi-Instance GPU User Guide, "MIG Device
Names".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from webhook.core.pod.quantity import MIB

MIG_PREFIX: Final = "nvidia.com/mig-"
MIXED_STRATEGY_LABEL: Final = {"nvidia.com/mig.strategy": "mixed"}
"""Label of nodes that offer MIG slices by profile."""
MIG_PROFILE: Final = r"[1-9][0-9]{0,2}g\.[1-9][0-9]{0,3}gb"
"""Regular expression that matches a profile without suffixes: a GPU has only one slice such as
`1g.10gb.me`."""

TIME_SLICING_NODES: Final = {
    "key": "nvidia.com/gpu.sharing-strategy",
    "operator": "In",
    "values": ["time-slicing"],
}
"""Node selector term for time-slicing: on other nodes the resource is a whole GPU."""

CARD_MEMORY_LABEL: Final = "nvidia.com/gpu.memory"
"""Label with the total memory of one GPU of a node, in MiB."""

_MEMORY_LABEL: Final = re.compile(rf"nvidia\.com/mig-({MIG_PROFILE})\.memory")
_MIB: Final = re.compile("[1-9][0-9]{0,8}")


def mig_resource(profile: str) -> str:
    """Return the resource of a MIG profile."""
    return f"{MIG_PREFIX}{profile}"


def mig_memory_label(resource: str) -> str:
    """Return the label with the memory of one slice, given the slice's resource."""
    return f"{resource}.memory"


def is_mig_slice(resource: str) -> bool:
    """Return True if a resource is a MIG slice of any profile."""
    return resource.startswith(MIG_PREFIX)


def read_mig_profiles(labels: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes of one slice, keyed by profile, from a node's labels.

    Users who may label nodes can write these labels, so invalid amounts are left out.
    """
    found: dict[str, int] = {}
    for key, value in labels.items():
        named = _MEMORY_LABEL.fullmatch(key)
        if named and type(value) is str and _MIB.fullmatch(value):
            found[named[1]] = int(value) * MIB
    return found
