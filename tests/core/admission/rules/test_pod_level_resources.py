"""Pod-level resources (KEP-2837) of a pod with a sidecar."""

import copy

import pytest

from tests.core.admission.decisions import assert_unchanged
from tests.support.pods import a_container, a_pod, a_policy, a_request, a_rule
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.policy.cluster import UNKNOWN_CLUSTER
from webhook.core.policy.model import EnforceBy

APP = {"requests": {"cpu": "100m", "memory": "128Mi"}}


def decided(of_pod, app=APP, rule=None, **spec):
    pod = a_pod("8Gi", containers=[a_container(resources=app)], resources=of_pod, **spec)
    return decide(
        a_request(pod), a_policy(*([rule] if rule else [])), UNKNOWN_CLUSTER, Phase.MUTATE
    )


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


@pytest.mark.parametrize("by", [EnforceBy.SENTRY, EnforceBy.NONE])
def test_without_a_sidecar_no_room_is_needed(by):
    rule = a_rule(enforcement={"by": by})
    assert decided(both("100m", "128Mi"), rule=rule).outcome is Outcome.MUTATED


# --- limits that the pod's containers share with the sidecar

UNLIMITED = {}


def limited(cpu, memory):
    return {"limits": {"cpu": cpu, "memory": memory}}


@pytest.mark.parametrize(
    ("of_pod", "apps", "paths"),
    [
        # Equal to the sidecar's amount, from which a container without limits also takes.
        (limited("10m", "64Mi"), [UNLIMITED], ["cpu", "memory"]),
        (limited("19m", "128Mi"), [UNLIMITED], ["cpu"]),
        (limited("20m", "127Mi"), [UNLIMITED], ["memory"]),
        (limited("20m", "128Mi"), [UNLIMITED], []),
        (limited("20m", "128Mi"), [UNLIMITED, UNLIMITED], []),
        # The sum of the containers' amounts and the sidecar's.
        (limited("2", "1Gi"), [limited("2", "1Gi")], ["cpu", "memory"]),
        (limited("2010m", "1088Mi"), [limited("2", "1Gi")], []),
        (limited("2009m", "1088Mi"), [limited("2", "1Gi")], ["cpu"]),
        (limited("2010m", "1087Mi"), [limited("2", "1Gi")], ["memory"]),
        (limited("2010m", "1087Mi"), [limited("1", "512Mi"), limited("1", "512Mi")], ["memory"]),
        (limited("2010m", "1088Mi"), [limited("2", "1Gi"), UNLIMITED], []),
        # Only one resource.
        ({"limits": {"cpu": "20m"}}, [UNLIMITED], []),
        ({"limits": {"memory": "64Mi"}}, [limited("1", "1Mi")], ["memory"]),
    ],
)
@pytest.mark.parametrize("phase", Phase)
def test_limits_leave_room_for_the_sidecar(of_pod, apps, paths, phase):
    containers = [a_container(f"c{n}", resources=app) for n, app in enumerate(apps)]
    pod = a_pod("8Gi", containers=containers, resources=of_pod)
    decision = decide(a_request(pod), a_policy(), UNKNOWN_CLUSTER, phase)
    found = [(f.reason, f.path) for f in decision.findings if f.reason != "Unmutated"]
    assert found == [("EnforcementImpossible", f"spec.resources.limits[{one}]") for one in paths]


def test_the_message_says_how_much_is_enough():
    message = decided(limited("1", "1Gi"), limited("1", "1Gi")).message
    assert "limits[cpu]: write at least 1010m; 1 leaves no room" in message
    assert "limits[memory]: write at least 1088Mi; 1Gi leaves no room" in message


def test_an_ordinary_init_container_has_its_limit_at_another_time():
    init = [a_container("init", resources=limited("2", "1Gi"))]
    app = limited("1", "512Mi")
    assert decided(limited("2010m", "1088Mi"), app, initContainers=init).allowed
    assert not decided(limited("2", "1088Mi"), app, initContainers=init).allowed


# --- a resize


def resized(before, after, app=None, *, pod=None):
    roomy = {**limited("4", "4Gi"), "requests": {"cpu": "2", "memory": "2Gi"}}
    made = a_pod("8Gi", containers=[a_container(resources=app or {})], resources=roomy)
    old = pod or decide(a_request(made), a_policy(), UNKNOWN_CLUSTER, Phase.MUTATE).obj
    old["spec"]["resources"] = before
    new = copy.deepcopy(old)
    new["spec"]["resources"] = after
    request = a_request(new, operation="UPDATE", subresource="resize", old=old)
    return decide(request, a_policy(), UNKNOWN_CLUSTER, Phase.VALIDATE)


@pytest.mark.parametrize(
    ("before", "after", "paths"),
    [
        (limited("2", "1Gi"), limited("11m", "65Mi"), ["cpu", "memory"]),
        (limited("2", "1Gi"), limited("11m", "1Gi"), ["cpu"]),
        (limited("2", "1Gi"), limited("2", "65Mi"), ["memory"]),
        (limited("2", "1Gi"), limited("20m", "128Mi"), []),
        (limited("2", "1Gi"), limited("2", "1Gi"), []),
        # Amounts that an earlier release admitted may stay and grow.
        (limited("11m", "65Mi"), limited("11m", "65Mi"), []),
        (limited("11m", "65Mi"), limited("12m", "66Mi"), []),
        (limited("11m", "65Mi"), limited("10m", "65Mi"), ["cpu"]),
    ],
)
def test_a_resize_leaves_room_for_the_sidecar(before, after, paths):
    decision = resized(before, after)
    found = [(f.reason, f.path) for f in decision.findings]
    assert found == [("EnforcementImpossible", f"spec.resources.limits[{one}]") for one in paths]
    assert decision.outcome is (Outcome.DENIED if paths else Outcome.ALLOWED)


def test_a_resize_counts_what_the_containers_have():
    app = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    assert resized(both("4", "4Gi"), both("1010m", "1088Mi"), app).allowed
    paths = [f.path for f in resized(both("4", "4Gi"), both("1009m", "1Gi"), app).findings]
    assert paths == [
        f"spec.resources.{kind}[{resource}]"
        for kind in ("requests", "limits")
        for resource in ("cpu", "memory")
    ]


def test_a_pod_without_a_sidecar_is_resized_as_it_likes():
    pod = a_pod(resources=both("4", "4Gi"))
    assert_unchanged(resized(both("4", "4Gi"), both("1m", "1Mi"), pod=pod))
