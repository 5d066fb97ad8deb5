"""Hints: names of other products, near misses of ours, and keys of ours that nothing reads.

Such a pod is valid, gets no GPU, and reports no error: a typo must not silently mean "no limit".
A hint begins with what to write, with which the pod is admitted, or says why there is no line. The
other products' names are in `core.pod.foreign`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache, partial
from itertools import chain, islice
from typing import Any, Final

from webhook.core.admission.rules.case import Case
from webhook.core.bounds import (
    LONGEST_COMPARED,
    MOST_COMPARED,
    MOST_GPUS_ASKED,
    MOST_HINT_KEYS,
)
from webhook.core.formatting import shorten
from webhook.core.pod.demand import COUNT
from webhook.core.pod.fields import EXAMPLE, with_unit
from webhook.core.pod.findings import quoted
from webhook.core.pod.foreign import (
    FOREIGN_ANNOTATIONS,
    FOREIGN_RESOURCES,
    WHOLE_GPU,
    Meaning,
    Product,
)
from webhook.core.pod.memory_annotation import Faults, memory_line, named_line, read_memory
from webhook.core.pod.quantity import (
    QuantityError,
    amount_or,
    format_bytes,
    parse_count,
    parse_vram,
)
from webhook.core.pod.views import Container, Pod, requested
from webhook.core.policy.values import class_names
from webhook.names import (
    ASKING_ANNOTATIONS,
    GPU_CLASS_ANNOTATION,
    GPU_COUNT_ANNOTATION,
    GPU_MEMORY_ANNOTATION,
    LONGEST_LABEL,
    PREFIX,
    READ_KEYS,
    VRAM_RESOURCE,
)

MEANT: Final = {key.removeprefix(PREFIX): key for key in ASKING_ANNOTATIONS} | {
    # The resource asks for the same, so its name is a likely guess at the annotation's.
    VRAM_RESOURCE.removeprefix(PREFIX): GPU_MEMORY_ANNOTATION
}
"""The key that was probably meant, by the part of a key behind our prefix."""

SHOWN: Final = 10
"""Hints about keys of one pod; nobody reads more."""

_WITHOUT_PREFIX: Final = frozenset(
    {*FOREIGN_ANNOTATIONS, "gpu_memory", "gpumemory", "gpu-mem", "gpumem", "vram"}
)
"""Keys without a domain that can hardly mean anything else."""

_NVIDIA: Final = "nvidia.com"
_NVIDIA_NAMES: Final = frozenset({"gpumemory", "gpumem", "vram"})
"""Names below NVIDIA's domain that nothing reads, without punctuation: NVIDIA has no amounts."""
_PUNCTUATION: Final = re.compile(r"[._-]")
_SIMPLE: Final = re.compile(r"[0-9A-Za-z.,=+/% _-]{1,256}")
UNREAD: Final = "nothing reads this key"
_AS_LABEL: Final = "as a label it asks for nothing"
_NO_NODE: Final = "no node has this resource"
_MEANINGS: Final = {
    WHOLE_GPU: Meaning.GPUS,
    **{name: meaning for name, (_, meaning) in FOREIGN_RESOURCES.items()},
}
"""Meanings of the resources that go if a pod asks for a share."""
_OURS: Final = re.compile(re.escape(PREFIX))
_DOMAIN: Final = PREFIX.rstrip("/")
_LETTERS: Final = VRAM_RESOURCE.removeprefix(PREFIX)
"""Letters with which a domain that is meant as ours begins: `vram.io`, `vram-share.dev`."""
_OUR_LETTERS: Final = _DOMAIN.partition(".")[0]
_FIRST_LETTER: Final = _DOMAIN[0]
_CANDIDATE: Final = re.compile("vram|warden|gpu", re.IGNORECASE)
_LONGEST_KEY: Final = len(PREFIX) + LONGEST_LABEL


