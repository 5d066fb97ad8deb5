"""What a single container can do wrong in a pod with a demand, and what is nearly it."""

from __future__ import annotations

import pytest

from tests.core.admission.decisions import (
    CONFIG_MAP,
    EVERYWHERE,
    VISIBLE,
    WITHOUT_SIDECAR,
    a_full_pod,
    assert_denied,
    assert_fine,
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
from webhook.core.admission.decide import Phase


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    ("reason", "fields", "path"),
    [pytest.param(r, f, p, id=f"{r.value}-{n}") for r, n, f, p in CONTAINER_FAULTS],
)
def test_a_container_with_a_fault_is_denied_wherever_it_is(reason, fields, path, name, phase):
    pod = a_full_pod()
    holder = put_in(pod, name, fields)
    path = ended(path, container_of(pod, name))
    assert_denied(decided(pod, phase=phase), reason, f"{holder}.{path}")


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize(
    ("reason", "fields", "path"),
    [pytest.param(r, f, p, id=f"{r.value}-{n}") for r, n, f, p in CONTAINER_FAULTS],
)
def test_a_fault_that_another_webhook_adds_to_a_translated_pod_is_denied(
    reason, fields, path, name
):
    pod = translated(a_full_pod())
    holder = put_in(pod, name, fields)
    path = ended(path, container_of(pod, name))
    assert_denied(decided(pod, phase=Phase.VALIDATE), reason, f"{holder}.{path}")


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
        {"resources": {kind: {"nvidia.com/gpu": "0"} for kind in ("requests", "limits")}},
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


@pytest.mark.parametrize("key", ["visible-devices", "gpu"])
def test_the_variable_as_a_release_writes_it_is_accepted_only_where_there_is_vram(key):
    path = f"metadata.annotations['vramwarden.io/{key}']"
    ours = {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}
    pod = a_full_pod()
    put_in(pod, "main", variable(VISIBLE, **ours))
    assert_fine(pod)
    holder = put_in(pod, "second", variable(VISIBLE, **ours))
    assert_denied(decided(pod), "VisibleDevicesOverride", f"{holder}.env[0]")


def test_a_variable_of_the_rule_itself_is_accepted():
    mps = {"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/mps"}
    rule = a_rule(env=(mps,))
    assert_fine(a_full_pod(), rule)
    pod = a_full_pod()
    holder = put_in(pod, "second", variable("CUDA_MPS_PIPE_DIRECTORY", "/other"))
    assert_denied(decided(pod, rule), "VisibleDevicesOverride", f"{holder}.env[0]")


@pytest.mark.parametrize("key", ["gpu", "visible-devices", "gpu-memory-fraction", "gpu-waits"])
def test_the_gpu_is_not_for_the_user_to_choose(key):
    key = f"vramwarden.io/{key}"
    pod = a_pod("8Gi", annotations={key: "GPU-1"})
    assert translated(pod) == translated(a_pod("8Gi"))
    stored = translated(pod)
    stored["metadata"]["annotations"][key] = "GPU-1"
    path = f"metadata.annotations[{key}]"
    assert_denied(decided(stored, phase=Phase.VALIDATE), "VisibleDevicesOverride", path)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        (capability("SYS_PTRACE"), "capabilities.add[0]"),
        ({"securityContext": {"privileged": True}}, "privileged"),
    ],
)
def test_privileges_matter_also_where_there_is_no_sidecar_to_defeat(fields, path):
    pod = a_full_pod()
    holder = put_in(pod, "main", fields)
    path = f"{holder}.securityContext.{path}"
    assert_denied(decided(pod, WITHOUT_SIDECAR), "PrivilegedContainer", path)


def test_a_whole_gpu_that_only_a_request_names_is_denied_at_the_request():
    pod = a_full_pod()
    holder = put_in(pod, "second", {"resources": {"requests": {"nvidia.com/gpu": "1"}}})
    path = f"{holder}.resources.requests[nvidia.com/gpu]"
    assert sorted(findings_of(pod)) == [
        ("RequestsLimitsMismatch", path),
        ("WholeGPUAndShare", path),
    ]
