"""Annotations and mounts by which a container runtime would show a pod GPUs."""

from __future__ import annotations

import copy

import pytest

from tests.core.admission.decisions import (
    EVERYWHERE,
    a_bound_pod,
    a_full_pod,
    assert_denied,
    decided,
    found_in,
    limits,
    put_in,
    stored_pod,
    updated,
)
from tests.support.pods import a_container, a_pod, a_policy, a_rule
from webhook.core.admission.decide import Outcome, Phase
from webhook.core.policy.values import Action, VisibleDevices

DENYING = [VisibleDevices.DENY, VisibleDevices.VOID]
ALL = "nvidia.com/gpu=all"
KEYS = [
    "nvidia.cdi.k8s.io",
    "nvidia.cdi.k8s.io/pod",
    "nvidia.cdi.k8s.io/container.main",
    "cdi.k8s.io/x",
]
SHOWING = [
    ALL,
    "nvidia.com/gpu=0",
    "runtime.nvidia.com/gpu=all",
    "management.nvidia.com/gpu=all",
    "k8s.device-plugin.nvidia.com/gpu=GPU-1",
    "example.com/nic=1,nvidia.com/gpu=1",
    "example.com/nic=1, nvidia.com/gpu=1",
    "- nvidia.com/gpu=1\n",
]
OTHERS = [
    "",
    "example.com/nic=1",
    "notnvidia.com/gpu=1",
    "my-nvidia.com/gpu=1",
    "nvidia.com.example.com/gpu=1",
    "nvidia.com",
]


def path_of(key: str) -> str:
    return f"metadata.annotations[{key}]"


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("devices", DENYING)
@pytest.mark.parametrize("key", KEYS)
def test_an_annotation_that_gives_a_pod_devices_is_denied(key, devices, phase):
    rule = a_rule(visible_devices=devices)
    decision = decided(a_pod(annotations={key: ALL}), rule, phase)
    assert_denied(decision, "VisibleDevicesOverride", path_of(key))


@pytest.mark.parametrize("value", SHOWING)
def test_beside_a_demand_it_is_denied_too_whichever_of_nvidias_devices_it_names(value):
    decision = decided(a_pod("8Gi", annotations={"cdi.k8s.io/x": value}))
    assert_denied(decision, "VisibleDevicesOverride", path_of("cdi.k8s.io/x"))


@pytest.mark.parametrize("value", OTHERS)
@pytest.mark.parametrize("key", KEYS)
def test_devices_of_other_vendors_are_nobodys_business(key, value):
    assert decided(a_pod(annotations={key: value})).outcome is Outcome.ALLOWED


@pytest.mark.parametrize("key", ["cdi.k8s.io", "cdi.k8s.iox", "x.nvidia.cdi.k8s.io/pod", "x"])
def test_other_keys_mean_nothing(key):
    assert decided(a_pod(annotations={key: ALL})).outcome is Outcome.ALLOWED


@pytest.mark.parametrize("phase", Phase)
def test_a_rule_may_ignore_such_annotations_and_mounts(phase):
    rule = a_rule(visible_devices=VisibleDevices.IGNORE)
    mounts = [{"name": "v", "mountPath": "/var/run/nvidia-container-devices/all"}]
    containers = [a_container(volumeMounts=mounts)]
    pod = a_pod(annotations=dict.fromkeys(KEYS, ALL), containers=containers)
    decision = decided(pod, rule, phase)
    assert (decision.outcome, decision.patch) == (Outcome.ALLOWED, ())


@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_pod_with_whole_gpus_may_have_such_annotations(name):
    pod = a_full_pod(None, annotations={"cdi.k8s.io/x": ALL})
    put_in(pod, name, limits("nvidia.com/gpu", "1"))
    assert decided(pod).outcome is Outcome.ALLOWED


