"""What VRAM a pod asks for: read from its annotation and from explicit amounts."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from webhook.core.bounds import LONGEST_WORD
from webhook.core.pod.annotated import (
    MEMORY_PATH,
    Faults,
    annotated_amounts,
    of_memory,
    read_amount,
)
from webhook.core.pod.fields import Json, items, mapping
from webhook.core.pod.findings import Finding, Reason, annotation_path, quoted
from webhook.core.pod.lines import LineCheck
from webhook.core.pod.quantity import (
    MIB,
    QuantityError,
    format_bytes,
    parse_quantity,
)
from webhook.core.pod.views import Change, Container, Pod, effective_amount
from webhook.core.words import MAX_BYTES, shortened
from webhook.names import (
    ASKING_ANNOTATIONS,
    GPU_CLASS_ANNOTATION,
    GPU_COUNT_ANNOTATION,
    GPU_MEMORY_ANNOTATION,
    VRAM_RESOURCE,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_COUNT_PATH: Final = annotation_path(GPU_COUNT_ANNOTATION)
_CLASS_PATH: Final = annotation_path(GPU_CLASS_ANNOTATION)

_RESOURCES_PATH: Final = "spec.containers[*].resources"

_COUNT: Final = re.compile(r"[1-9][0-9]{0,3}")
_KINDS: Final = ("limits", "requests")
_ANY_LINES: Final = LineCheck()


class Demand(NamedTuple):
    """The VRAM that a pod asks for."""

    amounts: Mapping[str, int]
    """Bytes per GPU, by container name."""
    per_gpu_bytes: int
    """The pod's effective demand on each of its GPUs: the cap."""
    gpu_count: int
    gpu_class: str | None
    """The class the pod names, not the rule's default."""
    path: str
    """Where the developer wrote the demand."""


def read_demand(
    pod: Pod, lines: LineCheck = _ANY_LINES
) -> tuple[Demand | None, tuple[Finding, ...]]:
    """Read a pod's demand: None without findings where it asks for nothing.

    | annotation | explicit amounts | demand |
    | --- | --- | --- |
    | absent | absent | none |
    | present | absent | the annotation's |
    | absent | present | the explicit amounts, divided by `gpu-count` |
    | present | present, equal | the same |
    | present | present, different | denied: ConflictingAmounts |

    `lines` knows what findings may tell people to write.
    """
    memory = pod.annotations.get(GPU_MEMORY_ANNOTATION)
    gpu_class = pod.annotations.get(GPU_CLASS_ANNOTATION)
    count_text = pod.annotations.get(GPU_COUNT_ANNOTATION)
    faults = Faults()
    count = 1 if count_text is None else _read_count(count_text, faults)
    explicit = _explicit_amounts(pod, count, faults)
    if memory is None and not explicit:
        if not faults.findings:
            _check_orphans(gpu_class, count_text, faults)
        return None, faults.said(lines) if faults.findings else ()

    annotated = {} if memory is None else annotated_amounts(pod, memory, faults)
    if annotated and not faults.findings:
        _check_agreement(pod, annotated, explicit, count, faults)
    if faults.findings:
        return None, faults.said(lines)
    amounts = annotated or explicit
    per_gpu_bytes = effective_amount(pod.containers, amounts, 0)
    path = MEMORY_PATH if memory is not None else _explicit_path(pod, amounts)
    if per_gpu_bytes * count > MAX_BYTES:
        detail = (
            "the pod's containers ask together for more than 2^63-1 bytes, which cannot be "
            "counted; ask for less"
        )
        return None, (Finding(Reason.TOO_LARGE, path, detail),)
    return Demand(amounts, per_gpu_bytes, count, gpu_class, path), ()


def asked_by(pod: Pod) -> str:
    """Name all by which a pod asks for VRAM."""
    names = [key for key in ASKING_ANNOTATIONS if key in pod.annotations]
    if any(VRAM_RESOURCE in one.resources(kind) for one in pod.containers for kind in _KINDS):
        names.append(VRAM_RESOURCE)
    return " and ".join(names)


def asks_for_vram(pod: Json) -> bool:
    """Say whether a pod as it came asks for VRAM, whether that can be read or not.

    In one pass over its containers, and whatever their number; raises MalformedObjectError.
    """
    annotations = mapping(mapping(pod, "metadata", ""), "annotations", "metadata")
    if any(key in annotations for key in ASKING_ANNOTATIONS):
        return True
    spec = mapping(pod, "spec", "")
    return any(
        mapping(resources, kind, _RESOURCES_PATH).get(VRAM_RESOURCE) is not None
        for field in ("containers", "initContainers")
        for container in items(spec, field, "spec")
        if (resources := mapping(container, "resources", f"spec.{field}[*]"))
        for kind in _KINDS
    )


