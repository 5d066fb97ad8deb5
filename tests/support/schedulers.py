"""The stock scheduler, and GPU nodes without a kubelet."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.support.cluster_programs import find_binary, free_port, start, stop, wait_until
from tests.support.control_planes import Api, ControlPlane
from webhook.core.node.inventory import Inventory, TrackedGpu
from webhook.core.node.state import build_desired_state
from webhook.core.placement.assignments import Assignments
from webhook.core.pod.gpus import Gpu
from webhook.core.pod.quantity import MIB, format_bytes

Json = dict[str, Any]

MISSING = "placement tests need kube-scheduler beside kube-apiserver; `setup-envtest` has none"
GIB = 2**30
SCHEDULER = "system:kube-scheduler"
"""Account of the stock scheduler, which has its permissions by default."""

CONFIGURATION: Json = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": False},
    # Without client-side rate limits, so that only the cluster is measured.
    "clientConnection": {"qps": 2000, "burst": 2000},
}


def available() -> bool:
    return find_binary("kube-scheduler") is not None


@contextlib.contextmanager
def scheduler(
    control_plane: ControlPlane, folder: Path, configuration: Json | None = None
) -> Iterator[None]:
    """Run kube-scheduler until the block ends, by default with its default configuration."""
    settings = {**CONFIGURATION, **(configuration or {})}
    settings["clientConnection"] = {
        **CONFIGURATION["clientConnection"],
        "kubeconfig": str(control_plane.kubeconfig_of(folder, SCHEDULER, "schedulers")),
    }
    written = folder / "scheduler.json"
    written.write_text(json.dumps(settings))  # JSON is YAML
    port = free_port()
    process = start(
        folder / "kube-scheduler.log",
        "kube-scheduler",
        f"--config={written}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        "--authentication-skip-lookup=true",
    )
    try:
        yield
    finally:
        stop(process)


def add_node(
    api: Api,
    name: str,
    gpu_bytes: Sequence[int],
    amounts: Mapping[str, str] = MappingProxyType({}),
    **labels: str,
) -> None:
    """Create a node with these GPUs, as kubelet and agent would, and renew its lease.

    Resources that `amounts` does not set are plentiful.
    """
    state = build_desired_state(_inventory(name, gpu_bytes), {})
    offered = {
        "cpu": "256",
        "memory": "2Ti",
        "pods": "300",
        "ephemeral-storage": "10Ti",
        "vramwarden.io/vram": format_bytes(state.vram_bytes or 0),
        **amounts,
    }
    metadata = {
        "name": name,
        "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
        | dict(state.labels)
        | labels,
        "annotations": dict(state.annotations),
    }
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    ready = {"type": "Ready", "status": "True", "reason": "Fake"}
    status = {"capacity": offered, "allocatable": offered, "conditions": [ready]}
    patch(api, f"/api/v1/nodes/{name}/status", {"status": status})
    # The API server taints new nodes (TaintNodesByCondition), and no controller here removes the
    # taint.
    patch(api, f"/api/v1/nodes/{name}", {"spec": {"taints": None}})


def patch(api: Api, path: str, change: Json) -> None:
    api.request("PATCH", path, change, content_type="application/merge-patch+json")


def _inventory(name: str, gpu_bytes: Sequence[int]) -> Inventory:
    known = tuple(
        TrackedGpu(
            Gpu(
                uuid=f"GPU-{name}-{index}",
                memory_bytes=size // MIB * MIB,
                product="TEST",
                index=index,
            )
        )
        for index, size in enumerate(gpu_bytes)
    )
    return Inventory(tracked=known, driver_version="570.86.15", enforcement="sidecar")


def show_free(api: Api, name: str, gpu_bytes: Sequence[int], assignments: Assignments) -> None:
    """Report the free memory of a node's GPUs, as the agent would."""
    labels = dict(build_desired_state(_inventory(name, gpu_bytes), assignments).labels)
    patch(api, f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}})


def remove_node(api: Api, name: str) -> None:
    api.delete({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})


def finish(api: Api, pod: Json, phase: str = "Succeeded") -> None:
    """Set the phase of a bound pod, as its kubelet would at the end."""
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
    patch(api, path, {"status": {"phase": phase}})


def remove_pod(api: Api, pod: Json) -> None:
    """Delete a pod immediately, since no kubelet ends it."""
    api.delete({"apiVersion": "v1", "kind": "Pod", **pod}, gracePeriodSeconds="0")


def bound(api: Api, namespace: str) -> dict[str, tuple[str, str]]:
    """Return node and GPUs of each bound pod, keyed by name."""
    return {
        pod["metadata"]["name"]: (
            pod["spec"]["nodeName"],
            pod["metadata"].get("annotations", {}).get("vramwarden.io/gpu", ""),
        )
        for pod in api.list(f"/api/v1/namespaces/{namespace}/pods")
        if pod["spec"].get("nodeName")
    }


def messages(api: Api, namespace: str, pod: str) -> list[str]:
    """Return the messages of a pod's Events, the newest last."""
    found = api.list(
        f"/api/v1/namespaces/{namespace}/events", fieldSelector=f"involvedObject.name={pod}"
    )
    found.sort(key=lambda event: event.get("eventTime") or event["lastTimestamp"])
    return [event.get("message") or event.get("note", "") for event in found]


def refusals(api: Api, namespace: str) -> int:
    """Return the number of bindings that vramwarden denied, according to the pods' Events."""
    return sum(
        (event.get("series") or {}).get("count") or event.get("count") or 1
        for event in api.list(f"/api/v1/namespaces/{namespace}/events")
        if "bind.vramwarden.io" in (event.get("message") or "")
    )


def wait_bound(api: Api, namespace: str, count: int, timeout: float = 60) -> dict[str, Any]:
    """Wait until this many pods have a node; return node and GPUs of each."""
    return wait_until(
        f"{count} bound pods",
        lambda: len(found := bound(api, namespace)) >= count and found,
        timeout=timeout,
    )
