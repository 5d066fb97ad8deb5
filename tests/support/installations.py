"""A complete installation of vramwarden as stored in an API server, and its admission.

    api = a_cluster(...).stored_in(installed())
    api.fails("POST .*/pods", admission(api), forever=True)

The installation has the chart's objects, a certificate, a key and the fence's parameter.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from certs import issue_into_folder
from tests.support import charts
from tests.support.api_server import KINDS, ApiServer, Request, merged
from tests.support.clusters import NOW_S
from tests.support.pods import a_request
from webhook import __version__
from webhook.adapters.policy.files import load_config_map, shipped_policy_path
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Phase
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.fence import fence_data
from webhook.core.policy.model import Policy
from webhook.names import WEBHOOK_CONFIGURATION

Json = dict[str, Any]

SYSTEM, SENTRY = "vramwarden-system", "vramwarden-sentry"
IN_SYSTEM = f"/api/v1/namespaces/{SYSTEM}"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
HOOKS = [f"{REGISTRATION}/{kind}webhookconfigurations/{WEBHOOK_CONFIGURATION}"
         for kind in ("mutating", "validating")]  # fmt: skip
APPS = "/apis/apps/v1/namespaces"
WEBHOOK = f"{APPS}/{SYSTEM}/deployments/vramwarden-webhook"
DAEMON_SETS = [f"{APPS}/{SYSTEM}/daemonsets/vramwarden-agent",
               f"{APPS}/{SENTRY}/daemonsets/vramwarden-sentry"]  # fmt: skip
POLICIES = f"{IN_SYSTEM}/configmaps/vramwarden-policies"
IMAGE = f"registry.example/enforcer:{__version__}"
POLICY = load_config_map(
    {"default.yaml": shipped_policy_path().read_text()}, "here", enforcer_image=IMAGE
)
API_GROUPS = {"groups": [{"name": name} for name in ("apps", "nvidia.com")]}


@cache
def manifests() -> tuple[Json, ...]:
    """Return the chart's objects with `rollout: Enforce`, limited to kinds that are read."""
    values = {"enforcer": {"repository": "registry.example/enforcer"}, "rollout": "Enforce"}
    return tuple(
        manifest for manifest in charts.rendered(values) if manifest["kind"] in KINDS.values()
    )


@cache
def certificate() -> dict[str, str]:
    """Return the files of a new certificate in base64, keyed by name."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        issue_into_folder(
            folder, [f"vramwarden-webhook.{SYSTEM}.svc"], datetime.fromtimestamp(NOW_S, UTC)
        )
        files = ("tls.crt", "ca.crt")
        return {file: b64encode((folder / file).read_bytes()).decode() for file in files}


def patch(api: ApiServer, path: str, change: Json) -> None:
    """Change a stored object by a strategic merge patch."""
    api.put(path, merged(api.objects[path], change, strategic=True))


def each_hook(api: ApiServer, path: str, change: Json) -> None:
    """Change the client configuration of each vramwarden webhook."""
    hooks = [
        {"name": webhook["name"], "clientConfig": change}
        for webhook in api.objects[path]["webhooks"]
    ]
    patch(api, path, {"webhooks": hooks})


def count_daemon_pods(api: ApiServer, nodes: int) -> None:
    """Make agent and sentry ready on this number of nodes."""
    ready = {
        "desiredNumberScheduled": nodes, "numberReady": nodes, "currentNumberScheduled": nodes
    }  # fmt: skip
    for path in DAEMON_SETS:
        patch(api, path, {"status": ready})


def before_installation() -> ApiServer:
    """Return an API server with NVIDIA's RuntimeClass but without vramwarden."""
    api = ApiServer()
    api.now_s = lambda: NOW_S
    api.texts["/apis"] = json.dumps(API_GROUPS)
    api.texts["/version"] = json.dumps({"gitVersion": "v1.36.2"})
    api.put("/apis/node.k8s.io/v1/runtimeclasses/nvidia", {"handler": "nvidia"})
    return api


@cache
def _stored(gpu_nodes: int) -> dict[str, Json]:
    api = before_installation()
    api.add(*manifests())
    replicas = api.objects[WEBHOOK]["spec"]["replicas"]
    patch(api, WEBHOOK, {"status": {"replicas": replicas, "readyReplicas": replicas}})
    count_daemon_pods(api, gpu_nodes)
    for path in HOOKS:
        each_hook(api, path, {"caBundle": certificate()["ca.crt"]})
    bind = {"name": "bind.vramwarden.io", "clientConfig": {"service": {"path": "/bind/x"}}}
    patch(api, HOOKS[0], {"webhooks": [bind]})
    patch(api, f"{IN_SYSTEM}/secrets/vramwarden-certificate", {"data": certificate()})
    api.put(f"{IN_SYSTEM}/secrets/vramwarden-key", {"data": {"key": "eA=="}})
    api.put(f"{IN_SYSTEM}/configmaps/vramwarden-fence", {"data": fence_data(POLICY)})
    return api.objects


def put_policy(api: ApiServer, files: Mapping[str, str], policy: Policy) -> None:
    """Store a policy's files and the fence's parameter."""
    api.put(POLICIES, api.objects[POLICIES] | {"data": dict(files)})
    api.put(f"{IN_SYSTEM}/configmaps/vramwarden-fence", {"data": fence_data(policy)})


def installed(gpu_nodes: int = 1) -> ApiServer:
    """Return an API server with a working installation and this number of GPU nodes."""
    api = before_installation()
    api.objects |= _stored(gpu_nodes)
    return api


def admission(request: Request, policy: Policy = POLICY) -> tuple[Any, ...]:
    """Respond to a dry run like an API server that calls the webhook."""
    namespace = request.path.split("/")[4]
    review = a_request(request.body, namespace=namespace)
    decision = decide(review, policy, Cluster(), Phase.MUTATE)
    if not decision.allowed:
        return denial(decision.message)
    return 201, decision.obj


def denial(words: str) -> tuple[int, Json]:
    """Return the API server's response to a pod that vramwarden's webhook denies."""
    said = f'admission webhook "mutate.vramwarden.io" denied the request: {words}'
    return 403, {"kind": "Status", "message": said}
