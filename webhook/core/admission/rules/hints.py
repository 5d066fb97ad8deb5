"""Hints about other products' keys, near misses of vramwarden keys, and unread vramwarden keys.

A pod with such keys is valid, gets no GPU, and reports no error. A typo must not silently mean "no
limit". A hint begins with a line that admits the pod, or gives the reason why no line does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from itertools import chain, islice
from typing import Final

from webhook.core.admission.rules.case import Case
from webhook.core.admission.rules.near_misses import (
    MAX_HINTS,
    NOTHING_READS,
    RESOURCE_PREFIXES,
    closest_key,
    find_near_misses,
    find_unread,
    intended_annotation,
    likely_amounts,
    with_known_unit,
)
from webhook.core.bounds import MAX_COMPARED_KEYS, MAX_GPU_COUNT
from webhook.core.formatting import shorten
from webhook.core.pod.demand import GPU_COUNT_PATTERN
from webhook.core.pod.findings import quote
from webhook.core.pod.memory_annotation import (
    Faults,
    annotation_value,
    annotation_value_for,
    read_memory,
)
from webhook.core.pod.other_products import (
    OTHER_PRODUCTS_BY_ANNOTATION,
    OTHER_PRODUCTS_BY_RESOURCE,
    WHOLE_GPU,
    Meaning,
)
from webhook.core.pod.quantity import format_bytes, parse_quantity_or
from webhook.core.pod.views import Container, Pod, requested_amounts
from webhook.core.policy.model import allowed_class_names
from webhook.names import (
    GPU_CLASS_ANNOTATION,
    GPU_COUNT_ANNOTATION,
    GPU_MEMORY_ANNOTATION,
    MAX_LABEL_LENGTH,
    PREFIX,
    REQUEST_ANNOTATIONS,
    VRAM_RESOURCE,
)

_AS_LABEL: Final = "as a label it asks for nothing"
_NO_NODE: Final = "no node has this resource"
_MEANINGS: Final = {
    WHOLE_GPU: Meaning.GPUS,
    **{name: meaning for name, (_, meaning) in OTHER_PRODUCTS_BY_RESOURCE.items()},
}
"""Meanings of resources that a pod with a share must not request."""
_LONGEST_KEY: Final = len(PREFIX) + MAX_LABEL_LENGTH


def foreign_requests(case: Case) -> tuple[str, ...]:
    """Rule: GPU memory is asked for by our names, and not by those of other products.

    Fields: metadata.annotations, metadata.labels,
    spec.[initContainers,containers][*].resources.requests|limits
    Allowed values: any, since such a pod is valid: it returns warnings and not findings
    """
    return tuple(islice(chain(_key_hints(case), _resource_hints(case)), MAX_HINTS))


def _suggest_line(case: Case, key: str, value: str, container: str = "") -> str:
    """Return the manifest line with a value, with its likely meaning, or with an example.

    An amount without a container is for the likely container. The change is added to the suggested
    changes. The line is empty if no value would be admitted.
    """
    named = partial(annotation_value_for, case.pod, container or case.likely_container)
    if key == GPU_MEMORY_ANNOTATION:
        return _suggest_amount(case, map(named, likely_amounts(value)), named)
    if not _is_allowed(case, key, value):
        return ""
    case.suggested_changes.annotations[key] = value
    line = f"{key}: {quote(value)}"
    if case.requests_vram or GPU_MEMORY_ANNOTATION in case.suggested_changes.annotations:
        return line
    amount = _suggest_amount(case, (), named)
    return f"{line} and {amount}" if amount else ""


def _is_allowed(case: Case, key: str, value: str) -> bool:
    if key == GPU_CLASS_ANNOTATION:
        return value in allowed_class_names(case.policy.classes, case.rule.allowed_classes)
    most = case.suggestions.max_count or MAX_GPU_COUNT
    return GPU_COUNT_PATTERN.fullmatch(value) is not None and int(value) <= most


def _suggest_amount(
    case: Case, values: Iterable[str], example_for: Callable[[str], str], *more: str
) -> str:
    """Return the line with the first admitted value of `gpu-memory`, or with an example.

    `example_for` returns the value for an example's amount. `more` contains further lines, followed
    by the reason why the first value is denied. The change is added to the suggested changes. The
    line is empty if no value would be admitted.
    """
    why = remark = ""
    for value in values:
        rejection = case.suggestions.rejection(_parse_amounts(case.pod, value))
        if rejection is None:
            break
        why = why or rejection
    else:
        example = case.suggestions.example(
            lambda amount: _parse_amounts(case.pod, example_for(format_bytes(amount)))
        )
        if not example:
            return ""
        value = example_for(example)
        remark = ", for example" + (f" ({why})" if why else "")
    case.suggested_changes.annotations[GPU_MEMORY_ANNOTATION] = value
    return " and ".join((f"{GPU_MEMORY_ANNOTATION}: {value}", *more)) + remark


def _parse_amounts(pod: Pod, value: str) -> Mapping[str, int]:
    """Return the amounts in a value of the annotation, or an empty mapping if a part is invalid."""
    faults: Faults = []
    amounts = read_memory(pod, value, faults)
    return {} if faults else amounts


def _key_hints(case: Case) -> Iterator[str]:
    found: list[tuple[str, str, tuple[str, str], str]] = []
    for field, keys in _metadata_fields(case.pod):
        for key, intended in find_near_misses(keys, field):
            if case.requests_vram and "/" not in key:
                continue
            why = NOTHING_READS
            # KAI reads amounts without a unit. An amount with a unit is meant for vramwarden.
            if key in OTHER_PRODUCTS_BY_ANNOTATION and not keys[key].strip()[-1:].isalpha():
                why = f"{OTHER_PRODUCTS_BY_ANNOTATION[key][0].name} reads it, vramwarden does not"
            found.append((field, key, intended, why))
    # Amounts come first, since number and class of GPUs have no effect without an amount.
    found.sort(key=lambda miss: miss[2][0] != GPU_MEMORY_ANNOTATION)
    return (_key_hint(case, *miss) for miss in found[:MAX_HINTS])


def _metadata_fields(pod: Pod) -> tuple[tuple[str, Mapping[str, str]], ...]:
    return ("annotations", pod.annotations), ("labels", pod.labels)


def _key_hint(case: Case, field: str, key: str, intended: tuple[str, str] | None, why: str) -> str:
    """Return the warning about a key in a metadata field: the line, then `why`."""
    path = f"metadata.{field}[{shorten(key, _LONGEST_KEY)}]"
    if intended is None or _has_request(case, intended[0]):
        return f"{path}: remove it; {why}"
    line = _suggest_line(case, *intended)
    if not line:
        return f"{path}: remove it; {why}, and as {intended[0]} the pod would be denied"
    where = " under metadata.annotations" if field == "labels" else " in its place"
    return f"{path}: write {line}{where if why in {NOTHING_READS, _AS_LABEL} else ''}; {why}"


def _has_request(case: Case, key: str, container: str = "") -> bool:
    """Return True if a pod, or one of its containers, already has a request by a vramwarden key."""
    pod = case.pod
    if key != GPU_MEMORY_ANNOTATION:
        return key in pod.annotations
    if key not in pod.annotations and not any(
        VRAM_RESOURCE in requested_amounts(each) for each in pod.containers
    ):
        return False
    return not container or (
        case.demand_if_any is not None and container in case.demand_if_any.amounts
    )


def _resource_hints(case: Case) -> Iterator[str]:
    compared = 0
    line, covered = cache(partial(_line_for_pod, case)), set[str]()
    for container, kind, name in _domain_resources(case):
        hint = ""
        if name in OTHER_PRODUCTS_BY_RESOURCE:
            hint = _foreign_resource_hint(case, container, name, line, covered)
        elif name.startswith(RESOURCE_PREFIXES) and not name.startswith(PREFIX):
            compared += 1
            if compared <= MAX_COMPARED_KEYS:
                intended = intended_annotation(name, requested_amounts(container)[name])
                hint = _near_miss_hint(case, container, name, *intended) if intended else ""
        if hint:
            yield f"{_resource_path(container, kind, name)}: {hint}"


def _domain_resources(case: Case) -> Iterator[tuple[Container, str, str]]:
    """Yield container, kind and name of each resource with a domain.

    A resource with a limit and a request is yielded once.
    """
    for container in case.pod.containers:
        limits = container.resources("limits")
        for kind in ("limits", "requests"):
            for name in container.resources(kind):
                if "/" in name and (kind == "limits" or name not in limits):
                    yield container, kind, name


def _resource_path(container: Container, kind: str, name: str) -> str:
    return f"{container.path}.resources.{kind}[{shorten(name, 64)}]"


def _foreign_resource_hint(
    case: Case, container: Container, name: str, line: Callable[[], str], covered: set[str]
) -> str:
    """Return the advice about another product's resource, or "" if another hint covers it.

    One line replaces all such resources of a pod. `covered` contains the containers that have a
    hint with this line.
    """
    product, meaning = OTHER_PRODUCTS_BY_RESOURCE[name]
    who = f"{product.name} reads it, vramwarden does not"
    if case.requests_vram:
        return "" if case.policy.is_whole_gpu(name) else f"remove it; {who}"
    if meaning is Meaning.COMPUTE:
        return f"remove it; {who}, and compute is not divided here"
    amounts = requested_amounts(container)
    has_memory = meaning is not Meaning.MEMORY and _memory_resource(amounts)
    if container.name in covered or has_memory:
        return ""
    covered.add(container.name)
    if not line():
        return f"{who}; for a share the pod would be denied"
    related = (other for other in amounts if other != name and other in _MEANINGS)
    others = (other for other in related if _MEANINGS.get(other) is not Meaning.COMPUTE)
    return f"remove {' and '.join(('it', *others))}, and write the annotation {line()}; {who}"


def _memory_resource(amounts: Mapping[str, str]) -> str:
    return next((name for name in amounts if _MEANINGS.get(name) is Meaning.MEMORY), "")


def _line_for_pod(case: Case) -> str:
    """Return the line that replaces requests to other products, or "" if none is admitted."""
    memory_by_container: dict[str, str] = {}
    removed: dict[str, list[str]] = {}
    counts: set[int] = set()
    for container in case.pod.containers:
        amounts = requested_amounts(container)
        foreign = [name for name in amounts if name in OTHER_PRODUCTS_BY_RESOURCE]
        removed[container.name] = foreign
        if all(_MEANINGS.get(name) is Meaning.COMPUTE for name in foreign):
            continue
        removed[container.name] = [name for name in amounts if name in _MEANINGS]
        memory = _memory_resource(amounts)
        product = OTHER_PRODUCTS_BY_RESOURCE[memory][0] if memory else None
        meaning = _MEANINGS.get(memory, Meaning.OTHER)
        amount = with_known_unit(amounts.get(memory, ""), product, meaning)
        memory_by_container[container.name] = next(likely_amounts(amount), "")
        counts.update(
            int(parse_quantity_or(amounts[name], 1))
            for name in amounts
            if _MEANINGS.get(name) is Meaning.GPUS
        )
    count = counts.pop() if len(counts) == 1 else 1
    count = count if 1 < count <= (case.suggestions.max_count or MAX_GPU_COUNT) else 1
    is_complete = all(memory_by_container.values())
    values = [annotation_value(case.pod, memory_by_container)] if is_complete else []

    def for_each(amount: str) -> str:
        return annotation_value(case.pod, dict.fromkeys(memory_by_container, amount))

    more = (f"{GPU_COUNT_ANNOTATION}: {quote(count)}",) if count > 1 else ()
    line = _suggest_amount(case, values, for_each, *more)
    for name, resources in removed.items() if line else ():
        case.suggested_changes.remove(name, resources)
    if line and more:
        case.suggested_changes.annotations[GPU_COUNT_ANNOTATION] = str(count)
    return line


def _near_miss_hint(case: Case, container: Container, name: str, key: str, value: str) -> str:
    """Return the annotation to write in place of a resource that no node offers."""
    if _has_request(case, key, container.name):
        return f"remove it; {_NO_NODE}"
    line = _suggest_line(case, key, value, container.name)
    if not line:
        return f"remove it; {_NO_NODE}, and as {key} the pod would be denied"
    case.suggested_changes.remove(container.name, [name])
    return f"remove it and write the annotation {line}; {_NO_NODE}"


def unread_keys(case: Case) -> tuple[str, ...]:
    """Rule: every annotation, label and resource with our prefix is one that is read on a pod.

    Fields: metadata.annotations, metadata.labels,
    spec.[initContainers,containers][*].resources.requests|limits
    Allowed values: any key without our prefix; those of `READ_KEYS`, and labels that rules match

    It returns warnings and not findings, because such a pod is valid; the command `admit` counts
    them as findings. A node's keys count as unread too, since `gpu-memory-mib` on a pod is meant as
    a limit.
    """
    resources = [
        (container, kind, name)
        for container, kind, name in _domain_resources(case)
        if name.startswith(PREFIX) and name != VRAM_RESOURCE
    ]
    # Comparing words takes time, and a pod may have thousands of annotations.
    return (
        *chain.from_iterable(
            _unread_key_hints(case, *entry) for entry in reversed(_metadata_fields(case.pod))
        ),
        *(_unread_resource_hint(case, *entry) for entry in resources[:MAX_HINTS]),
    )


def _unread_key_hints(case: Case, field: str, keys: Mapping[str, str]) -> Iterator[str]:
    found = list(find_unread(keys, "Pod", field))
    read = case.policy.pod_labels if found and field == "labels" else ()
    for key in islice((key for key in found if key not in read), MAX_HINTS):
        closest, why = closest_key(key), NOTHING_READS
        if field == "labels":
            why = _AS_LABEL if closest else NOTHING_READS
        elif not closest:
            why = f"{NOTHING_READS}, unlike {', '.join(REQUEST_ANNOTATIONS)}"
        yield _key_hint(case, field, key, (closest, keys[key]) if closest else None, why)


def _unread_resource_hint(case: Case, container: Container, kind: str, name: str) -> str:
    path, amount = _resource_path(container, kind, name), requested_amounts(container)[name]
    closest = closest_key(name)
    if closest:
        return f"{path}: {_near_miss_hint(case, container, name, closest, amount)}"
    example = case.suggestions.example(lambda amount: {container.name: amount})
    if not example or case.requests_vram:
        return f"{path}: remove it; {_NO_NODE}"
    line = annotation_value(case.pod, {container.name: example})
    case.suggested_changes.annotations[GPU_MEMORY_ANNOTATION] = line
    return f"{path}: write {VRAM_RESOURCE}: {example} in its place; {_NO_NODE}"
