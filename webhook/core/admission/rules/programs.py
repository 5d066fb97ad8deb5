"""Programs that would take more than their share, and references that nothing replaces.

All of it is warnings. The line to write comes first, and a pod that follows it brings no warning.
What each program reads is in `core.nvidia.memory_flags`.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from webhook.core.admission.rules.hints import SHOWN
from webhook.core.bounds import (
    LONGEST_REFERENCE,
    LONGEST_WORD,
    MOST_FRACTIONS,
    MOST_READ,
    MOST_TEXTS,
)
from webhook.core.nvidia.gpu_sizes import LARGEST_GPU_BYTES, SMALLEST_USEFUL_BYTES
from webhook.core.nvidia.memory_flags import (
    FRACTION_FLAG,
    FRACTION_VARIABLE,
    LONG_PARALLEL_FLAG,
    OF_INTEREST,
    PARALLEL_FLAG,
    PARALLEL_VARIABLES,
    RESERVE_FLAG,
    SEVERAL_NODES,
    FractionOf,
    SizedProgram,
    fraction_of,
    names_other_command,
    program_of_command,
    program_of_image,
)
from webhook.core.nvidia.programs import CONTEXT_BYTES, FRACTION_REFERENCE, usable_bytes
from webhook.core.pod.command_lines import CommandLine, read_command_line
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
_OURS: Final = "VRAMWARDEN_"
_MOST_SOUGHT: Final = 4 * MOST_READ
"""Characters of a pod in which words of the table are sought."""
_MOST_JUDGED: Final = 2 * MOST_READ
"""Characters of a pod that are judged."""
_LEAST_READ: Final = 512
"""Characters that a container without any counts for."""
_OURS_IN: Final = re.compile(_OURS)
_COUNT: Final = re.compile("[0-9]{1,4}")
_NUMBER: Final = re.compile(r"[0-9]*\.?[0-9]+(?:[eE]-?[0-9]+)?|[0-9]+\.")
_REFERENCE: Final = re.compile(
    r"\$(?:\((?P<kubelet>\w+)\)|\{(?P<braced>\w+)(?::?-(?P<default>[^}]*)|[^}]*)\}"
    r"|(?P<bare>[A-Za-z_]\w*))"
)
# Bounded and possessive, since a pod may repeat the beginning of a reference thousands of times.
_OUR_NAME: Final = rf"{_OURS}\w{{0,64}}+"
_OUR_REFERENCE: Final = re.compile(
    rf"\$(?:\((?P<kubelet>{_OUR_NAME})\)"
    rf"|\{{(?P<braced>{_OUR_NAME})[^}}\s\0]{{0,64}}+\}}|(?P<bare>{_OUR_NAME}))"
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
    return tuple(islice(chain.from_iterable(_warnings(case)), SHOWN))


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
        GPU_MEMORY_FRACTION_ENV in line.text
        or any(GPU_MEMORY_FRACTION_ENV in (entry.get("value") or "") for entry in line.env)
        for line in map(read_command_line, _with_vram(case))
        if line is not None
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
    if demand.path == MEMORY_PATH:
        line = f"{name}={format_bytes(needed_bytes)}"
        if len(demand.amounts) == 1:
            line = memory_line(case.pod, {name: format_bytes(needed_bytes)})
    else:
        line = format_bytes(needed_bytes * demand.gpu_count)
    return (f"{demand.path}: write {line} or more; {why}",)


def _with_vram(case: Case) -> Iterator[Container]:
    amounts = case.demand.amounts
    found = (container for container in case.pod.containers if container.name in amounts)
    return islice(found, SHOWN)


def _has_fraction(case: Case) -> bool:
    return case.rule.chooses_gpus and len(case.demand.amounts) == 1


def _warnings(case: Case) -> Iterator[Iterator[str]]:
    """Yield the warnings of each container, of as many as may be read."""
    amounts = case.demand.amounts
    sought, judged = _MOST_SOUGHT, _MOST_JUDGED  # characters left
    for container in case.pod.containers:
        image = container.raw.get("image")
        if type(image) is not str or len(image) > LONGEST_REFERENCE:
            continue
        has_vram = container.name in amounts
        by_image = program_of_image(image) if has_vram else None
        texts = _texts(container)
        sought -= len(texts)
        if sought < 0:
            return
        if by_image is None and not (OF_INTEREST if has_vram else _OURS_IN).search(texts):
            continue
        judged -= len(texts) + _LEAST_READ
        if judged < 0:
            return
        line = read_command_line(container)
        if line is not None:
            yield _Judge(case, container, line).warnings(by_image)


def _texts(container: Container) -> str:
    """Return the texts in which words of the table are sought; empty if they are too many."""
    raw = container.raw
    texts: list[str] = []
    for field in ("command", "args"):
        value = raw.get(field)
        if value and type(value) is list and len(value) <= MOST_TEXTS:
            texts += [text for text in value if type(text) is str]
    env = raw.get("env")
    if env and len(env) <= MOST_TEXTS:
        for entry in env:
            texts.append(entry["name"])
            texts.append(entry.get("value") or "")
    if not texts:
        return ""
    joined = "\0".join(texts)
    return joined if len(joined) <= MOST_READ + len(texts) else ""


class _TakenFraction(NamedTuple):
    """A fraction that a program gets."""

    path: str
    """Field to change."""
    value: str
    to_write: str
    """Text before the value that is right."""
    of: FractionOf


class _Judge:
    """Judges the programs of one container."""

    def __init__(self, case: Case, container: Container, line: CommandLine) -> None:
        self._case = case
        self._container = container
        self._line = line
        self._amount_bytes = case.demand.amounts.get(container.name)
        self._own = {entry["name"]: entry for entry in line.env}
        self._known = set(self._own)
        if self._amount_bytes is not None:
            self._known.add(GPU_MEMORY_MIB_ENV)
            if _has_fraction(case):
                self._known.add(GPU_MEMORY_FRACTION_ENV)
            if case.rule.gates_workload:
                self._known.add(GATE_VARIABLE)

    def warnings(self, by_image: SizedProgram | None) -> Iterator[str]:
        """Yield the warnings."""
        if self._amount_bytes is not None and self._case.rule.accounting is not Accounting.MIG:
            program = self._program(by_image)
            if program is not None and not self._may_be_bounded(program):
                yield self._unbounded(program)
            elif program is None:
                yield from self._ignored()
            fractions = islice(self._fractions(), MOST_FRACTIONS)
            literals = {found.path + found.to_write: found for found in fractions}
            yield from filter(None, map(self._judge_fraction, literals.values()))
            yield from self._parallel(PARALLEL_FLAG if program else LONG_PARALLEL_FLAG)
        yield from dict.fromkeys(islice(self._references(), SHOWN))

    # What runs, and what bounds it

    def _program(self, by_image: SizedProgram | None) -> SizedProgram | None:
        line = self._line
        has_command = bool(self._container.raw.get("command"))
        if by_image is not None and not has_command and line.text[:1] in {"", "-"}:
            return by_image  # arguments of the image's entry point
        found = program_of_command(line.text)
        if by_image is not None and by_image.in_file:
            starts = "tritonserver" in line.text or not has_command
            return by_image if starts and not self._starts_other() else None
        if found is not None and by_image is not None and by_image.bound_is_variable:
            return by_image
        if found is not None or by_image is None:
            return found
        if has_command:
            is_main = by_image.bound == RESERVE_FLAG and "main.py" in line.text
            return by_image if is_main else None
        return None if self._starts_other() else by_image

    def _starts_other(self) -> bool:
        """Return True if the words are a command of their own that starts no known program."""
        line = self._line
        if "tritonserver" in line.text:
            return False
        is_command = line.words and names_other_command(line.words[0].text)
        return line.line is not None or bool(is_command)

    def _may_be_bounded(self, program: SizedProgram) -> bool:
        if program.reads_env and self._container.raw.get("envFrom"):
            return True
        found = program.bounded.search
        return bool(found(self._line.text)) or any(
            found(entry["name"]) or found(entry.get("value") or "")
            for entry in self._line.env
            if not entry["name"].startswith(_OURS)
        )

    def _unbounded(self, program: SizedProgram) -> str:
        value, where = self._right(program.fraction_of)
        path, line = self._container.path, self._line.line
        has = f"this container's {exactly(self._amount_bytes or 0)}"
        why = f"{program.name} takes {program.takes}, not {has}"
        if program.in_file:
            return (
                f"{path}.args: write {value} as {program.bound} into {program.in_file} before the "
                f"start{where}; {why}"
            )
        if program.bound == RESERVE_FLAG:
            spare_gib = -(-(self._gpu_bytes() - (self._amount_bytes or 0)) // _GIB)
            value, where = str(spare_gib), f" on a GPU of {exactly(self._gpu_bytes())}"
        if program.bound_is_variable:
            return f"{path}.env: add {program.bound}={value}{where}; {why}"
        if line is None:
            return f"{path}.args: add {program.bound}={value}{where}; {why}"
        if any(program.bounded.search(word.text) for word in self._line.ignored):
            why = f"no program gets the words after the line of sh -c, and {why}"
        return f"{line.path}: add {program.bound}={value} to the shell's line{where}; {why}"

    def _ignored(self) -> Iterator[str]:
        """Yield a warning if a fraction follows a shell's line."""
        line = self._line.line
        if line is None or FRACTION_FLAG.search(line.text):
            return
        text = "".join(f"{word.text}\0" for word in self._line.ignored)
        found = FRACTION_FLAG.search(text)
        if found is not None:
            value, where = self._right(fraction_of(found["name"]))
            yield (
                f"{line.path}: add {_spelled(found)}{value} to the shell's line{where}; no program "
                "gets the words after the line of sh -c"
            )

    # Fractions

    def _fractions(self) -> Iterator[_TakenFraction]:
        """Yield the fractions in words and variables."""
        for found in FRACTION_FLAG.finditer(self._line.text):
            word = self._line.word_at(found.start())
            yield _taken(word.path, found)
        for index, entry in enumerate(self._line.env):
            value = entry.get("value")
            if not value:
                continue
            path = f"{self._container.path}.env[{index}].value"
            if FRACTION_VARIABLE.fullmatch(entry["name"]):
                yield _TakenFraction(path, value, "", FractionOf.CARD)
            for found in FRACTION_FLAG.finditer(value):
                yield _taken(path, found)

    def _judge_fraction(self, found: _TakenFraction) -> str:
        """Return the warning about a value; empty if it may be right."""
        quote = found.value[:1] if found.value[:1] in {"'", '"'} else ""
        value = found.value.strip("'\"")
        if _OURS in value:
            is_shown = quote == "'" and value.startswith("$") and not value.startswith("$(")
            return self._not_replaced(found, value) if is_shown else ""
        if len(value) > LONGEST_WORD:
            return ""
        reference = _REFERENCE.fullmatch(value)
        if reference is None:
            return self._judge_literal(found, value)
        name = reference["kubelet"] or reference["braced"] or reference["bare"]
        by_shell = self._line.line is not None and found.path == self._line.line.path
        if not reference["kubelet"] and not by_shell:
            return self._not_replaced(found, value)
        entry = self._own.get(name)
        if entry is None and reference["default"]:
            return self._judge_literal(found, reference["default"])
        if entry is None or not entry.get("value"):
            return ""  # of envFrom, a shell's own variable, or the output of a command
        index = self._line.env.index(entry)
        path = f"{self._container.path}.env[{index}].value"
        return self._judge_literal(_TakenFraction(path, "", "", found.of), entry["value"])

    def _not_replaced(self, found: _TakenFraction, value: str) -> str:
        right, where = self._right(found.of)
        return (
            f"{found.path}: write {found.to_write}{right}{where}; nothing replaces "
            f"{shortened(value, LONGEST_WORD)} there, only $(NAME) is replaced"
        )

    def _judge_literal(self, found: _TakenFraction, value: str) -> str:
        if len(value) > LONGEST_WORD or not _NUMBER.fullmatch(value):
            return ""
        number = float(value)
        amount_bytes = self._amount_bytes or 0
        is_fraction = 0 < number < 1 or (number == 1 and found.of is FractionOf.CARD)
        if not is_fraction:
            return ""  # bytes, blocks, or the program's own choice
        if found.of is FractionOf.FREE:
            if number <= float(self._right(found.of)[0]):
                return ""
            of = "of what the weights leave free on the whole GPU"
        else:
            least_bytes = number * self._case.demand.per_gpu_bytes  # of the smallest GPU possible
            if not _has_fraction(self._case) and least_bytes <= usable_bytes(amount_bytes):
                return ""
            of = "of the whole GPU"
        right, where = self._right(found.of)
        return (
            f"{found.path}: write {found.to_write}{right}{where}; {value} is {of}, not of this "
            f"container's {exactly(amount_bytes)}"
        )

    def _right(self, of: FractionOf) -> tuple[str, str]:
        """Return the value that is right, and for which GPU a number is."""
        if of is FractionOf.CARD and GPU_MEMORY_FRACTION_ENV in self._known:
            return FRACTION_REFERENCE, ""
        gpu_bytes = self._gpu_bytes()
        usable = usable_bytes(self._amount_bytes or 0)
        where = f" on a GPU of {exactly(gpu_bytes)}"
        if of is FractionOf.FREE:
            weights = usable // 2
            usable, gpu_bytes = usable - weights, gpu_bytes - weights
            where += " with weights of half the amount"
        parts = max(1, usable * _PARTS // gpu_bytes)
        return f"0.{parts:04}" if parts < _PARTS else "1.0", where

    def _gpu_bytes(self) -> int:
        per_gpu_bytes = self._case.demand.per_gpu_bytes
        if per_gpu_bytes <= _COMMON_GPU_BYTES:
            return _COMMON_GPU_BYTES
        return max(LARGEST_GPU_BYTES, per_gpu_bytes)

    # References to our variables

    def _references(self) -> Iterator[str]:
        """Yield a warning for each reference to a variable of ours that nothing replaces."""
        line = self._line
        for word in line.words:
            if _OURS in word.text:
                yield from self._of_text(word.path, word.text, by_shell=word is line.line)
        for index, entry in enumerate(line.env):
            value = entry.get("value")
            if value and _OURS in value:
                path = f"{self._container.path}.env[{index}].value"
                yield from self._of_text(path, value, by_shell=False)

    def _of_text(self, path: str, text: str, *, by_shell: bool) -> Iterator[str]:
        assigned = frozenset(_ASSIGNED.findall(text))
        for found in _OUR_REFERENCE.finditer(text):
            name = found["kubelet"] or found["braced"] or found["bare"]
            known = name in self._known
            if not known and (self._container.raw.get("envFrom") or name in assigned):
                continue
            begin = found.start()
            while begin and text[begin - 1] == "$":
                begin -= 1
            escaped = (found.start() - begin) % 2 == 1
            if known and not escaped and (by_shell or found["kubelet"]):
                continue
            written = shortened(text[begin : found.end()], LONGEST_WORD)
            if self._amount_bytes is None and not known:
                yield f"{path}: remove {written}; only containers with VRAM have such a variable"
                continue
            right, where = self._instead(name)
            why = "the container has no such variable"
            if known:
                why = "a program gets it as it is, since only $(NAME) is replaced there"
            yield f"{path}: write {right} in place of {written}{where}; {why}"

    def _instead(self, name: str) -> tuple[str, str]:
        """Return the text in place of a reference, and the GPU for which a number is."""
        if name in self._known:
            return f"$({name})", ""
        ours = sorted(one for one in self._known if one.startswith(_OURS))
        both = [GPU_MEMORY_FRACTION_ENV, *ours]
        near = get_close_matches(name[:LONGEST_WORD], both, n=1, cutoff=0.0)[0]
        if near in self._known:
            return f"$({near})", ""
        return self._right(FractionOf.CARD)

    # Numbers of GPUs

    def _parallel(self, pattern: re.Pattern[str]) -> Iterator[str]:
        """Yield a warning if a model is spread over more GPUs than the pod has."""
        line, demand = self._line, self._case.demand
        asked = [
            (line.word_at(found.start()).path, found["flag"], int(found["count"]))
            for found in islice(pattern.finditer(line.text), SHOWN)
        ]
        for index, entry in enumerate(line.env):
            value = entry.get("value") or ""
            if entry["name"] in PARALLEL_VARIABLES and _COUNT.fullmatch(value):
                asked.append((f"{self._container.path}.env[{index}].value", "", int(value)))
        asked = [one for one in asked if one[2] > demand.gpu_count]
        if (
            not asked
            or SEVERAL_NODES.search(line.text)
            or any(map(SEVERAL_NODES.search, self._own))
        ):
            return
        path, flag, most = max(asked, key=lambda one: one[2])
        has = f"{demand.gpu_count} GPU{'s' * (demand.gpu_count > 1)}"
        allowed = self._case.suggestions.max_count
        if demand.path == MEMORY_PATH and (allowed is None or most <= allowed):
            why = f"{flag or 'it'} needs {most} GPUs, and the pod asks for {has}"
            yield f'{path}: write {GPU_COUNT_ANNOTATION}: "{most}"; {why}'
            return
        for path, flag, _ in asked:
            written = f"{flag}={demand.gpu_count}" if flag else str(demand.gpu_count)
            yield f"{path}: write {written}; it is the number of GPUs, and the pod asks for {has}"


def _taken(path: str, found: re.Match[str]) -> _TakenFraction:
    return _TakenFraction(path, found["value"], _spelled(found), fraction_of(found["name"]))


def _spelled(found: re.Match[str]) -> str:
    """Return a flag or key as it is spelled, up to its value."""
    dashes, name = found["dashes"] or "", found["name"]
    if dashes:
        return f"{dashes}{name}="
    return f"{name}{found['gap'] if found['gap'].strip() else '='}"
