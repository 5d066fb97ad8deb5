"""Faults and near faults of one container in a pod with a demand."""

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
    assert_admitted,
    assert_denied,
    assert_unchanged,
    capability,
    decide_pod,
    decide_reasons,
    find_container,
    limits,
    merge_into_container,
    request_and_limit,
    resolve_last_index,
    translate,
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
        (Phase.VALIDATE, lambda: translate(a_full_pod())),
    ],
    ids=["created", "stored untranslated", "added by another webhook"],
)
@pytest.mark.parametrize(
    ("reason", "fields", "path"),
    [pytest.param(r, f, p, id=f"{r.value}-{n}") for r, n, f, p in CONTAINER_FAULTS],
)
def test_a_container_with_a_fault_is_denied_wherever_it_is(reason, fields, path, phase, make, name):
    pod = make()
    holder = merge_into_container(pod, name, fields)
    path = resolve_last_index(path, find_container(pod, name))
    assert_denied(decide_pod(pod, phase=phase), reason, f"{holder}.{path}")


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
        request_and_limit("nvidia.com/gpu", "0", "0"),
        limits("example.com/gpu", "1"),
        limits("example.com/gpu", "500m"),
        {"resources": {"claims": []}},
    ],
    ids=str,
)
def test_what_is_nearly_a_fault_is_admitted_and_stored(fields, name):
    pod = a_full_pod()
    merge_into_container(pod, name, fields)
    assert_admitted(pod)


def test_the_variable_as_translation_writes_it_is_stored_only_where_there_is_vram():
    """A restored pod's annotation may have named another container before."""
    path = "metadata.annotations['vramwarden.io/visible-devices']"
    ours = {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}
    pod = a_full_pod()
    merge_into_container(pod, "main", variable(VISIBLE, **ours))
    assert_admitted(pod)
    restored = copy.deepcopy(pod)
    holder = merge_into_container(restored, "second", variable(VISIBLE, **ours))
    assert translate(restored) == translate(pod)
    stored = translate(pod)
    find_container(stored, "second")["env"] = find_container(restored, "second")["env"]
    for untranslated in (restored, stored):
        decision = decide_pod(untranslated, phase=Phase.VALIDATE)
        assert_denied(decision, "VisibleDevicesOverride", f"{holder}.env[0]")


def test_a_variable_of_the_rule_itself_is_accepted():
    mps = {"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/mps"}
    rule = a_rule(env=(mps,))
    assert_admitted(a_full_pod(), rule)
    pod = a_full_pod()
    holder = merge_into_container(pod, "second", variable("CUDA_MPS_PIPE_DIRECTORY", "/other"))
    assert_denied(decide_pod(pod, rule), "DriverVariable", f"{holder}.env[0]")


@pytest.mark.parametrize("key", ["gpu", "visible-devices", "gpu-memory-fraction", "gpu-waits"])
def test_the_gpu_is_not_for_the_user_to_choose(key):
    key = f"vramwarden.io/{key}"
    pod = a_pod("8Gi", annotations={key: "GPU-1"})
    assert translate(pod) == translate(a_pod("8Gi"))
    stored = translate(pod)
    stored["metadata"]["annotations"][key] = "GPU-1"
    path = f"metadata.annotations[{key}]"
    assert_denied(decide_pod(stored, phase=Phase.VALIDATE), "ReservedName", path)


@pytest.mark.parametrize(
    ("fields", "path", "reason"),
    [
        (capability("SYS_PTRACE"), "capabilities.add[0]", "Capability"),
        ({"securityContext": {"privileged": True}}, "privileged", "PrivilegedContainer"),
    ],
)
def test_privileges_matter_also_where_there_is_no_sidecar_to_defeat(fields, path, reason):
    pod = a_full_pod()
    holder = merge_into_container(pod, "main", fields)
    path = f"{holder}.securityContext.{path}"
    assert_denied(decide_pod(pod, WITHOUT_SIDECAR), reason, path)


