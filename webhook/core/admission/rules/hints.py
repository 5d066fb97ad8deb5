"""Hints: names of other products, near misses of ours, and keys of ours that nothing reads.

Whoever comes from another product, or mistypes a name, gets a pod without a GPU and no word about
it; a typo must not silently mean "no limit". Every hint has the line to write instead, with which
the pod is admitted, or says why there is none. The other products' names are in `core.pod.foreign`.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from webhook.core.bounds import (
    LONGEST_COMPARED,
    MOST_COMPARED,
    MOST_GPUS_ASKED,
    MOST_HINT_KEYS,
)
from webhook.core.pod.demand import COUNT
from webhook.core.pod.fields import EXAMPLE, with_unit
from webhook.core.pod.findings import annotation_path, quoted
from webhook.core.pod.foreign import FOREIGN_ANNOTATIONS, FOREIGN_RESOURCES, WHOLE_GPU, Meaning
from webhook.core.pod.memory_annotation import memory_line, named_line, read_memory
from webhook.core.pod.quantity import (
    QuantityError,
    amount_or,
    format_bytes,
    parse_count,
    parse_vram,
)
from webhook.core.policy.values import class_names
from webhook.core.words import shortened
from webhook.names import (
    ASKING_ANNOTATIONS,
    GPU_CLASS_ANNOTATION,
    GPU_COUNT_ANNOTATION,
    GPU_MEMORY_ANNOTATION,
    IN_PLACE_OF_ANNOTATION,
    LONGEST_LABEL,
    MANAGED_LABEL,
    OUR_ANNOTATIONS,
    PREFIX,
    VRAM_RESOURCE,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from webhook.core.admission.rules.case import Case
    from webhook.core.pod.foreign import Product
    from webhook.core.pod.memory_annotation import Faults
    from webhook.core.pod.views import Container, Pod

MEANT: Final = {key.removeprefix(PREFIX): key for key in ASKING_ANNOTATIONS} | {
    # The resource asks for the same, so its name is a likely guess at the annotation's.
    VRAM_RESOURCE.removeprefix(PREFIX): GPU_MEMORY_ANNOTATION
}
"""What was probably meant, by the part of a key behind our prefix."""

SHOWN: Final = 10
"""Hints about keys of one pod; nobody reads more."""

_WITHOUT_PREFIX: Final = frozenset(
    {*FOREIGN_ANNOTATIONS, "gpu_memory", "gpumemory", "gpu-mem", "gpumem", "vram"}
)
"""Keys without a domain that can hardly mean anything else."""

_SIMPLE: Final = re.compile(r"[0-9A-Za-z.,=+/% _-]{1,256}")
_COUNTING: Final = {
    WHOLE_GPU,
    *(name for name, (_, meaning) in FOREIGN_RESOURCES.items() if meaning is Meaning.GPUS),
}
_DOMAIN: Final = PREFIX.rstrip("/")
_LETTERS: Final = _DOMAIN.partition(".")[0]
_FIRST_LETTER: Final = _DOMAIN[0]
_CANDIDATE: Final = re.compile("vram|warden|gpu", re.IGNORECASE)
_OURS: Final = frozenset({*OUR_ANNOTATIONS, IN_PLACE_OF_ANNOTATION, MANAGED_LABEL})
_LONGEST_KEY: Final = len(PREFIX) + LONGEST_LABEL


def foreign_requests(case: Case) -> tuple[str, ...]:
    """Rule: GPU memory is asked for by our names, and not by those of other products.

    Fields: metadata.annotations, metadata.labels,
    spec.[initContainers,containers][*].resources.requests|limits
    Allowed values: any, since such a pod is valid: it returns warnings and not findings
    """
    return tuple(islice(chain(_of_keys(case), _of_resources(case)), SHOWN))


def near_miss(key: str, value: str) -> str:
    """Return the line to write instead of a key that nearly is one of ours; empty for others.

    No rule is known here, so any amount fits.
    """
    meant = _meant(key, value)
    if meant is None:
        return ""
    our_key, text = meant
    if our_key != GPU_MEMORY_ANNOTATION:
        return f"{our_key}: {quoted(text)}"
    return f"{our_key}: {next(_readings(text), f'{EXAMPLE}, for example')}"


def _meant(key: str, value: str) -> tuple[str, str] | None:
    """Return our key that was meant, and the value in our units; None for another's key."""
    domain, slash, name = key.rpartition("/")
    if not slash:
        if key not in _WITHOUT_PREFIX:
            return None
        product, meaning = FOREIGN_ANNOTATIONS.get(key, (None, Meaning.MEMORY))
        return GPU_MEMORY_ANNOTATION, _in_units(value, product, meaning)
    if domain == _DOMAIN or len(key) > LONGEST_COMPARED or not _is_like_ours(domain.lower()):
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


