"""Programs that would take more than their share, and references that nothing replaces.

All of it is warnings. The line to write comes first, and a pod that follows it brings no warning.
What each program reads is in `core.nvidia.memory_flags`.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from webhook.core.admission.rules.amounts import meant_container
from webhook.core.admission.rules.hints import SHOWN
from webhook.core.bounds import LONGEST_WORD, MOST_FRACTIONS
from webhook.core.nvidia.gpu_sizes import LARGEST_GPU_BYTES, SMALLEST_USEFUL_BYTES
from webhook.core.nvidia.memory_flags import (
    FRACTION,
    PARALLEL,
    SEVERAL_NODES,
    Of,
    SizedProgram,
    program_of,
)
from webhook.core.nvidia.programs import CONTEXT_BYTES, FRACTION_REFERENCE, usable_bytes
from webhook.core.pod.command_lines import OURS, CommandLine, Words, read_command_lines
from webhook.core.pod.memory_annotation import MEMORY_PATH, memory_line
from webhook.core.pod.quantity import format_bytes
from webhook.core.policy.values import Accounting
from webhook.core.words import exactly, shortened
from webhook.names import (
    GATE_VARIABLE,
    GPU_COUNT_ANNOTATION,
    GPU_MEMORY_FRACTION_ENV,
    GPU_MEMORY_MIB_ENV,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.core.admission.rules.case import Case
    from webhook.core.pod.views import Container

_GIB: Final = 2**30
_COMMON_GPU_BYTES: Final = 80 * _GIB
"""Size of the GPU for which a message computes a number, if no pod asks for more."""
_WHOLE_FRACTION_BYTES: Final = 2 * CONTEXT_BYTES
"""Cap from which the fraction leaves all of the margin."""
_PARTS: Final = 10_000
"""Number of parts that the decimals of a fraction count."""
_NO_PROGRAM: Final = "no program gets the words after the line of sh -c"
_NUMBER: Final = re.compile(r"[0-9]*\.?[0-9]+(?:[eE]-?[0-9]+)?|[0-9]+\.")
_REFERENCE: Final = re.compile(
    r"\$(?:\((?P<kubelet>\w+)\)|(?P<bare>\w+)|\{(?P<braced>\w+)(?::?-(?P<default>[^}]*))?\})"
)
# Bounded and possessive, since a pod may repeat the beginning of a reference thousands of times.
_OUR_NAME: Final = rf"{OURS}\w{{0,64}}+"
_OUR_REFERENCE: Final = re.compile(
    rf"(?<!\$)(?P<dollars>\$+)(?:\((?P<kubelet>{_OUR_NAME})\)"
    rf"|\{{(?P<braced>{_OUR_NAME})[^}}\s]{{0,64}}+\}}|(?P<bare>{_OUR_NAME}))"
)
_ASSIGNED: Final = re.compile(rf"({_OUR_NAME})=")


def sized_programs(case: Case) -> tuple[str, ...]:
    """Rule: a program that sizes itself by the whole GPU is bounded by its container's share.

    Fields: spec.[initContainers,containers][*].image, .command, .args, .env
    Allowed values: programs without a row in `memory_flags`; those that something bounds, or that
    have more texts than are read; fractions by $(VRAMWARDEN_GPU_MEMORY_FRACTION); variables of ours
    that the container has; no more tensor parallelism than GPUs

    It returns warnings and not findings: an image's name is no proof of what it runs.
    """
    if case.asked is None:
        return ()
    said: list[str] = []
    for container, line in read_command_lines(case.pod.containers):
        if len(said) >= SHOWN:
            break
        said += _Judge(case, container, line).warnings()
    return tuple(said[:SHOWN])


def room_for_context(case: Case) -> tuple[str, ...]:
    """Rule: a share has room for a CUDA context and for data.

    Fields: metadata.annotations[gpu-memory], resources.limits[vram]
    Allowed values: 600Mi per GPU or more, and 1800Mi if a container reads the fraction, which is
    half of a smaller amount; any under `accounting: MIG`. It returns warnings and not findings.
    """
    demand = case.asked
    if demand is None or demand.per_gpu_bytes >= _WHOLE_FRACTION_BYTES:
        return ()
    if case.rule.accounting is Accounting.MIG:
        return ()
    reads = _has_fraction(case) and any(
        GPU_MEMORY_FRACTION_ENV in line.words.text
        for container, line in read_command_lines(case.pod.containers)
        if container.name in demand.amounts
    )
    needed_bytes = _WHOLE_FRACTION_BYTES if reads else SMALLEST_USEFUL_BYTES
    if demand.per_gpu_bytes >= needed_bytes:
        return ()
    name = max(demand.amounts, key=demand.amounts.__getitem__)
    why = "a CUDA context alone takes 518Mi (measured on an H100)"
    if reads:
        why = (
            "the fraction is half of a smaller amount, and CUDA's context and libraries take up to "
            "866Mi (measured on an H100)"
        )
    if case.suggestions.rejection({**demand.amounts, name: needed_bytes}) is not None:
        return (f"{demand.path}: {exactly(demand.per_gpu_bytes)} is too little; {why}",)
    amount = format_bytes(needed_bytes * demand.gpu_count)
    if demand.path == MEMORY_PATH:
        amount = f"{name}={format_bytes(needed_bytes)}"
        if len(demand.amounts) == 1:
            amount = memory_line(case.pod, {name: format_bytes(needed_bytes)})
    return (f"{demand.path}: write {amount} or more; {why}",)


def _has_fraction(case: Case) -> bool:
    return case.rule.chooses_gpus and len(case.demand.amounts) == 1


class _Fraction(NamedTuple):
    """A fraction that a program gets."""

    path: str
    """Field to change."""
    before: str
    """Name and sign before the value; empty if the field has only the value."""
    value: str
    of: Of


def _fractions(words: Words) -> Iterator[_Fraction]:
    for found in islice(FRACTION.finditer(words.plain), MOST_FRACTIONS):
        word, name, gap = words.at(found, "value"), words.written(found, "name"), found["gap"]
        before = name + (gap if "=" in gap or ":" in gap else "=")
        if gap[0] in "\"'":
            before = gap[0] + before
        is_value = word is not words.at(found) or name == word.variable
        yield _Fraction(
            path=word.path,
            before="" if is_value else before,
            value=words.written(found, "value"),
            of="free" if found["free"] else "all",
        )


class _Judge:
    """Judges the programs of one container."""

    def __init__(self, case: Case, container: Container, line: CommandLine) -> None:
        self._case = case
        self._container = container
        self._line = line
        self._amount_bytes = case.demand.amounts.get(container.name, 0)
        self._gpu_bytes = _COMMON_GPU_BYTES
        if case.demand.per_gpu_bytes > _COMMON_GPU_BYTES:
            self._gpu_bytes = max(LARGEST_GPU_BYTES, case.demand.per_gpu_bytes)
        self._known = {entry["name"] for entry in container.env()}
        if self._amount_bytes:
            self._known.add(GPU_MEMORY_MIB_ENV)
            if _has_fraction(case):
                self._known.add(GPU_MEMORY_FRACTION_ENV)
            if case.rule.gates_workload:
                self._known.add(GATE_VARIABLE)

    def warnings(self) -> Iterator[str]:
        """Return the container's warnings, each once."""
        said: list[str] = []
        if self._amount_bytes and self._case.rule.accounting is not Accounting.MIG:
            program = program_of(self._container, self._line)
            fractions = list(_fractions(self._line.words))
            if program is not None:
                said.append(self._unbounded(program))
            elif not fractions:
                said.append(self._ignored())
            said += map(self._judge_fraction, fractions)
            said += self._parallel(known=program is not None)
        if OURS in self._line.words.text and (
            self._amount_bytes or self._container.name != meant_container(self._case.pod)
        ):
            said += islice(self._references(), SHOWN)
        return filter(None, dict.fromkeys(said))

    # What runs, and what bounds it

    def _unbounded(self, program: SizedProgram) -> str:
        """Return the warning about a program that nothing bounds; empty if something may."""
        if re.search(program.bounds, self._line.words.plain) or (
            program.reads_env and self._container.raw.get("envFrom")
        ):
            return ""
        amount = exactly(self._amount_bytes)
        why = f"{program.name} takes {program.takes}, not this container's {amount}"
        if program.in_file:
            value, where = self._right(program.of)
            return (
                f"{self._container.path}.args: write {value} as {program.bound} into "
                f"{program.in_file} before the start{where}; {why}"
            )
        if re.search(program.bounds, self._line.ignored.plain):
            why = f"{_NO_PROGRAM}, and {why}"
        return self._add(f"{program.bound}=", program.of, why)

    def _ignored(self) -> str:
        """Return the warning about a fraction that follows a shell's line; empty without one."""
        found = next(_fractions(self._line.ignored), None)
        return self._add(found.before, found.of, _NO_PROGRAM) if found else ""

    def _add(self, name: str, of: Of, why: str) -> str:
        """Return the warning that says where to add a flag or a variable."""
        value, where = self._right(of)
        path = f"{self._container.path}.{'env' if name.isupper() else 'args'}"
        if self._line.line is not None and not name.isupper():
            path, where = self._line.line.path, f" to the shell's line{where}"
        return f"{path}: add {name}{value}{where}; {why}"

    # Fractions

    def _judge_fraction(self, found: _Fraction) -> str:
        """Return the warning about a value; empty if it may be right."""
        value = found.value.strip("'\"")
        reference = _REFERENCE.fullmatch(value) if len(value) <= LONGEST_WORD else None
        if reference is None:
            return self._judge_number(found._replace(value=value))
        name = reference["kubelet"] or reference["bare"] or reference["braced"]
        by_shell = self._line.line is not None and found.path == self._line.line.path
        is_quoted = by_shell and found.value.startswith("'")
        if name.startswith(OURS) and not is_quoted:
            return ""  # `_references` judges those
        if not reference["kubelet"] and (is_quoted or not by_shell):
            return self._write(found, f"nothing replaces {value} there, only $(NAME) is replaced")
        for word in self._line.words.words:
            if word.variable == name:
                text = word.text.removeprefix(f"{name}=")
                return self._judge_number(_Fraction(word.path, "", text, found.of))
        if not by_shell and self._lacks(name):
            return self._write(
                found, f"the container has no variable {shortened(name, LONGEST_WORD)}"
            )
        return self._judge_number(found._replace(value=reference["default"] or ""))

    def _lacks(self, name: str) -> bool:
        """Return True if the container certainly has no such variable."""
        added = {entry["name"] for entry in self._case.rule.env}
        return not self._container.raw.get("envFrom") and name not in self._known | added

    def _judge_number(self, found: _Fraction) -> str:
        if len(found.value) > LONGEST_WORD or not _NUMBER.fullmatch(found.value):
            return ""
        number, of = float(found.value), "of the whole GPU"
        if not 0 < number <= 1 or (number == 1 and found.of == "free"):
            return ""  # bytes, blocks, or the program's own choice
        if found.of == "free":
            of = "of what the weights leave free on the whole GPU"
            if number <= float(self._right("free")[0]):
                return ""
        elif not _has_fraction(self._case):
            least_bytes = number * self._case.demand.per_gpu_bytes  # of the smallest GPU possible
            if least_bytes <= usable_bytes(self._amount_bytes):
                return ""
        why = f"{found.value} is {of}, not of this container's {exactly(self._amount_bytes)}"
        return self._write(found, why)

    def _write(self, found: _Fraction, why: str) -> str:
        value, where = self._right(found.of)
        return f"{found.path}: write {found.before}{value}{where}; {why}"

    def _right(self, of: Of) -> tuple[str, str]:
        """Return the value that is right, and for which GPU a number is."""
        if of == "all" and GPU_MEMORY_FRACTION_ENV in self._known:
            return FRACTION_REFERENCE, ""
        gpu_bytes, usable = self._gpu_bytes, usable_bytes(self._amount_bytes)
        where = f" on a GPU of {exactly(gpu_bytes)}"
        if of == "spare":
            return str(-(-(gpu_bytes - self._amount_bytes) // _GIB)), where
        if of == "free":
            weights = usable // 2
            usable, gpu_bytes = usable - weights, gpu_bytes - weights
            where += " with weights of half the amount"
        parts = max(1, usable * _PARTS // gpu_bytes)
        return f"0.{parts:04}" if parts < _PARTS else "1.0", where

    # References to our variables

    def _references(self) -> Iterator[str]:
        """Yield a warning for each reference to a variable of ours that nothing replaces."""
        for word in self._line.words.words:
            assigned = frozenset(_ASSIGNED.findall(word.text))
            for found in _OUR_REFERENCE.finditer(word.text):
                name = found[found.lastgroup or 0]
                known = name in self._known
                if not known and (self._container.raw.get("envFrom") or name in assigned):
                    continue
                escaped = len(found["dollars"]) % 2 == 0
                if known and not escaped and (word is self._line.line or found["kubelet"]):
                    continue
                yield f"{word.path}: {self._instead(name, shortened(found[0], LONGEST_WORD))}"

    def _instead(self, name: str, written: str) -> str:
        """Return the advice for a reference that is spelled `written`."""
        if name in self._known:
            why = "a program gets it as it is, since only $(NAME) is replaced there"
            return f"write $({name}) in place of {written}; {why}"
        if not self._amount_bytes:
            return f"remove {written}; only containers with VRAM have such a variable"
        is_fraction = "FRAC" in name
        right, where = self._right("all") if is_fraction else (f"$({GPU_MEMORY_MIB_ENV})", "")
        return f"write {right} in place of {written}{where}; the container has no such variable"

    # Numbers of GPUs

    def _parallel(self, *, known: bool) -> Iterator[str]:
        """Yield a warning if a model is spread over more GPUs than the pod has."""
        words, demand = self._line.words, self._case.demand
        asked = [
            (int(found["count"]), found, words.written(found, "name"))
            for found in islice(PARALLEL.finditer(words.plain), SHOWN)
            if (known or found["known"]) and int(found["count"]) > demand.gpu_count
        ]
        if not asked or SEVERAL_NODES.search(words.plain):
            return
        most, flag, name = max(asked, key=lambda one: one[0])
        has = f"{demand.gpu_count} GPU{'s' * (demand.gpu_count > 1)}"
        allowed = self._case.suggestions.max_count
        if demand.path == MEMORY_PATH and (allowed is None or most <= allowed):
            why = f"{name} needs {most} GPUs, and the pod asks for {has}"
            yield f'{words.at(flag).path}: write {GPU_COUNT_ANNOTATION}: "{most}"; {why}'
            return
        why = f"it is the number of GPUs, and the pod asks for {has}"
        for _, flag, name in asked:
            word = words.at(flag, "count")
            is_value = word is not words.at(flag) or name == word.variable
            written = str(demand.gpu_count) if is_value else f"{name}={demand.gpu_count}"
            yield f"{word.path}: write {written}; {why}"
