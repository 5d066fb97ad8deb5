"""The sentry of the tests' own node, and its reports on pods and the node."""

from __future__ import annotations

import json
import sys
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.node import NodeCluster
from tests.e2e.pods import is_ready, statuses
from tests.e2e.team import Team

Json = dict[str, Any]
NAMESPACE = "vramwarden-sentry"
REPORTER = "vramwarden.io/sentry"
UNMANAGED = "vramwarden_gpu_memory_unmanaged_bytes"
_PRINTS = (
    "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read().decode())"
)


class NodeSentry:
    """Client of the sentry that also works without the API server."""

    def __init__(self, node: NodeCluster, own: Team) -> None:
        self._node = node
        self._own = own

    def pod(self) -> Json:
        """Wait until the sentry is ready; return its pod."""

        def found() -> Json | None:
            pods = self._own.pods(labelSelector="app.kubernetes.io/component=sentry")
            staying = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
            return staying[0] if len(pods) == len(staying) == 1 and is_ready(staying[0]) else None

        ready: Json = self._own.wait("the sentry ready", found)
        return ready

    def delete(self) -> None:
        """Delete the sentry's pod and wait for the next one."""
        before = self.pod()["metadata"]
        self._own.delete_pod(before["name"])
        self._own.wait("another sentry", lambda: self.pod()["metadata"]["uid"] != before["uid"])

    def crash(self) -> None:
        """Kill the sentry's process and wait until it runs again."""
        pod = self.pod()
        count = self._restarts(pod)
        self._node.kill_container(statuses(pod)["sentry"]["containerID"])
        self._own.wait("the sentry back", lambda: self._restarts(self.pod()) > count)

    def log(self) -> list[Json]:
        """Return the sentry's log."""
        text = self._own.log(self.pod()["metadata"]["name"], "sentry")
        return [json.loads(line) for line in text.splitlines()]

    def metrics_at(self, address: str) -> dict[str, list[Any]]:
        """Return the sentry's metrics by name, read from an address without the API server."""
        text = self._node.run(sys.executable, "-I", "-c", _PRINTS, f"http://{address}:8081/metrics")
        families = text_string_to_metric_families(text)
        return {family.name: family.samples for family in families}

    def unmanaged(self, address: str = "") -> dict[str, float]:
        """Return unmanaged bytes, keyed by the UID of the pod that uses them."""
        families = self.metrics_at(address or self.pod()["status"]["podIP"])
        return {item.labels["pod_uid"]: item.value for item in families.get(UNMANAGED, ())}

    def events(self, **of: str) -> list[Json]:
        """Return the sentry's Events about an object."""
        about = ",".join(f"involvedObject.{key}={value}" for key, value in of.items())
        found = self._node.api.list("/api/v1/events", fieldSelector=about)
        return [item for item in found if item.get("reportingComponent") == REPORTER]

    def _restarts(self, pod: Json) -> int:
        return int(statuses(pod)["sentry"]["restartCount"])
