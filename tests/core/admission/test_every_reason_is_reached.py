"""The set of reasons is closed: the tables and cases here reach every one."""

from __future__ import annotations

from tests.core.admission.decisions import (
    VRAM,
    a_bound_pod,
    a_debugger,
    a_full_pod,
    a_hardened_pod,
    a_plain_pod,
    both,
    debugged,
    decided,
    limits,
    put_in,
    updated,
)
from tests.core.admission.faults import (
    CONTAINER_FAULTS,
    DEBUGGER_FAULTS,
    DEMAND_FAULTS,
    SPEC_FAULTS,
)
from tests.support.pods import a_rule
from webhook.core.admission.decision import Phase
from webhook.core.pod.findings import Reason
from webhook.core.policy.model import MemoryBounds


def denied_after_creation():
    """Return a decision for each reason that cannot be met at creation, before translation."""
    changed = a_bound_pod()
    del changed["metadata"]["labels"]
    return [
        updated(a_bound_pod(), changed),
        debugged(a_bound_pod(), a_debugger(**DEBUGGER_FAULTS[0][0])),
        decided(a_plain_pod(), phase=Phase.VALIDATE),
    ]


def test_every_reason_is_reached_by_a_test():
    decisions = [
        *(decided(a_full_pod(**fields)) for _, fields, _ in SPEC_FAULTS),
        *(decided(a_full_pod(m, annotations=notes)) for _, m, notes, _ in DEMAND_FAULTS),
        decided(a_hardened_pod(restricted=True, users=(None, None))),
        decided(a_full_pod(), a_rule(memory=MemoryBounds(max_bytes=2**30))),
        *denied_after_creation(),
    ]
    for _, _, fields, _ in CONTAINER_FAULTS:
        pod = a_full_pod()
        put_in(pod, "main", fields)
        decisions.append(decided(pod))
    for name, fields in (
        ("main", limits(VRAM, "4Gi")),
        ("main", both(VRAM, "4Gi", None)),
        ("init", limits("nvidia.com/gpu", "500m")),
    ):
        pod = a_full_pod()
        put_in(pod, name, fields)
        decisions.append(decided(pod))
    decisions.append(decided(a_full_pod(tolerations=[{"operator": "Exists"}] * 257)))
    seen = {found.reason for decision in decisions for found in decision.findings}
    assert set(Reason) - seen == set(), "add a pod that has the fault to faults.py"