def _line(case: Case, key: str, value: str) -> str:
    """Return the line of a manifest with a value, with its likely meaning, or with an example.

    It is added to the lines that the review suggests; empty if no value would be admitted.
    """
    if key == GPU_MEMORY_ANNOTATION:
        named = partial(named_line, case.pod)
        return _memory_line(case, map(named, _readings(value)), named)
    if not _is_allowed(case, key, value):
        return ""
    case.lines.annotations[key] = value
    line = f"{key}: {quoted(value)}"
    if case.asks or GPU_MEMORY_ANNOTATION in case.lines.annotations:
        return line
    example = _memory_line(case, (), partial(named_line, case.pod))
    return f"{line} beside {example}" if example else ""


def _is_allowed(case: Case, key: str, value: str) -> bool:
    """Return True if the rule allows a number of GPUs or a class."""
    if key == GPU_CLASS_ANNOTATION:
        return value in class_names(case.policy.classes, case.rule.allowed_classes)
    most = case.suggestions.max_count or MOST_GPUS_ASKED
    return COUNT.fullmatch(value) is not None and int(value) <= most


def _memory_line(case: Case, values: Iterable[str], example_for: Callable[[str], str] = str) -> str:
    """Return the line of `gpu-memory` with the first value that is admitted, or an example.

    `example_for` returns the value with an example's amount. The line says which bound denies the
    first value, and is added to those that the review suggests.
    """
    why = ""
    for value in values:
        rejection = case.suggestions.rejection(_readable(case.pod, value))
        if rejection is None:
            case.lines.annotations[GPU_MEMORY_ANNOTATION] = value
            return f"{GPU_MEMORY_ANNOTATION}: {value}"
        why = why or rejection
    example = case.suggestions.example(
        lambda amount: _readable(case.pod, example_for(format_bytes(amount)))
    )
    if not example:
        return ""
    value = case.lines.annotations[GPU_MEMORY_ANNOTATION] = example_for(example)
    bound = f": {why.rpartition('; ')[2]}" if why else ""
    return f"{GPU_MEMORY_ANNOTATION}: {value}, for example{bound}"


def _readable(pod: Pod, value: str) -> Mapping[str, int]:
    """Return the amounts of a value of the annotation; none if a part cannot be read."""
    faults: Faults = []
    amounts = read_memory(pod, value, faults)
    return {} if faults else amounts


def _readings(value: str) -> Iterator[str]:
    """Yield what a value may mean: itself where it is an amount or a list of them."""
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


def _to_write(case: Case, key: str, value: str, what: str = "") -> str:
    """Return what to write in place of a key that nothing reads."""
    line = _line(case, key, value)
    return f"write {what}{line}" if line else f"as {key} the pod would be denied"


def _is_like_ours(domain: str) -> bool:
    """Say whether a domain is ours but for a few letters: `vramwarden`, `vram-warden.io`."""
    if not domain.startswith(_FIRST_LETTER):
        return False
    letters = "".join(filter(str.isalpha, domain))
    return letters.startswith(_LETTERS) or bool(get_close_matches(domain, [_DOMAIN], cutoff=0.8))


def candidates(keys: Iterable[str]) -> Iterator[str]:
    """Yield the keys that are worth comparing: few, of however many."""
    return islice(filter(_CANDIDATE.search, islice(keys, MOST_HINT_KEYS)), MOST_COMPARED)