def foreign_requests(case: Case) -> tuple[str, ...]:
    """Rule: GPU memory is asked for by our names, and not by those of other products.

    Fields: metadata.annotations, metadata.labels,
    spec.[initContainers,containers][*].resources.requests|limits
    Allowed values: any, since such a pod is valid: it returns warnings and not findings
    """
    return tuple(islice(chain(_of_keys(case), _of_resources(case)), SHOWN))


def near_miss(key: str, value: str) -> str:
    """Return the line to write instead of a key that nearly is one of ours; empty for others."""
    meant = replacement(key, value)
    return written(*meant) if meant else ""


def written(key: str, value: str) -> str:
    """Return the line of an annotation; an amount that is empty is an example."""
    if key != GPU_MEMORY_ANNOTATION:
        return f"{key}: {quoted(value)}"
    return f"{key}: {value or f'{EXAMPLE}, for example,'}"


def replacement(key: str, value: str) -> tuple[str, str] | None:
    """Return our key that another was meant to be, with its value; None for another's key.

    No rule is known here, so any amount fits. It is empty if none was written.
    """
    meant = _meant(key, value)
    if meant is None or meant[0] != GPU_MEMORY_ANNOTATION:
        return meant
    return meant[0], next(_readings(meant[1]), "")


def _meant(key: str, value: str) -> tuple[str, str] | None:
    """Return our key that was meant, and the value in our units; None for another's key."""
    domain, slash, name = key.rpartition("/")
    if not slash:
        if key not in _WITHOUT_PREFIX:
            return None
        product, meaning = FOREIGN_ANNOTATIONS.get(key, (None, Meaning.MEMORY))
        return GPU_MEMORY_ANNOTATION, _in_units(value, product, meaning)
    if domain == _DOMAIN or len(key) > LONGEST_COMPARED:
        return None
    if domain.lower() == _NVIDIA:
        is_amount = _PUNCTUATION.sub("", name.lower()) in _NVIDIA_NAMES
        return (GPU_MEMORY_ANNOTATION, value) if is_amount else None
    if not _is_like_ours(domain.lower()):
        return None
    meant = get_close_matches(name.lower(), MEANT, n=1)
    return (MEANT[meant[0]], value) if meant else None


def _in_units(value: str, product: Product | None, meaning: Meaning) -> str:
    """Return an amount in the unit of a product, or in a guessed one; empty for none."""
    if meaning is not Meaning.MEMORY:
        return value if value[-1:].isalpha() and value[-1] not in "mk" else ""
    try:
        number = parse_count(value)
    except QuantityError:
        return value
    return (product.amount_of(number) if product else with_unit(number)) or value


def _line(case: Case, key: str, value: str, container: str = "") -> str:
    """Return the line of a manifest with a value, with its likely meaning, or with an example.

    An amount is for the container, or for the one that is meant without a name. The line is added
    to those that the review suggests; empty if no value would be admitted.
    """
    named = partial(named_line, case.pod, container or case.meant_container)
    if key == GPU_MEMORY_ANNOTATION:
        return _amount(case, map(named, _readings(value)), named)
    if not _is_allowed(case, key, value):
        return ""
    case.lines.annotations[key] = value
    line = f"{key}: {quoted(value)}"
    if case.asks or GPU_MEMORY_ANNOTATION in case.lines.annotations:
        return line
    amount = _amount(case, (), named)
    return f"{line} and {amount}" if amount else ""


def _is_allowed(case: Case, key: str, value: str) -> bool:
    """Return True if the rule allows a number of GPUs or a class."""
    if key == GPU_CLASS_ANNOTATION:
        return value in class_names(case.policy.classes, case.rule.allowed_classes)
    most = case.suggestions.max_count or MOST_GPUS_ASKED
    return COUNT.fullmatch(value) is not None and int(value) <= most


