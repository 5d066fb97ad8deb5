"""Bounds of a rule, of its classes and of what it translates to, that no pod can meet together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from webhook.adapters.yaml_documents import show
from webhook.core.pod.quantity import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from webhook.core.policy.values import Bounds, GPUClass, Rule

Below = tuple[str, ...]
"""A path below a rule."""


class _Other(NamedTuple):
    """Bounds that hold beside others, and which they are in words."""

    memory: Bounds
    words: str


def contradictions(
    rule: Rule,
    classes: Mapping[str, GPUClass],
    *,
    where: Callable[..., str],
    class_places: Mapping[str, str],
) -> Iterator[tuple[Below, str]]:
    """Yield where a rule contradicts itself or a class, and how; `where` says file and line.

    A class whose bounds leave nothing of the rule's own is left out: a rule for small shares may
    well stand beside a class for large ones. What a rule says of a class it says on purpose.
    """

    def others(name: str | None) -> Iterator[_Other]:
        """Yield the bounds on pods of a class, without those that the rule has for it."""
        yield _Other(rule.memory, f"memory in {where('memory')}")
        if name is not None and name in classes:
            yield _Other(classes[name].memory, f"class {show(name)} in {class_places[name]}")

    for name, memory in rule.class_memory.items():
        place = ("classes", "memory", name)
        for other, words in others(name):
            yield from _contradict(memory, other, place, words)
    amount_bytes = rule.translate_whole_gpu_bytes
    if amount_bytes is None:
        return
    bounds = [*others(rule.default_class)]
    default = rule.default_class
    if default is not None and default in rule.class_memory:
        words = f"classes.memory in {where('classes', 'memory', default)}"
        bounds.append(_Other(rule.class_memory[default], words))
    for other, words in bounds:
        yield from _cannot_be(amount_bytes, other, words)


def _contradict(
    memory: Bounds, other: Bounds, place: Below, words: str
) -> Iterator[tuple[Below, str]]:
    least, most = memory.min_bytes, other.max_bytes
    if least is not None and most is not None and least > most:
        detail = f"{format_bytes(least)} is more than {words} allows, {format_bytes(most)}"
        yield (*place, "min"), f"{detail}; make them agree, or no pod can meet both"
    least, most = other.min_bytes, memory.max_bytes
    if least is not None and most is not None and least > most:
        detail = f"{format_bytes(most)} is less than {words} wants, {format_bytes(least)}"
        yield (*place, "max"), f"{detail}; make them agree, or no pod can meet both"


def _cannot_be(amount_bytes: int, other: Bounds, words: str) -> Iterator[tuple[Below, str]]:
    place, amount = ("translateWholeGPU",), format_bytes(amount_bytes)
    if other.max_bytes is not None and amount_bytes > other.max_bytes:
        detail = f"{amount} is more than {words} allows, {format_bytes(other.max_bytes)}"
        yield place, f"{detail}; make them agree, or no pod is translated"
    if other.min_bytes is not None and amount_bytes < other.min_bytes:
        detail = f"{amount} is less than {words} wants, {format_bytes(other.min_bytes)}"
        yield place, f"{detail}; make them agree, or no pod is translated"
