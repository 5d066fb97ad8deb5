"""Lines that a person writes to request another amount, and counts of stops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from webhook.core.words import exactly
from webhook.names import GPU_MEMORY_ANNOTATION, VRAM_RESOURCE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from webhook.core.kinds.nodes import NodeFigures
    from webhook.tools.snapshot.pod import ClusterPod


def largest_gpu(nodes: Iterable[NodeFigures] | None) -> int | None:
    """Return the usable bytes of the largest GPU; None if no node's figures are known."""
    sizes = (gpu.usable_bytes for node in nodes or () for gpu in node.gpus)
    return max(sizes, default=None)


def line_for(pod: ClusterPod | None, amount_bytes: int, nodes: Iterable[NodeFigures] | None) -> str:
    """Return the line to write, so that a pod like this one gets an amount on each of its GPUs.

    | the pod's annotation gpu-memory | then |
    | --- | --- |
    | any, and no GPU has that amount | that, and what to do instead |
    | is one quantity, or the pod is gone | the annotation, to be copied |
    | is a list by container | the sum of its entries |
    | is absent: its containers say it themselves | the sum of their limits, per GPU |
    """
    asks, largest_bytes = exactly(amount_bytes), largest_gpu(nodes)
    if largest_bytes is not None and amount_bytes > largest_bytes:
        return f"no GPU here has {asks}: let it take less at a time, as by smaller batches"
    if pod is None:
        return f"{GPU_MEMORY_ANNOTATION}: {asks}"
    written = pod.annotations.get(GPU_MEMORY_ANNOTATION)
    if not isinstance(written, str):
        return f"{asks} per GPU in the limits {VRAM_RESOURCE}"
    if "=" in written:
        return f"{asks} in sum over the containers in {GPU_MEMORY_ANNOTATION}"
    return f"{GPU_MEMORY_ANNOTATION}: {asks}"


def stops_words(stops: int) -> str:
    """Return how often something was stopped."""
    if not stops:
        return "nothing was stopped"
    return "something was stopped " + ("once" if stops == 1 else f"{stops} times")
