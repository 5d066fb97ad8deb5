"""Which rules judge which pod: this table, and nothing else.

A rule is a function from a `Case` to findings; its docstring says Rule, Fields, Allowed values.
Findings come in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final

from webhook.core.admission.rules import (
    amounts,
    changes,
    devices,
    enforcement,
    hints,
    isolation,
    nodes,
    other_webhooks,
    programs,
    translation,
    visibility,
)
from webhook.core.admission.rules.case import Case, CaseKind
from webhook.core.admission.tiers import ENFORCING, SIDECAR, Tier
from webhook.core.pod.findings import MOST_FINDINGS, Finding


@dataclass(frozen=True, slots=True)
class RuleRow:
    """One rule, and what it judges."""

    judges: CaseKind
    rule: Callable[[Case], Iterable[Finding]]
    tiers: tuple[Tier, ...] = ()
    """Tiers whose pods it judges; empty for all."""


RULES: Final = (
    RuleRow(CaseKind.ASKING, amounts.readable_demand),
    RuleRow(CaseKind.CREATED, amounts.whole_gpus),
    RuleRow(CaseKind.WITHOUT_DEMAND, devices.visible_devices_without_demand),
    RuleRow(CaseKind.ASKING, translation.translatable),
    RuleRow(CaseKind.ASKING, amounts.whole_gpu_and_share),
    RuleRow(CaseKind.ASKING, nodes.operating_system),
    RuleRow(CaseKind.CREATED, nodes.node_name),
    RuleRow(CaseKind.ASKING, isolation.privileged_containers),
    RuleRow(CaseKind.ASKING, isolation.host_ipc),
    RuleRow(CaseKind.ASKING, isolation.user_namespace),
    RuleRow(CaseKind.ASKING, isolation.host_paths),
    RuleRow(CaseKind.ASKING, isolation.non_root),
    RuleRow(CaseKind.ASKING, devices.visible_devices_of_demand),
    RuleRow(CaseKind.CREATED | CaseKind.UPDATED, devices.device_annotations),
    RuleRow(CaseKind.ASKING | CaseKind.UPDATED, devices.enforcer_annotations),
    RuleRow(CaseKind.CREATED, devices.device_mounts),
    RuleRow(CaseKind.ASKING, amounts.gpu_class_known),
    RuleRow(CaseKind.ASKING, nodes.node_selector),
    RuleRow(CaseKind.CREATED, isolation.reserved_names),
    RuleRow(CaseKind.CREATED, isolation.reserved_marks),
    RuleRow(CaseKind.ASKING, enforcement.host_pid, tiers=ENFORCING),
    RuleRow(CaseKind.ASKING, enforcement.process_namespace, tiers=(SIDECAR,)),
    RuleRow(CaseKind.READABLE, isolation.gate_path),
    RuleRow(CaseKind.READABLE, amounts.bounds),
    RuleRow(CaseKind.READABLE, nodes.slices),
    RuleRow(CaseKind.READABLE, nodes.one_slot),
    RuleRow(CaseKind.READABLE, enforcement.one_user, tiers=(SIDECAR,)),
    RuleRow(CaseKind.READABLE, enforcement.one_profile, tiers=(SIDECAR,)),
    RuleRow(CaseKind.READABLE, enforcement.room_for_enforcer, tiers=(SIDECAR,)),
    RuleRow(CaseKind.TRANSLATED, translation.translated),
    RuleRow(CaseKind.UPDATED, changes.immutable),
    RuleRow(CaseKind.UPDATED, enforcement.room_after_resize),
    RuleRow(CaseKind.DEBUGGED, changes.debugging_containers),
    RuleRow(CaseKind.DEBUGGED_WITHOUT_DEMAND, changes.debugging_without_demand),
    RuleRow(CaseKind.DEBUGGING, changes.debugging_mounts),
    RuleRow(CaseKind.DEBUGGING, changes.reserved_debuggers),
)

UNREAD: Final = hints.unread_keys
"""The rule that denies nothing; `admit` counts its warnings as findings."""
HINTS: Final = (hints.foreign_requests,)
"""Rules that deny nothing: for each creation, from a case to warnings."""
HINTS_IF_FINE: Final = (
    *(programs.sized_programs, programs.room_for_context, nodes.unpromised, nodes.no_limits),
    *(devices.shown_by_runtime, other_webhooks.mirrored_sidecar),
    *(visibility.hidden_by_variables, visibility.hidden_by_runtime),
    amounts.unnamed_container,  # last: another warning's line for the annotation names it too
)
"""The same, where nothing is wrong: about what the pod will do."""
_HINTS: Final = (*HINTS, *HINTS_IF_FINE)


@cache
def rules_for(kind: CaseKind, tier: Tier) -> tuple[Callable[[Case], Iterable[Finding]], ...]:
    """Return the rules for a kind of case and a tier; cached, which saves a tenth of a review."""
    return tuple(row.rule for row in RULES if kind in row.judges and tier in (row.tiers or (tier,)))


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
    said: list[str] = []
    for rule in _HINTS if fine else HINTS:
        said += rule(case)
    return tuple(said)
