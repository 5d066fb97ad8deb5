"""Memory of a replica and time until it is ready, with a real API server and many pods.

This takes minutes, so it only runs on request: `BENCH_CLUSTER=10000,1000` is the number of managed
pods and of nodes to which the pods are bound. KUBEBUILDER_ASSETS must be set.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.bench.figures import kib
from tests.bench.stored_cluster import GIB, NAMESPACE, StoredCluster
from tests.support.control_planes import ControlPlane
from tests.support.server_process import running
from webhook.core.placement.assignment_codec import config_map_name, write_assignments
from webhook.core.placement.assignments import Assignment
from webhook.names import ASSIGNMENTS_LABEL, ASSIGNMENTS_NODE_ANNOTATION, GPU_ANNOTATION

ASKED = os.environ.get("BENCH_CLUSTER", "")
WATCHED_S = 45.0
"""Duration of the memory measurement, in seconds; includes a garbage collection of all lists."""


def bench_memory() -> None:
    """Print memory and start time of a replica, without and with the cluster."""
    if not ASKED:
        return
    pods, nodes = map(int, ASKED.split(","))
    with ControlPlane() as control_plane, tempfile.TemporaryDirectory() as folder:
        for name in (NAMESPACE, "team"):
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            control_plane.api.create(namespace)
        control_plane.ensure_service_account("team")
        print("\na replica beside a real API server; its processes in MiB: resident / at most / as")
        print("its part, where what several processes have in common is divided among them")
        _measure(control_plane, Path(folder), 0, 0)
        started_s = time.monotonic()
        _fill(control_plane.api, pods, nodes)
        print(f"(stored within {time.monotonic() - started_s:.0f} s)")
        _measure(control_plane, Path(folder), pods, nodes)


def _fill(api, pods: int, nodes: int) -> None:
    """Store nodes, pods bound to the nodes, and their assignments."""
    cluster = StoredCluster(nodes, pods)

    def node(number):
        api.request("POST", "/api/v1/nodes", _new(cluster.node_text(number)))

    def pod(number):
        stored = _new(cluster.pod_text(number))
        return api.request("POST", "/api/v1/namespaces/team/pods", stored)["metadata"]

    def list_of(number):
        some = made[number::nodes]
        entries = {
            item["uid"]: Assignment(
                pod=f"team/{item['name']}",
                uuids=(item["annotations"][GPU_ANNOTATION],),
                memory_bytes=GIB,
                since_s=int(time.time()),
            )
            for item in some
        }
        metadata = {"name": config_map_name(f"n{number}"), "labels": {ASSIGNMENTS_LABEL: "true"},
                    "annotations": {ASSIGNMENTS_NODE_ANNOTATION: f"n{number}"}}  # fmt: skip
        body = {"metadata": metadata, "data": write_assignments(entries)}
        api.request("POST", f"/api/v1/namespaces/{NAMESPACE}/configmaps", body)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(node, range(nodes)))
        made = list(pool.map(pod, range(pods)))
        list(pool.map(list_of, range(nodes)))


def _new(text: str) -> dict:
    """Return an object for creation, from its stored form."""
    thing = json.loads(text)
    for key in ("uid", "resourceVersion"):
        del thing["metadata"][key]
    return thing


def _measure(control_plane, folder: Path, pods: int, nodes: int) -> None:
    env = {"KUBECONFIG": str(control_plane.kubeconfig), "VRAMWARDEN_PLACEMENT_NAMESPACE": NAMESPACE}
    folder = folder / str(pods)
    folder.mkdir()
    started_s = time.monotonic()
    with running(folder, ready=False, **env) as server:
        server.wait_for("readiness", server.ready, timeout_s=300)
        ready_s = time.monotonic() - started_s
        at_once = _memory(server.process.pid)
        time.sleep(WATCHED_S if pods else 1)
        print(f"{pods} pods on {nodes} nodes: ready after {ready_s:.1f} s; then {at_once}; "
              f"{WATCHED_S:.0f} s later {_memory(server.process.pid)}")  # fmt: skip
        server.quit()


def _memory(master: int) -> str:
    """Return current and peak memory of the master and its worker."""
    children = Path(f"/proc/{master}/task/{master}/children").read_text().split()
    return ", ".join(f"{what} {_held(pid)}" for what, pid in
                     [("master", master), *(("worker", child) for child in children)])  # fmt: skip


def _held(pid: int | str) -> str:
    process = Path(f"/proc/{pid}")
    held = [kib(process / "status", key) for key in ("VmRSS", "VmHWM")]
    held.append(kib(process / "smaps_rollup", "Pss"))
    return " / ".join(f"{item / 1024:.0f}" for item in held)


if __name__ == "__main__":
    bench_memory()
