"""Which rules judge which pod: this table, and nothing else.

A rule is a function from a `Case` to findings; its docstring says Rule, Fields, Allowed values.
Findings come in the order of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from webhook.core.admission.rules.amounts import (
    bounds,
    gpu_class_known,
    readable_demand,
    whole_gpu_and_share,
    whole_gpus,
)
from webhook.core.admission.rules.case import Case, CaseKind
from webhook.core.admission.rules.changes import (
    debugging_containers,
    debugging_mounts,
    debugging_without_demand,
    immutable,
    reserved_debuggers,
)
from webhook.core.admission.rules.devices import (
    device_annotations,
    device_mounts,
    visible_devices_of_demand,
    visible_devices_without_demand,
)
from webhook.core.admission.rules.enforcement import (
    one_profile,
    one_user,
    process_namespace,
    room_after_resize,
    room_for_enforcer,
)
from webhook.core.admission.rules.hints import foreign_requests, unread_keys
from webhook.core.admission.rules.isolation import (
    non_root,
    privileged_pod,
    reserved_marks,
    reserved_names,
)
from webhook.core.admission.rules.nodes import (
    node_name,
    node_selector,
    one_slot,
    operating_system,
    slices,
    unpromised,
)
from webhook.core.admission.rules.servers import unbounded_servers
from webhook.core.admission.rules.translation import translatable, translated
from webhook.core.admission.tiers import SIDECAR, Tier
from webhook.core.pod.findings import MOST_FINDINGS, Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@dataclass(frozen=True, slots=True)
class RuleRow:
    """One rule, and what it judges."""

    judges: CaseKind
    rule: Callable[[Case], Iterable[Finding]]
    tier: Tier | None = None
    """The tier whose pods it judges; None for all."""


RULES: Final = (
    RuleRow(CaseKind.ASKING, readable_demand),
    RuleRow(CaseKind.CREATED, whole_gpus),
    RuleRow(CaseKind.WITHOUT_DEMAND, visible_devices_without_demand),
    RuleRow(CaseKind.ASKING, translatable),
    RuleRow(CaseKind.ASKING, whole_gpu_and_share),
    RuleRow(CaseKind.ASKING, operating_system),
    RuleRow(CaseKind.ASKING, node_name),
    RuleRow(CaseKind.ASKING, privileged_pod),
    RuleRow(CaseKind.ASKING, non_root),
    RuleRow(CaseKind.ASKING, visible_devices_of_demand),
    RuleRow(CaseKind.CREATED | CaseKind.UPDATED, device_annotations),
    RuleRow(CaseKind.CREATED, device_mounts),
    RuleRow(CaseKind.ASKING, gpu_class_known),
    RuleRow(CaseKind.ASKING, node_selector),
    RuleRow(CaseKind.CREATED, reserved_names),
    RuleRow(CaseKind.WITHOUT_DEMAND, reserved_marks),
    RuleRow(CaseKind.ASKING, process_namespace, tier=SIDECAR),
    RuleRow(CaseKind.READABLE, bounds),
    RuleRow(CaseKind.READABLE, slices),
    RuleRow(CaseKind.READABLE, one_slot),
    RuleRow(CaseKind.READABLE, one_user, tier=SIDECAR),
    RuleRow(CaseKind.READABLE, one_profile, tier=SIDECAR),
    RuleRow(CaseKind.READABLE, room_for_enforcer, tier=SIDECAR),
    RuleRow(CaseKind.TRANSLATED, translated),
    RuleRow(CaseKind.UPDATED, immutable),
    RuleRow(CaseKind.UPDATED, room_after_resize),
    RuleRow(CaseKind.DEBUGGED, debugging_containers),
    RuleRow(CaseKind.DEBUGGED_WITHOUT_DEMAND, debugging_without_demand),
    RuleRow(CaseKind.DEBUGGING, debugging_mounts),
    RuleRow(CaseKind.DEBUGGING, reserved_debuggers),
)

HINTS: Final = (unread_keys, foreign_requests)
"""Rules that deny nothing: for each creation, from a case to warnings."""
HINTS_IF_FINE: Final = (unbounded_servers, unpromised)
"""The same, where nothing is wrong: about what the pod will do."""
_HINTS: Final = (*HINTS, *HINTS_IF_FINE)


@cache
def rules_for(kind: CaseKind, tier: Tier) -> tuple[Callable[[Case], Iterable[Finding]], ...]:
    """Return the rules for a kind of case and a tier; cached, which saves a tenth of a review."""
    return tuple(row.rule for row in RULES if kind in row.judges and row.tier in {None, tier})


def findings_of(case: Case, kind: CaseKind) -> tuple[Finding, ...]:
    """Return what is wrong with a pod, each finding once; raises MalformedObjectError.

    The first MOST_FINDINGS: a pod within all bounds can have thousands.
    """
    found: list[Finding] = []
    for rule in rules_for(kind, case.tier):
        for finding in rule(case):
            found.append(finding)
            if len(found) == MOST_FINDINGS:
                return tuple(dict.fromkeys(found))
    return tuple(dict.fromkeys(found)) if found else ()


def hints_of(case: Case, *, fine: bool) -> tuple[str, ...]:
    """Return what the user should know although it denies nothing."""
    hints: list[str] = []
    for rule in _HINTS if fine else HINTS:
        hints += rule(case)
    return tuple(hints)
