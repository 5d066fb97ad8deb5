"""What VRAM a pod asks for: read from its annotation and from explicit amounts."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from webhook.core.bounds import LONGEST_WORD, MOST_DEMAND_FINDINGS
from webhook.core.pod.fields import Json, items, mapping
from webhook.core.pod.findings import Finding, Reason, annotation_path, quoted
from webhook.core.pod.quantity import (
    MIB,
    QuantityError,
    QuantityTooSmallError,
    format_bytes,
    parse_quantity,
    parse_vram,
)
from webhook.core.pod.views import Container, Pod, effective_amount
from webhook.core.words import MAX_BYTES, shortened
from webhook.names import (
    ASKING_ANNOTATIONS,
    DEFAULT_CONTAINER_ANNOTATION,
    GPU_CLASS_ANNOTATION,
    GPU_COUNT_ANNOTATION,
    GPU_MEMORY_ANNOTATION,
    VRAM_RESOURCE,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


_MEMORY_PATH: Final = annotation_path(GPU_MEMORY_ANNOTATION)
_COUNT_PATH: Final = annotation_path(GPU_COUNT_ANNOTATION)
_CLASS_PATH: Final = annotation_path(GPU_CLASS_ANNOTATION)
_DEFAULT_CONTAINER_PATH: Final = annotation_path(DEFAULT_CONTAINER_ANNOTATION)

_RESOURCES_PATH: Final = "spec.containers[*].resources"

_COUNT: Final = re.compile(r"[1-9][0-9]{0,3}")
_SEPARATED_OTHERWISE: Final = re.compile("[:;]|=[^,=]*=")
"""In a list by container; neither a name nor a size has a colon or a semicolon."""
_PLAIN: Final = re.compile(r"[0-9A-Za-z.+-]{1,64}")
_SHOWN_NAMES: Final = 10


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


def read_demand(pod: Pod) -> tuple[Demand | None, tuple[Finding, ...]]:
    """Read a pod's demand: None without findings where it asks for nothing.

    | annotation | explicit amounts | demand |
    | --- | --- | --- |
    | absent | absent | none |
    | present | absent | the annotation's |
    | absent | present | the explicit amounts, divided by `gpu-count` |
    | present | present, equal | the same |
    | present | present, different | denied: ConflictingAmounts |
    """
    memory = pod.annotations.get(GPU_MEMORY_ANNOTATION)
    gpu_class = pod.annotations.get(GPU_CLASS_ANNOTATION)
    count_text = pod.annotations.get(GPU_COUNT_ANNOTATION)
    findings: list[Finding] = []
    count = 1 if count_text is None else _read_count(count_text, findings)
    explicit = _explicit_amounts(pod, count, findings)
    if memory is None and not explicit:
        if not findings:
            _check_orphans(gpu_class, count_text, findings)
        return None, tuple(findings)

    annotated = {} if memory is None else _annotated_amounts(pod, memory, findings)
    if annotated and not findings:
        _check_agreement(pod, annotated, explicit, count, findings)
    if findings:
        return None, tuple(findings)
    amounts = annotated or explicit
    per_gpu_bytes = effective_amount(pod.containers, amounts, 0)
    path = _MEMORY_PATH if memory is not None else _explicit_path(pod, amounts)
    if per_gpu_bytes * count > MAX_BYTES:
        detail = (
            "the pod's containers ask together for more than 2^63-1 bytes, which cannot be counted"
        )
        return None, (Finding(Reason.TOO_LARGE, path, detail),)
    return Demand(amounts, per_gpu_bytes, count, gpu_class, path), ()


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
        for kind in ("limits", "requests")
    )


def _annotated_amounts(pod: Pod, memory: str, findings: list[Finding]) -> dict[str, int]:
    """Read the annotation `gpu-memory`: one quantity, or a list by container."""
    if _SEPARATED_OTHERWISE.search(memory):
        wrong = "is not read as a list; separate entries with a comma, name=size"
    elif "=" in memory:
        return _listed_amounts(pod, memory, findings)
    elif "," in memory:
        wrong = "is a list without names; write name=size for each container"
    else:
        amount = _read_amount(memory, _MEMORY_PATH, findings)
        name = _default_container(pod, findings)
        return {name: amount} if name is not None and amount else {}
    detail = f"{quoted(memory)} {wrong}, e.g. trainer=8Gi, loader=512Mi"
    findings.append(Finding(Reason.INVALID_QUANTITY, _MEMORY_PATH, detail))
    return {}


def _listed_amounts(pod: Pod, memory: str, findings: list[Finding]) -> dict[str, int]:
    known = dict.fromkeys(container.name for container in pod.containers)
    amounts: dict[str, int] = {}
    for entry in memory.split(","):
        if len(findings) >= MOST_DEMAND_FINDINGS:
            break
        name, equals, size = (part.strip(" ") for part in entry.partition("="))
        if not equals or not name:
            detail = f"the entry {quoted(entry)} is not of the form name=size"
            findings.append(Finding(Reason.INVALID_QUANTITY, _MEMORY_PATH, detail))
        elif name not in known:
            findings.append(Finding(Reason.UNKNOWN_CONTAINER, _MEMORY_PATH, _unknown(name, known)))
        elif name in amounts:
            detail = f"container {quoted(name)} stands twice in the list; keep one entry"
            findings.append(Finding(Reason.INVALID_QUANTITY, _MEMORY_PATH, detail))
        else:
            amounts[name] = _read_amount(
                size, _MEMORY_PATH, findings, f"{shortened(name, LONGEST_WORD)}="
            )
    return amounts


def _default_container(pod: Pod, findings: list[Finding]) -> str | None:
    """Return the container that one quantity goes to, as `kubectl` would choose it."""
    named = pod.annotations.get(DEFAULT_CONTAINER_ANNOTATION)
    if named is not None:
        known = dict.fromkeys(container.name for container in pod.containers)
        if named in known:
            return named
        findings.append(
            Finding(Reason.UNKNOWN_CONTAINER, _DEFAULT_CONTAINER_PATH, _unknown(named, known))
        )
        return None
    for container in pod.containers:
        if container.field == "containers":
            return container.name
    detail = "the pod has no container that could get the VRAM"
    findings.append(Finding(Reason.UNKNOWN_CONTAINER, "spec.containers", detail))
    return None


def _unknown(name: str, known: Collection[str]) -> str:
    shown = (shortened(name, LONGEST_WORD) for name in islice(known, _SHOWN_NAMES))
    have = ", ".join(shown) + ", ..." * (len(known) > _SHOWN_NAMES)
    return f"the pod has no container {quoted(name)}; it has {have or 'none'}"


def _explicit_amounts(pod: Pod, count: int, findings: list[Finding]) -> dict[str, int]:
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
        total = _read_amount(written, path, findings)
        amounts[container.name] = -(-total // (count * MIB)) * MIB
        mismatch = requests_limits_mismatch(container, VRAM_RESOURCE, request, limit)
        if mismatch:
            findings.append(mismatch)
    return amounts


def _read_amount(written: str, path: str, findings: list[Finding], prefix: str = "") -> int:
    """Read one amount in bytes; 0 together with a finding where it is not one."""
    try:
        return parse_vram(written)
    except QuantityError as error:
        too_small = isinstance(error, QuantityTooSmallError)
        reason = Reason.TOO_SMALL if too_small else Reason.INVALID_QUANTITY
        shown = written if _PLAIN.fullmatch(written) else quoted(written)
        findings.append(Finding(reason, path, f"{prefix}{shown} {error}"))
        return 0


def _read_count(count: str, findings: list[Finding]) -> int:
    if _COUNT.fullmatch(count):
        return int(count)
    detail = f"{quoted(count)} is not a number of GPUs; write a positive integer, e.g. 2"
    findings.append(Finding(Reason.INVALID_COUNT, _COUNT_PATH, detail))
    return 1


def _check_orphans(gpu_class: str | None, count: str | None, findings: list[Finding]) -> None:
    """Reject annotations that shape a demand on a pod that has none: it would run without a GPU."""
    missing = f"needs {GPU_MEMORY_ANNOTATION} beside it; add the VRAM per GPU, e.g. 8Gi"
    if count is not None:
        findings.append(Finding(Reason.INVALID_COUNT, _COUNT_PATH, missing))
    if gpu_class is not None:
        findings.append(Finding(Reason.INVALID_QUANTITY, _CLASS_PATH, missing))


def _check_agreement(
    pod: Pod,
    annotated: Mapping[str, int],
    explicit: Mapping[str, int],
    count: int,
    findings: list[Finding],
) -> None:
    """Compare the annotation with the amounts set by hand, container by container."""
    for container in pod.containers:
        amount = explicit.get(container.name)
        wanted = annotated.get(container.name)
        if amount is None or amount == wanted:
            continue
        here = format_bytes(amount * count)
        there = f"asks for {format_bytes(wanted * count)}" if wanted else "gives it none"
        detail = (
            f"sets {here} but the annotation {GPU_MEMORY_ANNOTATION} {there}; "
            "remove one of the two, or make them agree"
        )
        path = f"{container.path}.resources.limits[{VRAM_RESOURCE}]"
        findings.append(Finding(Reason.CONFLICTING_AMOUNTS, path, detail))


def _explicit_path(pod: Pod, amounts: Mapping[str, int]) -> str:
    first = next(container for container in pod.containers if container.name in amounts)
    return f"{first.path}.resources.limits[{VRAM_RESOURCE}]"


def requests_limits_mismatch(
    container: Container, resource: str, request: str | None, limit: str | None
) -> Finding | None:
    """Check that an extended resource's request equals its limit.

    Rule: an extended resource cannot be overcommitted.
    Fields: spec.[initContainers,containers][*].resources.requests|limits[resource]
    Allowed values: a limit alone (the API server copies it to the request), or both, equal.
    """
    if request is None or request == limit:
        return None
    path = f"{container.path}.resources.requests[{resource}]"
    asked = shortened(request, LONGEST_WORD)
    if limit is None:
        detail = f"the request of {asked} has no limit; set limits[{resource}] to {asked} as well"
        return Finding(Reason.REQUESTS_LIMITS_MISMATCH, path, detail)
    try:
        equal = parse_quantity(request) == parse_quantity(limit)
    except QuantityError:
        equal = False
    if equal:
        return None
    shown = shortened(limit, LONGEST_WORD)
    detail = f"the request is {asked} but the limit is {shown}; write the same amount in both"
    return Finding(Reason.REQUESTS_LIMITS_MISMATCH, path, detail)
