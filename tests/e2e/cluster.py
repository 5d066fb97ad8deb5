"""Cluster for the tests: that of KUBECONFIG, or a new one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, Protocol

from kubernetes import client, config

from tests.e2e.node import why_not
from tests.support import charts
from tests.support.control_planes import Api, find_binary
from tests.support.page_commands import asked

SYSTEM = charts.NAMESPACE


class Cluster(Protocol):
    @property
    def api(self) -> Api: ...
    @property
    def kubeconfig(self) -> Path: ...
    def kubectl(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]: ...


class NamedCluster:
    """The cluster of KUBECONFIG's current context."""

    def __init__(self) -> None:
        self.kubeconfig = Path(os.environ["KUBECONFIG"])
        config.load_kube_config(str(self.kubeconfig))
        self._client = client.ApiClient()
        configuration = self._client.configuration
        # Authenticate with the token if there is one, otherwise with a certificate.
        headers = {
            setting["key"]: setting["value"] for setting in configuration.auth_settings().values()
        }
        pool = self._client.rest_client.pool_manager
        self.api = Api(configuration.host, pool, headers)

    def kubectl(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run kubectl. The caller checks the `returncode` of the result."""
        command = [str(find_binary("kubectl")), f"--kubeconfig={self.kubeconfig}", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)

    def in_use(self) -> bool:
        """Return True if vramwarden is or was installed."""
        names = [item["metadata"]["name"] for item in self.api.list("/api/v1/namespaces")]
        return SYSTEM in names

    def close(self) -> None:
        """Close connections to the cluster."""
        self._client.rest_client.pool_manager.clear()
        self._client.close()


class Release(charts.Release):
    """A release of the chart; each step waits until its changes are complete."""

    def install(self, values: dict[str, Any] | None = None) -> str:
        """Install the release, or upgrade it to exactly these values."""
        return self._run("upgrade", "--install", "--reset-values", *self.helm.values(values))

    def test(self) -> str:
        """Run `helm test`, as the pages do."""
        (command,) = asked("helm test")
        return self.helm.run(*command.split()[1:], "--timeout=3m")

    def is_installed(self) -> bool:
        return "vramwarden" in self.helm.run("list", "--namespace", SYSTEM, "--short").split()

    def _run(self, *arguments: str) -> str:
        where = ("vramwarden", str(charts.CHART), "--namespace", SYSTEM)
        return self.helm.run(*arguments, *where, "--wait", "--timeout=5m")


def impossible() -> str:
    """Return the reason why end-to-end tests cannot run here, or "" if they can."""
    reasons = [name for name in ("helm", "kubectl") if not find_binary(name)]
    if not os.environ.get("KUBECONFIG") and (reason := why_not()):
        reasons.append(reason)
    return "; ".join(reasons)
