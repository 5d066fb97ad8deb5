"""A team with a namespace, which creates objects and reads results as developers do."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from tests.e2e.cluster import Cluster
from tests.e2e.pods import is_ready, statuses
from tests.support.control_planes import ApiError, wait_until

Json = dict[str, Any]
PATIENCE = float(os.environ.get("E2E_PATIENCE") or 180)
"""Timeout in seconds. On a busy machine, a sidecar may need twenty to start."""


class Team:
    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.namespace = namespace

    def create(self, manifest: Json, *, dry_run: bool = False) -> Json:
        manifest["metadata"]["namespace"] = self.namespace
        return self.api.create(manifest, dry_run=dry_run)

    def denial(self, manifest: Json) -> str:
        """Try to create an object; return the message of the denial."""
        try:
            made = self.create(manifest)
        except ApiError as error:
            return error.message
        raise AssertionError(f"not denied: {made}")

    def pod(self, name: str) -> Json:
        return self.api.request("GET", f"/api/v1/namespaces/{self.namespace}/pods/{name}")

    def pods(self, **query: str) -> list[Json]:
        """Return the pods that match the query, by default all."""
        return self.api.list(f"/api/v1/namespaces/{self.namespace}/pods", **query)

    def pod_of(self, app: str) -> Json:
        """Return the only pod with a label `app` when it exists."""
        found = self.wait(f"a pod of {app}", lambda: self.pods(labelSelector=f"app={app}"))
        assert len(found) == 1, [item["metadata"]["name"] for item in found]
        return found[0]

    def delete_pod(self, name: str, grace: int = 0) -> None:
        """Delete a pod, by default without a grace period."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}"
        self.api.request("DELETE", path, gracePeriodSeconds=str(grace))

    def wait(self, what: str, check: Callable[[], Any], timeout: float = PATIENCE) -> Any:
        """Poll until the check returns a true value. A failure shows the states of the pods."""
        try:
            return wait_until(what, check, timeout=timeout)
        except TimeoutError as error:
            for found in self.pods():
                error.add_note(f"--- {found['metadata']['name']}: {json.dumps(found['status'])}")
                error.add_note("\n".join(self.events(found["metadata"]["name"])))
                error.add_note(self._last_words(found["metadata"]["name"]))
            raise

    def wait_ready(self, name: str) -> Json:
        """Wait until a pod is ready; return it."""
        return self.wait(f"{name} ready", lambda: is_ready(self.pod(name)) and self.pod(name))

    def wait_ended(self, name: str, container: str = "main") -> Json:
        """Wait until a container of a pod has ended; return its terminated state."""

        def ended() -> Json | None:
            status = statuses(self.pod(name)).get(container, {})
            found = status.get("state", {}), status.get("lastState", {})
            return next((item["terminated"] for item in found if "terminated" in item), None)

        return self.wait(f"{container} of {name} ended", ended)

    def log(
        self,
        name: str,
        container: str = "main",
        *,
        previous: bool = False,
        timestamps: bool = False,
    ) -> str:
        options = ("--previous",) * previous + ("--timestamps",) * timestamps
        return self._kubectl("logs", name, "-c", container, *options)

    def run(self, name: str, *command: str, container: str = "main") -> str:
        return self._kubectl("exec", name, "-c", container, "--", *command)

    def events(self, name: str) -> list[str]:
        """Return the Events about a pod, written `reason: message`."""
        path = f"/api/v1/namespaces/{self.namespace}/events"
        found = self.api.list(path, fieldSelector=f"involvedObject.name={name}")
        return [f"{item['reason']}: {item['message']}" for item in found]

    def _last_words(self, name: str) -> str:
        """Return the end of each container's log, if the container has one."""
        what = ("logs", name, "--all-containers", "--prefix", "--tail=20", "--ignore-errors")
        return self.cluster.kubectl("--namespace", self.namespace, *what).stdout

    def _kubectl(self, *arguments: str) -> str:
        done = self.cluster.kubectl("--namespace", self.namespace, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout
