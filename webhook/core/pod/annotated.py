"""The annotation `gpu-memory` as it is written: one amount, or a list by container.

And what is wrong with what a pod asks for, with what to write instead, which is known at the end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from webhook.core.bounds import LONGEST_WORD, MOST_DEMAND_FINDINGS
from webhook.core.pod.findings import Finding, Reason, annotation_path, quoted
from webhook.core.pod.lines import LineCheck, instead_of
from webhook.core.pod.quantity import QuantityError, QuantityTooSmallError, parse_vram
from webhook.core.pod.views import Change, Pod
from webhook.core.words import shortened
from webhook.names import DEFAULT_CONTAINER_ANNOTATION, GPU_MEMORY_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

MEMORY_PATH: Final = annotation_path(GPU_MEMORY_ANNOTATION)
_DEFAULT_CONTAINER_PATH: Final = annotation_path(DEFAULT_CONTAINER_ANNOTATION)
_SEPARATED_OTHERWISE: Final = re.compile("[:;]|=[^,=]*=")
"""In a list by container; neither a name nor a size has a colon or a semicolon."""
_COMMA: Final = re.compile("(?<![0-9]),|,(?![0-9]+ *[A-Za-z]* *(?:,|$))")
"""Between entries of a list, and not before decimals."""
_WITH_DECIMALS: Final = re.compile("[0-9.]*,[0-9,.]+ *[A-Za-z]*")
_PLAIN: Final = re.compile(r"[0-9A-Za-z.,/%+-]{1,64}")
_PLAIN_LIST: Final = re.compile("[0-9A-Za-z.,:;= -]{1,128}")
_SHOWN_NAMES: Final = 10


@dataclass(slots=True)
class Faults:
    """What is found wrong while a demand is read; what to write instead is known at the end."""

    findings: list[Finding] = field(default_factory=list)
    cures: list[tuple[int, Callable[[LineCheck], str]]] = field(default_factory=list)
    """What to say of the finding at an index."""
    amounts: set[int] = field(default_factory=set)
    """Which of them are about an amount."""
    annotations: dict[str, str | None] = field(default_factory=dict)
    resources: dict[str, Mapping[str, str | None]] = field(default_factory=dict)
    """The change that takes away all that cannot be read: what is written instead is beside it."""

    def add(self, reason: Reason, path: str, detail: str) -> None:
        """Add what is wrong at a path."""
        self.findings.append(Finding(reason, path, detail))

    def add_cured(
        self, reason: Reason, path: str, cure: Callable[[LineCheck], str], readable: Change
    ) -> None:
        """Add what `cure` says at the end; `readable` is the change that takes it away."""
        self.cures.append((len(self.findings), cure))
        self.annotations |= readable.annotations
        self.resources |= readable.resources
        self.add(reason, path, "")

    def said(self, lines: LineCheck) -> tuple[Finding, ...]:
        """Return the findings, each with what to write; a count by what becomes of the amounts."""
        lines.keep(Change(self.annotations, self.resources))

        def counts_last(one: tuple[int, Callable[[LineCheck], str]]) -> bool:
            return self.findings[one[0]].reason is Reason.INVALID_COUNT

        details = {index: cure(lines) for index, cure in sorted(self.cures, key=counts_last)}
        if len(self.cures) > 1:  # what else an amount may mean stands beside all the others
            details |= {index: cure(lines) for index, cure in self.cures if index in self.amounts}
        for index, detail in details.items():
            self.findings[index] = replace(self.findings[index], detail=detail)
        return tuple(self.findings)


def amounts_line(pod: Pod, amounts: Mapping[str, str]) -> str:
    """Return the annotation's value: one amount where that reaches the right container."""
    first = next((one.name for one in pod.containers if one.field == "containers"), "")
    default = pod.annotations.get(DEFAULT_CONTAINER_ANNOTATION, first)
    if [*amounts] == [default]:
        return amounts[default]
    return ", ".join(f"{name}={amount}" for name, amount in amounts.items())


def of_memory(value: str | None) -> Change:
    """Return the change by which the annotation has another value, or is absent."""
    return Change({GPU_MEMORY_ANNOTATION: value})


def annotated_amounts(pod: Pod, memory: str, faults: Faults) -> dict[str, int]:
    """Read the annotation `gpu-memory`: one quantity, or a list by container."""
    if _SEPARATED_OTHERWISE.search(memory):
        wrong = "is not read as a list; separate entries with a comma, name=size"
    elif "=" in memory:
        return _listed_amounts(pod, memory, faults)
    elif "," in memory and not _WITH_DECIMALS.fullmatch(memory):
        wrong = "is a list without names; write name=size for each container"
    else:
        amount = read_amount(memory, MEMORY_PATH, faults, of_memory)
        name = _default_container(pod, faults)
        return {name: amount} if name is not None and amount else {}

    def cure(lines: LineCheck) -> str:
        line = next((one for one in _lists(pod, memory, lines) if one), "")
        return f"{quoted(memory)} {wrong}" + (f", e.g. {line}" if line else "")

    faults.add_cured(Reason.INVALID_QUANTITY, MEMORY_PATH, cure, of_memory(None))
    return {}


def _lists(pod: Pod, memory: str, lines: LineCheck) -> Iterator[str]:
    """Yield what a list that cannot be read may mean, then a list of this pod's containers."""
    names = [one.name for one in pod.containers if one.field == "containers"]
    if _PLAIN_LIST.fullmatch(memory):
        entries = re.split("[,; ]+", re.sub(" *[:=] *", "=", memory.strip(",; ")))
        if "=" not in memory and ":" not in memory:
            entries = [f"{name}={size}" for name, size in zip(names, entries, strict=False)]
        meant = ", ".join(entries)
        if lines.admitted(of_memory(meant)):
            yield meant
    if names:
        example = lines.example(lambda amount: of_memory(f"{names[0]}={amount}"))
        yield f"{names[0]}={example}" if example else ""


