"""The annotation `gpu-memory`: one amount, or a list of amounts by container."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from webhook.core.bounds import LONGEST_WORD, MOST_DEMAND_FINDINGS
from webhook.core.pod.findings import Finding, Reason, annotation_path, quoted
from webhook.core.pod.quantity import QuantityError, QuantityTooSmallError, parse_vram
from webhook.core.words import shortened
from webhook.names import DEFAULT_CONTAINER_ANNOTATION, GPU_MEMORY_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from webhook.core.pod.views import Pod

MEMORY_PATH: Final = annotation_path(GPU_MEMORY_ANNOTATION)
_SEPARATED_OTHERWISE: Final = re.compile("[:;]|=[^,=]*=")
"""Separators that no list has; neither a name nor a size has a colon or a semicolon."""
_COMMA: Final = re.compile("(?<![0-9]),|,(?![0-9]+ *[A-Za-z]* *(?:,|$))")
"""A comma between entries of a list, and not before decimals."""
_WITH_DECIMALS: Final = re.compile("[0-9.]*,[0-9,.]+ *[A-Za-z]*")
_PLAIN: Final = re.compile(r"[0-9A-Za-z.,/%+-]{1,64}")
_SHOWN_NAMES: Final = 10


class Gap(NamedTuple):
    """An amount that is missing or cannot be read, for which a message suggests another."""

    reason: Reason
    path: str
    sentence: str
    """The message, without the line to write."""
    container: str
    """The container of the amount; empty if there is none."""
    error: QuantityError | None = None
    """Why the amount cannot be read; None if it is missing."""


Faults = list[Finding | Gap]
"""Reasons why a demand cannot be read, in the order in which they were found."""


def read_memory(pod: Pod, memory: str, faults: Faults) -> dict[str, int]:
    """Read the annotation `gpu-memory`; return the readable amounts, in bytes by container."""
    if _SEPARATED_OTHERWISE.search(memory):
        wrong = "is not read as a list; separate entries with a comma, name=size"
    elif "=" in memory:
        return _read_list(pod, memory, faults)
    elif "," in memory and not _WITH_DECIMALS.fullmatch(memory):
        wrong = "is a list without names; write name=size for each container"
    else:
        name = default_container(pod, faults)
        amount_bytes = read_amount(memory, MEMORY_PATH, name, faults)
        return {name: amount_bytes} if amount_bytes and name else {}
    faults.append(_no_list(pod, f"{quoted(memory)} {wrong}"))
    return {}


def _no_list(pod: Pod, sentence: str) -> Gap:
    return Gap(Reason.INVALID_QUANTITY, MEMORY_PATH, sentence, default_container(pod, []))


def _read_list(pod: Pod, memory: str, faults: Faults) -> dict[str, int]:
    known = dict.fromkeys(container.name for container in pod.containers)
    entries = [
        (entry, *(part.strip(" ") for part in entry.partition("=")))
        for entry in _COMMA.split(memory)
    ]
    listed = {name for _, name, *_ in entries}
    free = (name for name in known if name not in listed)
    amounts: dict[str, int] = {}
    for entry, name, equals, size in entries:
        if len(faults) >= MOST_DEMAND_FINDINGS:
            break
        prefix = f"{shortened(name, LONGEST_WORD)}="
        if not equals or not name:
            faults.append(_no_list(pod, f"the entry {quoted(entry)} is not of the form name=size"))
        elif name not in known:
            other = next(free, "")
            sentence = _unknown(name, known) + ("" if other else "; remove the entry")
            faults.append(Finding(Reason.UNKNOWN_CONTAINER, MEMORY_PATH, sentence))
            if other:
                amounts[other] = read_amount(size, MEMORY_PATH, other, faults, prefix)
        elif name in amounts:
            sentence = f"container {quoted(name)} stands twice in the list; keep one entry"
            faults.append(Finding(Reason.INVALID_QUANTITY, MEMORY_PATH, sentence))
        else:
            amounts[name] = read_amount(size, MEMORY_PATH, name, faults, prefix)
    return {name: amount_bytes for name, amount_bytes in amounts.items() if amount_bytes}


def read_amount(text: str, path: str, container: str, faults: Faults, prefix: str = "") -> int:
    """Read one amount in bytes; return 0 and add a fault if the text is no amount."""
    try:
        return parse_vram(text)
    except QuantityError as error:
        too_small = isinstance(error, QuantityTooSmallError)
        reason = Reason.TOO_SMALL if too_small else Reason.INVALID_QUANTITY
        shown = prefix + (text if _PLAIN.fullmatch(text) else quoted(text))
        faults.append(Gap(reason, path, shown, container, error))
        return 0


def default_container(pod: Pod, faults: Faults) -> str:
    """Return the container that one quantity goes to, as `kubectl` would choose it.

    If the named one does not exist, add a fault and return the first; empty if there is none.
    """
    first = next((one.name for one in pod.containers if one.field == "containers"), "")
    named = pod.annotations.get(DEFAULT_CONTAINER_ANNOTATION)
    if named is None and first:
        return first
    if named is None:
        path, sentence = "spec.containers", "the pod has no container that could get the VRAM"
    else:
        known = dict.fromkeys(container.name for container in pod.containers)
        if named in known:
            return named
        path, sentence = annotation_path(DEFAULT_CONTAINER_ANNOTATION), _unknown(named, known)
    faults.append(Finding(Reason.UNKNOWN_CONTAINER, path, sentence))
    return first


def _unknown(name: str, known: Collection[str]) -> str:
    shown = (shortened(name, LONGEST_WORD) for name in islice(known, _SHOWN_NAMES))
    have = ", ".join(shown) + ", ..." * (len(known) > _SHOWN_NAMES)
    return f"the pod has no container {quoted(name)}; it has {have or 'none'}"


def memory_line(pod: Pod, amounts: Mapping[str, str]) -> str:
    """Return the annotation's value: one amount if it is for the default container, else a list."""
    named = pod.annotations.get(DEFAULT_CONTAINER_ANNOTATION)
    default = default_container(pod, []) if named is None else named
    if [*amounts] == [default]:
        return amounts[default]
    return ", ".join(f"{name}={amount}" for name, amount in amounts.items())
