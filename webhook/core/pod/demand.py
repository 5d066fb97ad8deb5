"""What VRAM a pod asks for: read from its annotation and from explicit amounts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from webhook.core.bounds import LONGEST_WORD, MOST_DEMAND_FINDINGS
from webhook.core.pod.fields import Json, items, mapping
from webhook.core.pod.findings import Finding, Reason, annotation_path, quoted
from webhook.core.pod.lines import LineCheck, instead_of
from webhook.core.pod.quantity import (
    MIB,
    QuantityError,
    QuantityTooSmallError,
    format_bytes,
    parse_quantity,
    parse_vram,
)
from webhook.core.pod.views import Change, Container, Pod, effective_amount
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
    from collections.abc import Callable, Collection, Iterator, Mapping


_MEMORY_PATH: Final = annotation_path(GPU_MEMORY_ANNOTATION)
_COUNT_PATH: Final = annotation_path(GPU_COUNT_ANNOTATION)
_CLASS_PATH: Final = annotation_path(GPU_CLASS_ANNOTATION)
_DEFAULT_CONTAINER_PATH: Final = annotation_path(DEFAULT_CONTAINER_ANNOTATION)

_RESOURCES_PATH: Final = "spec.containers[*].resources"

_COUNT: Final = re.compile(r"[1-9][0-9]{0,3}")
_SEPARATED_OTHERWISE: Final = re.compile("[:;]|=[^,=]*=")
"""In a list by container; neither a name nor a size has a colon or a semicolon."""
_COMMA: Final = re.compile("(?<![0-9]),|,(?![0-9]+ *[A-Za-z]* *(?:,|$))")
"""Between entries of a list, and not before decimals."""
_WITH_DECIMALS: Final = re.compile("[0-9.]*,[0-9,.]+ *[A-Za-z]*")
_PLAIN: Final = re.compile(r"[0-9A-Za-z.,/%+-]{1,64}")
_PLAIN_LIST: Final = re.compile("[0-9A-Za-z.,:;= -]{1,128}")
_KINDS: Final = ("limits", "requests")
_SHOWN_NAMES: Final = 10
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


@dataclass(slots=True)
class _Faults:
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
        self.findings.append(Finding(reason, path, detail))

    def add_cured(
        self, reason: Reason, path: str, cure: Callable[[LineCheck], str], readable: Change
    ) -> None:
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
    faults = _Faults()
    count = 1 if count_text is None else _read_count(count_text, faults)
    explicit = _explicit_amounts(pod, count, faults)
    if memory is None and not explicit:
        if not faults.findings:
            _check_orphans(gpu_class, count_text, faults)
        return None, faults.said(lines) if faults.findings else ()

    annotated = {} if memory is None else _annotated_amounts(pod, memory, faults)
    if annotated and not faults.findings:
        _check_agreement(pod, annotated, explicit, count, faults)
    if faults.findings:
        return None, faults.said(lines)
    amounts = annotated or explicit
    per_gpu_bytes = effective_amount(pod.containers, amounts, 0)
    path = _MEMORY_PATH if memory is not None else _explicit_path(pod, amounts)
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


def amounts_line(pod: Pod, amounts: Mapping[str, str]) -> str:
    """Return the annotation's value: one amount where that reaches the right container."""
    first = next((one.name for one in pod.containers if one.field == "containers"), "")
    default = pod.annotations.get(DEFAULT_CONTAINER_ANNOTATION, first)
    if [*amounts] == [default]:
        return amounts[default]
    return ", ".join(f"{name}={amount}" for name, amount in amounts.items())


def _of_memory(value: str | None) -> Change:
    return Change({GPU_MEMORY_ANNOTATION: value})


