"""Suggested amounts, their bounds, and the container that an amount is probably for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from webhook.core.admission.accounting import selected_nodes
from webhook.core.nvidia.memory_flags import find_program, uses_gpu
from webhook.core.pod.command_lines import OWN_VARIABLE_PREFIX, CommandLine
from webhook.core.pod.findings import quote
from webhook.core.pod.memory_annotation import containers_with_vram, find_default_container
from webhook.core.pod.suggestions import AmountBounds, Suggestions
from webhook.core.pod.views import Container, Pod
from webhook.core.policy.cluster import Cluster, find_largest_profile
from webhook.core.policy.model import Accounting, Policy, Rule
from webhook.names import GPU_MEMORY_ANNOTATION


def suggestions_for(
    pod: Pod, class_name: str | None, rule: Rule, policy: Policy, cluster: Cluster
) -> Suggestions:
    """Return the amounts and GPU counts that a rule admits for a pod.

    `rule` is the rule for the pod's class (`Rule.for_class`).
    """
    most = 1 if rule.accounting is Accounting.CAP_ONLY else rule.max_gpu_count
    return Suggestions(pod.containers, _bounds(pod, class_name, rule, policy, cluster), most)


def _bounds(
    pod: Pod, class_name: str | None, rule: Rule, policy: Policy, cluster: Cluster
) -> Iterator[AmountBounds]:
    """Yield all bounds, computed late since few reviews suggest an amount."""
    yield rule_bounds(rule)
    yield from slice_bounds(pod, class_name, rule, policy, cluster)


def rule_bounds(rule: Rule) -> AmountBounds:
    """Return the rule's bounds on the VRAM per GPU of a pod."""
    owner = f"rule {quote(rule.name)}"
    return AmountBounds(owner, rule.memory.min_bytes, rule.memory.max_bytes)


def slice_bounds(
    pod: Pod, class_name: str | None, rule: Rule, policy: Policy, cluster: Cluster
) -> Iterator[AmountBounds]:
    """Yield the bound on each container under `accounting: MIG`, if a node with slices is known.

    If a node's largest slice fits the largest amount, it fits the other amounts as well.
    """
    if rule.accounting is not Accounting.MIG:
        return
    gpu_class = policy.class_for(class_name or rule.default_class)
    nodes = selected_nodes(pod, rule, gpu_class, cluster)
    most_bytes, profile = find_largest_profile(nodes)
    if nodes:
        owner = f"the largest slice (MIG) that this pod can get is {profile}, which"
        yield AmountBounds(owner, None, most_bytes, per_container=True)


def find_likely_container(pod: Pod, command_lines: Iterable[tuple[Container, CommandLine]]) -> str:
    """Return the container that an amount without a name is probably for, or "" if unclear.

    | containers that name our variables, or else run a program of `memory_flags` | result |
    | --- | --- |
    | only the one that gets the quantity, or only others | the first of them |
    | none, or both | none |

    Programs without a row in `memory_flags` count if the pod runs no others.
    """
    is_named = "=" in pod.annotations.get(GPU_MEMORY_ANNOTATION, "") or containers_with_vram(pod)
    if is_named or len(pod.containers) == 1:
        return ""
    with_variables, with_programs, others = [], [], []
    for container, line in command_lines:
        if OWN_VARIABLE_PREFIX in line.words.text:
            with_variables.append(container.name)
        elif find_program(container, line):
            with_programs.append(container.name)
        elif uses_gpu(container, line):
            others.append(container.name)
    found = [*with_variables, *with_programs] or others
    is_both = len(found) > 1 and find_default_container(pod, []) in found
    return found[0] if found and not is_both else ""
