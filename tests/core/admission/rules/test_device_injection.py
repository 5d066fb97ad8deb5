"""Annotations and mounts by which a container runtime shows GPUs to a pod."""

from __future__ import annotations

import copy
import re

import pytest

from tests.core.admission.decisions import (
    EVERYWHERE,
    a_bound_pod,
    a_full_pod,
    assert_denied,
    assert_unchanged,
    decide_pod,
    decide_reasons,
    decide_update,
    limits,
    merge_into_container,
    reasons_and_paths,
    stored_pod,
    translate,
)
from tests.support.device_annotations import ALL, DENIED, HONEST, asking
from tests.support.pods import a_container, a_pod, a_policy, a_rule
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.bounds import MAX_INJECTING_ANNOTATIONS, MAX_TEXT_LENGTH
from webhook.core.nvidia.injection import INJECTORS, LIKE_INJECTORS
from webhook.core.policy.model import Action, EnforceBy, VisibleDevices

DENYING = [VisibleDevices.DENY, VisibleDevices.VOID]
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
    decision = decide_pod(a_pod(annotations={key: ALL}), rule, phase)
    assert_denied(decision, "DeviceInjection", path_of(key))


@pytest.mark.parametrize("value", SHOWING)
def test_beside_a_demand_it_is_denied_too_whichever_of_nvidias_devices_it_names(value):
    decision = decide_pod(a_pod("8Gi", annotations={"cdi.k8s.io/x": value}))
    assert_denied(decision, "DeviceInjection", path_of("cdi.k8s.io/x"))


NO_KEYS = ["cdi.k8s.io.x", "cdi.k8s.iox", "x.nvidia.cdi.k8s.io/pod", "x"]


@pytest.mark.parametrize(
    ("key", "value"),
    [*((key, value) for key in KEYS for value in OTHERS), *((key, ALL) for key in NO_KEYS)],
)
def test_other_keys_and_devices_of_other_vendors_are_nobodys_business(key, value):
    assert_unchanged(decide_pod(a_pod(annotations={key: value})))


@pytest.mark.parametrize("phase", Phase)
def test_a_rule_may_ignore_such_annotations_and_mounts(phase):
    rule = a_rule(visible_devices=VisibleDevices.IGNORE)
    mounts = [{"name": "v", "mountPath": "/var/run/nvidia-container-devices/all"}]
    containers = [a_container(volumeMounts=mounts)]
    pod = a_pod(annotations=dict.fromkeys(KEYS, ALL), containers=containers)
    assert_unchanged(decide_pod(pod, rule, phase))


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("pod", HONEST.values(), ids=HONEST)
def test_what_is_common_and_honest_passes(pod, phase):
    if "vramwarden.io/gpu-memory" in pod["metadata"]["annotations"]:
        pod = translate(pod)
    assert decide_reasons(pod, phase=phase) == []
    old = copy.deepcopy(pod)
    for key in filter(lambda key: not key.startswith("vram"), pod["metadata"]["annotations"]):
        del old["metadata"]["annotations"][key]
    assert_unchanged(decide_update(old, pod, phase=phase))


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("pod", DENIED.values(), ids=DENIED)
def test_what_names_gpus_is_denied_at_creation_and_later(pod, phase):
    ((key, value),) = (
        (key, value)
        for key, value in pod["metadata"]["annotations"].items()
        if key.partition("/")[0] in INJECTORS
    )
    assert ("DeviceInjection", path_of(key)) in decide_reasons(pod, phase=phase)
    old = copy.deepcopy(pod)
    del old["metadata"]["annotations"][key]
    if old["metadata"]["annotations"]:
        old = stored_pod(pod=old)
    new = copy.deepcopy(old)
    new["metadata"]["annotations"][key] = value
    assert_denied(decide_update(old, new, phase=phase), "DeviceInjection", path_of(key))


def test_every_key_of_the_list_is_tried():
    assert set(INJECTORS) <= DENIED.keys()
    assert all(re.search(LIKE_INJECTORS, key) for key in INJECTORS)


@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_pod_may_name_the_whole_gpus_of_any_of_its_containers(name):
    pod = a_full_pod(None, annotations={"cdi.k8s.io/x": "nvidia.com/gpu=0"})
    merge_into_container(pod, name, limits("nvidia.com/gpu", "1"))
    assert_unchanged(decide_pod(pod))
    pod["metadata"]["annotations"]["devices.gke.io/container.main"] = "- path: /dev/nvidia3"
    decision = decide_pod(pod)
    assert [finding.path for finding in decision.findings] == [
        path_of("cdi.k8s.io/x"),
        path_of("devices.gke.io/container.main"),
    ]
    merge_into_container(pod, "second", limits("nvidia.com/gpu", "2"))
    assert_unchanged(decide_pod(pod))


