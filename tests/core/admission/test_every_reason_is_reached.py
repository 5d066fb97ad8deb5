"""Every reason in the closed set is reached by a table or a case here."""

from __future__ import annotations

from tests.core.admission.decisions import (
    VRAM,
    a_bound_pod,
    a_debugger,
    a_full_pod,
    a_hardened_pod,
    a_plain_pod,
    decide_debugging,
    decide_pod,
    decide_update,
    limits,
    merge_into_container,
    request_and_limit,
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
    """Return a decision for each reason that cannot occur before translation."""
    changed = a_bound_pod()
    del changed["metadata"]["labels"]
    return [
        decide_update(a_bound_pod(), changed),
        decide_debugging(a_bound_pod(), a_debugger(**DEBUGGER_FAULTS[0][0])),
        decide_pod(a_plain_pod(), phase=Phase.VALIDATE),
    ]


def test_every_reason_is_reached_by_a_test():
    decisions = [
        *(decide_pod(a_full_pod(**fields)) for _, fields, _ in SPEC_FAULTS),
        *(decide_pod(a_full_pod(m, annotations=notes)) for _, m, notes, _ in DEMAND_FAULTS),
        decide_pod(a_hardened_pod(restricted=True, users=(None, None))),
        decide_pod(a_full_pod(), a_rule(memory=MemoryBounds(max_bytes=2**30))),
        *denied_after_creation(),
    ]
    for _, _, fields, _ in CONTAINER_FAULTS:
        pod = a_full_pod()
        merge_into_container(pod, "main", fields)
        decisions.append(decide_pod(pod))
    for name, fields in (
        ("main", limits(VRAM, "4Gi")),
        ("main", request_and_limit(VRAM, "4Gi", None)),
        ("init", limits("nvidia.com/gpu", "500m")),
    ):
        pod = a_full_pod()
        merge_into_container(pod, name, fields)
        decisions.append(decide_pod(pod))
    decisions.append(decide_pod(a_full_pod(tolerations=[{"operator": "Exists"}] * 257)))
    seen = {found.reason for decision in decisions for found in decision.findings}
    assert set(Reason) - seen == set(), "add a pod that has the fault to faults.py"
