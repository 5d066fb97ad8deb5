"""The agent's access to GPUs: the chart's objects match the agent's options."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.chart.test_rendering import options
from tests.support.charts import CHART, LOADER, NAMESPACE, one
from webhook.cli.agent import agent_command
from webhook.core.node.access import GpuAccess
from webhook.core.nvidia.variables import DeviceNames

MOUNTED = "/var/run/nvidia-container-devices"
RUNTIME_CLASS = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "nvidia"}
RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"


def pod_of(objects):
    return one(objects, "DaemonSet", "vramwarden-agent")["spec"]["template"]["spec"]


def told(pod):
    return options(agent_command, pod["containers"][0])


@pytest.mark.parametrize(
    ("access", "asks", "mounts", "privileged"),
    [
        ("Environment", "all", [], False),
        ("VolumeMounts", "void", [f"{MOUNTED}/all"], False),
        ("Privileged", "all", [], True),
    ],
)
def test_each_access_asks_in_its_own_way_and_the_agent_knows_which(
    access, asks, mounts, privileged, helm
):
    pod = pod_of(helm.render({"agent": {"gpuAccess": access}}))
    (container,) = pod["containers"]
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert variables["NVIDIA_VISIBLE_DEVICES"] == asks
    paths = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert [path for path in paths if path.startswith(MOUNTED)] == mounts
    sources = {volume["name"]: volume.get("hostPath") for volume in pod["volumes"]}
    assert [sources[paths[path]] for path in mounts] == [{"path": "/dev/null"} for _ in mounts]
    assert container["securityContext"].get("privileged", False) == privileged
    assert told(pod)["gpu_access"] == access
    assert told(pod)["device_names"] == ""


@pytest.mark.parametrize("names", DeviceNames)
def test_names_that_the_values_set_reach_the_agent(names, helm):
    pod = pod_of(helm.render({"agent": {"deviceNames": names.value}}))
    assert told(pod)["device_names"] == names.value


def test_the_schema_knows_each_access_and_each_name(helm):
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    agent = schema["properties"]["agent"]["properties"]
    assert agent["gpuAccess"]["enum"] == [access.value for access in GpuAccess]
    assert agent["deviceNames"]["enum"] == ["", *(names.value for names in DeviceNames)]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, ""),  # Auto, without a cluster to query
        ({"runtimeClassName": "Auto"}, ""),
        ({"runtimeClassName": ""}, ""),
        ({"runtimeClassName": None}, ""),
        ({"runtimeClassName": "nvidia-legacy"}, "nvidia-legacy"),
    ],
)
def test_without_a_cluster_only_a_name_is_a_runtime_class(values, name, helm):
    pod = pod_of(helm.render({"agent": values}))
    assert pod.get("runtimeClassName", "") == told(pod)["runtime_class"] == name


@pytest.mark.parametrize(
    ("void", "version", "voided"),
    [(False, "1.36", False), (True, "1.36", True), (True, "1.35", False)],
)
def test_the_agent_is_told_whether_the_fence_voids_containers(void, version, voided, helm):
    objects = helm.render({"fence": {"void": void}}, "--kube-version", version)
    assert told(pod_of(objects))["fence_void"] is voided
    assert ("MutatingAdmissionPolicy" in {thing["kind"] for thing in objects}) is voided


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, True),
        ({"sentry": {"act": False}}, False),
        ({"sentry": {"enabled": False}}, False),
        ({"agent": {"vram": "48Gi"}}, False),
    ],
    ids=["it acts", "it only reports", "none", "no driver is asked"],
)
def test_the_agent_misses_a_sentry_only_if_the_chart_has_one_that_acts(values, expected, helm):
    assert told(pod_of(helm.render(values)))["expects_sentry"] is expected


@pytest.mark.parametrize(
    ("labels", "there"),
    [
        ({}, False),
        ({"feature.node.kubernetes.io/pci-10de.present": "true"}, True),
        ({"nvidia.com/gpu.present": "true"}, True),
        ({"nvidia.com/gpu.count": "2"}, True),
        ({"vramwarden.io/gpu": "true"}, True),
        ({"vramwarden.io/share": "true"}, True),
        ({"vramwarden.io/share": "false"}, True),  # an admin may change the label
    ],
)
def test_the_agent_goes_to_nodes_by_each_of_these_labels(labels, there, helm):
    (affinity,) = pod_of(helm.render())["affinity"]["nodeAffinity"].values()
    terms = [term["matchExpressions"] for term in affinity["nodeSelectorTerms"]]
    matches = {
        "In": lambda key, values: labels.get(key) in values,
        "Exists": lambda key, values: key in labels and not values,
    }
    found = [
        all(matches[item["operator"]](item["key"], item.get("values", [])) for item in term)
        for term in terms
    ]
    assert any(found) is there


@pytest.mark.parametrize(
    ("labels", "preferred"),
    [
        ({}, True),
        ({"vramwarden.io/gpu": "true"}, False),
        ({"nvidia.com/gpu.present": "true"}, False),
        ({"feature.node.kubernetes.io/pci-10de.present": "true"}, False),
    ],
)
def test_a_replica_of_the_webhook_prefers_nodes_without_gpus(labels, preferred, helm):
    """Replicas may also run on other nodes, since a laptop has only one."""
    spec = one(helm.render(), "Deployment", "vramwarden-webhook")["spec"]["template"]["spec"]
    ((kind, terms),) = spec["affinity"]["nodeAffinity"].items()
    assert kind == "preferredDuringSchedulingIgnoredDuringExecution"
    (expressions,) = (term["preference"]["matchExpressions"] for term in terms)
    assert {expression["operator"] for expression in expressions} == {"DoesNotExist"}
    assert all(expression["key"] not in labels for expression in expressions) is preferred
    assert not spec.get("nodeSelector")


@pytest.fixture
def asked(live_helm):
    """Return the objects that Helm would install in the existing cluster."""

    def asked(agent):
        given = live_helm.values({"agent": agent})
        command = ("install", "asked", str(CHART), "--namespace", NAMESPACE, "--create-namespace")
        done = live_helm.run(*command, *given, "--dry-run=server", "--no-hooks", "-o", "json")
        return pod_of([x for x in yaml.load_all(json.loads(done)["manifest"], LOADER) if x])

    return asked


def test_auto_is_the_runtime_class_nvidia_where_the_cluster_has_one(api, asked):
    for name, found in (("nvidia-cdi", ""), ("nvidia", "nvidia")):
        api.request("POST", RUNTIME_CLASSES, {**RUNTIME_CLASS, "metadata": {"name": name}})
        try:
            pod = asked({})
            assert pod.get("runtimeClassName", "") == told(pod)["runtime_class"] == found
            for agent in ({"runtimeClassName": ""}, {"vram": "48Gi"}) if found else ():
                assert "runtimeClassName" not in asked(agent)
        finally:
            api.request("DELETE", f"{RUNTIME_CLASSES}/{name}")
