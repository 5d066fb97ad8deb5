"""The slices of GPUs (MIG) that a cluster is known to have, and the choice among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class SlicedNode:
    """A node whose GPUs are cut into slices."""

    profiles: Mapping[str, int]
    """Bytes of one slice, by the name of its profile."""
    labels: Mapping[str, str] | None = None
    """The node's; None for one that every selector selects."""

    def is_selected(self, selector: Mapping[str, str]) -> bool:
        """Say whether a node selector selects it."""
        return self.labels is None or all(
            self.labels.get(key) == value for key, value in selector.items()
        )


def smallest(nodes: Iterable[SlicedNode], amounts: Collection[int]) -> dict[int, str] | None:
    """Return the smallest profile for each amount, all of one node; None where no node has them.

    | of several nodes | is chosen |
    | --- | --- |
    | whose smallest profiles have less memory together | that |
    | equal in this | the one whose profiles come first by name: 1g.20gb before 2g.20gb |

    All of one node, since a pod runs on one. Of nodes with equal profiles one is enough: a pod may
    have as many amounts as containers, and a cluster thousands of nodes.
    """
    nodes = {tuple(node.profiles.items()): node for node in nodes}.values()
    found = [chosen for node in nodes if (chosen := _of_node(node, amounts)) is not None]
    if not found:
        return None
    best = min(found, key=lambda one: (sum(size for size, _ in one), [name for _, name in one]))
    return {amount: name for amount, (_, name) in zip(amounts, best, strict=True)}


def _of_node(node: SlicedNode, amounts: Iterable[int]) -> Sequence[tuple[int, str]] | None:
    chosen = []
    for amount in amounts:
        enough = [(size, name) for name, size in node.profiles.items() if size >= amount]
        if not enough:
            return None
        chosen.append(min(enough))
    return chosen


def largest(nodes: Iterable[SlicedNode]) -> tuple[int, str]:
    """Return the bytes and the name of the largest profile; 0 where there is none."""
    return max(
        ((size, name) for node in nodes for name, size in node.profiles.items()), default=(0, "")
    )