@pytest.mark.parametrize("resource", [("nvidia.com/gpu", "0"), ("cpu", "1")])
def test_a_whole_gpu_resource_of_zero_is_none(resource):
    pod = a_full_pod(None, annotations={"cdi.k8s.io/x": "nvidia.com/gpu=0"})
    merge_into_container(pod, "main", limits(*resource))
    assert_denied(decide_pod(pod), "DeviceInjection", path_of("cdi.k8s.io/x"))


@pytest.mark.parametrize(
    ("key", "value", "resource"),
    [
        ("cdi.k8s.io/x", "nvidia.com/gpu=0,nvidia.com/gpu=1", "nvidia.com/gpu"),
        ("devices.gke.io/pod", "- path: /dev/nvidia0\n- path: /dev/nvidiactl\n", "nvidia.com/gpu"),
        ("cdi.k8s.io/x", "nvidia.com/pgpu=0", "nvidia.com/pgpu"),
    ],
)
def test_whoever_names_the_node_has_no_cards_that_an_annotation_may_name(key, value, resource):
    pod = asking(key, value, {resource: "8"})
    assert_unchanged(decide_pod(pod))
    pod["spec"]["nodeName"] = "node-1"
    denied = ("DeviceInjection", path_of(key))
    assert decide_reasons(pod) == [("NodeNamePreset", "spec.nodeName"), denied]
    bound = copy.deepcopy(pod)
    del pod["metadata"]["annotations"]
    assert_unchanged(decide_update(pod, bound))


@pytest.mark.parametrize(
    "value",
    [
        "- {source: /etc, destination: /x}",
        '[{"Source":"/dev"}]',
        "- {source: /data/../etc, destination: /x}",
        "- {source: ../../dev, destination: /x}",
        "- {source: /data\n   /../etc, destination: /x}",
        "- {type: &k source, *k : /etc}",
        "- {\u017fource: /etc}",
        "- {source: none, type: devtmpfs, destination: /x}",
        "- {source: /x, destination: /x, type: overlay, options: ['lowerdir=/:/x']}",
    ],
)
def test_beside_a_demand_a_mount_is_judged_as_a_host_path_is(value):
    key = "mounts.noderesource.dev/pod"
    denied = [("HostPath", path_of(key))]
    assert decide_reasons(asking(key, value)) == []
    assert decide_reasons(asking(key, value, memory="8Gi")) == denied
    for devices in VisibleDevices:
        policy = a_policy(a_rule(visible_devices=devices))
        old = stored_pod()
        new = copy.deepcopy(old)
        new["metadata"]["annotations"][key] = value
        assert reasons_and_paths(decide_update(old, new, policy=policy)) == denied


def test_a_list_of_host_paths_counts_for_mounts_by_annotation():
    pod = asking("mounts.nri.io", "- source: /data/x\n  destination: /x", memory="8Gi")
    assert decide_reasons(pod, a_rule(host_paths=("/data",))) == []
    assert decide_reasons(pod, a_rule(host_paths=())) == [("HostPath", path_of("mounts.nri.io"))]


OF_THE_SIDECAR = {
    "mounts.nri.io/container.vram-enforcer": "- {source: /data/py, destination: /usr, type: bind}",
    "devices.nri.io/container.vram-enforcer": "- path: /dev/fuse",
    "ulimits.nri.containerd.io/container.vram-enforcer": "- {type: RLIMIT_NOFILE, hard: 3}",
    "io.kubernetes.cri-o.UnifiedCgroup.vram-enforcer": "cpu.max=1000 100000",
    "unified-cgroup.crio.io/vram-enforcer": "cpu.max=1000 100000",
    "rdt.resources.beta.kubernetes.io/container.vram-enforcer": "slow",
}


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("key", OF_THE_SIDECAR)
def test_no_annotation_changes_the_container_of_a_sidecar(key, phase):
    denied = [("ReservedName", path_of(key))]
    value = OF_THE_SIDECAR[key]
    assert_unchanged(decide_pod(asking(key, value), phase=phase))
    pod = asking(key, value, memory="8Gi")
    for rule in (a_rule(), a_rule(host_paths=("/data",))):
        assert decide_reasons(pod, rule, phase) == denied
    old = stored_pod()
    new = copy.deepcopy(old)
    new["metadata"]["annotations"][key] = value
    assert reasons_and_paths(decide_update(old, new, phase=phase)) == denied
    assert_unchanged(decide_update(new, new, phase=phase))


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("by", EnforceBy)
def test_such_a_denial_says_whether_the_pod_has_a_sidecar(by, phase):
    key, value = "io.kubernetes.cri-o.UnifiedCgroup.vram-enforcer", "cpu.max=1000 100000"
    rule = a_rule(enforcement={"by": by})
    says = (
        "remove it; it would change vram-enforcer, which holds the VRAM cap"
        if by is EnforceBy.SIDECAR
        else "remove it; it names the container vram-enforcer, which the pod does not have"
    )
    old = stored_pod(rule)
    new = copy.deepcopy(old)
    new["metadata"]["annotations"][key] = value
    for decision in (
        decide_pod(asking(key, value, memory="8Gi"), rule, phase),
        *(
            decide_update(old, new, policy=a_policy(a_rule(enforcement={"by": now})))
            for now in EnforceBy
        ),
    ):
        assert [finding.detail for finding in decision.findings] == [says]


