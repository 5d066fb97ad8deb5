"""The agent with a driver library of each branch: the node is shared and labelled accordingly."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from tests.agent.nodes import GPU_A
from tests.support.api_server import ApiServer
from tests.support.cluster_programs import wait_until
from tests.support.clusters import a_gpu, a_node
from tests.support.scripted_nvml import MEASURED, AgentProcess
from webhook.core.kinds.nodes import write_gpu_node

pytestmark = pytest.mark.process

SENTRY = "vramwarden.io/sentry"
OLDER = "missing nvmlDeviceGetFieldValues\nmissing nvmlDeviceGetRemappedRows\n"
"""Lines of the stub's file for older drivers: before 570, none reports a recovery action."""


@pytest.fixture
def api(tmp_path):
    """Return an API server with the node `n`, whose GPUs are shared at once."""
    with ApiServer(tmp_path) as made:
        made.put("/api/v1/nodes/n", {"metadata": {"labels": {"vramwarden.io/share": "true"}}})
        yield made


@pytest.fixture
def agent(api, library, tmp_path):
    options = ("--node=n", f"--kubeconfig={api.kubeconfig}", "--interval=1s", "--fence-void")
    return AgentProcess(tmp_path, library, *options)


def node(api):
    return api.objects["/api/v1/nodes/n"]


def seen_driver(api):
    return node(api)["metadata"]["labels"].get("vramwarden.io/driver-version")


def health(api):
    """Return for each listed GPU True if it is healthy, or the reason why it is not."""
    gpus = json.loads(node(api)["metadata"].get("annotations", {}).get("vramwarden.io/gpus", "[]"))
    return [gpu.get("fault") or gpu.get("healthy", True) for gpu in gpus]


def events(api, reason):
    """Return the messages of the node's Events with a reason."""
    stored = (item for path, item in api.objects.items() if "/events/" in path)
    return [item["note"] for item in stored if item["reason"] == reason]


@pytest.mark.parametrize("version", ["535.129", "570.133"])
@pytest.mark.parametrize(
    ("compute", "mode"), [(1, "Exclusive_Thread"), (2, "Prohibited"), (3, "Exclusive_Process")]
)
def test_a_gpu_is_unhealthy_until_its_compute_mode_is_default_again(
    version, compute, mode, api, agent
):
    beside = "gpu GPU-b total=85899345920 compute=0\n"
    fault = f"compute mode {mode}: run nvidia-smi -i GPU-a -c DEFAULT"

    def see(compute, patch, more=""):
        lines = f"driver {version}.{patch}\n{OLDER if version < '570' else ''}{more}"
        agent.script(f"{lines}{GPU_A.rstrip()} compute={compute}\n{beside}")
        wait_until("a scan", lambda: seen_driver(api) == f"{version}.{patch}")

    agent.script("fail * 9\n")
    with agent:
        see(compute, 1)
        assert health(api) == [fault, True]
        wait_until("an Event", lambda: any(fault in event for event in events(api, "GPUUnhealthy")))
        wait_until("a capacity", lambda: "capacity" in node(api).get("status", {}))
        capacity = node(api)["status"]["capacity"]
        see(compute, 2, "fail nvmlDeviceGetComputeMode 999\n")
        assert health(api) == [fault, True]
        see(0, 3)
        assert health(api) == [True, True]
        wait_until("an Event", lambda: events(api, "GPUHealthy"))
        see(0, 4, "fail nvmlDeviceGetComputeMode 999\n")
        assert health(api) == [True, True]
    assert node(api)["status"]["capacity"] == capacity


@pytest.mark.parametrize(
    ("beside", "code"),
    [(GPU_A, "SomeGPUsUnfit"), ("", "NoUsableGPU")],
    ids=["beside another", "alone"],
)
def test_a_gpu_without_memory_of_its_own_is_named_on_its_node(beside, code, api, agent):
    agent.script(
        f"driver 580.95.05\n{beside}gpu GPU-gb10 total=0 reserved=0 name=NVIDIA_GB10\n"
        f"fail nvmlDeviceGetMemoryInfo_v2 3 gpu={int(bool(beside))}\n"
        f"fail nvmlDeviceGetMemoryInfo 3 gpu={int(bool(beside))}\n"
    )
    with agent:
        wait_until("an Event", lambda: events(api, "GPUsNotShared"))
        wait_until("the list", lambda: len(health(api)) == bool(beside))
    (sentence,) = events(api, "GPUsNotShared")
    assert "(NVIDIA GB10) cannot be shared by memory: the driver reports no memory of its own" in (
        sentence
    )
    shown = node(api)["metadata"]["annotations"]["vramwarden.io/sharing"]
    assert shown == f"{code}: {sentence}"


@pytest.mark.parametrize("measures", [True, False])
@pytest.mark.parametrize(
    ("version", "lacks", "enforcement"),
    [
        ("535.129.03", OLDER, "none"),
        ("550.163.01", OLDER, "none"),
        ("580.65.06", "", MEASURED),
    ],
)
def test_a_node_is_shared_whatever_its_driver_reports(
    version, lacks, enforcement, measures, library, tmp_path
):
    carried = {"vramwarden.io/share": "true"} | ({} if measures else {SENTRY: "true"})
    with ApiServer(tmp_path) as api:
        api.put("/api/v1/nodes/n", {"metadata": {"labels": carried}})
        seen = replace(a_gpu(9, uuid="GPU-a"), measured=measures)
        figures = replace(a_node("n", seen).figures, acts=True, observed_s=time.time())
        api.put("/apis/vramwarden.io/v1alpha1/gpunodes/n", write_gpu_node(figures))
        options = ("--node=n", f"--kubeconfig={api.kubeconfig}", "--fence-void")
        agent = AgentProcess(tmp_path, library, *options)
        agent.script(f"driver {version}\n{lacks}{GPU_A}")

        def node():
            return api.objects["/api/v1/nodes/n"]

        def labels():
            return node()["metadata"]["labels"]

        with agent:
            wait_until("capacity", lambda: "capacity" in node().get("status", {}))
            wait_until("the label", lambda: labels().get(SENTRY) == ("true" if measures else None))
    assert node()["status"]["capacity"] == {"vramwarden.io/vram": "81300Mi"}
    assert labels()["vramwarden.io/driver-version"] == version
    assert labels()["vramwarden.io/enforcement"] == enforcement
    assert "healthy" not in node()["metadata"]["annotations"]["vramwarden.io/gpus"]
