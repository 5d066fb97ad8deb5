import pytest

from tests.support.pods import a_container, a_pod
from webhook.core.pod.views import is_guaranteed, read_pod

CPU, MEMORY = {"cpu": "1"}, {"memory": "1Gi"}
BOTH = {**CPU, **MEMORY}
EQUAL = {"requests": BOTH, "limits": BOTH}
ROOMY = {"cpu": "4", "memory": "4Gi"}
OF_POD = {"requests": ROOMY, "limits": ROOMY}


def a_pod_of(*resources, init=(), **spec):
    containers = [a_container(f"c{i}", resources=resource) for i, resource in enumerate(resources)]
    inits = [a_container(f"i{i}", resources=item) for i, item in enumerate(init)]
    return a_pod(containers=containers, initContainers=inits, **spec)


GUARANTEED = {
    "equal": a_pod_of(EQUAL),
    "limits alone": a_pod_of({"limits": BOTH}),
    "one request": a_pod_of({"limits": BOTH, "requests": CPU}),
    "equal in other words": a_pod_of({"limits": BOTH, "requests": {"cpu": "1000m"}}),
    "another resource": a_pod_of({**EQUAL, "limits": {**BOTH, "vramwarden.io/vram": "8Gi"}}),
    "two containers of different size": a_pod_of(
        EQUAL, {"limits": {"cpu": "20m", "memory": "8Mi"}}
    ),
    "an init container": a_pod_of(EQUAL, init=[{"limits": BOTH}]),
    "no pod-level resources": a_pod_of(EQUAL, resources=None),
    "our own container, which does not count": a_pod(
        containers=[a_container(resources=EQUAL)],
        initContainers=[a_container("vram-enforcer", resources={"limits": CPU})],
    ),
    "pod-level resources alone": a_pod_of({}, None, init=[{"requests": CPU}], resources=OF_POD),
}
NOT = {
    "nothing": a_pod_of({}),
    "no resources": a_pod_of(None),
    "no limits": a_pod_of({"requests": BOTH}),
    "no limit of memory": a_pod_of({"requests": CPU, "limits": CPU}),
    "no limit of CPU": a_pod_of({"requests": MEMORY, "limits": MEMORY}),
    "a smaller request": a_pod_of({"limits": BOTH, "requests": {"cpu": "999m"}}),
    "a request of zero": a_pod_of({"limits": BOTH, "requests": {"memory": "0"}}),
    "limits of zero": a_pod_of({"limits": {"cpu": "0", "memory": "1Gi"}}),
    "a malformed limit": a_pod_of({"limits": {"cpu": "much", "memory": "1Gi"}}),
    "one container of two": a_pod_of(EQUAL, {}),
    "an init container without": a_pod_of(EQUAL, init=[{}]),
    "equal in sum only": a_pod_of(
        {"requests": BOTH, "limits": {"cpu": "2", "memory": "1Gi"}},
        {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": BOTH},
    ),
    "empty pod-level resources": a_pod_of(EQUAL, resources={}),
    "pod-level requests alone": a_pod_of(EQUAL, resources={"requests": ROOMY}),
    "pod-level requests that were not set": a_pod_of({}, resources={"limits": BOTH}),
    "smaller pod-level requests": a_pod_of(
        EQUAL, resources={"requests": ROOMY, "limits": {"cpu": "8", "memory": "4Gi"}}
    ),
    "pod-level CPU alone": a_pod_of({}, resources={"requests": CPU, "limits": CPU}),
}


@pytest.mark.parametrize("pod", GUARANTEED.values(), ids=GUARANTEED)
def test_a_pod_whose_requests_equal_its_limits_is_guaranteed(pod):
    assert is_guaranteed(read_pod(pod))


@pytest.mark.parametrize("pod", NOT.values(), ids=NOT)
def test_any_other_pod_is_not(pod):
    assert not is_guaranteed(read_pod(pod))
