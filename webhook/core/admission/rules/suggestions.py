"""Bounds on what a pod asks for, and the suggestions that follow from them."""

from __future__ import annotations

from collections.abc import Iterator

from webhook.core.admission.accounting import selected_nodes
from webhook.core.pod.findings import quoted
from webhook.core.pod.suggestions import AmountBounds, Suggestions
from webhook.core.pod.views import Pod
from webhook.core.policy.cluster import Cluster, largest
from webhook.core.policy.values import Accounting, Policy, Rule


def suggestions_for(
    pod: Pod, class_name: str | None, rule: Rule, policy: Policy, cluster: Cluster
) -> Suggestions:
    """Return the amounts and counts that a rule admits for a pod of a class, or of none.

    The rule is that of the class (`Rule.of_class`).
    """
    most = 1 if rule.accounting is Accounting.CAP_ONLY else rule.max_gpu_count
    return Suggestions(pod.containers, _bounds(pod, class_name, rule, policy, cluster), most)


def _bounds(
    pod: Pod, class_name: str | None, rule: Rule, policy: Policy, cluster: Cluster
) -> Iterator[AmountBounds]:
    """Yield all bounds; few reviews suggest anything, so none is made before."""
    yield bounds_of(rule)
    yield from slice_bounds(pod, class_name, rule, policy, cluster)


def bounds_of(rule: Rule) -> AmountBounds:
    """Return the rule's bounds on the VRAM per GPU of a pod."""
    owner = f"rule {quoted(rule.name)}"
    return AmountBounds(owner, rule.memory.min_bytes, rule.memory.max_bytes)


def slice_bounds(
    pod: Pod, class_name: str | None, rule: Rule, policy: Policy, cluster: Cluster
) -> Iterator[AmountBounds]:
    """Yield the bound on each container under `accounting: MIG`, if a node with slices is known.

    A node whose largest slice holds the largest amount holds the others as well.
    """
    if rule.accounting is not Accounting.MIG:
        return
    gpu_class = policy.class_for(class_name or rule.default_class)
    nodes = selected_nodes(pod, rule, gpu_class, cluster)
    most_bytes, profile = largest(nodes)
    if nodes:
        owner = f"the largest slice (MIG) that this pod can get is {profile}, which"
        yield AmountBounds(owner, None, most_bytes, per_container=True)
