"""The VRAM that a pod requests, read from its annotations and its containers' resources."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from webhook.core.bounds import MAX_DEMAND_FINDINGS, MAX_WORD_LENGTH
from webhook.core.formatting import MAX_BYTES, shorten
from webhook.core.pod.fields import Json, get_object, get_objects
from webhook.core.pod.findings import WRITTEN_BY_ANOTHER, Finding, Reason, annotation_path, quote
from webhook.core.pod.memory_annotation import (
    MEMORY_PATH,
    Faults,
    Gap,
    find_default_container,
    read_amount,
    read_memory,
)
from webhook.core.pod.quantity import (
    MIB,
    QuantityError,
    format_bytes,
    parse_quantity,
    parse_vram,
    parse_vram_resource,
)
from webhook.core.pod.suggestions import Suggestions
from webhook.core.pod.views import Container, Pod, effective_amount
from webhook.names import (
    ADMITTED_ANNOTATION,
    DEFAULT_CONTAINER_ANNOTATION,
    GPU_CLASS_ANNOTATION,
    GPU_COUNT_ANNOTATION,
    GPU_MEMORY_ANNOTATION,
    REQUEST_ANNOTATIONS,
    VRAM_RESOURCE,
)

_COUNT_PATH: Final = annotation_path(GPU_COUNT_ANNOTATION)

_TOO_MANY_BYTES: Final = (
    "the pod's containers ask together for more than 2^63-1 bytes, which cannot be counted; ask "
    "for less"
)
_RESOURCES_PATH: Final = "spec.containers[*].resources"

GPU_COUNT_PATTERN: Final = re.compile(r"[1-9][0-9]{0,3}")
_KINDS: Final = ("limits", "requests")


class Demand(NamedTuple):
    """Demand of a pod for VRAM."""

    amounts: Mapping[str, int]
    """Bytes per GPU, keyed by container name and rounded up to a MiB."""
    per_gpu_bytes: int
    """Cap: the pod's effective request on each of its GPUs, rounded up to a MiB."""
    gpu_count: int
    gpu_class: str | None
    """GPU class in the pod's annotation, or None without one. The rule's default is not applied."""
    path: str
    """Path of the field in which the user wrote the request."""


def read_demand(pod: Pod) -> tuple[Demand | None, tuple[Finding, ...]]:
    """Return a pod's demand and findings; None and no findings if the pod requests no VRAM.

    | annotation | explicit amounts | demand |
    | --- | --- | --- |
    | absent | absent | none |
    | present | absent | the annotation's |
    | absent | present | the explicit amounts / `gpu-count`, rounded up to a MiB |
    | present | present, the same after rounding up | the same |
    | present | present, different | denied: ConflictingAmounts |

    Without a rule, findings may suggest any valid value.
    """
    demand, findings = plan_demand(pod, Suggestions(pod.containers))
    return None if findings else demand, findings


def plan_demand(pod: Pod, suggestions: Suggestions) -> tuple[Demand | None, tuple[Finding, ...]]:
    """Return the findings and the demand: the pod's own or the one that the findings suggest.

    The demand is None if the pod requests no VRAM or the findings suggest no complete demand.
    """
    faults: Faults = []
    plan = _read_plan(pod, faults, suggestions)
    if not (plan.explicit or plan.annotated or faults):
        return None, ()
    gaps = [fault for fault in faults if isinstance(fault, Gap)]
    findings = tuple(
        fault
        if isinstance(fault, Finding)
        else _suggest_amount(fault, plan, suggestions, is_last=fault is gaps[-1])
        for fault in faults
    )
    if plan.explicit and plan.annotated and plan.complete:
        findings += tuple(_find_disagreements(pod, plan))
    demand = plan.demand(pod) if plan.complete else None
    if demand is not None and demand.per_gpu_bytes * demand.gpu_count > MAX_BYTES:
        findings += (Finding(Reason.TOO_LARGE, demand.path, _TOO_MANY_BYTES),)
    return demand, findings


