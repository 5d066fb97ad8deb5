"""Hints: names of other products, near misses of ours, and keys of ours that nothing reads.

Whoever comes from another product, or mistypes a name, gets a pod without a GPU and no word about
it; a typo must not silently mean "no limit". Every hint has the line to write instead. The other
products' names are in `core.pod.foreign`.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from webhook.core.bounds import LONGEST_COMPARED, MOST_COMPARED, MOST_HINT_KEYS
from webhook.core.pod.fields import with_unit
from webhook.core.pod.findings import annotation_path, quoted
from webhook.core.pod.foreign import FOREIGN_ANNOTATIONS, FOREIGN_RESOURCES, WHOLE_GPU, Meaning
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
    from collections.abc import Iterable, Iterator

    from webhook.core.admission.rules.case import Case
    from webhook.core.pod.views import Container

MEANT: Final = {key.removeprefix(PREFIX): key for key in ASKING_ANNOTATIONS} | {
    # The resource asks for the same, so its name is a likely guess at the annotation's.
    VRAM_RESOURCE.removeprefix(PREFIX): GPU_MEMORY_ANNOTATION
}
"""What was probably meant, by the part of a key behind our prefix."""

SHOWN: Final = 10
"""Hints about keys of one pod; nobody reads more."""

_GUESSED: Final = "?"
"""In place of a unit: by the size of the number."""
_WITHOUT_PREFIX: Final = frozenset(
    {*FOREIGN_ANNOTATIONS, "gpu_memory", "gpumemory", "gpu-mem", "gpumem", "vram"}
)
"""Keys without a domain that can hardly mean anything else."""

_NUMBER: Final = re.compile(r"[1-9][0-9]{0,9}")
_SIMPLE: Final = re.compile(r"[0-9A-Za-z.,=+ _-]{1,64}")
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
    """Return the line to write instead of a key that nearly is one of ours; empty for others."""
    domain, slash, name = key.rpartition("/")
    if not slash:
        if key not in _WITHOUT_PREFIX:
            return ""
        unit = _GUESSED
        if key in FOREIGN_ANNOTATIONS:
            product, meaning = FOREIGN_ANNOTATIONS[key]
            unit = product.unit if meaning is Meaning.MEMORY else ""
        return _line(GPU_MEMORY_ANNOTATION, _in_unit(value, unit))
    if domain == _DOMAIN or len(key) > LONGEST_COMPARED:
        return ""
    if not _is_like_ours(domain.lower()):
        return ""
    meant = get_close_matches(name.lower(), MEANT, n=1)
    return _line(MEANT[meant[0]], value) if meant else ""


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
    for key in candidates(pod.annotations):
        if key.startswith(PREFIX) or (case.asks and "/" not in key):
            continue
        value = pod.annotations[key]
        line = near_miss(key, value)
        if not line:
            continue
        whose = "nothing reads this key"
        # What KAI reads has no unit; with one it is meant for us.
        if key in FOREIGN_ANNOTATIONS and not value.strip()[-1:].isalpha():
            whose = f"{FOREIGN_ANNOTATIONS[key][0].name} reads it, vramwarden does not"
        yield f"{annotation_path(key)}: {whose}; write {line}"
    for key in candidates(pod.labels):
        if "/" in key and not key.startswith(PREFIX) and (line := near_miss(key, pod.labels[key])):
            yield f"metadata.labels[{key}]: nothing reads this key; write the annotation {line}"


def _of_resources(case: Case) -> Iterator[str]:
    """Yield hints about resources that nothing of ours counts."""
    compared = 0
    for container in case.pod.containers:
        limits = container.resources("limits")
        for kind, amounts in (("limits", limits), ("requests", container.resources("requests"))):
            for name, amount in amounts.items():
                if "/" not in name or (kind == "requests" and name in limits):
                    continue
                said = ""
                if name in FOREIGN_RESOURCES:
                    said = _theirs(case, container, name, amount)
                elif name.startswith(_FIRST_LETTER) and name != VRAM_RESOURCE:
                    compared += 1
                    said = _no_resource(name, amount) if compared <= MOST_COMPARED else ""
                if said:
                    yield f"{container.path}.resources.{kind}[{shortened(name, 64)}]: {said}"


def _theirs(case: Case, container: Container, name: str, amount: str) -> str:
    """Say what to write instead of another product's resource; empty where the pod is denied."""
    product, meaning = FOREIGN_RESOURCES[name]
    if case.asks:
        if case.policy.is_whole_gpu(name):
            return ""
        return f"{product.name} reads it, vramwarden does not; remove it"
    who = f"{product.name} reads it, vramwarden does not; "
    if meaning is Meaning.COMPUTE:
        return f"{who}compute is not divided here, so remove it"
    if meaning is not Meaning.MEMORY:
        return f"{who}write the annotation {_line(GPU_MEMORY_ANNOTATION, '')}"
    limits = {**container.resources("requests"), **container.resources("limits")}
    count = limits.get(WHOLE_GPU, "")
    line = _line(GPU_MEMORY_ANNOTATION, _in_unit(amount, product.unit))
    several = _NUMBER.fullmatch(count) and count != "1"
    more = f' and {GPU_COUNT_ANNOTATION}: "{count}"' if several else ""
    gone = f"remove it and {WHOLE_GPU}, and " if count else ""
    return f"{who}{gone}write the annotation {line}{more}"


def _no_resource(name: str, amount: str) -> str:
    """Say what to write instead of a resource of ours that does not exist; empty for others'."""
    if not name.startswith(PREFIX):
        line = near_miss(name, amount)
        return f"no node has this resource; write the annotation {line}" if line else ""
    meant = get_close_matches(name[len(PREFIX) : LONGEST_COMPARED].lower(), MEANT, n=1)
    if not meant:
        return f"no node has this resource; the only one is {VRAM_RESOURCE}, e.g. 8Gi"
    return f"no node has this resource; write the annotation {_line(MEANT[meant[0]], amount)}"


def _in_unit(value: str, unit: str) -> str:
    """Return a number as an amount in a unit; what is none as it is, a part of one as nothing."""
    if _NUMBER.fullmatch(value):
        if unit == _GUESSED:
            return with_unit(int(value)) or value
        return f"{value}{unit}" if unit else ""
    return value if value[-1:].isalpha() else ""


def _line(key: str, value: str) -> str:
    """Return the line of a manifest."""
    if key == GPU_MEMORY_ANNOTATION:
        return f"{key}: {value}" if _SIMPLE.fullmatch(value) else f"{key}: 8Gi, for example"
    return f"{key}: {quoted(value)}"


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
    labels = [
        f"metadata.labels[{key}]: as a label it asks for nothing; write it under "
        "metadata.annotations"
        for key in misplaced
    ]
    # Comparing words takes time, and a pod may have thousands of annotations.
    return (*labels, *map(_unread, unread[:SHOWN]))


def _unread(key: str) -> str:
    shown = key if len(key) <= _LONGEST_KEY else f"{key[:_LONGEST_KEY]}…"
    meant = get_close_matches(shown.removeprefix(PREFIX).lower(), MEANT, n=1)
    known = ", ".join(ASKING_ANNOTATIONS)
    what = f"did you mean {MEANT[meant[0]]}?" if meant else f"developers set {known}"
    return f"{annotation_path(shown)}: nothing reads this key; {what}"
