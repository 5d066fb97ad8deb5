"""Node of a real API server, an agent for it, and accounts with chosen permissions."""

import itertools

import pytest

from tests.support.api_client import account_kubeconfig
from tests.support.cluster_programs import wait_until
from tests.support.scripted_nvml import VRAM, AgentProcess
from webhook.names import NODE_SHARE_LABEL

GPU_A = "gpu GPU-a total=85899345920 reserved=650000000 name=NVIDIA_A100-SXM4-80GB\n"
GPU_B = "gpu GPU-b total=42949672960 reserved=650000001 name=NVIDIA_A100-SXM4-40GB\n"
BOTH = "driver 570.86.15\n" + GPU_A + GPU_B
FULL = "121640Mi"
RULES = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    {"apiGroups": ["vramwarden.io"], "resources": ["gpunodes"], "verbs": ["get", "watch"]},
]
SLICES = {
    "apiGroups": ["resource.k8s.io"],
    "resources": ["resourceslices"],
    "verbs": ["list", "watch"],
}
CONFIG_MAPS = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "watch"]}
MERGE = "application/merge-patch+json"
NUMBERS = itertools.count(1)


class Node:
    """A Node object without a kubelet, labelled to share its GPUs, so the agent need not wait."""

    def __init__(self, api):
        self._api = api
        self.name = f"gpu-{next(NUMBERS)}"
        self.manifest = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self.name,
                "labels": {"nvidia.com/gpu.product": "NVIDIA-A100", NODE_SHARE_LABEL: "true"},
            },
        }
        api.create(self.manifest)

    def read(self):
        return self._api.get(self.manifest)

    def patch(self, patch, subresource=""):
        path = f"/api/v1/nodes/{self.name}{subresource}"
        return self._api.request("PATCH", path, patch, content_type=MERGE)

    def zero(self):
        amounts = {part: {VRAM: "0"} for part in ("capacity", "allocatable")}
        self.patch({"status": amounts}, "/status")

    def amounts(self):
        status = self.read().get("status", {})
        return [status.get(part, {}).get(VRAM) for part in ("capacity", "allocatable")]

    def labels(self):
        found = self.read()["metadata"].get("labels", {})
        found.pop(NODE_SHARE_LABEL, None)
        return {key: value for key, value in found.items() if key.startswith("vramwarden.io/")}

    def wait_for(self, amount):
        wait_until(amount, lambda: self.amounts() == [amount, amount])


@pytest.fixture
def node(control_plane):
    made = Node(control_plane.api)
    yield made
    control_plane.api.delete(made.manifest)


@pytest.fixture
def make_agent(control_plane, node, library, tmp_path):
    """Return a function that creates an agent for the node, with a scan every second."""

    def make(*options, folder=tmp_path, kubeconfig=control_plane.kubeconfig):
        folder.mkdir(exist_ok=True)
        usual = ("--node", node.name, "--kubeconfig", str(kubeconfig), "--interval", "1s")
        agent = AgentProcess(folder, library, *usual, "--fence-void", *options)
        agent.script(BOTH)
        return agent

    return make


@pytest.fixture
def account(control_plane, node, tmp_path):
    """Return a function that gives a user permissions and writes a kubeconfig for the user."""
    name = f"agent-of-{node.name}"
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
    made = []

    def make(rules):
        metadata = {"name": name}
        account = {"name": name, "namespace": "default"}
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", **metadata},
            "subjects": [{"kind": "ServiceAccount", **account}],
        }
        for item in (
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
            {**role, "metadata": metadata, "rules": rules},
            binding,
        ):
            control_plane.api.apply(item)
            made.append(item)
        return account_kubeconfig(
            control_plane.api, control_plane.kubeconfig, "default", name, tmp_path / "kubeconfig"
        )

    yield make
    for item in made:
        control_plane.api.delete(item)
