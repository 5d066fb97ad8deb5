"""vramwarden's server under a real API server, and a team that uses both."""

from __future__ import annotations

import copy
import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support import server_process
from tests.support.control_planes import Api, ApiError, ControlPlane, free_port, needs
from tests.support.webhook_configurations import apply, installed, remove, webhook_configurations
from webhook.adapters.policy.files import shipped_policy_path
from webhook.core.pod.findings import Reason

Json = dict[str, Any]

SYSTEM = "vramwarden-system"

# These rules precede the shipped default and apply only to namespaces with these names.
SPECIAL_RULES = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: special}
spec:
  classes:
    a100: {nodeSelector: {nvidia.com/gpu.product: A100}}
  rules:
  - {name: capped, match: {namespaces: ["capped-*"]}, memory: {max: 40Gi}}
  - {name: workload, match: {namespaces: ["workload-*"]}, enforcement: {runAs: Workload}}
  - name: restarted
    match: {namespaces: ["restarted-*"]}
    enforcement: {podRestart: RestartAllContainers}
  - {name: required, match: {namespaces: ["required-*"]}, enforcement: {driverLimit: Require}}
  - {name: isolated, match: {namespaces: ["isolated-*"]}, isolation: NonRoot}
  - {name: watched, match: {namespaces: ["watched-*"]}, action: Warn}
  - {name: audited, match: {namespaces: ["audited-*"]}, action: Audit}
  - {name: shared, match: {namespaces: ["shared-*"]}, translateWholeGPU: 16Gi}
  - {name: void, match: {namespaces: ["void-*"]}, visibleDevices: Void}
  - name: supplied
    match: {namespaces: ["supplied-*"]}
    enforcement:
      resources: {requests: {cpu: 0.05}, limits: {cpu: 1500m, memory: 100M}}
  - {name: sentry, match: {namespaces: ["sentry-*"]}, enforcement: {by: Sentry}}
  - {name: trusted, match: {namespaces: ["trusted-*"]}, enforcement: {by: None}, placement: None}
"""


@contextmanager
def serving(
    folder: Path, *options: str, port: int | None = None, **env: str
) -> Iterator[server_process.Server]:
    """Run the server until the block ends, on a free or given port."""
    policies = folder / "policies"
    policies.mkdir(exist_ok=True)
    (policies / "00-special.yaml").write_text(SPECIAL_RULES)
    shutil.copy(shipped_policy_path(), policies / "10-default.yaml")
    # Do not use the ports of `running`: another process may use them by the time of a restart.
    ports = itertools.chain([port] if port else [], iter(free_port, None))
    with (
        mock.patch.object(server_process, "free_port", ports.__next__),
        server_process.running(folder, *options, policy=None, **env) as server,
    ):
        yield server


@contextmanager
def knowing(
    control_plane: ControlPlane, folder: Path, rules: str = "", **env: str
) -> Iterator[OurServer]:
    """Run a server that places pods, with `rules` first.

    The API server calls it until the block ends.
    """
    metadata = {"name": SYSTEM}
    control_plane.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    if rules:
        (folder / "policies").mkdir()
        (folder / "policies" / "00-first.yaml").write_text(rules)
    cluster = {
        "KUBECONFIG": str(control_plane.kubeconfig),
        "VRAMWARDEN_PLACEMENT_NAMESPACE": SYSTEM,
    }
    with serving(folder, **cluster, **env) as server:
        our_server = OurServer(server)
        with installed(control_plane.api, *our_server.configurations):
            yield our_server


class OurServer:
    """The server, and the configurations by which an API server calls it."""

    def __init__(self, server: server_process.Server) -> None:
        self.server = server
        authority = (server.certificates / "ca.crt").read_bytes()
        url = f"https://127.0.0.1:{server.port}"
        self.configurations = webhook_configurations(url, authority)
        self.mutating, self.validating = self.configurations

    def reviews(self, namespace: str) -> list[Json]:
        """Return the log lines for reviews of a namespace's pods, in order."""
        return [
            line
            for line in self.server.log()
            if line["msg"].startswith("review")
            and line.get("namespace") == namespace
            and line["webhook"] != "advise"
        ]

    def calls(self, namespace: str) -> list[tuple[str, str, int]]:
        """Return webhook, decision and patch size of each review in a namespace."""
        return [
            (line["webhook"], line["decision"], line["patchOps"])
            for line in self.reviews(namespace)
        ]

    @contextmanager
    def without(self, api: Api, configuration: Json) -> Iterator[None]:
        """Remove one of vramwarden's configurations until the block ends."""
        remove(api, configuration)
        try:
            yield
        finally:
            apply(api, configuration)


class Team:
    """Developer who creates and reads pods in a namespace."""

    def __init__(self, api: Api, ours: OurServer, namespace: str) -> None:
        self.api = api
        self.ours = ours
        self.namespace = namespace
        self._numbers = itertools.count(1)

    def pod(self, pod: Json) -> Json:
        """Return a pod with a unique name in the team's namespace."""
        pod = copy.deepcopy(pod)
        pod["metadata"] |= {"namespace": self.namespace, "name": f"train-{next(self._numbers)}"}
        return pod

    def accepts(self, pod: Json, *, dry_run: bool = False) -> Json:
        """Create a pod and return it as stored."""
        return self.api.create(self.pod(pod), dry_run=dry_run)

    def refuses(self, pod: Json) -> ApiError:
        """Try to create a pod that is denied; return the error."""
        return refused(lambda: self.accepts(pod))

    def denies(self, pod: Json, reason: Reason, *, phase: str = "mutate") -> str:
        """Try to create a pod that vramwarden denies; return the message after the reason."""
        return denied(self.refuses(pod), reason, phase=phase)

    def pods(self) -> list[Json]:
        return self.api.list(f"/api/v1/namespaces/{self.namespace}/pods")

    def patch(self, pod: Json, change: Json, subresource: str = "") -> Json:
        """Change a pod by a strategic merge patch, as kubectl does."""
        if subresource:
            needs(self.api, f"pods{subresource}")
        kind = "application/strategic-merge-patch+json"
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}{subresource}"
        return self.api.request("PATCH", path, change, content_type=kind)

    def calls(self) -> list[tuple[str, str, int]]:
        """Return webhook, decision and patch size of each review of the team's pods."""
        return self.ours.calls(self.namespace)


def refused(act) -> ApiError:
    """Call a function that raises a denial; return the error."""
    try:
        done = act()
    except ApiError as error:
        return error
    raise AssertionError(f"not refused: {done}")


def denied(error: ApiError, reason: Reason, *, phase: str = "mutate") -> str:
    """Assert that vramwarden denied for this reason; return the message after the reason."""
    beginning = f'admission webhook "{phase}.vramwarden.io" denied the request: {reason}: '
    assert error.message.startswith(beginning), error.message
    assert (error.code, error.status["reason"]) == (403, "Forbidden")
    causes = error.status["details"]["causes"]
    joined = "\n; ".join(f"{c['reason']}: {c['field']}: {c['message']}" for c in causes)
    assert error.message.endswith(f"denied the request: {joined}")
    return error.message.removeprefix(beginning)


def container(pod: Json, name: str) -> Json:
    """Return a container of a pod by name, whatever its kind."""
    spec = pod["spec"]
    return next(
        found
        for found in (*spec["containers"], *spec.get("initContainers", ()))
        if found["name"] == name
    )


def variables(found: Json) -> dict[str, Any]:
    """Return the environment variables of a container, keyed by name."""
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in found["env"]}
