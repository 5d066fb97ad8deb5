"""What one container can do wrong in a pod with a demand, amounts too, and what is nearly it."""

from __future__ import annotations

import copy

import pytest

from tests.core.admission.decisions import (
    CONFIG_MAP,
    EVERYWHERE,
    GI,
    VISIBLE,
    VRAM,
    WITHOUT_SIDECAR,
    a_full_pod,
    assert_denied,
    assert_fine,
    assert_left,
    both,
    capability,
    container_of,
    decided,
    ended,
    findings_of,
    limits,
    put_in,
    translated,
    variable,
)
from tests.core.admission.faults import CONTAINER_FAULTS
from tests.support.pods import a_pod, a_rule
from webhook.core.admission.decision import Phase


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize(
    ("phase", "make"),
    [
        (Phase.MUTATE, a_full_pod),
        (Phase.VALIDATE, a_full_pod),
        (Phase.VALIDATE, lambda: translated(a_full_pod())),
    ],
    ids=["created", "stored untranslated", "added by another webhook"],
)
@pytest.mark.parametrize(
    ("reason", "fields", "path"),
    [pytest.param(r, f, p, id=f"{r.value}-{n}") for r, n, f, p in CONTAINER_FAULTS],
)
def test_a_container_with_a_fault_is_denied_wherever_it_is(reason, fields, path, phase, make, name):
    pod = make()
    holder = put_in(pod, name, fields)
    path = ended(path, container_of(pod, name))
    assert_denied(decided(pod, phase=phase), reason, f"{holder}.{path}")


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize(
    "fields",
    [
        {"securityContext": {"privileged": False}},
        {"securityContext": None},
        {"securityContext": {"capabilities": {"drop": ["ALL", "SYS_ADMIN"]}}},
        *map(capability, ("NET_ADMIN", "cap_net_admin", "Net_Raw", "IPC_LOCK", "CAP_IPC_LOCK")),
        *map(capability, ("KILL", "CAP_KILL", "kill", "CHOWN", "MKNOD", "SYS_CHROOT")),
        variable(VISIBLE, "void"),
        variable(VISIBLE, "none"),
        variable(VISIBLE, ""),
        variable(VISIBLE),
        variable("CUDA_VISIBLE_DEVICES", "0"),
        variable("MY_NVIDIA_VISIBLE_DEVICES", "all"),
        variable("NVIDIA_DRIVER_CAPABILITIES", "all"),
        variable("NVIDIA_GPU", "x"),
        variable("GPUS", **CONFIG_MAP),
        limits("nvidia.com/gpu", "0"),
        limits("nvidia.com/gpu", 0),
        both("nvidia.com/gpu", "0", "0"),
        limits("example.com/gpu", "1"),
        limits("example.com/gpu", "500m"),
        {"resources": {"claims": []}},
    ],
    ids=str,
)
def test_what_is_nearly_a_fault_is_admitted_and_stored(fields, name):
    pod = a_full_pod()
    put_in(pod, name, fields)
    assert_fine(pod)


def test_the_variable_as_translation_writes_it_is_stored_only_where_there_is_vram():
    """A restored pod may have it elsewhere: its annotation named another container before."""
    path = "metadata.annotations['vramwarden.io/visible-devices']"
    ours = {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}
    pod = a_full_pod()
    put_in(pod, "main", variable(VISIBLE, **ours))
    assert_fine(pod)
    restored = copy.deepcopy(pod)
    holder = put_in(restored, "second", variable(VISIBLE, **ours))
    assert translated(restored) == translated(pod)
    stored = translated(pod)
    container_of(stored, "second")["env"] = container_of(restored, "second")["env"]
    for untranslated in (restored, stored):
        decision = decided(untranslated, phase=Phase.VALIDATE)
        assert_denied(decision, "VisibleDevicesOverride", f"{holder}.env[0]")


def test_a_variable_of_the_rule_itself_is_accepted():
    mps = {"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/mps"}
    rule = a_rule(env=(mps,))
    assert_fine(a_full_pod(), rule)
    pod = a_full_pod()
    holder = put_in(pod, "second", variable("CUDA_MPS_PIPE_DIRECTORY", "/other"))
    assert_denied(decided(pod, rule), "DriverVariable", f"{holder}.env[0]")


@pytest.mark.parametrize("key", ["gpu", "visible-devices", "gpu-memory-fraction", "gpu-waits"])
def test_the_gpu_is_not_for_the_user_to_choose(key):
    key = f"vramwarden.io/{key}"
    pod = a_pod("8Gi", annotations={key: "GPU-1"})
    assert translated(pod) == translated(a_pod("8Gi"))
    stored = translated(pod)
    stored["metadata"]["annotations"][key] = "GPU-1"
    path = f"metadata.annotations[{key}]"
    assert_denied(decided(stored, phase=Phase.VALIDATE), "ReservedName", path)


@pytest.mark.parametrize(
    ("fields", "path", "reason"),
    [
        (capability("SYS_PTRACE"), "capabilities.add[0]", "Capability"),
        ({"securityContext": {"privileged": True}}, "privileged", "PrivilegedContainer"),
    ],
)
def test_privileges_matter_also_where_there_is_no_sidecar_to_defeat(fields, path, reason):
    pod = a_full_pod()
    holder = put_in(pod, "main", fields)
    path = f"{holder}.securityContext.{path}"
    assert_denied(decided(pod, WITHOUT_SIDECAR), reason, path)


@pytest.mark.parametrize(
    ("memory", "amount", "reason"),
    [("main=8Gi", "1", "WholeGPUAndShare"), (None, "500m", "FractionalWholeGPU")],
)
def test_a_whole_gpu_that_only_a_request_names_is_denied_at_the_request(memory, amount, reason):
    pod = a_full_pod(memory)
    holder = put_in(pod, "second", both("nvidia.com/gpu", amount, None))
    path = f"{holder}.resources.requests[nvidia.com/gpu]"
    assert sorted(findings_of(pod)) == sorted([("RequestsLimitsMismatch", path), (reason, path)])


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
        limits("nvidia.com/mig-1g.5gb", "1"),
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
        assert_left(decided(pod, phase=phase))


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
