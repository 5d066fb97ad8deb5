"""Tiers: what each value of `enforcement.by` adds to a pod, and which nodes its pods need.

A rule for the pods of some tiers names them in its row of `rules/table.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from webhook.core.admission.sidecar.container import enforcer_for
from webhook.core.pod.demand import Demand
from webhook.core.pod.fields import Json
from webhook.core.pod.views import Pod
from webhook.core.policy.values import EnforceBy, Rule
from webhook.names import (
    ENFORCED_BY_SIDECAR,
    NODE_ENFORCEMENT_LABEL,
    NODE_SENTRY_LABEL,
    NOT_ENFORCED,
)


def _no_container(_pod: Pod, _demand: Demand, _rule: Rule) -> None:
    """Add no container."""


@dataclass(frozen=True, slots=True, eq=False)
class Tier:
    """One way to hold a cap: one of the values below, compared by identity."""

    adds: Callable[[Pod, Demand, Rule], Json | None] = _no_container
    """Builds the container that a pod gets; None for none, or if none would work."""
    on_nodes: tuple[str, str] | None = None
    """Label, with its value, of the nodes where it works; None for all nodes."""


SIDECAR: Final = Tier(adds=enforcer_for, on_nodes=(NODE_ENFORCEMENT_LABEL, ENFORCED_BY_SIDECAR))
SENTRY: Final = Tier(on_nodes=(NODE_SENTRY_LABEL, "true"))
NONE: Final = Tier()
_TIERS: Final = {EnforceBy.SIDECAR: SIDECAR, EnforceBy.SENTRY: SENTRY, EnforceBy.NONE: NONE}
ENFORCING: Final = (SIDECAR, SENTRY)
"""Tiers that stop what exceeds a cap."""


def node_terms(rule: Rule) -> list[Json]:
    """Return the required node affinity for nodes where the tier of a rule works.

    | tier | GPUs are given by | required |
    | --- | --- | --- |
    | `SIDECAR` | vramwarden | `enforcement In [sidecar]` |
    | `SIDECAR` | NVIDIA's device plugin | `enforcement NotIn [none]`: the agent labels only nodes \
that it shares |
    | `SENTRY` | vramwarden | `sentry In ["true"]` |
    | `NONE` | either | nothing |
    """
    tier = tier_of(rule)
    if tier.on_nodes is None:
        return []
    if rule.leaves_to_plugin:
        return [{"key": NODE_ENFORCEMENT_LABEL, "operator": "NotIn", "values": [NOT_ENFORCED]}]
    label, value = tier.on_nodes
    return [{"key": label, "operator": "In", "values": [value]}]


def tier_of(rule: Rule) -> Tier:
    """Return the tier of a rule's pods."""
    return _TIERS[rule.enforcement.by]
