"""What the scheduler counts for a share of a GPU, and which nodes may have one.

Today that is bytes of an extended resource; no other file of this room knows it. Amounts that a pod
writes itself are read by `webhook.core.pod.demand`.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from webhook.core.pod.gpus import free_label
from webhook.core.pod.quantity import MIB, QuantityError, format_bytes, parse_quantity
from webhook.core.pod.views import effective_amount
from webhook.names import NODE_GPU_MEMORY_LABEL, VRAM_RESOURCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.core.pod.demand import Demand
    from webhook.core.pod.fields import Json
    from webhook.core.pod.patch import Edits
    from webhook.core.pod.views import Container, Pod

_KINDS: Final = ("requests", "limits")


def count(edits: Edits, place: str, container: Json, demand: Demand) -> None:
    """Set requests and limits of what the container at a place gets."""
    amount = demand.amounts.get(container["name"])
    if amount is None:
        return
    amount_bytes = amount * demand.gpu_count
    written = format_bytes(amount_bytes)
    resources = container.get("resources")
    if not resources:
        ours = {kind: {VRAM_RESOURCE: written} for kind in _KINDS}
        edits.put(place, "resources", ours)
        return
    for kind in _KINDS:
        amounts = resources.get(kind)
        present = amounts.get(VRAM_RESOURCE) if amounts else None
        if present != written and not _equals(present, amount_bytes):
            edits.merge(f"{place}/resources", kind, amounts, {VRAM_RESOURCE: written})


def uncounted(container: Container, demand: Demand) -> Iterator[str]:
    """Yield the paths where a container with VRAM lacks what `count` writes."""
    amount_bytes = demand.resource_bytes(container.name)
    for kind in _KINDS:
        if not _equals(container.resources(kind).get(VRAM_RESOURCE), amount_bytes):
            yield f"{container.path}.resources.{kind}"


def counted_limits(container: Container) -> dict[str, str | None]:
    """Return what is counted for a container and cannot change, by resource."""
    return {VRAM_RESOURCE: container.resources("limits").get(VRAM_RESOURCE)}


def counted_bytes(pod: Pod) -> int | None:
    """Return what the scheduler would count for a pod; None where an amount cannot be read."""
    amounts = {}
    for container in pod.containers:
        request = container.resources("requests").get(VRAM_RESOURCE)
        written = request or container.resources("limits").get(VRAM_RESOURCE)
        try:
            amounts[container.name] = ceil(parse_quantity(written)) if written else 0
        except QuantityError:
            return None
    return effective_amount(pod.containers, amounts, 0)


def required_on_nodes(demand: Demand) -> Json:
    """Build the required node affinity: a GPU that is large enough, whoever uses it now."""
    return _more_than(NODE_GPU_MEMORY_LABEL, demand)


def preferred_on_nodes(demand: Demand) -> Json:
    """Build the preferred node affinity: as many GPUs as needed have room now."""
    return _more_than(free_label(demand.gpu_count), demand)


def _more_than(label: str, demand: Demand) -> Json:
    need_mib = demand.per_gpu_bytes // MIB
    return {"key": label, "operator": "Gt", "values": [str(need_mib - 1)]}


def _equals(written: object, amount_bytes: int) -> bool:
    try:
        return written is not None and parse_quantity(str(written)) == amount_bytes
    except QuantityError:
        return False
