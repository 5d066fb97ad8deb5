"""A cluster with all admission objects of the chart, vramwarden's server, and a hostile tenant.

The cluster has no kubelets or controllers. The tenant may do anything to pods in her namespaces,
including exec, attach, resize and debug, as with the stock role `edit`, and nothing else.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.chart.admission_policies import (
    PLURALS,
    apply,
    is_denied_by,
    keep_parameters_followed,
    write_parameter,
)
from tests.chart.fenced import allow
from tests.chart.recorded_reviews import denial
from tests.support.api_client import Api
from tests.support.charts import NAMESPACE, Helm
from tests.support.control_planes import ControlPlane, needs, wait_until
from tests.support.pods import a_pod
from tests.support.schedulers import GIB, SCHEDULER, add_node, remove_node
from tests.support.server_process import Server, running
from tests.support.webhook_configurations import installed
from webhook.adapters.policy.files import load_policy, shipped_policy_path
from webhook.core.policy.fence import fence_data
from webhook.core.policy.model import Rollout

Json = dict[str, Any]

MALLORY = "mallory"
RIGHTS = [
    *("pods", "pods/exec", "pods/attach", "pods/ephemeralcontainers", "pods/resize"),
    *("pods/eviction", "configmaps"),
]
STRATEGIC = "application/strategic-merge-patch+json"
STRICT = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: strict}
spec:
  rules:
  - {name: strict, match: {namespaces: ["strict-*"]}, isolation: NonRoot}
  - {name: sentry, match: {namespaces: ["sentry-*"]}, enforcement: {by: Sentry}}
"""
NODE = "g1"
ASSIGNMENT = "vramwarden.io/gpu-memory-fraction"
GATE_VARIABLE = {
    "name": "VRAMWARDEN_GPU_ASSIGNMENT",
    "valueFrom": {
        "fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{ASSIGNMENT}']"}
    },
}
GATE = {
    "name": "vram-gate",
    "mountPath": "/run/vram-gate",
    "readOnly": True,
    "subPathExpr": "$(VRAMWARDEN_GPU_ASSIGNMENT)",
}
WHOLE_GATE = {"name": "vram-gate", "mountPath": "/x"}
"""Mount of the whole volume, since debugging containers have no `subPathExpr`."""
GATE_VOLUME = {"name": "vram-gate", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
"""Volume of the gate as the API server stores it."""


class Tenant:
    """Tenant who attempts attacks in her own namespaces."""

    def __init__(self, control_plane: ControlPlane, server: Server) -> None:
        self.control_plane = control_plane
        self.admin = control_plane.api
        self.api = self.admin.acting_as(MALLORY, "system:authenticated")
        self.server = server
        self.made: dict[tuple[str | None, str], Json] = {}
        """Reused pods, keyed by amount and namespace."""
        self._namespaces: set[str] = set()
        self._numbers = itertools.count(1)

    def namespace(self, name: str, labels: Json | None = None) -> str:
        """Return a namespace, which is created on first use."""
        if name not in self._namespaces:
            metadata = {"name": name, "labels": labels or {}}
            self.admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
            self.control_plane.ensure_service_account(name)
            rule = {"apiGroups": [""], "resources": RIGHTS, "verbs": ["*"]}
            allow(self.admin, MALLORY, name, rule)
            self._namespaces.add(name)
        return name

    def create(
        self,
        pod: Json,
        namespace: str = "team-a",
        api: Api | None = None,
        *,
        dry_run: bool = True,
        generate_name: str = "",
    ) -> Json:
        pod = copy.deepcopy(pod)
        pod["metadata"] |= {"name": f"p{next(self._numbers)}"}
        if generate_name:
            pod["metadata"] |= {"name": None, "generateName": generate_name}
        pod["metadata"]["namespace"] = self.namespace(namespace)
        return (api or self.api).create(pod, dry_run=dry_run)

    def has(self, *arguments: Any, namespace: str = "team-a", **more: Any) -> Json:
        """Create a pod without dry run."""
        return self.create(a_pod(*arguments, **more), namespace, dry_run=False)

    def path(self, pod: Json, part: str = "") -> str:
        """Return the API path of a pod or its subresource."""
        metadata = pod["metadata"]
        return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}{part}"

    def patch(self, pod: Json, change: Json, part: str = "", api: Api | None = None) -> Json:
        if part:
            needs(self.admin, f"pods{part}")
        return (api or self.api).request(
            "PATCH", self.path(pod, part), change, content_type=STRATEGIC, dryRun="All"
        )

    def annotate(self, pod: Json, part: str = "", api: Api | None = None, **notes: str) -> Json:
        """Set vramwarden annotations; `_` in a keyword becomes `-` in the key."""
        keys = {f"vramwarden.io/{key.replace('_', '-')}": value for key, value in notes.items()}
        return self.patch(pod, {"metadata": {"annotations": keys}}, part, api)

    def debug(self, pod: Json, **container: Any) -> Json:
        added = {"name": "d", "image": "busybox", **container}
        change = {"spec": {"ephemeralContainers": [added]}}
        return self.patch(pod, change, "/ephemeralcontainers")

    def enter(self, pod: Json, how: str, container: str) -> Json:
        """Start a program in a container, or attach to it. Without a kubelet, this fails."""
        command = {"command": "id"} if how == "exec" else {}
        query = {"container": container, "stdout": "true", **command}
        return self.api.request("POST", self.path(pod, f"/{how}"), **query)

    def bind(
        self, pod: Json, node: str, api: Api | None = None, *, dry_run: bool = False, **marks: Json
    ) -> None:
        """Bind a pod, by default as the scheduler."""
        metadata = {**{key: pod["metadata"][key] for key in ("name", "namespace", "uid")}, **marks}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        query = {"dryRun": "All"} if dry_run else {}
        scheduler = api or self.admin.acting_as(SCHEDULER, "system:authenticated")
        scheduler.request("POST", self.path(pod, "/binding"), body, **query)

    def stored(self, pod: Json) -> Json:
        return self.admin.request("GET", self.path(pod))

    def leave(self) -> None:
        """Delete all pods, since a deleted namespace would never disappear without controllers."""
        for namespace in self._namespaces:
            self.delete(*self.admin.list(f"/api/v1/namespaces/{namespace}/pods"))

    def delete(self, *pods: Json) -> None:
        """Delete pods immediately."""
        for pod in pods:
            self.admin.delete({**pod, "apiVersion": "v1", "kind": "Pod"}, gracePeriodSeconds="0")