@dataclass(slots=True)
class _Plan:
    """Valid amounts, and suggested amounts in place of invalid ones."""

    explicit: dict[str, int]
    """Amounts in the extended resource, in bytes on all GPUs together, keyed by container."""
    annotated: dict[str, int]
    """Amounts in the annotation, in bytes per GPU, keyed by container."""
    count: int
    divisor: int
    """Number of GPUs for suggestions: `count`, or the rule's maximum if that is smaller."""
    complete: bool = True
    """True if each amount is valid or has a suggestion."""

    def per_gpu(self, totals: Mapping[str, int]) -> dict[str, int]:
        """Divide amounts by the number of GPUs, rounded up to a MiB."""
        part_bytes = self.divisor * MIB
        return {name: -(-total // part_bytes) * MIB for name, total in totals.items()}

    def amounts(self) -> dict[str, int]:
        """Return bytes per GPU, keyed by container."""
        return self.annotated or self.per_gpu(self.explicit)

    def demand(self, pod: Pod) -> Demand | None:
        """Return the demand of all amounts, or None if there are no amounts."""
        amounts = self.amounts()
        if not amounts:
            return None
        path = MEMORY_PATH
        if not self.annotated:
            first = next(container for container in pod.containers if container.name in amounts)
            path = _resource_path(first)
        per_gpu_bytes = effective_amount(pod.containers, amounts, 0)
        if self.explicit:
            per_gpu_bytes = self._counted_per_gpu(pod, amounts)
        gpu_class = pod.annotations.get(GPU_CLASS_ANNOTATION)
        return Demand(amounts, per_gpu_bytes, self.count, gpu_class, path)

    def _counted_per_gpu(self, pod: Pod, amounts: Mapping[str, int]) -> int:
        """Return the effective amount in `resources` per GPU, rounded up to a MiB.

        The annotation's amount counts for containers without an explicit amount and for containers
        whose explicit amount differs.
        """
        totals = {name: amount * self.divisor for name, amount in amounts.items()}
        explicit = self.per_gpu(self.explicit)
        agreed = (name for name in totals if explicit.get(name) == amounts[name])
        totals |= {name: self.explicit[name] for name in agreed}
        effective = effective_amount(pod.containers, totals, 0)
        return -(-effective // (self.divisor * MIB)) * MIB


def _read_plan(pod: Pod, faults: Faults, suggestions: Suggestions) -> _Plan:
    memory = pod.annotations.get(GPU_MEMORY_ANNOTATION)
    count_text = pod.annotations.get(GPU_COUNT_ANNOTATION)
    asks, explicit = _explicit_amounts(pod, faults)
    count = int(count_text) if count_text and GPU_COUNT_PATTERN.fullmatch(count_text) else 1
    if count_text is not None and str(count) != count_text:
        # An explicit amount is for all GPUs together. Another count would change the share of each
        # GPU.
        count = 1 if asks or suggestions.max_count == 1 else 2
        sentence = f'is not a number of GPUs; write a positive integer, e.g. "{count}"'
        faults.insert(
            0, Finding(Reason.INVALID_COUNT, _COUNT_PATH, f"{quote(count_text)} {sentence}")
        )
    annotated = {} if memory is None else read_memory(pod, memory, faults)
    if memory is None and not asks:
        _check_missing_gpu_memory(pod, faults)
    divisor = min(count, suggestions.max_count or count)
    complete = len(faults) < MAX_DEMAND_FINDINGS
    return _Plan(explicit, annotated, count, divisor, complete)


def _explicit_amounts(pod: Pod, faults: Faults) -> tuple[bool, dict[str, int]]:
    asks, totals = False, {}
    for container in pod.containers:
        kind = _amount_field(container)
        if not kind:
            continue
        asks = True
        if len(faults) >= MAX_DEMAND_FINDINGS:
            break
        written = container.resources(kind)[VRAM_RESOURCE]
        total = read_amount(written, _resource_path(container), container.name, faults)
        if total:
            totals[container.name] = total
        elif isinstance(faults[-1], Gap):
            faults[-1] = faults[-1]._replace(where=both_fields_note(container, VRAM_RESOURCE))
        unequal = find_unequal_amounts(container, VRAM_RESOURCE, _is_vram)
        if unequal:
            faults.append(unequal)
    return asks, totals


def _amount_field(container: Container) -> str:
    return next((kind for kind in _KINDS if VRAM_RESOURCE in container.resources(kind)), "")


def both_fields_note(container: Container, resource: str) -> str:
    """Return a note for messages if a resource is in a container's limits and requests."""
    has_both = all(resource in container.resources(kind) for kind in _KINDS)
    return " in limits and requests" if has_both else ""


def _resource_path(container: Container) -> str:
    return f"{container.path}.resources.{_amount_field(container)}[{VRAM_RESOURCE}]"


def _check_missing_gpu_memory(pod: Pod, faults: Faults) -> None:
    """Add a fault for each of `gpu-count` and `gpu-class` on a pod without `gpu-memory`.

    Such a pod would run without a GPU.
    """
    orphans = [
        (reason, annotation_path(key))
        for key, reason in (
            (GPU_COUNT_ANNOTATION, Reason.INVALID_COUNT),
            (GPU_CLASS_ANNOTATION, Reason.INVALID_QUANTITY),
        )
        if key in pod.annotations
    ]
    if not orphans:
        return
    name = find_default_container(pod, faults)
    sentence = f"needs {GPU_MEMORY_ANNOTATION} beside it; add the VRAM per GPU"
    faults += [Gap(reason, path, sentence, name) for reason, path in orphans]


def _suggest_amount(gap: Gap, plan: _Plan, suggestions: Suggestions, *, is_last: bool) -> Finding:
    """Add an admitted amount to the plan and return the finding that suggests this amount.

    The amounts in the plan count, so that the user can apply all suggestions together. For a gap
    that is not the last, a larger alternative is left out if it might leave none for the next gap.
    """
    name, in_list = gap.container, gap.path == MEMORY_PATH
    by_hand = gap.error is not None and not in_list
    amounts = plan.explicit if by_hand else plan.annotated

    def amounts_with(amount: int) -> Mapping[str, int]:
        both = {**amounts, name: amount}
        return plan.per_gpu(both) if by_hand else both

    if gap.error is None and in_list and amounts:
        return Finding(gap.reason, gap.path, f"{gap.sentence}; correct or remove it")
    if gap.error is None:
        # The previous fault may have had the same suggestion.
        amount = format_bytes(amounts[name]) if amounts else suggestions.example(amounts_with)
        line = f"{name}={amount}" if in_list else amount
        detail = f"{gap.sentence}, e.g. {line}" if amount else gap.sentence
    else:
        wanted = plan.per_gpu(plan.explicit) if in_list else plan.annotated
        agreed = wanted.get(name, 0) * (1 if in_list else plan.divisor)
        said, amount = suggestions.describe_malformed(
            gap.error, amounts_with, agreed, is_last=is_last
        )
        detail = f"{gap.sentence} {said}{gap.where if amount else ''}"
    if amount and name:
        amounts[name] = parse_vram(amount)  # whole bytes, also in `resources`
    else:
        plan.complete = False
    return Finding(gap.reason, gap.path, detail)


def _find_disagreements(pod: Pod, plan: _Plan) -> Iterator[Finding]:
    """Yield a finding for each container whose explicit amount differs from the annotation."""
    by_hand = plan.per_gpu(plan.explicit)
    for container in pod.containers:
        amount, wanted = by_hand.get(container.name), plan.annotated.get(container.name)
        if amount is None or amount == wanted:
            continue
        is_ours = ADMITTED_ANNOTATION in pod.annotations  # translation wrote the amount
        do = (
            f"remove {VRAM_RESOURCE}{both_fields_note(container, VRAM_RESOURCE)}, or make the "
            "two agree"
        )
        if wanted:
            there = f"asks for {format_bytes(wanted * plan.count)}"
        else:
            there = f"gives VRAM only to {quote(name := next(iter(plan.annotated)))}"
            if pod.annotations.get(DEFAULT_CONTAINER_ANNOTATION) == name:
                there += f"; {DEFAULT_CONTAINER_ANNOTATION} names it"
                if is_ours:
                    do = f"write {container.name}={format_bytes(amount)} in {GPU_MEMORY_ANNOTATION}"
        end = "" if is_ours else f"; {WRITTEN_BY_ANOTHER}"
        detail = (
            f"{do}; it sets {format_bytes(amount * plan.count)} but the annotation "
            f"{GPU_MEMORY_ANNOTATION} {there}{end}"
        )
        path = f"{container.path}.resources.limits[{VRAM_RESOURCE}]"
        yield Finding(Reason.CONFLICTING_AMOUNTS, path, detail)


def name_request_sources(pod: Pod) -> str:
    """Return the annotations and the resource by which a pod requests VRAM, for messages."""
    names = [key for key in REQUEST_ANNOTATIONS if key in pod.annotations]
    if any(
        VRAM_RESOURCE in container.resources(kind)
        for container in pod.containers
        for kind in _KINDS
    ):
        names.append(VRAM_RESOURCE)
    return " and ".join(names)


def requests_vram(pod: Json) -> bool:
    """Return True if an unchecked pod requests VRAM, even with an invalid amount.

    Takes one pass over the containers. Raises MalformedObjectError.
    """
    annotations = get_object(get_object(pod, "metadata", ""), "annotations", "metadata")
    if any(key in annotations for key in REQUEST_ANNOTATIONS):
        return True
    spec = get_object(pod, "spec", "")
    return any(
        get_object(resources, kind, _RESOURCES_PATH).get(VRAM_RESOURCE) is not None
        for field in ("containers", "initContainers")
        for container in get_objects(spec, field, "spec")
        if (resources := get_object(container, "resources", f"spec.{field}[*]"))
        for kind in _KINDS
    )


def find_unequal_amounts(
    container: Container, resource: str, is_valid: Callable[[str], bool]
) -> Finding | None:
    """Return a finding if the request of an extended resource differs from its limit.

    Rule: an extended resource cannot be overcommitted.
    Fields: spec.[initContainers,containers][*].resources.requests|limits[resource]
    Allowed values: a limit alone (the API server copies it to the request), or both, equal.
    """
    request = container.resources("requests").get(resource)
    limit = container.resources("limits").get(resource)
    if request is None or request == limit:
        return None
    shown = shorten(request if limit is None else limit, MAX_WORD_LENGTH)
    if limit is None:
        what, do = (
            f"the request of {shown} has no limit",
            f"set limits[{resource}] to {shown} too",
        )
    else:
        try:
            if parse_quantity(request) == parse_quantity(limit):
                return None
        except QuantityError:
            pass
        what = f"the request is {shorten(request, MAX_WORD_LENGTH)} but the limit is {shown}"
        do = f"write {shown} in both"
    if not is_valid(request if limit is None else limit):
        do = "make them equal"
    path = f"{container.path}.resources.requests[{resource}]"
    return Finding(Reason.REQUESTS_LIMITS_MISMATCH, path, f"{do}; {what}")


def _is_vram(text: str) -> bool:
    try:
        return parse_vram_resource(text) > 0
    except QuantityError:
        return False
