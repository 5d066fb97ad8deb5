"""The agent of the tests' own node, and what the agent writes about the node."""

from __future__ import annotations

from typing import Any

from tests.e2e.cluster import SYSTEM
from tests.e2e.node import NODE, NODE_MANIFEST, NodeCluster
from tests.e2e.pods import is_ready
from tests.e2e.team import Team
from tests.support.control_planes import ApiError

Json = dict[str, Any]
VRAM = "vramwarden.io/vram"
DAEMON_SET = f"/apis/apps/v1/namespaces/{SYSTEM}/daemonsets/vramwarden-agent"
MERGE = "application/merge-patch+json"
# In the agent's scene, this lists the agent's first process with these bytes.
HOLDS = "open('/scene/pids/1', 'w').write('0 {used_bytes}\\n')"


class NodeAgent:
    """The agent of the tests' own node."""

    def __init__(self, node: NodeCluster, system: Team) -> None:
        self._node = node
        self._system = system

    def pod(self) -> Json | None:
        """Return the agent's pod, once there is one that is not being deleted."""
        found = self._system.pods(
            labelSelector="app.kubernetes.io/component=agent",
            fieldSelector=f"spec.nodeName={NODE}",
        )
        staying = [item for item in found if "deletionTimestamp" not in item["metadata"]]
        return staying[0] if len(found) == len(staying) == 1 else None

    def running(self) -> Json:
        """Wait until the agent runs; return its pod."""
        return self._system.wait("the agent running", self._running)

    def ready(self) -> Json:
        """Wait until the agent is ready; return its pod."""
        return self._system.wait("the agent ready", lambda: is_ready(self.running()) and self.pod())

    def is_ready(self) -> bool:
        found = self.pod()
        return bool(found and is_ready(found))

    def replace(self) -> Json:
        """Replace the agent on a node without vramwarden labels; return the new pod once it runs.

        Meanwhile no node matches the DaemonSet. A new agent that started before the old one ended
        would read the old agent's labels and write them again.
        """
        name = self.running()["metadata"]["name"]
        self._select_nodes({"kubernetes.io/os": "none"})
        self._system.wait("the old agent gone", lambda: not self._exists(name))
        self.forget()
        self._select_nodes(None)
        return self.running()

    def forget(self) -> None:
        """Remove what the agent wrote about the node, so that later values are by a new agent."""
        labels = {key: None for key in self.labels() if key.startswith("vramwarden.io/")}
        change = {"metadata": {"labels": labels, "annotations": {"vramwarden.io/gpus": None}}}
        self._node.api.request("PATCH", f"/api/v1/nodes/{NODE}", change, content_type=MERGE)
        self._node.set_amount(VRAM, None)

    def hold(self, used_bytes: int) -> None:
        """Make the agent see this amount of the first GPU in use; 0 ends that."""
        script = HOLDS.format(used_bytes=used_bytes)
        name = self.running()["metadata"]["name"]
        self._system.run(name, "python3", "-c", script, container="agent")

    def labels(self) -> dict[str, str]:
        return self._node.api.get(NODE_MANIFEST)["metadata"]["labels"]

    def advertised(self) -> str | None:
        """Return the VRAM that the node advertises; None for 0."""
        amount = self._node.api.get(NODE_MANIFEST)["status"]["allocatable"].get(VRAM, "0")
        return None if amount == "0" else amount

    def events(self) -> list[str]:
        """Return the Events about the node, written `reason: message`."""
        about = f"involvedObject.kind=Node,involvedObject.name={NODE}"
        found = self._node.api.list("/api/v1/events", fieldSelector=about)
        return [f"{item['reason']}: {item['message']}" for item in found]

    def _select_nodes(self, labels: dict[str, str] | None) -> None:
        change = {"spec": {"template": {"spec": {"nodeSelector": labels}}}}
        self._node.api.request("PATCH", DAEMON_SET, change, content_type=MERGE)

    def _running(self) -> Json | None:
        found = self.pod()
        states = found["status"].get("containerStatuses", ()) if found else ()
        return found if any("running" in state["state"] for state in states) else None

    def _exists(self, name: str) -> bool:
        try:
            self._system.pod(name)
        except ApiError:
            return False
        return True