def _listed_amounts(pod: Pod, memory: str, faults: Faults) -> dict[str, int]:
    known = dict.fromkeys(container.name for container in pod.containers)
    amounts: dict[str, int] = {}
    written: dict[str, str] = {}
    for entry in _COMMA.split(memory):
        if len(faults.findings) >= MOST_DEMAND_FINDINGS:
            break
        name, equals, size = (part.strip(" ") for part in entry.partition("="))
        if not equals or not name:
            cure = partial(_nameless, pod, entry, written)
            faults.add_cured(Reason.INVALID_QUANTITY, MEMORY_PATH, cure, Change())
        elif name not in known:
            cure = partial(_unknown_entry, name, size, known, amounts, written)
            faults.add_cured(Reason.UNKNOWN_CONTAINER, MEMORY_PATH, cure, Change())
        elif name in amounts:
            detail = f"container {quoted(name)} stands twice in the list; keep one entry"
            faults.add(Reason.INVALID_QUANTITY, MEMORY_PATH, detail)
        else:
            prefix = f"{shortened(name, LONGEST_WORD)}="
            keep = partial(written.__setitem__, name)
            amounts[name] = read_amount(
                size, MEMORY_PATH, faults, partial(_entry, written, name), prefix, keep
            )
            if amounts[name]:
                keep(size)
    if faults.findings:
        faults.annotations[GPU_MEMORY_ANNOTATION] = _list(written) or None
    return amounts


def _nameless(pod: Pod, entry: str, written: Mapping[str, str], lines: LineCheck) -> str:
    wrong = f"the entry {quoted(entry)} is not of the form name=size"
    if written:
        return f"{wrong}; correct or remove it"
    line = next((one for one in _lists(pod, entry, lines) if one), "")
    return f"{wrong}, e.g. {line}" if line else f"{wrong}; name its container"


def _unknown_entry(
    name: str,
    size: str,
    known: Collection[str],
    listed: Collection[str],
    written: dict[str, str],
    lines: LineCheck,
) -> str:
    said = _unknown(name, known)
    instead = next((one for one in known if one not in listed and one not in written), None)
    if instead is None:
        return f"{said}; remove the entry"
    write = partial(_entry, written, instead)
    try:
        parse_vram(size)
    except QuantityError as error:
        size = instead_of(error, write, lines)[1]
        said += f"; write {instead}={size}" if size else "; its size is none, either"
        why = None if size else ""
    else:
        why = lines.why_not(write(size))
    if why is None:
        lines.keep(write(size))
        written[instead] = size
    return f"{said}; {instead}={size} would be denied: {why}" if why else said


def _entry(written: Mapping[str, str], name: str, size: str | None) -> Change:
    """Return the change by which a list has an entry beside those that can be read, or not."""
    entries = written if size is None else {**written, name: size}
    return of_memory(_list(entries) or None)


def _list(written: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={size}" for name, size in written.items())


def _default_container(pod: Pod, faults: Faults) -> str | None:
    """Return the container that one quantity goes to, as `kubectl` would choose it."""
    named = pod.annotations.get(DEFAULT_CONTAINER_ANNOTATION)
    if named is not None:
        known = dict.fromkeys(container.name for container in pod.containers)
        if named in known:
            return named
        gone = Change({DEFAULT_CONTAINER_ANNOTATION: None})

        def cure(lines: LineCheck) -> str:
            why = lines.why_not(gone)
            denied = f"; with another the pod would be denied: {why}" if why else ""
            return _unknown(named, known) + denied

        faults.add_cured(Reason.UNKNOWN_CONTAINER, _DEFAULT_CONTAINER_PATH, cure, gone)
        return None
    for container in pod.containers:
        if container.field == "containers":
            return container.name
    detail = "the pod has no container that could get the VRAM"
    faults.add(Reason.UNKNOWN_CONTAINER, "spec.containers", detail)
    return None


def _unknown(name: str, known: Collection[str]) -> str:
    shown = (shortened(name, LONGEST_WORD) for name in islice(known, _SHOWN_NAMES))
    have = ", ".join(shown) + ", ..." * (len(known) > _SHOWN_NAMES)
    return f"the pod has no container {quoted(name)}; it has {have or 'none'}"


def read_amount(
    written: str,
    path: str,
    faults: Faults,
    write: Callable[[str | None], Change],
    prefix: str = "",
    keep: Callable[[str], None] | None = None,
) -> int:
    """Read one amount in bytes; 0 together with a finding where it is not one.

    `write` is the change by which another stands there, or none, and `keep` takes that other one.
    """
    try:
        return parse_vram(written)
    except QuantityError as error:
        reason = (
            Reason.TOO_SMALL
            if isinstance(error, QuantityTooSmallError)
            else Reason.INVALID_QUANTITY
        )
        shown = written if _PLAIN.fullmatch(written) else quoted(written)

        def cure(lines: LineCheck, error: QuantityError = error) -> str:
            said, instead = instead_of(error, write, lines)
            if instead and keep:
                keep(instead)
            return f"{prefix}{shown} {said}"

        faults.amounts.add(len(faults.findings))
        faults.add_cured(reason, path, cure, write(None))
        return 0
