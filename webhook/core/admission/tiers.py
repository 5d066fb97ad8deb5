"""What may hold a cap: what each tier adds to a pod, and asks of its node.

A tier's own rules are the rows of `rules/table.py` that name it. One that sets a variable takes
eleven product files, two of them the agent's:

| where | what |
| --- | --- |
| `core/policy/values.py`, `adapters/policy/models.py` | `EnforceBy`, and what `by` says of it |
| `names.py`, deploy/nodes.md | its value of the label `enforcement`, names that only it may set |
| here | a `Tier` in `_TIERS`; what it adds besides a container is a field |
| `mutation.py` | that field's user; no test asks for the next one |
| `_missing_essentials` in `rules/translation.py` | the same, for pods of another policy |
| `rules`, with `tier=` in their rows | what it forbids, at least to set by hand what it adds |
| `core/policy/fence.py`, the chart's `fence-second-line.yaml` | where our marks are not enough |
| `agent/scanner.py`, `_judge_enforcement` in `core/node/inventory.py` | which nodes can do it |

A node with two tiers needs a second label. Tests: `tests/golden/enforcer-NAME`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from webhook.core.admission.sidecar.container import enforcer_for
from webhook.core.policy.values import EnforceBy, Rule
from webhook.names import ENFORCED_BY_SIDECAR, NODE_ENFORCEMENT_LABEL, NOT_ENFORCED

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.core.pod.demand import Demand
    from webhook.core.pod.fields import Json
    from webhook.core.pod.views import Pod


@dataclass(frozen=True, slots=True, eq=False)
class Tier:
    """What holds a cap: one of the values below, compared as such."""

    adds: Callable[[Pod, Demand, Rule], Json | None]
    """Builds the container that a pod gets; None for none, or where none would work."""
    on_nodes: str
    """The value of the label `enforcement` on nodes where it works; empty for all nodes."""


SIDECAR: Final = Tier(adds=enforcer_for, on_nodes=ENFORCED_BY_SIDECAR)
NONE: Final = Tier(adds=lambda _pod, _demand, _rule: None, on_nodes="")
_TIERS: Final = {EnforceBy.SIDECAR: SIDECAR, EnforceBy.NONE: NONE}


def node_terms(rule: Rule) -> list[Json]:
    """Return the required node affinity, so that a pod runs where what holds its cap works.

    | GPUs are given by | the label `enforcement` must be |
    | --- | --- |
    | us | that of the tier |
    | NVIDIA's device plugin | not `none`: our agent says nothing of nodes that it does not share |
    """
    on_nodes = tier_of(rule).on_nodes
    if not on_nodes:
        return []
    if rule.leaves_to_plugin:
        return [{"key": NODE_ENFORCEMENT_LABEL, "operator": "NotIn", "values": [NOT_ENFORCED]}]
    return [{"key": NODE_ENFORCEMENT_LABEL, "operator": "In", "values": [on_nodes]}]


def tier_of(rule: Rule) -> Tier:
    """Return what holds the cap of a rule's pods."""
    return _TIERS[rule.enforcement.by]
