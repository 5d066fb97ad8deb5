"""Pod-level resources (KEP-2837) beside a sidecar that has amounts of its own."""

import pytest

from tests.support.pods import a_container, a_pod, a_policy, a_request, a_rule
from webhook.core.admission.decide import Outcome, Phase, decide
from webhook.core.policy.values import EnforceBy

APP = {"requests": {"cpu": "100m", "memory": "128Mi"}}


def decided(of_pod, app=APP, rule=None, **spec):
    pod = a_pod("8Gi", containers=[a_container(resources=app)], resources=of_pod, **spec)
    return decide(a_request(pod), a_policy(*([rule] if rule else [])), Phase.MUTATE)


def both(cpu, memory):
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}


@pytest.mark.parametrize(
    ("of_pod", "path"),
    [
        (both("110m", "192Mi"), None),
        (both("109m", "192Mi"), "spec.resources.requests[cpu]"),
        (both("110m", "191Mi"), "spec.resources.requests[memory]"),
        ({"limits": {"cpu": "9m"}}, "spec.resources.limits[cpu]"),
        ({"limits": {"cpu": "1"}}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_sidecar_needs_room_in_pod_level_resources(of_pod, path):
    decision = decided(of_pod)
    if path is None:
        assert decision.outcome is Outcome.MUTATED, decision.message
    else:
        assert [(f.reason, f.path) for f in decision.findings] == [("EnforcementImpossible", path)]
        assert "leaves no room for the sidecar" in decision.message


def test_an_init_container_needs_its_amount_at_another_time():
    init = [a_container("init", resources={"requests": {"cpu": "110m"}})]
    assert decided(both("120m", "192Mi"), initContainers=init).outcome is Outcome.MUTATED
    assert decided(both("119m", "192Mi"), initContainers=init).outcome is Outcome.DENIED


def test_without_a_sidecar_no_room_is_needed():
    rule = a_rule(enforcement={"by": EnforceBy.NONE})
    assert decided(both("100m", "128Mi"), rule=rule).outcome is Outcome.MUTATED
