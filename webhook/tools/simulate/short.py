"""What `vramwarden simulate` reads into, and the short form of nodes and pods."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from webhook.adapters.yaml_documents import show
from webhook.core.placement.fit import Need
from webhook.core.pod.duration import parse_seconds
from webhook.core.pod.gpus import Gpu
from webhook.core.pod.quantity import MIB, QuantityError, parse_quantity, parse_vram
from webhook.names import NODE_GPU_LABEL
from webhook.tools.simulate.replay.cluster import SimulatedNode, SimulatedPod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.adapters.yaml_documents import Path

    Json = dict[str, Any]

MOST: Final = 1_000_000
"""Copies of one thing; more would take too much memory and time."""
_MOST_GPUS: Final = 99
_LONGEST_S: Final = 10 * 366 * 86_400.0
_GPUS: Final = re.compile(r"(?:([1-9][0-9]?)x)?([^x]+)")
_NODE_FIELDS: Final = ("name", "count", "gpus", "labels")
_SIZE_FIELDS: Final = ("namespace", "workload", "memory")
_WHOLE: Final = "whole"
_POD_FIELDS: Final = (
    *("name", "count", "memory", "gpus", "nodeSelector"),
    *("arrival", "every", "duration"),
)


@dataclass(frozen=True, slots=True)
class Size:
    """How large the shares of some workloads are."""

    namespace: str
    workload: str
    """Both are names or `*` patterns."""
    memory_bytes: int
    """Per GPU; 0 where their pods are to stay whole."""


@dataclass(slots=True)
class Found:
    """What was read, what of it is wrong, and what takes no part, by why."""

    nodes: list[SimulatedNode] = field(default_factory=list)
    pods: list[SimulatedPod] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)
    wrong: list[tuple[Path, str]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    nodes_without_gpus: int = 0
    first_unreadable: str = ""
    """The first pod that was left out because its demand cannot be read, and why."""


def short_nodes(entries: Any, at: Path, found: Found) -> None:
    """Read a list such as `- {name: big, count: 10, gpus: 8x80Gi, labels: {zone: a}}`."""
    for entry in _entries(entries, at, _NODE_FIELDS, found):
        names = _names(entry)
        sizes = entry.gpus()
        labels = {NODE_GPU_LABEL: "true", **entry.texts("labels")}
        for name in names:
            gpus = (
                Gpu(f"GPU-{name}-{index}", size_bytes, "GPU", index)
                for index, size_bytes in enumerate(sizes)
            )
            found.nodes.append(SimulatedNode(name, tuple(gpus), labels))


def short_pods(entries: Any, at: Path, found: Found) -> None:
    """Read a list such as `- {name: train, count: 5, memory: 8Gi, gpus: 2, duration: 1h}`."""
    for entry in _entries(entries, at, _POD_FIELDS, found):
        names = _names(entry)
        need = Need(entry.memory(), entry.count("gpus", _MOST_GPUS))
        selector = tuple(sorted(entry.texts("nodeSelector").items()))
        arrival_s, every_s = entry.seconds("arrival") or 0.0, entry.seconds("every") or 0.0
        duration_s = entry.seconds("duration")
        if duration_s == 0:
            entry.wrong("duration", "must be longer than 0s; leave it out for a pod that runs on")
        for copy, name in enumerate(names):
            came_s = arrival_s + copy * every_s
            found.pods.append(SimulatedPod(name, need, came_s, duration_s, selector))


def short_sizes(entries: Any, at: Path, found: Found) -> None:
    """Read a list such as `- {namespace: "research-*", workload: "train*", memory: 20Gi}`."""
    for entry in _entries(entries, at, _SIZE_FIELDS, found):
        whole = entry.value.get("memory") == _WHOLE
        memory_bytes = 0 if whole else entry.memory()
        found.sizes.append(
            Size(entry.pattern("namespace"), entry.pattern("workload"), memory_bytes)
        )


@dataclass(slots=True)
class _Entry:
    """One entry of a list; what is wrong is noted, and something harmless is returned for it."""

    value: Json
    path: Path
    found: Found

    def wrong(self, key: str, detail: str) -> None:
        path = (*self.path, key) if key else self.path
        self.found.wrong.append((path, detail))

    def count(self, key: str, most: int) -> int:
        value = self.value.get(key, 1)
        if type(value) is int and 1 <= value <= most:
            return value
        self.wrong(key, f"{_shown(value)} is not a number from 1 to {most}")
        return 1

    def name(self) -> str:
        value = self.value.get("name")
        if isinstance(value, str) and value:
            return value
        todo = "write a name" if value is None or value == "" else "put it in quotes"
        self.wrong("name", f"must be text; {todo}")
        return "?"

    def pattern(self, key: str) -> str:
        value = self.value.get(key)
        if value is None or isinstance(value, str):
            return value or "*"
        self.wrong(key, "must be text; put it in quotes")
        return "*"

    def texts(self, key: str) -> dict[str, str]:
        value = self.value.get(key) or {}
        if isinstance(value, dict) and all(isinstance(one, str) for one in value.values()):
            return value
        self.wrong(key, "must be an object of text; put numbers, true and false in quotes")
        return {}

    def memory(self) -> int:
        value = self.value.get("memory")
        if value is None:
            self.wrong("", "has no memory; write the VRAM per GPU, e.g. memory: 8Gi")
            return MIB
        try:
            return parse_vram(str(value))
        except QuantityError as error:
            self.wrong("memory", f"{_shown(value)} {error}")
            return MIB

    def gpus(self) -> list[int]:
        """Return the sizes of a node's GPUs."""
        value = self.value.get("gpus")
        sizes = []
        for text in value if isinstance(value, list) else [value]:
            match = _GPUS.fullmatch(text) if isinstance(text, str) else None
            if match is None:
                detail = f"{_shown(text)} is not GPUs; write how many and how large, e.g. 8x80Gi"
                self.wrong("gpus", detail)
                continue
            try:
                mebibytes = int(parse_quantity(match[2]) // MIB)
            except QuantityError as error:
                self.wrong("gpus", f"{_shown(match[2])} {error}")
                continue
            if mebibytes < 1:
                self.wrong("gpus", f"{_shown(match[2])} is less than 1Mi; write a size, e.g. 80Gi")
            sizes += [mebibytes * MIB] * int(match[1] or 1)
        return sizes

    def seconds(self, key: str) -> float | None:
        value = self.value.get(key)
        if value is None:
            return None
        try:
            seconds = parse_seconds(str(value))
        except ValueError:
            self.wrong(key, f"{_shown(value)} is not a duration; write e.g. 90s, 10m or 2h")
            return None
        if seconds > _LONGEST_S:
            self.wrong(key, f"{_shown(value)} is more than ten years; write a shorter time")
            return None
        return seconds


def _entries(entries: Any, at: Path, known: tuple[str, ...], found: Found) -> Iterator[_Entry]:
    if not isinstance(entries, list):
        found.wrong.append((at, "must be a list"))
        return
    for index, value in enumerate(entries):
        path = (*at, index)
        if not isinstance(value, dict):
            found.wrong.append((path, f"must be an object with {', '.join(known)}"))
            continue
        unknown_fields(value, path, known, found)
        yield _Entry(value, path, found)


def unknown_fields(value: Json, path: Path, known: tuple[str, ...], found: Found) -> None:
    """Note unknown fields, which are typing errors."""
    for key in value.keys() - known:
        detail = f"unknown field; known fields: {', '.join(known)}"
        found.wrong.append(((*path, key), detail))


def _names(entry: _Entry) -> list[str]:
    """Return the names of an entry's copies: its own, or numbered ones."""
    name, count = entry.name(), entry.count("count", MOST)
    return [name] if "count" not in entry.value else [f"{name}-{copy}" for copy in range(count)]


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return "nothing" if value is None else show(value)
