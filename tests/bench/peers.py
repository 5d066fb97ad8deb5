"""Webhooks of HAMi and KAI, run from programs built elsewhere.

Both need an API server at start and run with GOMAXPROCS=1 on the core of vramwarden's webhook. Each
receives the recorded pod in its own form and must respond with a patch.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.servers import PATIENCE_S, RECORDED, Server, started
from tests.support.cluster_programs import free_port, wait_until
from tests.support.control_planes import MISSING, ControlPlane, available
from tests.support.pki import Authority
from webhook import names

Json = dict[str, Any]
MEMORY_MIB = "8192"  # request of the recorded pod

# NVIDIA's part of the configuration in HAMi's chart. HAMi passes each container to each configured
# vendor, so one vendor is the least work.
HAMI_DEVICES = {
    "nvidia": {
        "resourceCountName": "nvidia.com/gpu",
        "resourceMemoryName": "nvidia.com/gpumem",
        "resourceMemoryPercentageName": "nvidia.com/gpumem-percentage",
        "resourceCoreName": "nvidia.com/gpucores",
        "resourcePriorityName": "nvidia.com/priority",
        "overwriteEnv": False,
        "defaultMemory": 0,
        "defaultCores": 0,
        "defaultGPUNum": 1,
    }
}
# The RuntimeClass that HAMi adds (`--gpu-pod-runtime-class-name`) must exist, or pods are denied.
NVIDIA_RUNTIME = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}


def hami_command(folder, port, kubeconfig):
    """Return arguments and environment of HAMi: cmd/scheduler/main.go, charts/hami."""
    devices = folder / "devices.yaml"
    devices.write_text(json.dumps(HAMI_DEVICES))  # JSON is YAML
    arguments = [
        f"--http_bind=127.0.0.1:{port}",
        f"--cert_file={folder / 'tls.crt'}",
        f"--key_file={folder / 'tls.key'}",
        "--scheduler-name=hami-scheduler",
        f"--metrics-bind-address=127.0.0.1:{free_port()}",
        f"--device-config-file={devices}",
    ]
    return arguments, {"KUBECONFIG": kubeconfig}


def hami_pod(pod):
    """Request memory as HAMi's users do: by resources, which also mark HAMi's pods."""
    del pod["metadata"]["annotations"][names.GPU_MEMORY_ANNOTATION]
    resources = pod["spec"]["containers"][0]["resources"]
    for kind in ("limits", "requests"):
        resources[kind]["nvidia.com/gpumem"] = MEMORY_MIB


def kai_command(folder, port, kubeconfig):
    """Return arguments and environment of KAI: cmd/admission/app; TMPDIR has the certificates."""
    certificates = folder / "k8s-webhook-server/serving-certs"
    certificates.mkdir(parents=True)
    for name in ("tls.crt", "tls.key"):
        (certificates / name).symlink_to(folder / name)
    arguments = [
        f"--webhook-addr={port}",
        f"--metrics-bind-address=127.0.0.1:{free_port()}",
        f"--health-probe-bind-address=127.0.0.1:{free_port()}",
        "--gpu-sharing-enabled",
    ]
    return arguments, {"KUBECONFIG": kubeconfig, "TMPDIR": folder}


def kai_pod(pod):
    """Request memory as KAI's users do: by an annotation and the name of KAI's scheduler."""
    annotations = pod["metadata"]["annotations"]
    del annotations[names.GPU_MEMORY_ANNOTATION]
    annotations["gpu-memory"] = MEMORY_MIB
    pod["spec"]["schedulerName"] = "kai-scheduler"


@dataclass(frozen=True, slots=True)
class Peer:
    label: str
    variable: str
    """Environment variable with the path of the product's program."""
    mutate_path: str
    validate_path: str
    """Path for validation; empty if the product's chart registers none."""
    reinvocation: str
    command: Callable[[Path, int, Path], tuple[list[str], Json]]
    dress: Callable[[Json], None]
    """Converts a pod that requests memory from vramwarden to one that requests it from the
    product."""
    acted: Callable[[Json], bool]
    """Returns True if the product has changed a stored pod."""
    needs: tuple[Json, ...] = ()