def _explicit_amounts(pod: Pod, count: int, faults: Faults) -> dict[str, int]:
    """Read the amounts of the extended resource that the pod sets itself, per GPU."""
    amounts: dict[str, int] = {}
    for container in pod.containers:
        request = container.resources("requests").get(VRAM_RESOURCE)
        limit = container.resources("limits").get(VRAM_RESOURCE)
        written = limit if limit is not None else request
        if written is None:
            continue
        kind = "limits" if limit is not None else "requests"
        path = f"{container.path}.resources.{kind}[{VRAM_RESOURCE}]"
        write = partial(of_resource, container, VRAM_RESOURCE)
        total = read_amount(written, path, faults, write)
        amounts[container.name] = -(-total // (count * MIB)) * MIB
        unequal = unequal_amounts(container, VRAM_RESOURCE)
        if unequal:
            path, cure = unequal
            faults.add_cured(Reason.REQUESTS_LIMITS_MISMATCH, path, cure, write(None))
    return amounts


def _read_count(count: str, faults: Faults) -> int:
    if _COUNT.fullmatch(count):
        return int(count)

    def cure(lines: LineCheck) -> str:
        number = next((one for one in ("2", "1") if lines.admitted(_of_count(one))), "")
        example = f", e.g. {number}" if number else ""
        return f"{quoted(count)} is not a number of GPUs; write a positive integer{example}"

    faults.add_cured(Reason.INVALID_COUNT, _COUNT_PATH, cure, _of_count(None))
    return 1


def _of_count(number: str | None) -> Change:
    return Change({GPU_COUNT_ANNOTATION: number})


def _check_orphans(gpu_class: str | None, count: str | None, faults: Faults) -> None:
    """Reject annotations that shape a demand on a pod that has none: it would run without a GPU."""

    def cure(lines: LineCheck) -> str:
        example = lines.example(of_memory)
        more = f", e.g. {example}" if example else ""
        return f"needs {GPU_MEMORY_ANNOTATION} beside it; add the VRAM per GPU{more}"

    if count is not None:
        faults.add_cured(Reason.INVALID_COUNT, _COUNT_PATH, cure, Change())
    if gpu_class is not None:
        faults.add_cured(Reason.INVALID_QUANTITY, _CLASS_PATH, cure, Change())


def _check_agreement(
    pod: Pod,
    annotated: Mapping[str, int],
    explicit: Mapping[str, int],
    count: int,
    faults: Faults,
) -> None:
    """Compare the annotation with the amounts set by hand, container by container."""
    by_annotation = Change(resources={name: {VRAM_RESOURCE: None} for name in explicit})
    for container in pod.containers:
        amount = explicit.get(container.name)
        wanted = annotated.get(container.name)
        if amount is None or amount == wanted:
            continue
        here = format_bytes(amount * count)
        there = f"asks for {format_bytes(wanted * count)}" if wanted else "gives it none"
        what = f"sets {here} but the annotation {GPU_MEMORY_ANNOTATION} {there}"

        def cure(lines: LineCheck, what: str = what) -> str:
            ways = [one for one in (of_memory(None), by_annotation) if not lines.why_not(one)]
            if ways:
                lines.keep(ways[0])
            if len(ways) == 1:
                gone = "the annotation" if ways[0] is not by_annotation else VRAM_RESOURCE
                return f"{what}; remove {gone}, or make them agree"
            remove = "remove one of the two, or " if ways else ""
            return f"{what}; {remove}make them agree"

        path = f"{container.path}.resources.limits[{VRAM_RESOURCE}]"
        faults.add_cured(Reason.CONFLICTING_AMOUNTS, path, cure, Change())


def _explicit_path(pod: Pod, amounts: Mapping[str, int]) -> str:
    first = next(container for container in pod.containers if container.name in amounts)
    return f"{first.path}.resources.limits[{VRAM_RESOURCE}]"


def of_resource(container: Container, resource: str, amount: str | None) -> Change:
    """Return the change by which a container asks for an amount of a resource, or for none."""
    return Change(resources={container.name: {resource: amount}})


def unequal_amounts(
    container: Container, resource: str
) -> tuple[str, Callable[[LineCheck], str]] | None:
    """Check that an extended resource's request equals its limit; return what to say at its path.

    Rule: an extended resource cannot be overcommitted.
    Fields: spec.[initContainers,containers][*].resources.requests|limits[resource]
    Allowed values: a limit alone (the API server copies it to the request), or both, equal.
    """
    request = container.resources("requests").get(resource)
    limit = container.resources("limits").get(resource)
    if request is None or request == limit:
        return None
    asked = shortened(request, LONGEST_WORD)
    if limit is not None:
        try:
            if parse_quantity(request) == parse_quantity(limit):
                return None
        except QuantityError:
            pass

    def cure(lines: LineCheck) -> str:
        what = f"the request of {asked} has no limit"
        if limit is not None:
            what = f"the request is {asked} but the limit is {shortened(limit, LONGEST_WORD)}"
        both = partial(of_resource, container, resource)
        fitting = [one for one in (request, limit) if one and lines.why_not(both(one)) is None]
        if limit is None and fitting:
            do = f"set limits[{resource}] to {asked} as well"
        elif len(fitting) > 1:
            do = "write the same amount in both"
        else:
            number = "1" if lines.why_not(both("1")) is None else ""
            one = shortened(fitting[0], LONGEST_WORD) if fitting else number or lines.example(both)
            do = f"write {one} in both" if one else "make them equal"
        if fitting:
            lines.keep(both(fitting[0]))
        return f"{what}; {do}"

    return f"{container.path}.resources.requests[{resource}]", cure
