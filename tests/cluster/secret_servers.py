"""Servers that share a Secret on a real API server, with exactly the documented permissions."""

from __future__ import annotations

import base64
import contextlib
import copy
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from certs import Bundle
from tests.support.api_client import account_kubeconfig
from tests.support.control_planes import Api, ApiError, ControlPlane, free_port
from tests.support.paths import ROOT
from tests.support.pods import a_pod
from tests.support.server_process import Server
from tests.support.webhook_configurations import webhook_configurations
from webhook.adapters.policy.files import shipped_policy_path
from webhook.names import WEBHOOK_CONFIGURATION

Json = dict[str, Any]

NAMESPACE, SECRET, CONFIGURATION, SERVICE = (
    "vramwarden-system",
    "vramwarden-certificate",
    WEBHOOK_CONFIGURATION,
    "vramwarden-webhook",
)
README = ROOT / "certs" / "README.md"


def documented_rights() -> list[Json]:
    """Return the manifests that the README gives to platform teams."""
    (block,) = re.findall(r"^```yaml\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    return list(yaml.safe_load_all(block))


@dataclass
class Release:
    """State that replicas share, and their credentials."""

    api: Api
    kubeconfig: Path
    admin: Path

    def secret(self) -> Bundle:
        """Content of the Secret."""
        data = self.api.get(self.secret_object()).get("data", {})
        return Bundle.from_files({name: base64.b64decode(text) for name, text in data.items()})

    def secret_object(self) -> Json:
        metadata = {"name": SECRET, "namespace": NAMESPACE}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}

    def put_secret(self, bundle: Bundle) -> None:
        """Write a certificate set as a user with more permissions than the replicas."""
        data = {name: base64.b64encode(text).decode() for name, text in bundle.files().items()}
        path = f"/api/v1/namespaces/{NAMESPACE}/secrets/{SECRET}"
        kind = "application/merge-patch+json"
        self.api.request("PATCH", path, {"data": data}, content_type=kind)

    def bundles(self) -> list[bytes]:
        """Return the caBundle of each webhook."""
        return [
            base64.b64decode(webhook["clientConfig"].get("caBundle", ""))
            for kind in ("Mutating", "Validating")
            for webhook in self.api.get(configuration(kind))["webhooks"]
        ]

    def put_bundle(self, kind: str, pem: bytes) -> None:
        """Overwrite the first caBundle of a configuration."""
        found = self.api.get(configuration(kind))
        text = base64.b64encode(pem).decode()
        operation = {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": text}
        path = f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}webhookconfigurations"
        self.api.request(
            "PATCH",
            f"{path}/{found['metadata']['name']}",
            [operation],
            content_type="application/json-patch+json",
        )


def configuration(kind: str) -> Json:
    """Return kind and name of one vramwarden webhook configuration."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": CONFIGURATION},
    }


@contextlib.contextmanager
def release(control_plane: ControlPlane, folder: Path) -> Iterator[Release]:
    """Create namespace, ServiceAccount and permissions until the block ends."""
    api = control_plane.api
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    api.apply(namespace)
    metadata = {"name": SERVICE, "namespace": NAMESPACE}
    api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    manifests = documented_rights()
    try:
        for manifest in manifests:
            api.create(manifest)
        admins = control_plane.kubeconfig
        own = account_kubeconfig(api, admins, NAMESPACE, SERVICE, folder / "kubeconfig")
        yield Release(api, own, admins)
    finally:
        for manifest in (*manifests, configuration("Mutating"), configuration("Validating")):
            api.delete(manifest)


@contextlib.contextmanager
def replica(
    release: Release, folder: Path, *options: str, kubeconfig: Path | None = None
) -> Iterator[Server]:
    """Run a server that shares the Secret until the block ends; it may not become ready."""
    folder.mkdir(exist_ok=True)
    port, operations_port = free_port(), free_port()
    command = [
        *(sys.executable, "-m", "webhook.cli", "serve"),
        *(f"--cert-secret={NAMESPACE}/{SECRET}", "--cert-name=127.0.0.1"),
        *(f"--port={port}", f"--operations-port={operations_port}", *options),
    ]
    policies = folder / "policies"
    policies.mkdir(exist_ok=True)
    shutil.copy(shipped_policy_path(), policies / "default.yaml")
    env = {**os.environ, "KUBECONFIG": str(kubeconfig or release.kubeconfig)}
    log_file = folder / "log"
    with (
        log_file.open("wb") as log,
        subprocess.Popen(command, stderr=log, stdout=log, env=env) as process,
    ):
        server = Server(process, port, operations_port, folder, policies, log_file)
        try:
            yield server
        finally:
            server.quit()


def point_at(api: Api, mutating: Server, validating: Server, bundle: bytes = b"") -> None:
    """Make the API server call one replica per kind of webhook."""
    for number, server in enumerate((mutating, validating)):
        configurations = webhook_configurations(f"https://127.0.0.1:{server.port}", bundle)
        manifest = copy.deepcopy(configurations[number])
        if not bundle:
            for webhook in manifest["webhooks"]:
                del webhook["clientConfig"]["caBundle"]
        api.create(manifest)


def shown(server: Server, trusted: bytes) -> str:
    """Return the serial number of the certificate that a new client with this caBundle accepts."""
    context = ssl.create_default_context(cadata=trusted.decode())
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        return connection.getpeercert()["serialNumber"]


@dataclass
class Load:
    """Client requests and their results."""

    created: set[str]
    lost: list[str]


@contextlib.contextmanager
def creating(api: Api, namespace: str, clients: int) -> Iterator[Load]:
    """Create annotated pods from several clients until the block ends."""
    stop, load = threading.Event(), Load(set(), [])

    def create(client: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            pod = a_pod("8Gi")
            pod["metadata"] |= {"namespace": namespace, "name": f"train-{client}-{number}"}
            try:
                load.created.add(api.create(pod)["metadata"]["name"])
            except ApiError as error:
                load.lost.append(error.message)

    with ThreadPoolExecutor(clients) as pool:
        futures = [pool.submit(create, client) for client in range(clients)]
        try:
            yield load
        finally:
            stop.set()
    for future in futures:
        future.result()
