"""Pods with whole GPUs: by resources, status and claims."""

from __future__ import annotations

import pytest

from tests.support.pods import a_container, a_pod
from webhook.core.pod.whole_gpus import (
    DRA_DRIVER,
    MAX_CLAIMS,
    find_claim_drivers,
    find_claim_names,
    has_whole_gpu,
)

ADMITTED = {"phase": "Pending", "startTime": "2026-01-01T00:00:00Z"}
SCHEDULED = {"type": "PodScheduled", "status": "True"}
BOUND = {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}, SCHEDULED]}
NAMED = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]}


def asking(resource, amount="1", kind="limits", status=ADMITTED):
    pod = a_pod(containers=[a_container(resources={kind: {resource: amount}})])
    return pod | {"status": status}


def mapped(resource):
    status = {"requestMappings": [{"resourceName": resource}], "resourceClaimName": "made"}
    return a_pod(None) | {"status": {**BOUND, "extendedResourceClaimStatus": status}}


@pytest.mark.parametrize(
    ("pod", "has"),
    [
        (a_pod(None), False),
        (a_pod("8Gi"), False),
        (asking("vramwarden.io/vram", "8Gi"), False),
        (asking("nvidia.com/gpu"), True),
        (asking("nvidia.com/gpu", 1), True),
        (asking("nvidia.com/gpu", kind="requests"), True),
        (asking("nvidia.com/gpu", "0"), False),
        (asking("nvidia.com/gpu", "many"), True),
        (asking("nvidia.com/gpu", None), True),
        (asking("nvidia.com/gpu.shared"), True),
        (asking("nvidia.com/gpumem", "3000"), True),
        (asking("nvidia.com/mig-1g.5gb"), False),
        (asking("nvidia.com/hostdev"), False),
        (asking("aliyun.com/gpu-mem"), True),
        (asking("aliyun.com/gpu-count"), False),
        (
            a_pod(None, initContainers=[a_container(resources={"limits": {"nvidia.com/gpu": 1}})])
            | {"status": ADMITTED},
            True,
        ),
        (a_pod(resources={"requests": {"nvidia.com/gpu": "1"}}) | {"status": ADMITTED}, True),
        (asking("nvidia.com/gpu", status=ADMITTED | {"phase": "Running"}), True),
        (asking("nvidia.com/gpu", status=BOUND), True),
        (asking("nvidia.com/gpu", status=NAMED), False),
        (asking("nvidia.com/gpu", status={}), False),
        (asking("nvidia.com/gpu", status=BOUND | {"phase": "Succeeded"}), False),
        (asking("nvidia.com/gpu", status=ADMITTED | {"phase": "Failed"}), False),
        (mapped("nvidia.com/gpu"), True),
        (mapped("example.com/nic"), False),
        ({"metadata": {"name": "giant"}, "spec": "too large to be read"}, True),
        ({"spec": {"containers": [7, {"resources": 7}, {"resources": {"limits": 7}}]}}, False),
    ],
)
def test_who_has_a_whole_gpu(pod, has):
    assert has_whole_gpu(pod) is has


def test_the_claims_of_a_pod_are_named_once_each():
    claims = [{"name": "a", "resourceClaimName": "mine"}, {"name": "b"}]
    pod = a_pod(None, resourceClaims=claims)
    of_b = {"name": "b", "resourceClaimName": "b-x7z"}
    status = {
        **ADMITTED,
        "resourceClaimStatuses": [{"name": "a", "resourceClaimName": "mine"}, 7, of_b],
        "extendedResourceClaimStatus": {"resourceClaimName": "made"},
    }
    assert find_claim_names(pod | {"status": status}) == ("mine", "b-x7z", "made")
    assert find_claim_names(pod | {"status": BOUND}) == ("mine",)
    assert find_claim_names(pod | {"status": NAMED}) == find_claim_names(pod) == ()
    assert find_claim_names(pod | {"status": status | {"phase": "Failed"}}) == ()
    pod["spec"]["resourceClaims"] = [{"resourceClaimName": str(number)} for number in range(999)]
    assert len(find_claim_names(pod | {"status": BOUND})) == MAX_CLAIMS + 1
    assert find_claim_names({"spec": "too large to be read"}) == ()


def allocated(results):
    return {"allocation": {"devices": {"results": results}}}


@pytest.mark.parametrize(
    ("status", "is_one"),
    [
        (allocated([{"driver": "x"}, {"driver": "gpu.nvidia.com"}]), True),
        (allocated([{"driver": "compute-domain.nvidia.com"}]), False),
        (allocated("x"), False),
        ({}, False),
        (None, False),
    ],
)
def test_the_drivers_of_a_claims_devices_are_read(status, is_one):
    assert (DRA_DRIVER in find_claim_drivers({"status": status})) is is_one
