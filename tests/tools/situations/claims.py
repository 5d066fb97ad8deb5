"""Claims about nodes and pods in recordings, to compare commands with each other.

| claim about | `explain` | `top` | `check` | `report` |
| --- | --- | --- | --- | --- |
| free memory of a GPU | the lines of nodes | column FREE | - | - |
| memory promised of a GPU | - | PROMISED; at least the caps of its pods | - | - |
| nodes that are not shared | `its GPUs are not shared` | last lines | its findings | - |
| lack of room, for a pod that waits | the first problem | column STATE | - | - |
| how long a pod has waited | the first line | column STATE | - | - |
| whether a pod uses more than its cap | the first line | column STATE | - | - |
| what a pod uses, and its peak | the first line | columns USED, PEAK | - | column PEAK |
| which amount would be enough | every mention | - | - | - |
| workloads whose pods vramwarden denies | the first lines | - | - | their number |
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

_COMMAND = re.compile(r"^\$ vramwarden ", re.MULTILINE)
_OF_NODES = re.compile(r"    ([\w, -]+?) +(GPU \d+: .*|no: .*)")
_FREE = re.compile(r"GPU (\d+): (\S+) free")
_NO_ROOM = re.compile(r"no (GPU has \S+ free|node has \d+ GPUs with \S+ free)")
_WAITED = re.compile(r"has waited (?:for )?(\S+?)(?:\.| for a GPU)")
_USES = re.compile(r"cap (\S+)(?: on each)?, uses (\S+?)(?: on one)?, peak ([\d.]+\w+)")
_ENOUGH = re.compile(r"vramwarden.io/gpu-memory: +(\d\w+)")
_STATE = re.compile(r"(?:pending|waits for a GPU) (\w+)(?:: (.*))?")
_DENIED = re.compile(r"(\d+) workloads? cannot create pods")
_AMOUNT = re.compile(r"(?:(\d+)x)?([\d.]+)(Mi|Gi|Ti)")
_UNITS = {"Mi": 1 / 1024, "Gi": 1.0, "Ti": 1024.0}
_VERDICTS = re.compile(r"(?:^[✗!] |\. )([\w-]+(?:, [\w-]+)*): (?!Draining|SomeGPUsUnfit)")
"""Regular expression for names of unshared nodes in a finding of `check`."""


class Claim(NamedTuple):
    """A claim of one command about a subject."""

    command: str
    about: str
    subject: str
    value: str


def disagreements(recording: str) -> set[str]:
    """Return the subjects about which commands disagree, such as `free of n1/0`."""
    values = defaultdict(set)
    for claim in claims(recording):
        values[f"{claim.about} of {claim.subject}"].add(claim.value)
    return {about for about, said in values.items() if len(said) > 1}


def claims(recording: str) -> Iterator[Claim]:
    for section in _COMMAND.split(recording)[1:]:
        command = section.split()[0]
        lines = section.partition("\nexit code ")[0].splitlines()[1:]
        if command in _READERS:
            yield from (Claim(command, *values) for values in _READERS[command](lines))


Found = tuple[str, str, str]


def _of_explain(lines: list[str]) -> Iterator[Found]:
    pod = next(
        (line.split()[1].rpartition("/")[2] for line in lines if line.startswith("Pod ")), ""
    )
    found = filter(None, map(_OF_NODES.fullmatch, lines))
    nodes = [(match[1].split(", "), match[2]) for match in found]
    for (name, *_), said in nodes:
        yield from (("free", f"{name}/{index}", amount) for index, amount in _FREE.findall(said))
    if nodes:
        unshared = chain(*(names for names, said in nodes if "its GPUs are not shared" in said))
        yield "not shared", "the cluster", " ".join(sorted(unshared))
    if lines[:1] and re.match(r"\w+ \S+ has \d+ of \d+ pods", lines[0]):
        by_quota = " is forbidden: " in lines[1]
        denied = "pods of it are denied" in lines[0] and not by_quota
        yield "denied workloads", "the cluster", str(int(denied))
    for line in lines:
        if waited := _WAITED.search(line):
            yield "has waited", pod, waited[1]
            first = next((line for line in lines if line.startswith("✗ ")), "")
            yield "lack of room", pod, _room(first)
        if uses := _USES.search(line):
            yield from (("use", pod, uses[2]), ("peak", pod, uses[3]))
            yield "over its cap", pod, str(_gib(uses[2]) > _gib(uses[1]))
        yield from (("enough", pod, amount) for amount in _ENOUGH.findall(line))


def _of_top(lines: list[str]) -> Iterator[Found]:
    node = head = ""
    promised: dict[str, str] = {}
    caps: dict[str, float] = defaultdict(float)
    for line in lines:
        if line.startswith(("NODE ", "POD ")):
            head = line
        elif not line:
            head = ""
        elif head.startswith("NODE "):
            node = _left(head, line, "NODE") or node
            index, free = _right(head, line, "GPU"), _right(head, line, "FREE")
            promised[f"{node}/{index}"] = _right(head, line, "PROMISED")
            if free[0].isdigit():
                yield "free", f"{node}/{index}", free
        elif head:
            yield from _of_pod(head, line)
            for index in _left(head, line, "GPU").split(","):
                caps[f"{_left(head, line, 'NODE')}/{index}"] += _gib(_right(head, line, "CAP"))
    for gpu, amount in promised.items():
        yield "promised", gpu, amount
        if caps[gpu] > _gib(amount):
            yield "promised", gpu, f"{caps[gpu]:g}Gi"
    if any(line.startswith("NODE ") for line in lines):
        said = [line for line in lines if line.startswith("not shared, ")]
        names = re.findall(r"[:,] ([\w-]+) \(", said[0]) if said else []
        yield "not shared", "the cluster", " ".join(sorted(names))


def _left(head: str, line: str, title: str) -> str:
    """Return the first word of a left-aligned column, or "" if it is empty."""
    cell = line[head.index(title) :]
    return "" if cell[:1] == " " else cell.split()[0]


def _right(head: str, line: str, title: str) -> str:
    """Return the last word of a right-aligned column."""
    return line[: head.index(title) + len(title)].rsplit(maxsplit=1)[-1]


def _of_pod(head: str, line: str) -> Iterator[Found]:
    pod, state = line.partition(" ")[0], line[head.index("STATE") :]
    used, peak = line[: head.index("PEAK") + 4].split()[-2:]
    if used != "-":
        yield from (("use", pod, used), ("peak", pod, peak))
        yield "over its cap", pod, str("over its cap" in state)
    if waits := _STATE.match(state):
        yield "has waited", pod, waits[1]
        yield "lack of room", pod, _room(waits[2] or "")


def _of_check(lines: list[str]) -> Iterator[Found]:
    if not any(line.startswith(("✓ ", "✗ ")) for line in lines):
        return  # the user lacks permissions, or the command crashed
    names: list[str] = []
    finding = ""
    for line in lines:
        finding = line if line[:1] != " " else finding
        if finding.endswith("[sharing]") and not line.startswith("    →"):
            names += chain(*(found.split(", ") for found in _VERDICTS.findall(line)))
    yield "not shared", "the cluster", " ".join(sorted(names))


def _of_report(lines: list[str]) -> Iterator[Found]:
    if not lines[0].startswith("If every rule enforced"):
        return  # the user lacks permissions, or the policy is invalid
    head = ""
    for line in lines:
        head = line if line.startswith("NAMESPACE ") else head if line else ""
        if "PEAK" in head and line != head:
            yield "peak", line.split()[1], line[: head.index("PEAK") + 4].split()[-1]
    counts = (found[1] for line in lines if (found := _DENIED.search(line)))
    yield "denied workloads", "the cluster", next(counts, "0")


def _gib(text: str) -> float:
    found = _AMOUNT.fullmatch(text)
    return float(found[2]) * _UNITS[found[3]] if found else 0.0


def _room(text: str) -> str:
    found = _NO_ROOM.search(text)
    return found[1] if found else ""


_READERS = {"explain": _of_explain, "top": _of_top, "check": _of_check, "report": _of_report}