PEERS = (
    Peer(
        "HAMi", "BENCH_HAMI", "/webhook", "", "Never",
        hami_command, hami_pod,
        lambda pod: pod["spec"]["schedulerName"] == "hami-scheduler",
    ),
    Peer(
        "KAI", "BENCH_KAI", "/mutate--v1-pod", "/validate--v1-pod", "IfNeeded",
        kai_command, kai_pod,
        lambda pod: pod["spec"].get("runtimeClassName") == "nvidia",
        needs=(NVIDIA_RUNTIME,),
    ),
)  # fmt: skip


def named():
    """Return the peers whose program is given; print why others are omitted."""
    found = []
    for peer in PEERS:
        path = os.environ.get(peer.variable)
        if not path:
            print(f"{peer.label}: skipped: {peer.variable} names no program")
        elif not os.access(path, os.X_OK):
            print(f"{peer.label}: skipped: {peer.variable}: {path} is no program")
        elif not available():
            print(f"{peer.label}: skipped: it starts with an API server; {MISSING}")
        else:
            found.append(peer)
    return found


def control_plane(stack):
    """Start an API server with the objects that the peers need."""
    plane = stack.enter_context(ControlPlane())
    for manifest in (manifest for peer in PEERS for manifest in peer.needs):
        plane.api.create(manifest)
    return plane


def all_started(stack, folder, plane):
    """Return each given peer with its server; print why one cannot start."""
    found = []
    for peer in named():
        try:
            found.append((peer, stack.enter_context(running(peer, folder / peer.label, plane))))
        except (RuntimeError, TimeoutError) as error:
            print(f"{peer.label}: skipped: {error}")
    return found


@contextmanager
def running(peer, folder, plane):
    """Run a peer's webhook; yield the server when it responds to the recorded pod with a patch."""
    folder.mkdir()
    authority = Authority(f"bench-{peer.label}")
    (folder / "ca.crt").write_bytes(authority.pem)
    certificate, key = authority.issue_server(folder, "server")
    certificate.rename(folder / "tls.crt")
    key.rename(folder / "tls.key")
    port, log = free_port(), folder / "log"
    arguments, environment = peer.command(folder, port, plane.kubeconfig)
    program = Path(os.environ[peer.variable]).resolve()
    with started(log, program, *arguments, folder=folder, GOMAXPROCS=1, **environment) as process:
        server = Server(
            peer.label, process.pid, port, folder / "ca.crt", review(peer), peer.mutate_path
        )

        def answers():
            if process.poll() is not None:
                tail = log.read_text(errors="replace").strip().splitlines()[-3:]
                raise RuntimeError(f"it ended with {process.returncode}: {' | '.join(tail)}")
            try:
                return server.patch() or None
            except OSError:
                return None

        wait_until(f"a patch by {peer.label}", answers, timeout=PATIENCE_S)
        yield server


def review(peer):
    """Return the recorded review with the pod in the form of the peer."""
    content = json.loads(RECORDED.read_bytes())
    peer.dress(content["request"]["object"])
    return json.dumps(content, separators=(",", ":")).encode()


def configurations(peer, server):
    """Return the peer's configurations for pod creation, as in its chart or operator."""
    found = [_configuration("Mutating", peer.mutate_path, server)]
    found[0]["webhooks"][0]["reinvocationPolicy"] = peer.reinvocation
    if peer.validate_path:
        found.append(_configuration("Validating", peer.validate_path, server))
    return found


def _configuration(kind, path, server):
    hook = {
        "name": f"{kind.lower()}.bench.invalid",
        "clientConfig": {
            "url": f"https://127.0.0.1:{server.port}{path}",
            "caBundle": base64.b64encode(server.ca.read_bytes()).decode(),
        },
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "resources": ["pods"],
                "operations": ["CREATE"],
            }
        ],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "admissionReviewVersions": ["v1"],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "webhooks": [hook],
    }