def _amount(
    case: Case, values: Iterable[str], example_for: Callable[[str], str], *more: str
) -> str:
    """Return the line with the first value of `gpu-memory` that is admitted, or with an example.

    `example_for` returns the value with an example's amount, and `more` are further lines. A remark
    behind them says why the first value is denied. The line is added to those that the review
    suggests; empty if no value would be admitted.
    """
    why = remark = ""
    for value in values:
        rejection = case.suggestions.rejection(_readable(case.pod, value))
        if rejection is None:
            break
        why = why or rejection
    else:
        example = case.suggestions.example(
            lambda amount: _readable(case.pod, example_for(format_bytes(amount)))
        )
        if not example:
            return ""
        value = example_for(example)
        remark = ", for example" + (f" ({why})" if why else "")
    case.lines.annotations[GPU_MEMORY_ANNOTATION] = value
    return " and ".join((f"{GPU_MEMORY_ANNOTATION}: {value}", *more)) + remark


def _readable(pod: Pod, value: str) -> Mapping[str, int]:
    """Return the amounts of a value of the annotation; none if a part cannot be read."""
    faults: Faults = []
    amounts = read_memory(pod, value, faults)
    return {} if faults else amounts


def _readings(value: str) -> Iterator[str]:
    """Yield amounts that a value may mean; the value itself if it is one, or a list of them."""
    if not _SIMPLE.fullmatch(value):
        return
    if "=" in value:
        yield value
        return
    try:
        parse_vram(value)
    except QuantityError as error:
        yield from (meant.amount for meant in error.meant)
    else:
        yield value


def _is_like_ours(domain: str) -> bool:
    """Return True if a domain is ours but for a few letters: `vramwarden`, `vram.io`."""
    if not domain.startswith(_FIRST_LETTER):
        return False
    is_short = domain.startswith(_LETTERS) and domain.count(".") <= _DOMAIN.count(".")
    letters = "".join(filter(str.isalpha, domain))
    return (
        is_short
        or letters.startswith(_OUR_LETTERS)
        or bool(get_close_matches(domain, [_DOMAIN], cutoff=0.8))
    )


def candidates(keys: Iterable[str]) -> Iterator[str]:
    """Yield the keys that are worth comparing: few, of however many."""
    return islice(filter(_CANDIDATE.search, islice(keys, MOST_HINT_KEYS)), MOST_COMPARED)