def _of_keys(case: Case) -> Iterator[str]:
    """Yield hints about annotations and labels that are neither ours nor anybody's whom we know."""
    pod = case.pod
    found: list[tuple[str, str, str, str]] = []
    for key in candidates(pod.annotations):
        if key.startswith(PREFIX) or (case.asks and "/" not in key):
            continue
        value = pod.annotations[key]
        if meant := _meant(key, value):
            whose = "nothing reads this key"
            # What KAI reads has no unit; with one it is meant for us.
            if key in FOREIGN_ANNOTATIONS and not value.strip()[-1:].isalpha():
                whose = f"{FOREIGN_ANNOTATIONS[key][0].name} reads it, vramwarden does not"
            found.append((f"{annotation_path(key)}: {whose}; ", *meant, ""))
    for key in candidates(pod.labels):
        if "/" in key and not key.startswith(PREFIX) and (meant := _meant(key, pod.labels[key])):
            where = f"metadata.labels[{key}]: nothing reads this key; "
            found.append((where, *meant, "the annotation "))
    # An amount first: number and class of GPUs are nothing without.
    found.sort(key=lambda one: one[1] != GPU_MEMORY_ANNOTATION)
    for before, key, value, what in found[:SHOWN]:
        yield before + _to_write(case, key, value, what)


def _of_resources(case: Case) -> Iterator[str]:
    """Yield hints about resources that nothing of ours counts."""
    compared = 0
    theirs = _ForeignResources(case)
    for container in case.pod.containers:
        limits = container.resources("limits")
        for kind in ("limits", "requests"):
            for name in container.resources(kind):
                if "/" not in name or (kind == "requests" and name in limits):
                    continue
                hint = ""
                if name in FOREIGN_RESOURCES:
                    hint = theirs.hint(container, name)
                elif name.startswith(_FIRST_LETTER) and name != VRAM_RESOURCE:
                    compared += 1
                    hint = _no_resource(case, container, name) if compared <= MOST_COMPARED else ""
                if hint:
                    yield f"{container.path}.resources.{kind}[{shortened(name, 64)}]: {hint}"


class _ForeignResources:
    """Hints about other products' resources of a pod: one line in place of all of them."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._with_hint: set[str] = set()
        """Names of containers that have a hint with the line."""
        self._line: str | None = None

    def hint(self, container: Container, name: str) -> str:
        """Return what to write instead of a resource; empty if another hint has it already."""
        case, (product, meaning) = self._case, FOREIGN_RESOURCES[name]
        who = f"{product.name} reads it, vramwarden does not"
        if case.asks:
            return "" if case.policy.is_whole_gpu(name) else f"{who}; remove it"
        if meaning is Meaning.COMPUTE:
            return f"{who}; compute is not divided here, so remove it"
        amounts = _asked(container)
        has_memory = meaning is not Meaning.MEMORY and _memory_of(amounts)
        if container.name in self._with_hint or has_memory:
            return ""
        self._with_hint.add(container.name)
        others = [one for one in amounts if one != name and _is_theirs(one)]
        others = [one for one in others if _means(one) is not Meaning.COMPUTE]
        if self._line is None:
            self._line = _line_for_all(case)
        if not self._line:
            return f"{who}; for a share the pod would be denied"
        remove = " and ".join(("it", *others))
        return f"{who}; remove {remove}, and write the annotation {self._line}"


def _asked(container: Container) -> Mapping[str, str]:
    return {**container.resources("requests"), **container.resources("limits")}


def _memory_of(amounts: Mapping[str, str]) -> str:
    """Return the name of another product's resource for memory; empty if there is none."""
    return next((one for one in amounts if _means(one) is Meaning.MEMORY), "")


def _means(resource: str) -> Meaning:
    return FOREIGN_RESOURCES[resource][1] if resource in FOREIGN_RESOURCES else Meaning.OTHER


def _line_for_all(case: Case) -> str:
    """Return the line in place of all that containers ask other products for; empty for none."""
    known: dict[str, str] = {}
    removed: dict[str, list[str]] = {}
    counts: set[int] = set()
    for container in case.pod.containers:
        amounts = _asked(container)
        theirs = [one for one in amounts if one in FOREIGN_RESOURCES]
        removed[container.name] = theirs
        if all(_means(one) is Meaning.COMPUTE for one in theirs):
            continue
        removed[container.name] = list(filter(_is_theirs, amounts))
        memory = _memory_of(amounts)
        product = FOREIGN_RESOURCES[memory][0] if memory else None
        amount = _in_units(amounts.get(memory, ""), product, _means(memory))
        known[container.name] = next(_readings(amount), "")
        counts.update(int(amount_or(amounts[one], 1)) for one in amounts if one in _COUNTING)
    count = counts.pop() if len(counts) == 1 else 1
    count = count if 1 < count <= (case.suggestions.max_count or MOST_GPUS_ASKED) else 1
    values = [memory_line(case.pod, known)] if all(known.values()) else []

    def for_each(amount: str) -> str:
        return memory_line(case.pod, dict.fromkeys(known, amount))

    line = _memory_line(case, values, for_each)
    if not line:
        return ""
    for name, resources in removed.items():
        case.lines.remove(name, resources)
    if count > 1:
        case.lines.annotations[GPU_COUNT_ANNOTATION] = str(count)
        amount, comma, example = line.partition(", for example")
        line = f"{amount} and {GPU_COUNT_ANNOTATION}: {quoted(count)}{comma}{example}"
    return line