@contextlib.contextmanager
def attacked(
    control_plane: ControlPlane,
    helm: Helm,
    folder: Path,
    rollout: Rollout = Rollout.ENFORCE,
    *,
    void: bool = True,
) -> Iterator[Tenant]:
    """Install all admission objects of the chart until the block ends.

    Use `void` once per control plane: after its removal, API servers up to 1.36 keep using its
    parameter (kubernetes/kubernetes issue 130887).
    """
    api = control_plane.api
    objects = helm.render({"rollout": rollout.value, "fence": {"void": void}})
    policies = folder / "policies"
    policies.mkdir(parents=True)
    (policies / "00-strict.yaml").write_text(STRICT)
    shutil.copy(shipped_policy_path(), policies / "10-default.yaml")
    policy = load_policy(policies, enforcer_image="vramwarden/enforcer:x")
    write_parameter(api, fence_data(policy, rollout))
    env = {
        "KUBECONFIG": str(control_plane.kubeconfig),
        "VRAMWARDEN_PLACEMENT_NAMESPACE": NAMESPACE,
    }
    with contextlib.ExitStack() as stack:
        add_node(api, NODE, [80 * GIB, 80 * GIB])
        stack.callback(remove_node, api, NODE)
        server = stack.enter_context(
            running(folder, f"--rollout={rollout.value}", policy=None, **env)
        )
        tenant = Tenant(control_plane, server)
        stack.callback(tenant.leave)
        stack.enter_context(installed(api, *called_here(objects, server)))
        fences = [item for item in objects if item["kind"] in PLURALS and api.serves(item["kind"])]
        keep_parameters_followed(api)
        for thing in fences:
            apply(api, thing)
            stack.callback(_remove, api, thing)
        _wait_for_fences(tenant, {thing["metadata"]["name"] for thing in fences})
        yield tenant


def called_here(objects: list[Json], server: Server) -> list[Json]:
    """Return the chart's webhook configurations for a server on this machine."""
    bundle = base64.b64encode((server.certificates / "ca.crt").read_bytes()).decode()
    found = [copy.deepcopy(item) for item in objects if "webhooks" in item]
    for hook in (hook for item in found for hook in item["webhooks"]):
        path = hook["clientConfig"]["service"].get("path") or server.bind_path
        url = f"https://127.0.0.1:{server.port}{path}"
        hook["clientConfig"] = {"url": url, "caBundle": bundle}
    return found


def _wait_for_fences(tenant: Tenant, names: set[str]) -> None:
    """Wait until each fence has denied a request, which shows that the API server knows it."""
    plain, named = tenant.has(), tenant.has("1Gi")
    namespace = tenant.namespace("team-a")
    label = {"metadata": {"labels": {"vramwarden.io/webhook": "disabled"}}}
    may_not = tenant.admin.acting_as("carol", "system:authenticated")
    swapped = {"spec": {"initContainers": [{"name": "vram-enforcer", "image": "other"}]}}
    rule = {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["*"]}
    allow(tenant.admin, "carol", namespace, rule)
    probes = {
        "vramwarden-sidecar": lambda: tenant.patch(named, swapped),
        "vramwarden-second-line": lambda: tenant.annotate(plain, gpu="GPU-x"),
        "vramwarden-enforcer": lambda: tenant.enter(named, "exec", "vram-enforcer"),
        "vramwarden-exemption": lambda: may_not.request(
            "PATCH", f"/api/v1/namespaces/{namespace}", label, content_type=STRATEGIC, dryRun="All"
        ),
    }
    for name in probes.keys() & names:
        probe = probes[name]
        wait_until(f"{name} is in force", lambda n=name, p=probe: is_denied_by(denial(p), n))
    if "vramwarden-void" in names:
        wait_until("containers are voided", lambda: _is_voided(tenant.create(a_pod())))
    tenant.delete(plain, named)


def _is_voided(pod: Json) -> bool:
    return all(
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container.get("env", ())
        for container in pod["spec"]["containers"]
    )


def _remove(api: Api, thing: Json) -> None:
    group, plural = thing["apiVersion"], PLURALS[thing["kind"]]
    api.request("DELETE", f"/apis/{group}/{plural}/{thing['metadata']['name']}")
