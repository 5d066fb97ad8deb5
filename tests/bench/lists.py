"""What listing the pods of a large cluster costs: CPU, memory, and how long others stand still."""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.support.agents import write_kubeconfig
from tests.support.pods import a_pod
from webhook.adapters.kube.client import connect
from webhook.core.placement.assignments import read_pod_state

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
        pods, _ = kube.list_all("/api/v1/pods", read_pod_state)
    cpu_s = time.process_time() - started_s
    server.terminate()
    print(
        f"list of {len(pods)} pods of {POD_BYTES // 2**10} KiB: {cpu_s:.2f} s of CPU, "
        f"{watched.peak_mib - watched.before_mib:.1f} MiB at the peak, "
        f"another thread stands still for {watched.stalled_s * 1e3:.0f} ms at most"
    )


class _Watched:
    """Reads a thousand times a second what this process holds."""

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
    """Be an API server with pods."""
    pod = a_pod("8Gi")
    pod["metadata"] |= {"namespace": "team", "uid": "a-uid-of-36-characters"}
    pod["metadata"]["managedFields"] = [{"fieldsV1": {"f:spec": {}}}]
    fields = pod["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]
    while len(json.dumps(pod)) < POD_BYTES:
        fields[f"f:field-{len(fields)}"] = {".": {}, "f:name": {}}
    items = [json.dumps(pod).replace('"name": "train', f'"name": "train-{n}') for n in range(PODS)]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            query = parse_qs(urlsplit(self.path).query)
            begin = int(query.get("continue", ["0"])[0])
            end = begin + int(query["limit"][0])
            metadata = {"resourceVersion": "9"} | ({"continue": str(end)} if end < PODS else {})
            listed = ",".join(items[begin:end])
            data = f'{{"metadata":{json.dumps(metadata)},"items":[{listed}]}}'.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        pipe.send(f"http://127.0.0.1:{server.server_port}")
        server.serve_forever()


if __name__ == "__main__":
    bench_lists()