def _annotated_amounts(pod: Pod, memory: str, faults: _Faults) -> dict[str, int]:
    """Read the annotation `gpu-memory`: one quantity, or a list by container."""
    if _SEPARATED_OTHERWISE.search(memory):
        wrong = "is not read as a list; separate entries with a comma, name=size"
    elif "=" in memory:
        return _listed_amounts(pod, memory, faults)
    elif "," in memory and not _WITH_DECIMALS.fullmatch(memory):
        wrong = "is a list without names; write name=size for each container"
    else:
        amount = _read_amount(memory, _MEMORY_PATH, faults, _of_memory)
        name = _default_container(pod, faults)
        return {name: amount} if name is not None and amount else {}

    def cure(lines: LineCheck) -> str:
        line = next((one for one in _lists(pod, memory, lines) if one), "")
        return f"{quoted(memory)} {wrong}" + (f", e.g. {line}" if line else "")

    faults.add_cured(Reason.INVALID_QUANTITY, _MEMORY_PATH, cure, _of_memory(None))
    return {}


def _lists(pod: Pod, memory: str, lines: LineCheck) -> Iterator[str]:
    """Yield what a list that cannot be read may mean, then a list of this pod's containers."""
    names = [one.name for one in pod.containers if one.field == "containers"]
    if _PLAIN_LIST.fullmatch(memory):
        entries = re.split("[,; ]+", re.sub(" *[:=] *", "=", memory.strip(",; ")))
        if "=" not in memory and ":" not in memory:
            entries = [f"{name}={size}" for name, size in zip(names, entries, strict=False)]
        meant = ", ".join(entries)
        if lines.admitted(_of_memory(meant)):
            yield meant
    if names:
        example = lines.example(lambda amount: _of_memory(f"{names[0]}={amount}"))
        yield f"{names[0]}={example}" if example else ""


def _listed_amounts(pod: Pod, memory: str, faults: _Faults) -> dict[str, int]:
    known = dict.fromkeys(container.name for container in pod.containers)
    amounts: dict[str, int] = {}
    written: dict[str, str] = {}
    for entry in _COMMA.split(memory):
        if len(faults.findings) >= MOST_DEMAND_FINDINGS:
            break
        name, equals, size = (part.strip(" ") for part in entry.partition("="))
        if not equals or not name:
            cure = partial(_nameless, pod, entry, written)
            faults.add_cured(Reason.INVALID_QUANTITY, _MEMORY_PATH, cure, Change())
        elif name not in known:
            cure = partial(_unknown_entry, name, size, known, amounts, written)
            faults.add_cured(Reason.UNKNOWN_CONTAINER, _MEMORY_PATH, cure, Change())
        elif name in amounts:
            detail = f"container {quoted(name)} stands twice in the list; keep one entry"
            faults.add(Reason.INVALID_QUANTITY, _MEMORY_PATH, detail)
        else:
            prefix = f"{shortened(name, LONGEST_WORD)}="
            keep = partial(written.__setitem__, name)
            amounts[name] = _read_amount(
                size, _MEMORY_PATH, faults, partial(_entry, written, name), prefix, keep
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
    return _of_memory(_list(entries) or None)


def _list(written: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={size}" for name, size in written.items())


def _default_container(pod: Pod, faults: _Faults) -> str | None:
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


def _explicit_amounts(pod: Pod, count: int, faults: _Faults) -> dict[str, int]:
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
        total = _read_amount(written, path, faults, write)
        amounts[container.name] = -(-total // (count * MIB)) * MIB
        unequal = unequal_amounts(container, VRAM_RESOURCE)
        if unequal:
            path, cure = unequal
            faults.add_cured(Reason.REQUESTS_LIMITS_MISMATCH, path, cure, write(None))
    return amounts


def _read_amount(
    written: str,
    path: str,
    faults: _Faults,
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


def _read_count(count: str, faults: _Faults) -> int:
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


def _check_orphans(gpu_class: str | None, count: str | None, faults: _Faults) -> None:
    """Reject annotations that shape a demand on a pod that has none: it would run without a GPU."""

    def cure(lines: LineCheck) -> str:
        example = lines.example(_of_memory)
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
    faults: _Faults,
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
            ways = [one for one in (_of_memory(None), by_annotation) if not lines.why_not(one)]
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
