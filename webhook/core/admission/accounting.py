"""Resources that the scheduler counts for a share of a GPU, and nodes that may provide it.

| the rule's accounting | a container with VRAM requests | only nodes |
| --- | --- | --- |
| VRAM | bytes of our resource | whose largest GPU has the pod's amount |
| MIG | slices of the smallest profile that has its amount | whose slices have that much memory |
| CapOnly | one slot of NVIDIA's time-slicing | whose time-sliced GPUs have the pod's amount |

`webhook.core.pod.demand` reads the amounts that a pod's author writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Final

from webhook.core.nvidia.device_plugin import (
    CARD_MEMORY_LABEL,
    TIME_SLICING_NODES,
    is_mig_slice,
    mig_memory_label,
    mig_resource,
)
from webhook.core.pod.demand import Demand
from webhook.core.pod.fields import Json
from webhook.core.pod.gpus import free_memory_label
from webhook.core.pod.patch import Edits
from webhook.core.pod.quantity import (
    MIB,
    QuantityError,
    canonicalize,
    format_bytes,
    parse_quantity,
    parse_quantity_or,
)
from webhook.core.pod.views import Container, Pod, effective_amount
from webhook.core.policy.cluster import Cluster, SlicedNode, find_smallest_profiles
from webhook.core.policy.model import Accounting, GPUClass, Policy, Rule
from webhook.names import ADMITTED_ANNOTATION, NODE_GPU_MEMORY_LABEL, VRAM_RESOURCE

_KINDS: Final = ("requests", "limits")
_NO_SLICE: Final = mig_resource("unknown")
"""Resource that no pod requests, in place of the slice that a stored pod lacks."""


# Not frozen, like `views.Pod`, since each review creates one and creation would be slower.
@dataclass(slots=True)
class CountedAmounts:
    """Amounts that the scheduler counts for a pod; immutable by convention."""

    amounts: Mapping[str, tuple[str, int]]
    """Resource and amount that each container with VRAM requests, keyed by container name."""
    on_nodes: tuple[Json, ...]
    """Required node affinity for nodes whose GPUs or slices are large enough."""
    replaces: Callable[[str], bool] | None = None
    """Predicate for resources that an earlier translation wrote; None if it wrote none."""
    replaced_labels: frozenset[str] = frozenset()
    """Node labels in an earlier translation's affinity that are no longer used."""
    unit: int = 1
    """Unit in bytes. An explicit amount matches, and stays unchanged, if it is equal after
    rounding up to a multiple of the unit."""

    def matches(self, container: str, written: object) -> bool:
        """Return True if an explicit amount of a container with VRAM equals the counted amount."""
        value = None if written is None else parse_quantity_or(written, None)
        if value is None or value.denominator != 1:
            return False
        return -(-value // self.unit) * self.unit == self.amounts[container][1]


def count_amounts(
    pod: Pod, demand: Demand, rule: Rule, policy: Policy, cluster: Cluster, *, stored: bool = False
) -> CountedAmounts:
    """Return the amounts for a pod. `rule` is the rule for the pod's class (`Rule.for_class`).

    A pod that is about to be `stored` keeps its slices: the choice of the smallest fitting slices
    depends on the cluster, which may have changed since.
    """
    if rule.accounting is Accounting.MIG:
        return _slices(pod, demand, rule, policy, cluster, stored=stored)
    if rule.accounting is Accounting.CAP_ONLY:
        slot = (rule.time_sliced_resource, 1)
        on_nodes = (TIME_SLICING_NODES, _at_least(CARD_MEMORY_LABEL, demand.per_gpu_bytes))
        return CountedAmounts(dict.fromkeys(demand.amounts, slot), on_nodes, _is_vram)
    amounts = {
        name: (VRAM_RESOURCE, amount * demand.gpu_count) for name, amount in demand.amounts.items()
    }
    large_enough = _at_least(NODE_GPU_MEMORY_LABEL, demand.per_gpu_bytes)
    return CountedAmounts(amounts, (large_enough,), unit=demand.gpu_count * MIB)


def _slices(
    pod: Pod, demand: Demand, rule: Rule, policy: Policy, cluster: Cluster, *, stored: bool
) -> CountedAmounts:
    present = {
        container.name: resource
        for container in pod.containers
        if container.name in demand.amounts
        for resource in container.resources("limits")
        if is_mig_slice(resource)
    }
    if stored:
        chosen = {name: present.get(name, _NO_SLICE) for name in demand.amounts}
    else:
        gpu_class = policy.class_for(demand.gpu_class or rule.default_class)
        nodes = selected_nodes(pod, rule, gpu_class, cluster)
        profiles = find_smallest_profiles(nodes, [*demand.amounts.values()]) or {}
        chosen = {
            name: mig_resource(profiles[amount]) if amount in profiles else _NO_SLICE
            for name, amount in demand.amounts.items()
        }
    needs: dict[str, int] = {}
    for name, resource in chosen.items():
        needs[resource] = max(needs.get(resource, 0), demand.amounts[name])
    return CountedAmounts(
        {name: (resource, demand.gpu_count) for name, resource in chosen.items()},
        tuple(_at_least(mig_memory_label(resource), need) for resource, need in needs.items()),
        lambda resource: _is_vram(resource) or is_mig_slice(resource),
        frozenset(map(mig_memory_label, {*present.values()} - {*chosen.values()})),
    )


def selected_nodes(
    pod: Pod, rule: Rule, gpu_class: GPUClass | None, cluster: Cluster
) -> list[SlicedNode]:
    """Return the nodes with slices that match the node selector of the translated pod."""
    selector = {**(pod.spec.get("nodeSelector") or {}), **rule.node_selector_for(gpu_class)}
    return [node for node in cluster.sliced_nodes if node.is_selected(selector)]


def is_translation_resource(pod: Pod, resource: str, amount: str, rule: Rule) -> bool:
    """Return True if translation writes a resource, now or at an earlier creation of the pod.

    | the rule's accounting | resources of translation |
    | --- | --- |
    | VRAM | none: slices and slots were written by the user |
    | MIG | any slice, in a pod with our annotation; translation chooses which |
    | CapOnly | one slot, which a user may write as well |
    """
    if rule.accounting is Accounting.MIG:
        return is_mig_slice(resource) and ADMITTED_ANNOTATION in pod.annotations
    is_slot = rule.accounting is Accounting.CAP_ONLY and resource == rule.time_sliced_resource
    return is_slot and parse_quantity_or(amount, None) == 1


def write_amounts(edits: Edits, place: str, container: Json, counted: CountedAmounts) -> None:
    """Write requests and limits of the container at `place`.

    An explicit amount stays unchanged. A missing request becomes the limit.
    """
    name = container["name"]
    if name not in counted.amounts:
        return
    resource, amount = counted.amounts[name]
    written = format_bytes(amount)
    resources = container.get("resources")
    if not resources:
        edits.put(place, "resources", {kind: {resource: written} for kind in _KINDS})
        return
    limit = (resources.get("limits") or {}).get(resource)
    if counted.matches(name, limit):
        written = canonicalize(str(limit))
    for kind in _KINDS:
        amounts = resources.get(kind)
        if counted.replaces:
            for other in amounts or ():
                if other != resource and counted.replaces(other):
                    edits.remove(f"{place}/resources/{kind}", other)
        if not counted.matches(name, amounts.get(resource) if amounts else None):
            edits.merge(f"{place}/resources", kind, amounts, {resource: written})


def find_missing_amounts(container: Container, counted: CountedAmounts) -> Iterator[str]:
    """Yield the paths at which a container with VRAM lacks amounts that `write_amounts` writes."""
    resource, _ = counted.amounts[container.name]
    for kind in _KINDS:
        if not counted.matches(container.name, container.resources(kind).get(resource)):
            yield f"{container.path}.resources.{kind}"


def requested_bytes(pod: Pod) -> int | None:
    """Return the bytes of VRAM that the scheduler counts, or None if an amount is invalid."""
    amounts = {}
    for container in pod.containers:
        request = container.resources("requests").get(VRAM_RESOURCE)
        written = request or container.resources("limits").get(VRAM_RESOURCE)
        try:
            amounts[container.name] = ceil(parse_quantity(written)) if written else 0
        except QuantityError:
            return None
    return effective_amount(pod.containers, amounts, 0)


def sum_limits(pod: Pod, resource: str) -> Fraction | None:
    """Return the sum of a resource's limits in a pod, or None if an amount is invalid."""
    limits = (container.resources("limits").get(resource, "0") for container in pod.containers)
    try:
        return sum(map(parse_quantity, limits), Fraction(0))
    except QuantityError:
        return None


def preferred_node_term(demand: Demand) -> Json:
    """Return the preferred node affinity for nodes with enough free GPU memory now."""
    return _at_least(free_memory_label(demand.gpu_count), demand.per_gpu_bytes)


def _at_least(label: str, need_bytes: int) -> Json:
    return {"key": label, "operator": "Gt", "values": [str(need_bytes // MIB - 1)]}


def _is_vram(resource: str) -> bool:
    return resource == VRAM_RESOURCE
