"""Facts about a cluster that decisions depend on, and the choice of MIG profiles."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from webhook.core.policy.model import AUTO_RUNTIME_CLASS, Rollout, Rule
from webhook.names import NVIDIA_RUNTIME_CLASS

Namespaces = Mapping[str, Mapping[str, str] | None]
"""Labels, keyed by namespace; None if the labels could not be read."""


@dataclass(frozen=True, slots=True)
class SlicedNode:
    """Node whose GPUs are divided into MIG slices."""

    profiles: Mapping[str, int]
    """Bytes of a slice, keyed by profile name."""
    labels: Mapping[str, str] | None = None
    """Labels of the node; None for a node that every selector selects."""

    def is_selected(self, selector: Mapping[str, str]) -> bool:
        """Return True if a node selector selects this node."""
        return self.labels is None or all(
            self.labels.get(key) == value for key, value in selector.items()
        )


@dataclass(frozen=True, slots=True)
class Cluster:
    """Facts that a decision needs in addition to the policy. Facts may change at any time.

    Checks of stored pods do not depend on these facts, so replicas with different facts accept each
    other's pods.
    """

    rollout: Rollout = Rollout.ENFORCE
    runtime_classes: frozenset[str] = frozenset()
    """Names of existing RuntimeClasses, for rules with `runtimeClassName: Auto`."""
    sliced_nodes: tuple[SlicedNode, ...] = ()
    """Nodes with MIG slices, for rules with accounting MIG."""
    limits: bool | None = None
    """True if the driver of a node enforces caps, keyed by the node label's value; None if
    unknown."""
    namespaces: Namespaces = field(default_factory=dict)
    """Namespace labels that rules match; reviews do not contain these labels."""

    def labels_for(self, namespace: str) -> Mapping[str, str] | None:
        """Return the labels of a namespace, or None if unknown."""
        return self.namespaces.get(namespace)

    def runtime_class_for(self, rule: Rule) -> str | None:
        """Return the RuntimeClass that a rule sets on pods without a RuntimeClass, or None.

        | `runtimeClassName` of the rule | the cluster has `nvidia` | a pod gets |
        | --- | --- | --- |
        | Auto | yes | `nvidia` |
        | Auto | no, or unknown | none |
        | null | either | none |
        | a name | either | that name |
        """
        if rule.runtime_class_name != AUTO_RUNTIME_CLASS:
            return rule.runtime_class_name
        return NVIDIA_RUNTIME_CLASS if NVIDIA_RUNTIME_CLASS in self.runtime_classes else None


UNKNOWN_CLUSTER: Final = Cluster()


def find_smallest_profiles(
    nodes: Iterable[SlicedNode], amounts: Collection[int]
) -> dict[int, str] | None:
    """Return the smallest profile for each amount, or None if no single node has all of them.

    | nodes with enough profiles | chosen node |
    | --- | --- |
    | different memory of the smallest profiles together | the one with the least |
    | the same memory | the first by the names of the profiles: 1g.20gb before 2g.20gb |

    All profiles are from one node, since a pod runs on one node. Of nodes with equal profiles, only
    one is examined: a cluster may have thousands of nodes, and a pod one amount per container.
    """
    nodes = {tuple(node.profiles.items()): node for node in nodes}.values()
    found = [chosen for node in nodes if (chosen := _choose_profiles(node, amounts)) is not None]
    if not found:
        return None
    best = min(found, key=lambda item: (sum(size for size, _ in item), [name for _, name in item]))
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
    """Return bytes and name of the largest profile; 0 and an empty string if none exists."""
    return max(
        ((size, name) for node in nodes for name, size in node.profiles.items()), default=(0, "")
    )
