"""The real server behind the chart's Service, with the options of its Deployment."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import contextmanager

from tests.support.api_client import account_kubeconfig
from tests.support.charts import NAMESPACE, one
from tests.support.server_process import Server

NAME = "vramwarden-webhook"
ENDPOINTS = f"/api/v1/namespaces/{NAMESPACE}/endpoints"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{NAME}"
MOUNTS = {"policies": "/etc/vramwarden/policies", "certificate": "/etc/vramwarden/certificate"}


def own_address():
    """Return an address of this machine other than loopback, which endpoints may not have."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return ""
        return probe.getsockname()[0]


@contextmanager
def served(control_plane, objects, folder):
    """Run the server with the Deployment's options, and with its volumes in a folder."""
    (container,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    for name in MOUNTS:
        (folder / name).mkdir(exist_ok=True)
    for name, text in one(objects, "ConfigMap", "vramwarden-policies")["data"].items():
        (folder / "policies" / name).write_text(text)
    arguments = []
    for argument in container["args"]:
        option, _, value = argument.partition("=")
        mounted = {mount: str(folder / name) for name, mount in MOUNTS.items()}
        arguments.append(f"{option}={mounted[value]}" if value in mounted else argument)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    admins, own = control_plane.kubeconfig, folder / "kubeconfig"
    kubeconfig = account_kubeconfig(control_plane.api, admins, NAMESPACE, NAME, own)
    env = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    log_file = folder / "log"
    with (
        log_file.open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "webhook.cli", *arguments], stdout=log, stderr=log, env=env
        ) as process,
    ):
        server = Server(
            process,
            ports["https"],
            ports["operations"],
            folder / "certificate",
            folder / "policies",
            log_file,
        )
        try:
            yield server
        finally:
            server.quit()


@contextmanager
def behind_the_service(control_plane, server):
    """Make this machine the only pod of the Service and the Deployment."""
    ports = {"https": server.port, "operations": server.operations_port}
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": NAME, "labels": {"kubernetes.io/service-name": NAME}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [own_address()], "conditions": {"ready": True}}],
        "ports": [{"name": name, "port": port} for name, port in ports.items()],
    }
    # Older API servers use this kind to find the addresses of a webhook's Service.
    before = {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": NAME},
        "subsets": [
            {
                "addresses": [{"ip": own_address()}],
                "ports": [{"name": name, "port": port} for name, port in ports.items()],
            }
        ],
    }
    both = {SLICES: endpoints, ENDPOINTS: before}
    for path, made in both.items():
        control_plane.api.request("POST", path, made)
    try:
        yield
    finally:
        for path in both:
            control_plane.api.request("DELETE", f"{path}/{NAME}")


def show_ready(control_plane, replicas):
    """Write the Deployment's status, as its controller would."""
    status = {"status": {"replicas": 2, "readyReplicas": replicas}}
    kind = "application/merge-patch+json"
    control_plane.api.request("PATCH", f"{DEPLOYMENT}/status", status, content_type=kind)
