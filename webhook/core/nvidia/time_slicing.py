"""Time-slicing: how NVIDIA's device plugin offers one GPU several times, and what it says of it.

Each slot is a turn on a GPU that the plugin chooses when the pod starts. Nothing divides the
memory, and a second slot may be of the same GPU and is worth no more.

Sources: README.md of NVIDIA/k8s-device-plugin (v0.20), "With CUDA Time-Slicing"; labels
`nvidia.com/gpu.sharing-strategy` and `.memory` of its GPU feature discovery (internal/lm).
"""

from __future__ import annotations

from typing import Final

TIME_SLICED: Final = {
    "key": "nvidia.com/gpu.sharing-strategy",
    "operator": "In",
    "values": ["time-slicing"],
}
"""Required of nodes: elsewhere the same resource is a whole GPU."""

CARD_MEMORY_LABEL: Final = "nvidia.com/gpu.memory"
"""MiB of one GPU of a node, all of it."""
