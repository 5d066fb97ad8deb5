"""Nodes without a kubelet: the stub simulates their GPUs, and pods only get a running status."""

from __future__ import annotations

import contextlib
import sys
import threading
from datetime import UTC, datetime

from tests.support import nvml_stub
from tests.support.charts import NAMESPACE
from tests.support.cluster_programs import start, stop
from tests.support.control_planes import ApiError, wait_until
from tests.support.schedulers import add_node, remove_pod
from webhook.names import NODE_SHARE_LABEL, VRAM_RESOURCE

GPUS = {"n1": ("GPU-a", "GPU-b"), "n2": ("GPU-c",)}
GPU_BYTES = 24 * 2**30
PAUSE_S = 0.5
GPU_NODES = "/apis/vramwarden.io/v1alpha1/gpunodes"
MERGE = "application/merge-patch+json"


@contextlib.contextmanager
def gpu_nodes(control_plane, folder):
    """Run agents and sentries of nodes as processes; return when their GPUs are known.

    The file `NAME.txt` is the script of a node's driver, as described at the head of nvml_stub.c.
    """
    api, library = control_plane.api, nvml_stub.build(folder / "driver")
    (folder / "loaded").touch()
    with contextlib.ExitStack() as stack:

        def run(program, *options):
            for name in GPUS:
                variables = {
                    "LD_LIBRARY_PATH": library,
                    "NVML_STUB_FILE": folder / f"{name}.txt",
                    "NVIDIA_VISIBLE_DEVICES": "all",
                    "VRAMWARDEN_KERNEL_DRIVER": folder / "loaded",
                    "KUBECONFIG": control_plane.kubeconfig,
                }
                process = start(
                    folder / f"{program}-{name}.log",
                    "env",
                    *(f"{key}={value}" for key, value in variables.items()),
                    *(sys.executable, "-m", "webhook.cli", program),
                    *(f"--node={name}", f"--namespace={NAMESPACE}", *options),
                )
                stack.callback(stop, process)

        for name, gpus in GPUS.items():
            add_node(api, name, [], **{"nvidia.com/gpu.present": "true", NODE_SHARE_LABEL: "true"})
            lines = [f"gpu {gpu} total={GPU_BYTES} name=NVIDIA_A10" for gpu in gpus]
            (folder / f"{name}.txt").write_text("\n".join(["driver 570.86.15", *lines, ""]))
        stack.enter_context(_kubelets(api))
        run("agent", "--interval=1s")
        wait_for_vram(api, len(GPUS))
        run("sentry", "--host=127.0.0.1", "--metrics-port=0")
        wait_for_figures(api, len(GPUS))
        yield


def wait_for_vram(api, count):
    """Wait until this number of nodes has advertised GPUs."""
    wait_until("VRAM on all nodes", lambda: len(_advertising(api)) == count, timeout=120)


def wait_for_figures(api, count):
    """Wait until this number of nodes has reported memory in use."""

    def shared():
        return [node for node in api.list(GPU_NODES) if "notShared" not in node["status"]]

    wait_until("figures of all nodes", lambda: len(shared()) == count, timeout=120)


def _advertising(api):
    return {
        node["metadata"]["name"]
        for node in api.list("/api/v1/nodes")
        if node["status"]["allocatable"].get(VRAM_RESOURCE, "0") != "0"
    }


@contextlib.contextmanager
def _kubelets(api):
    """Set bound pods to running and remove deleted pods, until the block ends."""
    done = threading.Event()

    def play():
        while not done.wait(PAUSE_S):
            for pod in api.list("/api/v1/pods", fieldSelector="spec.nodeName!="):
                with contextlib.suppress(ApiError):  # another writer was faster
                    if "deletionTimestamp" in pod["metadata"]:
                        remove_pod(api, pod)
                    elif pod["status"]["phase"] == "Pending":
                        metadata = pod["metadata"]
                        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
                        api.request("PATCH", f"{path}/status", _runs(pod), content_type=MERGE)

    thread = threading.Thread(target=play)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _runs(pod):
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kinds = {"containerStatuses": "containers", "initContainerStatuses": "initContainers"}
    containers = {
        statuses: [
            {
                **{key: item[key] for key in ("name", "image")},
                "imageID": "",
                "restartCount": 0,
                "ready": True,
                "started": True,
                "state": {"running": {"startedAt": now}},
            }
            for item in pod["spec"].get(kind, ())
        ]
        for statuses, kind in kinds.items()
    }
    conditions = [
        *pod["status"].get("conditions", ()),
        *({"type": kind, "status": "True"} for kind in ("Initialized", "ContainersReady", "Ready")),
    ]
    phase = {"phase": "Running", "startTime": now, "conditions": conditions}
    return {"status": {**phase, **containers}}
