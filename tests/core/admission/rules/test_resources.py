"""Amounts in resources: requests and limits, parts of whole GPUs, explicit VRAM."""

from __future__ import annotations

import pytest

from tests.core.admission.decisions import (
    EVERYWHERE,
    GI,
    VRAM,
    a_full_pod,
    assert_denied,
    assert_fine,
    both,
    decided,
    findings_of,
    limits,
    put_in,
    translated,
)
from webhook.core.admission.decide import Outcome, Phase


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    "resource", [VRAM, "nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.5gb"]
)
@pytest.mark.parametrize(("request_", "limit"), [("2Gi", "4Gi"), ("4Gi", "2Gi"), ("2Gi", None)])
def test_a_request_without_its_equal_limit_is_denied_in_any_container(
    request_, limit, resource, name, phase
):
    pod = a_full_pod(None)
    holder = put_in(pod, name, both(resource, request_, limit))
    path = f"{holder}.resources.requests[{resource}]"
    assert_denied(decided(pod, phase=phase), "RequestsLimitsMismatch", path)


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("amount", ["500m", "0.5", 0.5, "1500m", "1.5", "2m", "1n", "-1"])
@pytest.mark.parametrize("request_", [None, "same"])
def test_a_part_of_a_whole_gpu_is_denied_in_any_container(amount, request_, name, phase):
    pod = a_full_pod(None)
    holder = put_in(pod, name, both("nvidia.com/gpu", request_ and amount, amount))
    path = f"{holder}.resources.limits[nvidia.com/gpu]"
    decision = decided(pod, phase=phase)
    assert_denied(decision, "FractionalWholeGPU", path)
    cure = "write a positive integer" if amount == "-1" else "vramwarden.io/gpu-memory"
    assert cure in decision.message


def test_a_part_of_a_gpu_in_a_request_alone_is_denied_there():
    pod = a_full_pod(None)
    holder = put_in(pod, "init", both("nvidia.com/gpu", "500m", None))
    path = f"{holder}.resources.requests[nvidia.com/gpu]"
    assert findings_of(pod) == [("FractionalWholeGPU", path), ("RequestsLimitsMismatch", path)]


@pytest.mark.parametrize("amount", ["half", "1 ", "", "1GB", "nan"])
def test_a_count_of_gpus_that_is_no_quantity_is_denied(amount):
    pod = a_full_pod(None)
    holder = put_in(pod, "second", limits("nvidia.com/gpu", amount))
    (found,) = decided(pod).findings
    assert (found.reason.value, found.path) == (
        "InvalidQuantity",
        f"{holder}.resources.limits[nvidia.com/gpu]",
    )


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize(
    "fields",
    [
        limits("nvidia.com/gpu", "1"),
        limits("nvidia.com/gpu", 8),
        limits("nvidia.com/gpu", "2000m"),
        limits("nvidia.com/gpu", "1k"),
        limits("nvidia.com/gpu", "0"),
        both("nvidia.com/gpu", "2", "2000m"),
        limits("cpu", "500m"),
        both("cpu", "100m", "500m"),
        both("memory", "1Gi", None),
        limits("nvidia.com/gpu.shared", "500m"),
        {"resources": None},
        {"resources": {"limits": None, "requests": {}}},
    ],
    ids=str,
)
def test_whole_gpus_and_other_resources_are_left_alone(fields, name):
    pod = a_full_pod(None)
    put_in(pod, name, fields)
    for phase in Phase:
        decision = decided(pod, phase=phase)
        assert (decision.outcome, decision.patch) == (Outcome.ALLOWED, ())


@pytest.mark.parametrize(
    "amounts", [both(VRAM, "8Gi", "8192Mi"), both(VRAM, None, 8 * GI)], ids=str
)
def test_equal_amounts_of_vram_may_be_written_differently(amounts):
    pod = a_full_pod(None)
    put_in(pod, "second", amounts)
    assert_fine(pod)


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("phase", Phase)
def test_an_explicit_amount_that_disagrees_with_the_annotation_is_denied(name, phase):
    pod = a_full_pod(f"{name}=8Gi")
    holder = put_in(pod, name, limits(VRAM, "4Gi"))
    path = f"{holder}.resources.limits[{VRAM}]"
    assert_denied(decided(pod, phase=phase), "ConflictingAmounts", path)


def test_an_annotation_changed_after_translation_disagrees_with_it():
    pod = translated(a_full_pod())
    pod["metadata"]["annotations"]["vramwarden.io/gpu-memory"] = "main=4Gi"
    path = f"spec.containers[0].resources.limits[{VRAM}]"
    assert_denied(decided(pod, phase=Phase.VALIDATE), "ConflictingAmounts", path)