def near_misses(keys: Mapping[str, Any], field: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each key in a field of metadata that nearly is ours, and our key with its value."""
    for key in candidates(keys):
        is_known = key.startswith(PREFIX) or (field == "labels" and "/" not in key)
        if not is_known and type(keys[key]) is str and (meant := _meant(key, keys[key])):
            yield key, meant


def _of_keys(case: Case) -> Iterator[str]:
    """Yield hints about annotations and labels that are neither ours nor another product's."""
    found: list[tuple[str, str, tuple[str, str], str]] = []
    for field, keys in _metadata(case.pod):
        for key, meant in near_misses(keys, field):
            if case.asks and "/" not in key:
                continue
            why = UNREAD
            # What KAI reads has no unit; with one it is meant for us.
            if key in FOREIGN_ANNOTATIONS and not keys[key].strip()[-1:].isalpha():
                why = f"{FOREIGN_ANNOTATIONS[key][0].name} reads it, vramwarden does not"
            found.append((field, key, meant, why))
    # An amount first: number and class of GPUs are nothing without.
    found.sort(key=lambda one: one[2][0] != GPU_MEMORY_ANNOTATION)
    return (_instead(case, *one) for one in found[:SHOWN])


def _metadata(pod: Pod) -> tuple[tuple[str, Mapping[str, str]], ...]:
    return ("annotations", pod.annotations), ("labels", pod.labels)


def _instead(case: Case, field: str, key: str, meant: tuple[str, str] | None, why: str) -> str:
    """Return the warning about a key in a field of the metadata: the line, then `why`."""
    path = f"metadata.{field}[{shorten(key, _LONGEST_KEY)}]"
    if meant is None or _has(case, meant[0]):
        return f"{path}: remove it; {why}"
    line = _line(case, *meant)
    if not line:
        return f"{path}: remove it; {why}, and as {meant[0]} the pod would be denied"
    where = " under metadata.annotations" if field == "labels" else " in its place"
    return f"{path}: write {line}{where if why in {UNREAD, _AS_LABEL} else ''}; {why}"


def _has(case: Case, key: str, container: str = "") -> bool:
    """Return True if a pod, or one container of it, has what it would be given by a key of ours."""
    pod = case.pod
    if key != GPU_MEMORY_ANNOTATION:
        return key in pod.annotations
    if key not in pod.annotations and not any(
        VRAM_RESOURCE in requested(one) for one in pod.containers
    ):
        return False
    return not container or (case.asked is not None and container in case.asked.amounts)


def _of_resources(case: Case) -> Iterator[str]:
    """Yield hints about other products' resources, and about near misses of ours."""
    compared = 0
    line, answered = cache(partial(_line_for_all, case)), set[str]()
    for container, kind, name in _resources(case):
        hint = ""
        if name in FOREIGN_RESOURCES:
            hint = _instead_of_theirs(case, container, name, line, answered)
        elif name.startswith((_FIRST_LETTER, _NVIDIA)) and not name.startswith(PREFIX):
            compared += 1
            if compared <= MOST_COMPARED and (meant := _meant(name, requested(container)[name])):
                hint = _in_place(case, container, name, *meant)
        if hint:
            yield f"{_resource_path(container, kind, name)}: {hint}"


def _resources(case: Case) -> Iterator[tuple[Container, str, str]]:
    """Yield container, kind and name of each resource with a domain, once for limit and request."""
    for container in case.pod.containers:
        limits = container.resources("limits")
        for kind in ("limits", "requests"):
            for name in container.resources(kind):
                if "/" in name and (kind == "limits" or name not in limits):
                    yield container, kind, name


def _resource_path(container: Container, kind: str, name: str) -> str:
    return f"{container.path}.resources.{kind}[{shorten(name, 64)}]"


def _instead_of_theirs(
    case: Case, container: Container, name: str, line: Callable[[], str], answered: set[str]
) -> str:
    """Return what to do about another product's resource; empty if another hint says it.

    One line is in place of all of a pod. `answered` are the containers that have a hint with it.
    """
    product, meaning = FOREIGN_RESOURCES[name]
    who = f"{product.name} reads it, vramwarden does not"
    if case.asks:
        return "" if case.policy.is_whole_gpu(name) else f"remove it; {who}"
    if meaning is Meaning.COMPUTE:
        return f"remove it; {who}, and compute is not divided here"
    amounts = requested(container)
    has_memory = meaning is not Meaning.MEMORY and _memory_of(amounts)
    if container.name in answered or has_memory:
        return ""
    answered.add(container.name)
    if not line():
        return f"{who}; for a share the pod would be denied"
    theirs = (one for one in amounts if one != name and one in _MEANINGS)
    others = (one for one in theirs if _MEANINGS.get(one) is not Meaning.COMPUTE)
    return f"remove {' and '.join(('it', *others))}, and write the annotation {line()}; {who}"


def _memory_of(amounts: Mapping[str, str]) -> str:
    """Return the name of another product's resource for memory; empty if there is none."""
    return next((one for one in amounts if _MEANINGS.get(one) is Meaning.MEMORY), "")


def _line_for_all(case: Case) -> str:
    """Return the line in place of all that containers ask other products for; empty for none."""
    known: dict[str, str] = {}
    removed: dict[str, list[str]] = {}
    counts: set[int] = set()
    for container in case.pod.containers:
        amounts = requested(container)
        theirs = [one for one in amounts if one in FOREIGN_RESOURCES]
        removed[container.name] = theirs
        if all(_MEANINGS.get(one) is Meaning.COMPUTE for one in theirs):
            continue
        removed[container.name] = [one for one in amounts if one in _MEANINGS]
        memory = _memory_of(amounts)
        product = FOREIGN_RESOURCES[memory][0] if memory else None
        amount = _in_units(amounts.get(memory, ""), product, _MEANINGS.get(memory, Meaning.OTHER))
        known[container.name] = next(_readings(amount), "")
        counts.update(
            int(amount_or(amounts[one], 1)) for one in amounts if _MEANINGS.get(one) is Meaning.GPUS
        )
    count = counts.pop() if len(counts) == 1 else 1
    count = count if 1 < count <= (case.suggestions.max_count or MOST_GPUS_ASKED) else 1
    values = [memory_line(case.pod, known)] if all(known.values()) else []

    def for_each(amount: str) -> str:
        return memory_line(case.pod, dict.fromkeys(known, amount))

    more = (f"{GPU_COUNT_ANNOTATION}: {quoted(count)}",) if count > 1 else ()
    line = _amount(case, values, for_each, *more)
    for name, resources in removed.items() if line else ():
        case.lines.remove(name, resources)
    if line and more:
        case.lines.annotations[GPU_COUNT_ANNOTATION] = str(count)
    return line


def _in_place(case: Case, container: Container, name: str, key: str, value: str) -> str:
    """Return the annotation to write in place of a resource that no node has."""
    if _has(case, key, container.name):
        return f"remove it; {_NO_NODE}"
    line = _line(case, key, value, container.name)
    if not line:
        return f"remove it; {_NO_NODE}, and as {key} the pod would be denied"
    case.lines.remove(container.name, [name])
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
    ours = [one for one in _resources(case) if one[2].startswith(PREFIX)]
    resources = [one for one in ours if one[2] != VRAM_RESOURCE]
    # Comparing words takes time, and a pod may have thousands of annotations.
    return (
        *chain.from_iterable(_unread_in(case, *one) for one in reversed(_metadata(case.pod))),
        *(_resource(case, *one) for one in resources[:SHOWN]),
    )


def _unread_in(case: Case, field: str, keys: Mapping[str, str]) -> Iterator[str]:
    found = list(unread(keys, "Pod", field))
    read = case.policy.pod_labels if found and field == "labels" else ()
    for key in islice((one for one in found if one not in read), SHOWN):
        meant, why = key_meant(key), UNREAD
        if field == "labels":
            why = _AS_LABEL if meant else UNREAD
        elif not meant:
            why = f"{UNREAD}, unlike {', '.join(ASKING_ANNOTATIONS)}"
        yield _instead(case, field, key, (meant, keys[key]) if meant else None, why)


def unread(keys: Iterable[str], kind: str, field: str) -> Iterator[str]:
    """Yield the keys with our prefix that nothing reads in a field of a kind's metadata."""
    read = READ_KEYS.get((kind, field), ())
    return (key for key in filter(_OURS.match, keys) if key not in read)


def key_meant(key: str) -> str:
    """Return our key that another one with our prefix was probably meant to be; empty for none."""
    name = key.removeprefix(PREFIX)[:LONGEST_COMPARED].lower()
    meant = get_close_matches(name, MEANT, n=1)
    return MEANT[meant[0]] if meant else ""


def _resource(case: Case, container: Container, kind: str, name: str) -> str:
    path, amount = _resource_path(container, kind, name), requested(container)[name]
    meant = key_meant(name)
    if meant:
        return f"{path}: {_in_place(case, container, name, meant, amount)}"
    example = case.suggestions.example(lambda amount: {container.name: amount})
    if not example or case.asks:
        return f"{path}: remove it; {_NO_NODE}"
    line = memory_line(case.pod, {container.name: example})
    case.lines.annotations[GPU_MEMORY_ANNOTATION] = line
    return f"{path}: write {VRAM_RESOURCE}: {example} in its place; {_NO_NODE}"