@pytest.mark.parametrize("resource", [("nvidia.com/gpu", "0"), ("cpu", "1")])
def test_a_whole_gpu_resource_of_zero_is_none(resource):
    pod = a_full_pod(None, annotations={"cdi.k8s.io/x": ALL})
    put_in(pod, "main", limits(*resource))
    assert_denied(decided(pod), "VisibleDevicesOverride", path_of("cdi.k8s.io/x"))


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("make", [a_pod, stored_pod, a_bound_pod])
@pytest.mark.parametrize("before", [None, "example.com/nic=1", "nvidia.com/gpu=0"])
def test_such_an_annotation_cannot_come_later(before, make, phase):
    old = make()
    if before is not None:
        old["metadata"].setdefault("annotations", {})["cdi.k8s.io/x"] = before
    new = copy.deepcopy(old)
    new["metadata"].setdefault("annotations", {})["cdi.k8s.io/x"] = ALL
    decision = updated(old, new, phase=phase)
    assert found_in(decision) == [("VisibleDevicesOverride", path_of("cdi.k8s.io/x"))]
    assert decision.outcome is Outcome.DENIED


@pytest.mark.parametrize("phase", Phase)
def test_one_that_exists_may_stay_or_go(phase):
    old = a_pod(annotations=dict.fromkeys(KEYS, ALL))
    labelled = copy.deepcopy(old)
    labelled["metadata"]["labels"] = {"app": "x"}
    assert updated(old, labelled, phase=phase).outcome is Outcome.ALLOWED
    assert updated(old, a_pod(), phase=phase).outcome is Outcome.ALLOWED


def test_one_that_changes_among_many_that_stay_is_found():
    many = {f"cdi.k8s.io/a{n:03}": ALL for n in range(100)}
    old, new = a_pod(annotations=many), a_pod(annotations={**many, "cdi.k8s.io/b": ALL})
    assert_denied(updated(old, new), "VisibleDevicesOverride", path_of("cdi.k8s.io/b"))


def test_of_many_such_annotations_sixteen_are_reported():
    pod = a_pod(annotations={f"cdi.k8s.io/a{n}": ALL for n in range(1000)})
    assert len(decided(pod).findings) == 16


@pytest.mark.parametrize("memory", [None, "main=8Gi"])
@pytest.mark.parametrize("devices", DENYING)
@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize(
    "mount_path",
    [
        "/var/run/nvidia-container-devices",
        "/var/run/nvidia-container-devices/all",
        "//var/run/./nvidia-container-devices/0/",
        "var/run/nvidia-container-devices/imex/0",
        "/var/run/x/../nvidia-container-devices/0",
    ],
)
def test_a_mount_that_chooses_devices_is_denied(mount_path, name, devices, memory):
    pod = a_full_pod(memory)
    mounts = [{"name": "v", "mountPath": "/x"}, {"name": "v", "mountPath": mount_path}]
    holder = put_in(pod, name, {"volumeMounts": mounts})
    decision = decided(pod, a_rule(visible_devices=devices))
    path = f"{holder}.volumeMounts[1].mountPath"
    assert_denied(decision, "VisibleDevicesOverride", path)


@pytest.mark.parametrize(
    "mount_path",
    ["/var/run", "/data/nvidia-container-devices", "/var/run/nvidia-container-devices/../x"],
)
def test_other_mounts_are_fine(mount_path):
    mounts = [{"name": "v", "mountPath": mount_path}]
    pod = a_pod(containers=[a_container(volumeMounts=mounts)])
    assert decided(pod).outcome is Outcome.ALLOWED


def test_the_rule_of_the_pod_decides_about_annotations_that_come_later():
    old, new = a_pod(), a_pod(annotations={"cdi.k8s.io/x": ALL})
    policy = a_policy(a_rule(action=Action.WARN))
    assert updated(old, new, policy=policy).outcome is Outcome.WARNED
    policy = a_policy(a_rule(visible_devices=VisibleDevices.IGNORE))
    assert updated(old, new, policy=policy).outcome is Outcome.ALLOWED
