"""Two placing replicas behind one address, the stock scheduler, nodes and pods."""

from __future__ import annotations

import contextlib
import shutil
from datetime import UTC, datetime

from certs import issue_into_folder
from tests.scheduling.balancer import balanced
from tests.support import schedulers
from tests.support.control_planes import ApiError
from tests.support.pods import a_pod
from tests.support.schedulers import GIB, add_node, remove_node, remove_pod, show_free, wait_bound
from tests.support.server_process import running
from tests.support.webhook_configurations import LOCAL, installed, webhook_configurations
from webhook.adapters.policy.files import shipped_policy_path
from webhook.core.placement.assignment_codec import read_assignments

BINDING = LOCAL.with_name("local-binding.yaml")
SYSTEM = "vramwarden-system"
# These rules precede the shipped default and apply only to namespaces with these names.
FIRST = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: first}
spec:
  rules:
  - {name: seeing, match: {namespaces: ["seeing-*"]}, placement: None}
  - {name: none, match: {namespaces: ["none-*"]}, enforcement: {by: None}}
  - name: sentry
    match: {namespaces: ["sentry-*"]}
    enforcement: {by: Sentry, grace: 9s, tolerance: 1Mi}
"""


@contextlib.contextmanager
def replica(control_plane, folder, kubeconfig=None):
    """Run a placing server until the block ends, optionally with another kubeconfig."""
    (folder / "policies").mkdir(parents=True, exist_ok=True)
    (folder / "policies" / "00-first.yaml").write_text(FIRST)
    shutil.copy(shipped_policy_path(), folder / "policies" / "default.yaml")
    env = {
        "KUBECONFIG": str(kubeconfig or control_plane.kubeconfig),
        "VRAMWARDEN_PLACEMENT_NAMESPACE": SYSTEM,
    }
    with running(folder, policy=None, ready=kubeconfig is None, **env) as server:
        try:
            yield server
        finally:
            server.quit()


@contextlib.contextmanager
def placing(control_plane, folder):
    """Run two replicas that the API server calls through a balancer, and the scheduler."""
    api = control_plane.api
    with contextlib.ExitStack() as stack:
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
        # One certificate and therefore one path for bindings, as for replicas of one release.
        names = ["localhost", "127.0.0.1", "::1"]  # names that a server needs
        made = issue_into_folder(folder / "certs", names, datetime.now(UTC))
        for name in ("a", "b"):
            shutil.copytree(folder / "certs", folder / name / "certs")
        servers = [
            stack.enter_context(replica(control_plane, folder / name)) for name in ("a", "b")
        ]
        port = stack.enter_context(balanced([server.port for server in servers]))
        url, trusted = f"https://127.0.0.1:{port}", made.ca_pem
        bind_path = servers[0].bind_path
        manifests = [
            manifest
            for path in (LOCAL, BINDING)
            for manifest in webhook_configurations(url, trusted, path=path, bind_path=bind_path)
        ]
        stack.enter_context(installed(api, *manifests))
        stack.enter_context(schedulers.scheduler(control_plane, folder))
        yield servers


class Cluster:
    """Nodes and pods of one test."""

    def __init__(self, api, namespace):
        self.api = api
        self.namespace = namespace
        self.nodes = []
        self.sizes = {}

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for pod in self.pods():
            remove_pod(self.api, pod)
        for name in self.nodes:
            remove_node(self.api, name)
            # A garbage collector would delete the ConfigMap with its owner.
            path = f"/api/v1/namespaces/{SYSTEM}/configmaps/gpu-assignments-{name}"
            with contextlib.suppress(ApiError):
                self.api.request("DELETE", path)

    def node(self, name, *gib, **labels):
        """Create a node with GPUs of these sizes, in GiB."""
        self.nodes.append(name)
        self.sizes[name] = {f"GPU-{name}-{index}": size for index, size in enumerate(gib)}
        add_node(self.api, name, [int(size * GIB) for size in gib], **labels)

    def create(self, name, size, count=1, **spec):
        notes = {"vramwarden.io/gpu-count": str(count)} if count > 1 else {}
        pod = a_pod(size, annotations=notes, **spec)
        pod["metadata"] |= {"namespace": self.namespace, "name": name}
        return self.api.create(pod)

    def binding(self, pod, node):
        """Return the Binding that the scheduler posts for a pod."""
        metadata = {key: pod["metadata"][key] for key in ("namespace", "name", "uid")}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}

    def bind(self, pod, node, **query):
        self.post_binding(pod["metadata"]["name"], self.binding(pod, node), **query)

    def post_binding(self, name, body, **query):
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/binding"
        self.api.request("POST", path, body, **query)

    def pods(self):
        return self.api.list(f"/api/v1/namespaces/{self.namespace}/pods")

    def wait(self, count, timeout=60):
        """Wait until this number of pods is bound; return node and GPUs of each."""
        return wait_bound(self.api, self.namespace, count, timeout)

    def act_as_agents(self):
        """Write the free memory of GPUs on all nodes, as their agents do."""
        for config_map in self.api.list(f"/api/v1/namespaces/{SYSTEM}/configmaps"):
            name = config_map["metadata"]["name"].removeprefix("gpu-assignments-")
            if name in self.nodes:
                gpu_bytes = [int(size * GIB) for size in self.sizes[name].values()]
                show_free(self.api, name, gpu_bytes, read_assignments(config_map["data"])[0])

    def lists(self):
        """Return the pods in the assignment lists of this test's nodes."""
        found = self.api.list(f"/api/v1/namespaces/{SYSTEM}/configmaps")
        return {
            item.pod.split("/")[1]: list(item.uuids)
            for config_map in found
            if config_map["metadata"]["name"].removeprefix("gpu-assignments-") in self.nodes
            for item in read_assignments(config_map["data"])[0].values()
        }
