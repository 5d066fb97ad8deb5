"""The agent over a driver's library of each branch: the node is shared, and its labels say how."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests.agent.nodes import GPU_A
from tests.support.agents import MEASURED, AgentProcess
from tests.support.api_server import ApiServer
from tests.support.clusters import a_gpu, a_node
from tests.support.programs import wait_until
from webhook.core.kinds.nodes import write_gpu_node

pytestmark = pytest.mark.process

SENTRY = "vramwarden.io/sentry"
OLDER = "missing nvmlDeviceGetFieldValues\nmissing nvmlDeviceGetRemappedRows\n"
"""Neither is needed: drivers before 570 report no recovery action."""


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