@pytest.mark.parametrize(
    ("memory", "amount", "reason"),
    [("main=8Gi", "1", "WholeGPUAndShare"), (None, "500m", "FractionalWholeGPU")],
)
def test_a_whole_gpu_that_only_a_request_names_is_denied_at_the_request(memory, amount, reason):
    pod = a_full_pod(memory)
    holder = merge_into_container(pod, "second", request_and_limit("nvidia.com/gpu", amount, None))
    path = f"{holder}.resources.requests[nvidia.com/gpu]"
    assert sorted(decide_reasons(pod)) == sorted([("RequestsLimitsMismatch", path), (reason, path)])


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
    holder = merge_into_container(pod, name, request_and_limit(resource, request_, limit))
    path = f"{holder}.resources.requests[{resource}]"
    assert_denied(decide_pod(pod, phase=phase), "RequestsLimitsMismatch", path)


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("amount", ["500m", "0.5", 0.5, "1500m", "1.5", "2m", "1n", "-1"])
@pytest.mark.parametrize("request_", [None, "same"])
def test_a_part_of_a_whole_gpu_is_denied_in_any_container(amount, request_, name, phase):
    pod = a_full_pod(None)
    holder = merge_into_container(
        pod, name, request_and_limit("nvidia.com/gpu", request_ and amount, amount)
    )
    path = f"{holder}.resources.limits[nvidia.com/gpu]"
    decision = decide_pod(pod, phase=phase)
    assert_denied(decision, "FractionalWholeGPU", path)
    cure = "write a positive integer" if amount == "-1" else "vramwarden.io/gpu-memory"
    assert cure in decision.message


@pytest.mark.parametrize("amount", ["half", "1 ", "", "1GB", "nan"])
def test_a_count_of_gpus_that_is_no_quantity_is_denied(amount):
    pod = a_full_pod(None)
    holder = merge_into_container(pod, "second", limits("nvidia.com/gpu", amount))
    (found,) = decide_pod(pod).findings
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
        request_and_limit("nvidia.com/gpu", "2", "2000m"),
        limits("cpu", "500m"),
        request_and_limit("cpu", "100m", "500m"),
        request_and_limit("memory", "1Gi", None),
        limits("nvidia.com/mig-1g.5gb", "1"),
        limits("nvidia.com/gpu.shared", "500m"),
        {"resources": None},
        {"resources": {"limits": None, "requests": {}}},
    ],
    ids=str,
)
def test_whole_gpus_and_other_resources_are_left_alone(fields, name):
    pod = a_full_pod(None)
    merge_into_container(pod, name, fields)
    for phase in Phase:
        assert_unchanged(decide_pod(pod, phase=phase))


@pytest.mark.parametrize(
    "amounts",
    [request_and_limit(VRAM, "8Gi", "8192Mi"), request_and_limit(VRAM, None, 8 * GI)],
    ids=str,
)
def test_equal_amounts_of_vram_may_be_written_differently(amounts):
    pod = a_full_pod(None)
    merge_into_container(pod, "second", amounts)
    assert_admitted(pod)


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("phase", Phase)
def test_an_explicit_amount_that_disagrees_with_the_annotation_is_denied(name, phase):
    pod = a_full_pod(f"{name}=8Gi")
    holder = merge_into_container(pod, name, limits(VRAM, "4Gi"))
    path = f"{holder}.resources.limits[{VRAM}]"
    assert_denied(decide_pod(pod, phase=phase), "ConflictingAmounts", path)


def test_an_annotation_changed_after_translation_disagrees_with_it():
    pod = translate(a_full_pod())
    pod["metadata"]["annotations"]["vramwarden.io/gpu-memory"] = "main=4Gi"
    path = f"spec.containers[0].resources.limits[{VRAM}]"
    assert_denied(decide_pod(pod, phase=Phase.VALIDATE), "ConflictingAmounts", path)
