"""Table of rules for each kind of pod.

A rule is a function from a `Case` to findings. Its docstring has the labels Rule, Fields and
Allowed values. Findings are in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final

from webhook.core.admission.rules import (
    amounts,
    changes,
    device_injection,
    enforcement,
    hints,
    isolation,
    nodes,
    programs,
    translation,
    visible_devices,
)
from webhook.core.admission.rules.case import Case, CaseKind
from webhook.core.pod.findings import MAX_FINDINGS, Finding
from webhook.core.policy.model import EnforceBy

_SIDECAR: Final = (EnforceBy.SIDECAR,)
_ENFORCED: Final = (EnforceBy.SIDECAR, EnforceBy.SENTRY)


@dataclass(frozen=True, slots=True)
class RuleRow:
    """A rule and the kinds of pods that it judges."""

    judges: CaseKind
    rule: Callable[[Case], Iterable[Finding]]
    enforced_by: tuple[EnforceBy, ...] = ()
    """Enforcement modes of the pods that the rule judges; empty for all modes."""


RULES: Final = (
    RuleRow(CaseKind.ASKING, amounts.readable_demand),
    RuleRow(CaseKind.CREATED, amounts.whole_gpus),
    RuleRow(CaseKind.WITHOUT_DEMAND, visible_devices.visible_devices_without_demand),
    RuleRow(CaseKind.ASKING, translation.valid_field_types),
    RuleRow(CaseKind.ASKING, amounts.whole_gpu_and_share),
    RuleRow(CaseKind.ASKING, nodes.operating_system),
    RuleRow(CaseKind.CREATED, nodes.node_name),
    RuleRow(CaseKind.ASKING, isolation.privileged_containers),
    RuleRow(CaseKind.ASKING, isolation.host_ipc),
    RuleRow(CaseKind.ASKING, isolation.user_namespace),
    RuleRow(CaseKind.ASKING, isolation.host_paths),
    RuleRow(CaseKind.ASKING, isolation.non_root),
    RuleRow(CaseKind.ASKING, visible_devices.visible_devices_of_demand),
    RuleRow(CaseKind.CREATED | CaseKind.UPDATED, device_injection.device_annotations),
    RuleRow(CaseKind.ASKING | CaseKind.UPDATED, device_injection.enforcer_annotations),
    RuleRow(CaseKind.CREATED, device_injection.device_mounts),
    RuleRow(CaseKind.ASKING, amounts.gpu_class_known),
    RuleRow(CaseKind.ASKING, nodes.node_selector),
    RuleRow(CaseKind.CREATED, isolation.reserved_names),
    RuleRow(CaseKind.CREATED, isolation.reserved_marks),
    RuleRow(CaseKind.ASKING, enforcement.host_pid, enforced_by=_ENFORCED),
    RuleRow(CaseKind.ASKING, enforcement.process_namespace, enforced_by=_SIDECAR),
    RuleRow(CaseKind.READABLE, isolation.gate_path),
    RuleRow(CaseKind.READABLE, amounts.bounds),
    RuleRow(CaseKind.READABLE, nodes.slices),
    RuleRow(CaseKind.READABLE, nodes.one_slot),
    RuleRow(CaseKind.READABLE, enforcement.one_user, enforced_by=_SIDECAR),
    RuleRow(CaseKind.READABLE, enforcement.one_profile, enforced_by=_SIDECAR),
    RuleRow(CaseKind.READABLE, enforcement.room_for_enforcer, enforced_by=_SIDECAR),
    RuleRow(CaseKind.TRANSLATED, translation.complete_translation),
    RuleRow(CaseKind.UPDATED, changes.immutable),
    RuleRow(CaseKind.UPDATED, enforcement.room_after_resize),
    RuleRow(CaseKind.DEBUGGED, changes.debugging_containers),
    RuleRow(CaseKind.DEBUGGED_WITHOUT_DEMAND, changes.debugging_without_demand),
    RuleRow(CaseKind.DEBUGGING, changes.debugging_mounts),
    RuleRow(CaseKind.DEBUGGING, changes.reserved_debuggers),
)

UNREAD_KEYS: Final = hints.unread_keys
"""Rule whose warnings the command `admit` counts as findings. It denies no pod."""
HINTS: Final = (hints.foreign_requests,)
"""Functions from a case to warnings, for every creation."""
HINTS_WITHOUT_FINDINGS: Final = (
    *(
        programs.sized_programs,
        programs.room_for_context,
        nodes.unreserved_memory,
        nodes.no_driver_limit,
    ),
    *(visible_devices.shown_by_runtime, translation.mirrored_sidecar),
    *(visible_devices.hidden_by_variables, visible_devices.hidden_by_runtime),
    amounts.unnamed_container,  # last: other warnings may suggest this annotation
)
"""Functions from a case to warnings about a pod without findings."""
_HINTS: Final = (*HINTS, *HINTS_WITHOUT_FINDINGS)


@cache
def rules_for(kind: CaseKind, by: EnforceBy) -> tuple[Callable[[Case], Iterable[Finding]], ...]:
    """Return the rules for a kind of case and an enforcement mode.

    The rules are cached, which saves a tenth of a review's time.
    """
    rows = (row for row in RULES if kind in row.judges)
    return tuple(row.rule for row in rows if by in (row.enforced_by or (by,)))


def collect_findings(case: Case, kind: CaseKind) -> tuple[Finding, ...]:
    """Return the distinct findings about a pod. Raises MalformedObjectError.

    At most MAX_FINDINGS are returned: a pod within all bounds can have thousands.
    """
    found: list[Finding] = []
    for rule in rules_for(kind, case.enforced_by):
        for finding in rule(case):
            found.append(finding)
            if len(found) == MAX_FINDINGS:
                return tuple(dict.fromkeys(found))
    return tuple(dict.fromkeys(found)) if found else ()


def collect_hints(case: Case, *, fine: bool) -> tuple[str, ...]:
    """Return the warnings that do not deny a pod. `fine` is True if the pod has no findings."""
    hints: list[str] = []
    for rule in _HINTS if fine else HINTS:
        hints += rule(case)
    return tuple(hints)