@pytest.mark.parametrize(
    "key",
    [
        "ad.datadoghq.com/vram-enforcer.logs",
        "x/not-vram-enforcer",
        "vram-enforcer",
        "x/vram-enforcer-2",
    ],
)
def test_a_key_that_names_no_container_to_a_runtime_passes(key):
    assert decide_reasons(a_pod("8Gi", annotations={key: "x"})) == []


def test_so_much_of_such_annotations_is_read_and_no_more():
    half = "x" * (MAX_TEXT_LENGTH // 2)
    pod = a_pod(annotations={"cdi.k8s.io/a": half, "cdi.k8s.io/b": half})
    assert_unchanged(decide_pod(pod))
    pod["metadata"]["annotations"]["cdi.k8s.io/b"] += "x"
    assert_denied(decide_pod(pod), "DeviceInjection", path_of("cdi.k8s.io/b"))
    notes = {f"cdi.k8s.io/a{n:02}": "" for n in range(MAX_INJECTING_ANNOTATIONS)}
    assert_unchanged(decide_pod(a_pod(annotations=notes)))
    pod = a_pod(annotations={**notes, "cdi.k8s.io/b": ""})
    assert_denied(decide_pod(pod), "DeviceInjection", path_of("cdi.k8s.io/b"))


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("make", [a_pod, stored_pod, a_bound_pod])
@pytest.mark.parametrize("before", [None, "example.com/nic=1", "nvidia.com/gpu=0"])
def test_such_an_annotation_cannot_come_later(before, make, phase):
    old = make()
    if before is not None:
        old["metadata"].setdefault("annotations", {})["cdi.k8s.io/x"] = before
    new = copy.deepcopy(old)
    new["metadata"].setdefault("annotations", {})["cdi.k8s.io/x"] = ALL
    decision = decide_update(old, new, phase=phase)
    assert reasons_and_paths(decision) == [("DeviceInjection", path_of("cdi.k8s.io/x"))]
    assert decision.outcome is Outcome.DENIED


@pytest.mark.parametrize("phase", Phase)
def test_one_that_exists_may_stay_or_go(phase):
    old = a_pod(annotations=dict.fromkeys(KEYS, ALL))
    labelled = copy.deepcopy(old)
    labelled["metadata"]["labels"] = {"app": "x"}
    assert_unchanged(decide_update(old, labelled, phase=phase))
    assert_unchanged(decide_update(old, a_pod(), phase=phase))


def test_one_that_changes_among_many_that_stay_is_found():
    many = {f"cdi.k8s.io/a{n:03}": ALL for n in range(100)}
    old, new = a_pod(annotations=many), a_pod(annotations={**many, "cdi.k8s.io/b": ALL})
    assert_denied(decide_update(old, new), "DeviceInjection", path_of("cdi.k8s.io/b"))


def test_of_many_such_annotations_sixteen_are_reported():
    pod = a_pod(annotations={f"cdi.k8s.io/a{n}": ALL for n in range(1000)})
    assert len(decide_pod(pod).findings) == 16


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
    holder = merge_into_container(pod, name, {"volumeMounts": mounts})
    decision = decide_pod(pod, a_rule(visible_devices=devices))
    path = f"{holder}.volumeMounts[1].mountPath"
    assert_denied(decision, "VisibleDevicesOverride", path)


@pytest.mark.parametrize(
    "mount_path",
    ["/var/run", "/data/nvidia-container-devices", "/var/run/nvidia-container-devices/../x"],
)
def test_other_mounts_are_fine(mount_path):
    mounts = [{"name": "v", "mountPath": mount_path}]
    pod = a_pod(containers=[a_container(volumeMounts=mounts)])
    assert_unchanged(decide_pod(pod))


def test_the_rule_of_the_pod_decides_about_annotations_that_come_later():
    old, new = a_pod(), a_pod(annotations={"cdi.k8s.io/x": ALL})
    policy = a_policy(a_rule(action=Action.WARN))
    assert decide_update(old, new, policy=policy).outcome is Outcome.WARNED
    policy = a_policy(a_rule(visible_devices=VisibleDevices.IGNORE))
    assert_unchanged(decide_update(old, new, policy=policy))