def _is_theirs(resource: str) -> bool:
    return resource == WHOLE_GPU or resource in FOREIGN_RESOURCES


def _no_resource(case: Case, container: Container, name: str) -> str:
    """Return what to write instead of a resource of ours that does not exist; empty for others'."""
    amount = _asked(container)[name]
    meant: tuple[str, str] | None
    if name.startswith(PREFIX):
        near = get_close_matches(name[len(PREFIX) : LONGEST_COMPARED].lower(), MEANT, n=1)
        if not near:
            name = container.name
            example = case.suggestions.example(lambda amount: {name: amount})
            if example:
                line = memory_line(case.pod, {name: example})
                case.lines.annotations[GPU_MEMORY_ANNOTATION] = line
            more = f", e.g. {example}" if example else ""
            return f"no node has this resource; the only one is {VRAM_RESOURCE}{more}"
        meant = MEANT[near[0]], amount
    else:
        meant = _meant(name, amount)
    if meant is None:
        return ""
    key, value = meant
    value_for = partial(_value_for, case, container)
    if key == GPU_MEMORY_ANNOTATION:
        values = map(value_for, _readings(value))
        line = _memory_line(case, values, value_for)
    else:
        line = _line(case, key, value)
    written = f"write the annotation {line}" if line else f"it would be denied as {key}"
    return f"no node has this resource; {written}"


def _value_for(case: Case, container: Container, amount: str) -> str:
    """Return the annotation's value that gives a container an amount."""
    return memory_line(case.pod, {container.name: amount})


def unread_keys(case: Case) -> tuple[str, ...]:
    """Rule: every annotation with our prefix is one that we read, and no label asks for VRAM.

    Fields: metadata.annotations, metadata.labels
    Allowed values: any key without our prefix; the keys that developers set and those that we set

    It returns warnings and not findings, because such a pod is valid. A node's keys count as unread
    too, since `gpu-memory-mib` on a pod is meant as a limit.
    """
    pod = case.pod
    unread = [key for key in pod.annotations if key.startswith(PREFIX) and key not in _OURS]
    misplaced = [
        key for key in ASKING_ANNOTATIONS if key in pod.labels and key not in pod.annotations
    ]
    if not unread and not misplaced:
        return ()
    labels = [_misplaced(case, key, pod.labels[key]) for key in misplaced]
    # Comparing words takes time, and a pod may have thousands of annotations.
    return (*labels, *(_unread(case, key, pod.annotations[key]) for key in unread[:SHOWN]))


def _misplaced(case: Case, key: str, value: str) -> str:
    line = _line(case, key, value)
    here = "under metadata.annotations"
    if line in {f"{key}: {value}", f"{key}: {quoted(value)}"}:
        do = f"write it {here}"
    else:
        do = f"write {line} {here}" if line else f"{here} it would be denied"
    return f"metadata.labels[{key}]: as a label it asks for nothing; {do}"


def _unread(case: Case, key: str, value: str) -> str:
    shown = key if len(key) <= _LONGEST_KEY else f"{key[:_LONGEST_KEY]}…"
    meant = get_close_matches(shown.removeprefix(PREFIX).lower(), MEANT, n=1)
    known = ", ".join(ASKING_ANNOTATIONS)
    do = f"developers set {known}"
    if meant:
        line = _line(case, MEANT[meant[0]], value)
        is_same = not line or line.partition(": ")[2] in {value, quoted(value)}
        do = f"did you mean {MEANT[meant[0]] if is_same else line}?"
    return f"{annotation_path(shown)}: nothing reads this key; {do}"
