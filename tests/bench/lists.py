"""Cost of listing the pods of a large cluster: CPU time, memory, and pauses of other threads."""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import threading
import time
from pathlib import Path

from tests.support.api_server import ApiServer, write_kubeconfig
from tests.support.pods import a_pod
from webhook.adapters.kube.connection import connect
from webhook.core.placement.pod_state import read_pod_state

PODS, POD_BYTES = 5000, 7 * 2**10


def bench_lists():
    there, here = multiprocessing.Pipe()
    server = multiprocessing.Process(target=_serve, args=(here,), daemon=True)
    server.start()
    with tempfile.TemporaryDirectory() as folder:
        kube = connect(write_kubeconfig(Path(folder) / "kubeconfig", there.recv()))
    watched = _Watched()
    started_s = time.process_time()
    with watched:
        pods = kube.list_all("/api/v1/pods", read_pod_state)
    cpu_s = time.process_time() - started_s
    server.terminate()
    print(
        f"list of {len(pods)} pods of {POD_BYTES // 2**10} KiB: {cpu_s:.2f} s of CPU, "
        f"{watched.peak_mib - watched.before_mib:.1f} MiB at the peak, "
        f"another thread stands still for {watched.stalled_s * 1e3:.0f} ms at most"
    )


class _Watched:
    """Measures this process's memory a thousand times per second."""

    def __enter__(self):
        self.before_mib = self.peak_mib = resident_mib()
        self.stalled_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _look(self):
        last_s = time.perf_counter()
        while not self._over.wait(0.001):
            now_s = time.perf_counter()
            self.stalled_s, last_s = max(self.stalled_s, now_s - last_s), now_s
            self.peak_mib = max(self.peak_mib, resident_mib())


def resident_mib():
    with Path("/proc/self/statm").open(encoding="ascii") as file:
        return int(file.read().split()[1]) * 4 / 1024


def _serve(pipe):
    """Serve pods whose large fields are all equal."""
    pod = a_pod("8Gi")
    fields = {}
    pod["metadata"] |= {
        "uid": "a-uid-of-36-characters", "resourceVersion": "9",
        "managedFields": [{"fieldsV1": {"f:spec": fields}}],
    }  # fmt: skip
    while len(json.dumps(pod)) < POD_BYTES:
        fields[f"f:field-{len(fields)}"] = {".": {}, "f:name": {}}
    server = ApiServer()
    for number in range(PODS):
        metadata = pod["metadata"] | {"namespace": "team", "name": f"train-{number}"}
        path = f"/api/v1/namespaces/team/pods/train-{number}"
        server.objects[path] = pod | {"metadata": metadata}
    with server:
        pipe.send(server.url)
        threading.Event().wait()


if __name__ == "__main__":
    bench_lists()
