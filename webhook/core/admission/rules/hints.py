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

from webhook.core.bounds import LONGEST_COMPARED, MOST_COMPARED, MOST_GPUS_ASKED, MOST_HINT_KEYS
from webhook.core.pod.annotated import amounts_line
from webhook.core.pod.demand import of_resource
from webhook.core.pod.fields import with_unit
from webhook.core.pod.findings import annotation_path, quoted
from webhook.core.pod.foreign import FOREIGN_ANNOTATIONS, FOREIGN_RESOURCES, WHOLE_GPU, Meaning
from webhook.core.pod.lines import LineCheck
from webhook.core.pod.quantity import QuantityError, amount_or, parse_count, parse_vram
from webhook.core.pod.views import Change
from webhook.core.words import shortened
from webhook.names import (
    ASKING_ANNOTATIONS,
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
    from webhook.core.pod.views import Container

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
_ANY_LINES: Final = LineCheck()
_NO_CHANGE: Final = Change()
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

    Of any line: here no rule is known.
    """
    meant = _meant(key, value)
    return _line(*meant, _ANY_LINES)[0] if meant else ""


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


def _line(
    key: str,
    value: str,
    lines: LineCheck,
    shape: Callable[[str], str] = str,
    beside: Change = _NO_CHANGE,
) -> tuple[str, str]:
    """Return the line of a manifest with a value, with what that may mean, or with an example.

    Or an empty one, and why the pod would be denied. `shape` makes the annotation's value of an
    amount, and `beside` is what goes with it.
    """
    if key != GPU_MEMORY_ANNOTATION:
        return _shaping_line(key, value, lines)

    def write(amount: str) -> Change:
        return Change({key: shape(amount)}).beside(beside)

    why = ""
    for amount in _readings(value):
        refused = lines.why_not(write(amount))
        if refused is None:
            lines.keep(write(amount))
            return f"{key}: {shape(amount)}", ""
        why = why or refused
    example = lines.example(write)
    return _example(shape(example), why) if example else "", why


def _example(value: str, why: str) -> str:
    """Return a line with an example, and by what bound it is not what was meant."""
    bound = f": {why.rpartition('; ')[2]}" if why else ""
    return f"{GPU_MEMORY_ANNOTATION}: {value}, for example{bound}"


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


def _shaping_line(key: str, value: str, lines: LineCheck) -> tuple[str, str]:
    """Return the line of a key that asks for nothing by itself, beside one that does if needed."""
    line, alone = f"{key}: {quoted(value)}", Change({key: value})
    why = lines.why_not(alone)
    if why is None:
        lines.keep(alone)
        return line, ""
    amount = lines.example(lambda one: Change({key: value, GPU_MEMORY_ANNOTATION: one}))
    more = f" beside {GPU_MEMORY_ANNOTATION}: {amount}, for example"
    return (line + more, "") if amount else ("", why)


def _to_write(key: str, value: str, lines: LineCheck, what: str = "") -> str:
    """Say what to write, or why not."""
    line, why = _line(key, value, lines)
    denied = f": {why}" if why else ""
    return f"write {what}{line}" if line else f"as {key} the pod would be denied{denied}"


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
        yield before + _to_write(key, value, case.lines, what)


def _of_resources(case: Case) -> Iterator[str]:
    """Yield hints about resources that nothing of ours counts."""
    compared = 0
    said_of: set[str] = set()
    all_of_it: list[tuple[str, str]] = []
    for container in case.pod.containers:
        limits = container.resources("limits")
        for kind in ("limits", "requests"):
            for name in container.resources(kind):
                if "/" not in name or (kind == "requests" and name in limits):
                    continue
                said = ""
                if name in FOREIGN_RESOURCES:
                    said = _theirs(case, container, name, said_of, all_of_it)
                elif name.startswith(_FIRST_LETTER) and name != VRAM_RESOURCE:
                    compared += 1
                    said = _no_resource(case, container, name) if compared <= MOST_COMPARED else ""
                if said:
                    yield f"{container.path}.resources.{kind}[{shortened(name, 64)}]: {said}"


def _theirs(
    case: Case,
    container: Container,
    name: str,
    said_of: set[str],
    all_of_it: list[tuple[str, str]],
) -> str:
    """Say what to write instead of another product's resource; empty where that is said already.

    `said_of` are the containers of which it is, and `all_of_it` is the line, once it is known.
    """
    product, meaning = FOREIGN_RESOURCES[name]
    who = f"{product.name} reads it, vramwarden does not"
    if case.asks:
        return "" if case.policy.is_whole_gpu(name) else f"{who}; remove it"
    if meaning is Meaning.COMPUTE:
        return f"{who}; compute is not divided here, so remove it"
    amounts = _asked(container)
    if container.name in said_of or (meaning is not Meaning.MEMORY and _memory_of(amounts)):
        return ""
    said_of.add(container.name)
    gone = [one for one in amounts if one != name and _is_theirs(one)]
    gone = [one for one in gone if _means(one) is not Meaning.COMPUTE]
    if not all_of_it:
        all_of_it.append(_line_for_all(case))
    ((line, why),) = all_of_it
    if not line:
        return f"{who}; for a share the pod would be denied" + (f": {why}" if why else "")
    return f"{who}; remove {' and '.join(('it', *gone))}, and write the annotation {line}"


def _asked(container: Container) -> Mapping[str, str]:
    return {**container.resources("requests"), **container.resources("limits")}


def _memory_of(amounts: Mapping[str, str]) -> str:
    """Return the name of another product's resource that says memory; empty for none."""
    return next((one for one in amounts if _means(one) is Meaning.MEMORY), "")


def _means(resource: str) -> Meaning:
    return FOREIGN_RESOURCES[resource][1] if resource in FOREIGN_RESOURCES else Meaning.OTHER


def _line_for_all(case: Case) -> tuple[str, str]:
    """Return the line that stands for what all containers ask other products for, or why none."""
    known: dict[str, str] = {}
    gone: dict[str, dict[str, None]] = {}
    counts: set[int] = set()
    for container in case.pod.containers:
        amounts = _asked(container)
        theirs = [one for one in amounts if one in FOREIGN_RESOURCES]
        if all(_means(one) is Meaning.COMPUTE for one in theirs):
            gone[container.name] = dict.fromkeys(theirs)
            continue
        memory = _memory_of(amounts)
        product = FOREIGN_RESOURCES[memory][0] if memory else None
        known[container.name] = _in_units(amounts.get(memory, ""), product, _means(memory))
        gone[container.name] = {one: None for one in amounts if _is_theirs(one)}
        counts.update(int(amount_or(amounts[one], 1)) for one in amounts if one in _COUNTING)
    count = counts.pop() if len(counts) == 1 else 1
    number = {GPU_COUNT_ANNOTATION: str(count)} if 1 < count <= MOST_GPUS_ASKED else {}
    beside = Change(dict(number), gone)

    def known_or(amount: str) -> str:
        return amounts_line(case.pod, {name: one or amount for name, one in known.items()})

    def for_each(amount: str) -> str:
        return amounts_line(case.pod, dict.fromkeys(known, amount))

    value = next(filter(None, known.values()), "")
    line, why = _line(GPU_MEMORY_ANNOTATION, value, case.lines, known_or, beside)
    if not line:
        line, _ = _line(GPU_MEMORY_ANNOTATION, "", case.lines, for_each, beside)
        line = line and _example(line.partition(": ")[2].removesuffix(", for example"), why)
    if number and line:
        amount, comma, example = line.partition(", for example")
        line = f"{amount} and {GPU_COUNT_ANNOTATION}: {quoted(count)}{comma}{example}"
    return line, why


def _is_theirs(resource: str) -> bool:
    return resource == WHOLE_GPU or resource in FOREIGN_RESOURCES


def _no_resource(case: Case, container: Container, name: str) -> str:
    """Say what to write instead of a resource of ours that does not exist; empty for others'."""
    amount = _asked(container)[name]
    meant: tuple[str, str] | None
    if name.startswith(PREFIX):
        near = get_close_matches(name[len(PREFIX) : LONGEST_COMPARED].lower(), MEANT, n=1)
        if not near:
            of_ours = partial(of_resource, container, VRAM_RESOURCE)
            example = case.lines.example(of_ours)
            more = f", e.g. {example}" if example else ""
            return f"no node has this resource; the only one is {VRAM_RESOURCE}{more}"
        meant = MEANT[near[0]], amount
    else:
        meant = _meant(name, amount)
    if meant is None:
        return ""

    def shape(one: str) -> str:
        return amounts_line(case.pod, {container.name: one})

    line, why = _line(*meant, case.lines, shape)
    denied = f": {why}" if why else ""
    written = (
        f"write the annotation {line}" if line else f"it would be denied as {meant[0]}{denied}"
    )
    return f"no node has this resource; {written}"


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
    labels = [_misplaced(key, pod.labels[key], case.lines) for key in misplaced]
    # Comparing words takes time, and a pod may have thousands of annotations.
    return (*labels, *(_unread(key, pod.annotations[key], case.lines) for key in unread[:SHOWN]))


def _misplaced(key: str, value: str, lines: LineCheck) -> str:
    line, why = _line(key, value, lines)
    here = "under metadata.annotations"
    if line in {f"{key}: {value}", f"{key}: {quoted(value)}"}:
        said = f"write it {here}"
    else:
        said = f"write {line} {here}" if line else f"{here} it would be denied: {why}"
    return f"metadata.labels[{key}]: as a label it asks for nothing; {said}"


def _unread(key: str, value: str, lines: LineCheck) -> str:
    shown = key if len(key) <= _LONGEST_KEY else f"{key[:_LONGEST_KEY]}…"
    meant = get_close_matches(shown.removeprefix(PREFIX).lower(), MEANT, n=1)
    known = ", ".join(ASKING_ANNOTATIONS)
    what = f"developers set {known}"
    if meant:
        line, _ = _line(MEANT[meant[0]], value, lines)
        is_same = not line or line.partition(": ")[2] in {value, quoted(value)}
        what = f"did you mean {MEANT[meant[0]] if is_same else line}?"
    return f"{annotation_path(shown)}: nothing reads this key; {what}"
