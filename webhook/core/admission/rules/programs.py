"""Warnings about programs that would take more than their share, and about invalid references.

A warning begins with the line to write. A pod with this line gets no warning. The settings of each
program are in `core.nvidia.memory_flags`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import chain, islice
from math import prod
from typing import Final, NamedTuple

from webhook.core.admission.rules.case import Case
from webhook.core.admission.rules.near_misses import MAX_HINTS
from webhook.core.bounds import MAX_COMPARED_KEYS, MAX_FRACTIONS, MAX_WORD_LENGTH
from webhook.core.formatting import format_count, format_exact, shorten
from webhook.core.nvidia.memory_flags import (
    FRACTION,
    BoundKind,
    SizedProgram,
    find_gpu_flags,
    find_program,
    find_start,
)
from webhook.core.nvidia.programs import (
    CONTEXT_BYTES,
    FRACTION_REFERENCE,
    LARGEST_GPU_BYTES,
    SMALLEST_USEFUL_BYTES,
    usable_bytes,
)
from webhook.core.pod.command_lines import OWN_VARIABLE_PREFIX, CommandLine, Word, Words
from webhook.core.pod.demand import both_fields_note
from webhook.core.pod.findings import annotation_path
from webhook.core.pod.memory_annotation import MEMORY_PATH, annotation_value
from webhook.core.pod.quantity import format_bytes
from webhook.core.pod.views import Container
from webhook.core.policy.model import Accounting
from webhook.names import (
    GATE_VARIABLE,
    GPU_COUNT_ANNOTATION,
    GPU_MEMORY_FRACTION_ENV,
    GPU_MEMORY_MIB_ENV,
    VRAM_RESOURCE,
)

_GIB: Final = 2**30
_COMMON_GPU_BYTES: Final = 80 * _GIB
"""GPU size in bytes for which a message computes a number, unless the pod requests more."""
_WHOLE_FRACTION_BYTES: Final = 2 * CONTEXT_BYTES
"""Smallest cap, in bytes, at which the fraction leaves the full margin for a CUDA context."""
_PARTS: Final = 10_000
_NO_PROGRAM: Final = "no program gets the words after the line of sh -c"
_TO_LINE: Final = " to the shell's line"
_NUMBER: Final = re.compile(r"[0-9]*\.?[0-9]+(?:[eE]-?[0-9]+)?|[0-9]+\.")
_REFERENCE: Final = re.compile(
    r"\$(?:\((?P<kubelet>\w+)\)|(?P<bare>\w+)|\{(?P<braced>\w+)(?::?-(?P<default>[^}]*))?\})"
)
# Bounded and possessive, since a pod may repeat the prefix of a reference thousands of times.
_OUR_NAME: Final = rf"{OWN_VARIABLE_PREFIX}\w{{0,64}}+"
_OUR_REFERENCE: Final = re.compile(
    rf"(?<!\$)(?P<dollars>\$+)(?:\((?P<kubelet>{_OUR_NAME})\)"
    rf"|\{{(?P<braced>{_OUR_NAME})[^}}\s]{{0,64}}+\}}|(?P<bare>{_OUR_NAME}))"
)
_FLAG: Final = re.compile(r"(?<!\w)(?P<name>__\w{3,64}+)(?P<value>=[^\s\0;&|)]*)?")
_ASSIGNED: Final = re.compile(rf"({_OUR_NAME})=")
_NAMED: Final = re.compile(r"\$[({]?(\w{1,64}+)")


def sized_programs(case: Case) -> tuple[str, ...]:
    """Rule: a program that sizes itself by the whole GPU is limited to its container's share.

    Fields: spec.[initContainers,containers][*].image, .command, .args, .env
    Allowed values: programs without a row in `memory_flags`; programs with a limit, or with more
    texts than are read; fractions by $(VRAMWARDEN_GPU_MEMORY_FRACTION); our variables that the
    container has; at most as many processes, or parts of a model, as GPUs

    It returns warnings and not findings: the name of an image does not prove what it runs.
    """
    if case.demand_if_any is None:
        return ()
    warnings = chain.from_iterable(
        _ContainerCheck(case, *one).warnings() for one in case.command_lines
    )
    return tuple(islice(warnings, MAX_HINTS))


def room_for_context(case: Case) -> tuple[str, ...]:
    """Rule: a share has room for a CUDA context and for data.

    Fields: metadata.annotations[gpu-memory], resources.limits[vram]
    Allowed values: 600Mi per GPU or more; 1800Mi if a container reads the fraction, which is half
    of a smaller amount; any under `accounting: MIG`. It returns warnings and not findings.
    """
    demand, is_mig = case.demand_if_any, case.rule.accounting is Accounting.MIG
    if demand is None or is_mig or demand.per_gpu_bytes >= _WHOLE_FRACTION_BYTES:
        return ()
    needed_bytes = SMALLEST_USEFUL_BYTES
    why = "a CUDA context alone takes 518Mi (measured on an H100)"
    if _has_fraction_variable(case) and any(
        GPU_MEMORY_FRACTION_ENV in line.words.text
        for container, line in case.command_lines
        if container.name in demand.amounts
    ):
        needed_bytes = _WHOLE_FRACTION_BYTES
        why = (
            "the fraction is half of a smaller amount, and CUDA's context and libraries take up to "
            "866Mi (measured on an H100)"
        )
    if demand.per_gpu_bytes >= needed_bytes:
        return ()
    is_annotated = demand.path == MEMORY_PATH
    largest = max(demand.amounts, key=demand.amounts.__getitem__)
    name = largest if is_annotated else next(iter(demand.amounts))
    enough = {**demand.amounts, name: needed_bytes}
    if case.suggestions.rejection(enough) is not None:
        return (f"{demand.path}: {format_exact(demand.per_gpu_bytes)} is too little; {why}",)
    if is_annotated:
        line = annotation_value(
            case.pod, {each: format_bytes(size) for each, size in enough.items()}
        )
        more = f", and remove {VRAM_RESOURCE}" if VRAM_RESOURCE in case.requested_by else ""
    else:
        line = format_bytes(needed_bytes * demand.gpu_count)
        container = next(each for each in case.pod.containers if each.name == name)
        more = both_fields_note(container, VRAM_RESOURCE)
    return (f"{demand.path}: write {line} or more{more}; {why}",)


def _has_fraction_variable(case: Case) -> bool:
    return case.rule.chooses_gpus and len(case.demand.amounts) == 1


class _Fraction(NamedTuple):
    path: str
    before: str
    """Name and equals sign before the value; empty if the field only contains the value."""
    value: str
    of: BoundKind
    is_one_word: bool = False
    """True if a flag and its value are one argument with a space, which no program splits."""


def _fractions(words: Words, program: SizedProgram | None = None) -> Iterator[_Fraction]:
    """Yield the fractions in words, except for variables that the program ignores."""
    for found in islice(FRACTION.finditer(words.plain), MAX_FRACTIONS):
        word, name, gap = words.at(found, "value"), words.written(found, "name"), found["gap"]
        before = name + (gap if "=" in gap or ":" in gap else "=")
        if gap[0] in "\"'":
            before = gap[0] + before
        is_apart, is_variable = word is not words.at(found), name == word.variable
        if is_variable and program and program.ignores(name):
            continue
        yield _Fraction(
            path=word.path,
            before="" if is_apart or is_variable else before,
            value=words.written(found, "value"),
            of=next((of for of in ("free", "jax") if found[of]), "all"),
            is_one_word=gap.isspace() and not is_apart and word.text.startswith(name),
        )


class _ContainerCheck:
    def __init__(self, case: Case, container: Container, line: CommandLine) -> None:
        self._case = case
        self._container = container
        self._line = line
        self._program = find_program(container, line)
        self._amount_bytes = case.demand.amounts.get(container.name, 0)
        self._amount = f"this container's {format_exact(self._amount_bytes)}"
        self._gpu_bytes = _COMMON_GPU_BYTES
        if case.demand.per_gpu_bytes > _COMMON_GPU_BYTES:
            self._gpu_bytes = max(LARGEST_GPU_BYTES, case.demand.per_gpu_bytes)
        self._known = {entry["name"] for entry in container.env()}
        if self._amount_bytes:
            self._known |= {GPU_MEMORY_MIB_ENV, *(entry["name"] for entry in case.rule.env)}
            if _has_fraction_variable(case):
                self._known.add(GPU_MEMORY_FRACTION_ENV)
            if case.rule.gates_workload:
                self._known.add(GATE_VARIABLE)

    def warnings(self) -> Iterator[str]:
        """Return the container's warnings without duplicates."""
        found: list[str] = []
        if self._amount_bytes and self._case.rule.accounting is not Accounting.MIG:
            program = self._program
            fractions = list(_fractions(self._line.words, program))
            if program is not None:
                found.append(self._missing_limit_warning(program))
            elif self._line.line and not fractions:
                for one in islice(_fractions(self._line.ignored), 1):
                    what = f"{self._line.line.path}: add {one.before}"
                    found.append(self._advise(what, one.of, _NO_PROGRAM, _TO_LINE))
            found += map(self._fraction_warning, fractions)
            found += self._gpu_count_warnings(known=program is not None)
        if OWN_VARIABLE_PREFIX in self._line.words.text and (
            self._amount_bytes or self._container.name != self._case.likely_container
        ):
            found += islice(self._reference_warnings(), MAX_HINTS)
        return filter(None, dict.fromkeys(found))

    # Programs and their limits

    def _missing_limit_warning(self, program: SizedProgram) -> str:
        """Return the warning about a program without a limit, or "" if it may have a limit."""
        raw, line, start = self._container.raw, self._line, find_start(program, self._line)
        received = line.given_to(start)
        variables = {word.variable.lower(): word for word in line.words.words if word.variable}
        names = {*variables} if start is None else {*_NAMED.findall(received)}
        names |= {name for name in variables if re.fullmatch(program.variables, name)}
        received += Words([variables[name] for name in names & variables.keys()]).plain
        if (program.variables and raw.get("envFrom")) or re.search(program.bounds, received):
            return ""
        path = f"{self._container.path}.{'env' if program.bound.isupper() else 'args'}"
        unread = next(filter(program.ignores, variables), "")
        why = f"does not read {variables[unread].variable}, and " if unread else ""
        why = f"{program.name} {why}takes {program.takes}, not {self._amount}"
        if program.in_file:
            place = f" as {program.bound} into {program.in_file} before the start"
            return self._advise(f"{path}: write ", program.of, why, place)
        if re.search(program.bounds, line.ignored.plain):
            why = f"{_NO_PROGRAM}, and {why}"
        flags = {
            flag[1]: flag for flag in islice(_FLAG.finditer(line.words.plain), MAX_COMPARED_KEYS)
        }
        bound_name = program.bound.replace("-", "_")
        for name in get_close_matches(bound_name, flags.keys() - {bound_name}, n=1, cutoff=0.85):
            path = line.words.at(flags[name]).path
            place = f" in place of {line.words.written(flags[name])}"
            if flags[name]["value"]:
                return self._advise(f"{path}: write {program.bound}=", program.of, why, place)
            return f"{path}: write {program.bound}{place}; {why}"
        bound, place = program.bound, ""
        if line.line and path.endswith("args"):
            path, place = line.line.path, _TO_LINE
            if start and line.words.at(start) is line.line:
                place = f" after {line.words.written(start)}"
        elif program.flags_variables and start is None and not raw.get("args"):
            searched = " ".join((raw["image"], *variables))
            found = (name for name, of in program.flags_variables if re.search(of, searched))
            name = next(found, "")
            path = f"{self._container.path}.{'env' if name else 'command'}"
            if name.lower() in variables:
                path = variables[name.lower()].path
            elif name:
                bound = f"{name}={bound}"
            else:
                place = f" to the command that starts {program.name}"
        return self._advise(f"{path}: add {bound}=", program.of, why, place)

    # Fractions

    def _fraction_warning(self, found: _Fraction) -> str:
        """Return the warning about a fraction, or "" if the fraction may be correct."""
        if found.is_one_word:
            return self._write(found, "a program gets both as one word")
        value = found.value.strip("'\"")
        reference = _REFERENCE.fullmatch(value) if len(value) <= MAX_WORD_LENGTH else None
        if reference is None:
            return self._number_warning(found._replace(value=value))
        name = reference["kubelet"] or reference["bare"] or reference["braced"]
        by_shell = self._line.line is not None and found.path == self._line.line.path
        is_quoted = by_shell and found.value.startswith("'")
        if name.startswith(OWN_VARIABLE_PREFIX) and not is_quoted:
            if name == GPU_MEMORY_MIB_ENV:
                return self._write(found, f"{name} is an amount")
            if found.of == "free" and name in self._known and (by_shell or reference["kubelet"]):
                return self._write(found, f"the fraction exceeds {self._amount} by the weights")
            return ""  # reported by `_reference_warnings`
        if not reference["kubelet"] and (is_quoted or not by_shell):
            return self._write(found, f"nothing replaces {value} there, only $(NAME) is replaced")
        for word in self._line.words.words:
            if word.variable == name:
                text = word.text.removeprefix(f"{name}=")
                return self._number_warning(_Fraction(word.path, "", text, found.of))
        if not (by_shell or self._container.raw.get("envFrom") or name in self._known):
            why = f"the container has no variable {shorten(name, MAX_WORD_LENGTH)}"
            return self._write(found, why)
        return self._number_warning(found._replace(value=reference["default"] or ""))

    def _number_warning(self, found: _Fraction) -> str:
        if found.of == "jax":
            is_bounded = "client_mem_fraction" in self._line.words.plain
            if is_bounded or found.value.lower() not in {"true", "1"}:
                return ""
            return self._write(found, "JAX takes three quarters of the GPU at its start")
        if len(found.value) > MAX_WORD_LENGTH or not _NUMBER.fullmatch(found.value):
            return ""
        number, of = float(found.value), "of the whole GPU"
        if not 0 < number <= 1 or (number == 1 and found.of == "free"):
            return ""  # bytes, blocks, or automatic
        if found.of == "free":
            of = "of what the weights leave free on the whole GPU"
            if number <= float(self._right_value("free")[0]):
                return ""
        elif not _has_fraction_variable(self._case):
            least_bytes = number * self._case.demand.per_gpu_bytes  # on the smallest possible GPU
            if least_bytes <= usable_bytes(self._amount_bytes):
                return ""
        why = f"{found.value} is {of}, not of {self._amount}"
        return self._write(found, why)

    def _write(self, found: _Fraction, why: str) -> str:
        value, where = self._right_value(found.of, is_field=not found.before)
        return f"{found.path}: write {found.before}{value}{where}; {why}"

    def _advise(self, what: str, of: BoundKind, why: str, place: str = "") -> str:
        value, where = self._right_value(of)
        return f"{what}{value}{place}{where}; {why}"

    def _right_value(self, of: BoundKind, *, is_field: bool = False) -> tuple[str, str]:
        """Return the correct value, and the GPU size for which a number is correct.

        A value that is a whole field is quoted, since YAML would read a number or a boolean.
        """
        quote = '"' * is_field
        if of == "jax":
            return f"{quote}false{quote}", ""
        if of == "all" and GPU_MEMORY_FRACTION_ENV in self._known:
            return FRACTION_REFERENCE, ""
        gpu_bytes, usable = self._gpu_bytes, usable_bytes(self._amount_bytes)
        where = f" on a GPU of {format_exact(gpu_bytes)}"
        if of == "spare":
            return str(-(-(gpu_bytes - self._amount_bytes) // _GIB)), where
        if of == "free":
            weights = self._amount_bytes // 2
            usable, gpu_bytes = usable - weights, gpu_bytes - weights
            where += " with weights of half the amount"
        parts = max(1, usable * _PARTS // gpu_bytes)
        return f"{quote}0.{parts:04}{quote}" if parts < _PARTS else f"{quote}1.0{quote}", where

    # References to vramwarden variables

    def _reference_warnings(self) -> Iterator[str]:
        """Yield a warning for each reference to a vramwarden variable that nothing replaces."""
        for word in self._line.words.words:
            assigned = frozenset(_ASSIGNED.findall(word.text))
            for found in _OUR_REFERENCE.finditer(word.text):
                name = found[found.lastgroup or 0]
                is_known = name in self._known
                if not is_known and (self._container.raw.get("envFrom") or name in assigned):
                    continue
                escaped = len(found["dollars"]) % 2 == 0
                if is_known and not escaped and (word is self._line.line or found["kubelet"]):
                    continue
                yield f"{word.path}: {self._reference_advice(name, word, found[0])}"

    def _reference_advice(self, name: str, word: Word, reference: str) -> str:
        written = shorten(reference, MAX_WORD_LENGTH)
        if name in self._known:
            why = "a program gets it as it is, since only $(NAME) is replaced there"
            return f"write $({name}) in place of {written}; {why}"
        if not self._amount_bytes:
            return f"remove {written}; only containers with VRAM have such a variable"
        right, where = f"$({GPU_MEMORY_MIB_ENV})", ""
        if "FRAC" in name:
            is_field = word.text.removeprefix(f"{word.variable}=") == reference
            of: BoundKind = "free" if self._program and self._program.of == "free" else "all"
            right, where = self._right_value(of, is_field=is_field)
        return f"write {right} in place of {written}{where}; the container has no such variable"

    # Numbers of GPUs

    def _gpu_count_warnings(self, *, known: bool) -> Iterator[str]:
        words, demand = self._line.words, self._case.demand
        flags = find_gpu_flags(words.plain, known=known)
        most = prod(int(flag["count"]) for flag in flags)
        if most <= demand.gpu_count:
            return
        names = " with ".join(words.written(found, "name") for found in flags)
        has = format_count(demand.gpu_count, "GPU")
        why = f"{names} needs {most} GPUs, and the pod asks for {has}"
        allowed = self._case.suggestions.max_count
        if demand.path == MEMORY_PATH and (allowed is None or most <= allowed):
            path = annotation_path(GPU_COUNT_ANNOTATION)
            yield f'{path}: write {GPU_COUNT_ANNOTATION}: "{most}"; {why}'
            return
        left = demand.gpu_count
        for flag in flags:
            word, name, count = words.at(flag, "count"), words.written(flag, "name"), flag["count"]
            is_value = word is not words.at(flag) or name == word.variable
            if int(count) > left:
                line = f'"{left}"' if is_value else f"{name}={left}"
                yield f"{word.path}: write {line}; {why}"
            left = max(1, left // int(count))
