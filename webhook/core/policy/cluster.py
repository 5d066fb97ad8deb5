"""What is known of a cluster where a decision follows from it, and the choice among its slices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from webhook.core.policy.model import AUTO_RUNTIME_CLASS, Rollout, Rule
from webhook.names import NVIDIA_RUNTIME_CLASS

Namespaces = Mapping[str, Mapping[str, str] | None]
"""Labels by namespace; None where they could not be read."""


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


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a decision needs to know beside the policy: no file says it, and it changes any time.

    No pod that is stored depends on it, so replicas that know different things accept each other's.
    """

    rollout: Rollout = Rollout.ENFORCE
    runtime_classes: frozenset[str] = frozenset()
    """For rules that choose by what exists."""
    sliced_nodes: tuple[SlicedNode, ...] = ()
    """Nodes with MIG, for rules whose accounting is MIG."""
    limits: bool | None = None
    """Whether the driver of some node holds caps, by its label; None where that is not known."""
    namespaces: Namespaces = field(default_factory=dict)
    """Labels for which rules ask: no review carries them."""

    def labels_for(self, namespace: str) -> Mapping[str, str] | None:
        """Return the labels of a namespace; None where they are not known, nor may be guessed."""
        return self.namespaces.get(namespace)

    def runtime_class_for(self, rule: Rule) -> str | None:
        """Return the RuntimeClass that a rule gives to pods that name none; None for none.

        | `runtimeClassName` of the rule | the cluster has `nvidia` | a pod gets |
        | --- | --- | --- |
        | Auto | yes | `nvidia` |
        | Auto | no, or it is not known | none |
        | null | either | none |
        | a name | either | that name |
        """
        if rule.runtime_class_name != AUTO_RUNTIME_CLASS:
            return rule.runtime_class_name
        return NVIDIA_RUNTIME_CLASS if NVIDIA_RUNTIME_CLASS in self.runtime_classes else None


UNKNOWN_CLUSTER: Final = Cluster()
"""A cluster of which nothing is known."""


def find_smallest_profiles(
    nodes: Iterable[SlicedNode], amounts: Collection[int]
) -> dict[int, str] | None:
    """Return the smallest profile for each amount, all of one node; None where no node has them.

    | of several nodes | is chosen |
    | --- | --- |
    | whose smallest profiles have less memory together | that |
    | equal in this | the one whose profiles come first by name: 1g.20gb before 2g.20gb |

    All of one node, since a pod runs on one. Of nodes with equal profiles one is enough: a pod may
    have as many amounts as containers, and a cluster thousands of nodes.
    """
    nodes = {tuple(node.profiles.items()): node for node in nodes}.values()
    found = [chosen for node in nodes if (chosen := _choose_profiles(node, amounts)) is not None]
    if not found:
        return None
    best = min(found, key=lambda one: (sum(size for size, _ in one), [name for _, name in one]))
    return {amount: name for amount, (_, name) in zip(amounts, best, strict=True)}


def _choose_profiles(node: SlicedNode, amounts: Iterable[int]) -> Sequence[tuple[int, str]] | None:
    chosen = []
    for amount in amounts:
        enough = [(size, name) for name, size in node.profiles.items() if size >= amount]
        if not enough:
            return None
        chosen.append(min(enough))
    return chosen


def find_largest_profile(nodes: Iterable[SlicedNode]) -> tuple[int, str]:
    """Return the bytes and the name of the largest profile; 0 where there is none."""
    return max(
        ((size, name) for node in nodes for name, size in node.profiles.items()), default=(0, "")
    )
