"""What a review costs, from one run on one machine.

Figures of different runs cannot be compared on a busy machine; ratios within one run can, so each
of ours stands beside that of an empty handler on the same server.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from tests.bench.load import load
from tests.support.control_planes import MISSING, ControlPlane, available
from tests.support.paths import REVIEWS
from tests.support.servers import free_port
from tests.support.webhook_configurations import installed, webhook_configurations
from webhook.adapters.policy.files import load_policy, shipped_policy_path
from webhook.adapters.review_json import read_review, write_review
from webhook.core.admission.decide import Phase, decide

RECORDED = {
    "annotated, 11 operations": ("mutate-pod-annotated.json", Phase.MUTATE),
    "two containers, two init containers": (
        "mutate-pod-from-replicaset-two-containers-init-native-sidecar.json",
        Phase.MUTATE,
    ),
    "plain": ("mutate-pod-plain.json", Phase.MUTATE),
    "denied": ("mutate-pod-whole-gpu-half.json", Phase.MUTATE),
}
ROUNDS = 5
SECONDS = float(os.environ.get("BENCH_SECONDS", "4"))
PODS = 400


def recorded(name):
    return (REVIEWS / name).read_bytes()


def microseconds(call, rounds=ROUNDS, times=400):
    """Return the median over rounds of the mean time of a call."""
    means = []
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(times):
            call()
        means.append((time.perf_counter() - started) / times * 1e6)
    return statistics.median(means)


def bench_decide():
    policy = load_policy(shipped_policy_path(), enforcer_image="bench")
    print("one review, in process, µs (decide: patch derived, applied and compared)")
    for title, (name, phase) in RECORDED.items():
        body = recorded(name)
        request = read_review(body)
        decision = decide(request, policy, phase)
        parts = {
            "read": partial(read_review, body),
            "decide": partial(decide, request, policy, phase),
            "write": partial(write_review, request.uid, decision),
        }
        shown = "".join(f"  {part} {microseconds(call):6.1f}" for part, call in parts.items())
        print(f"  {title:<38}{shown}")


@contextmanager
def server(kind, folder):
    """Run the webhook, or the empty handler on the same server, on the first core."""
    port, operations_port = free_port(), free_port()
    if kind == "ours":
        command = ["-m", "webhook.cli", "serve", f"--cert-dir={folder}"]
        command += [f"--port={port}", f"--operations-port={operations_port}"]
    else:
        command = [
            str(Path(__file__).with_name("empty.py")),
            str(folder),
            str(port),
            str(operations_port),
        ]
    with (
        (folder.parent / f"{kind}.log").open("wb") as log,
        subprocess.Popen([sys.executable, *command], stderr=log) as process,
    ):
        try:
            wait_until_ready(process, operations_port)
            if len(CORES) > 1:
                pin_children(process.pid, {CORES[0]})
            yield port
        finally:
            process.terminate()


CORES = sorted(os.sched_getaffinity(0))


def pin_children(pid, cores):
    """Pin a process, its children and all their threads to some cores."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), cores)
        for child in (task / "children").read_text().split():
            pin_children(int(child), cores)


def wait_until_ready(process, port):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        connection = HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        except (OSError, HTTPException):
            time.sleep(0.05)
        finally:
            connection.close()
    sys.exit("the server did not start")


def bench_http(folder):
    print()
    print(f"POST /mutate over TLS, kept alive, server on one core, {SECONDS:g} s each")
    print(f"  {'':<10}{'connections':>12}{'p50 µs':>10}{'p99 µs':>10}{'requests/s':>12}")
    body = recorded("mutate-pod-annotated.json")
    rates = {}
    for kind in ("empty", "ours"):
        with server(kind, folder / "certs") as port:
            if len(CORES) > 1:
                os.sched_setaffinity(0, {CORES[1]})
            for connections in (1, 8):
                figures = load(port, folder / "certs" / "ca.crt", body, connections, SECONDS)
                rates[kind, connections] = figures.rate
                p50, p99 = figures.percentile_us(0.5), figures.percentile_us(0.99)
                row = f"{p50:10.0f}{p99:10.0f}{figures.rate:12.0f}"
                print(f"  {kind:<10}{connections:>12}{row}")
            os.sched_setaffinity(0, set(CORES))
    for connections in (1, 8):
        ratio = rates["empty", connections] / rates["ours", connections]
        print(f"  an empty handler is {ratio:.2f} times as fast at {connections} connection(s)")


def a_pod(name, memory):
    annotations = {"vramwarden.io/gpu-memory": memory} if memory else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "bench", "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "example"}]},
    }


def create_pods(plane, prefix, memory, clients):
    """Create pods from some clients at once; return latencies in ms and pods per second."""

    def create(number):
        started = time.perf_counter()
        plane.api.create(a_pod(f"{prefix}-{number}", memory))
        return (time.perf_counter() - started) * 1e3

    for number in range(20):
        plane.api.create(a_pod(f"{prefix}-warm-{number}", memory))
    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        latencies_ms = sorted(pool.map(create, range(PODS)))
    rate = PODS / (time.perf_counter() - started)
    return latencies_ms, rate


def bench_api_server(folder):
    print()
    if not available():
        print(f"through an API server: skipped: {MISSING}")
        return
    print(f"creating {PODS} annotated pods through a real API server (mutate and validate)")
    print(f"  {'':<12}{'clients':>8}{'p50 ms':>9}{'p99 ms':>9}{'pods/s':>9}")
    with ControlPlane() as plane, ExitStack() as stack:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bench"}}
        plane.api.create(namespace)
        plane.ensure_service_account("bench")
        for kind in ("no webhook", "empty", "ours"):
            stack.close()
            if kind != "no webhook":
                port = stack.enter_context(server(kind, folder / "certs"))
                ca = (folder / "certs" / "ca.crt").read_bytes()
                configurations = webhook_configurations(f"https://127.0.0.1:{port}", ca)
                stack.enter_context(installed(plane.api, *configurations))
            for clients in (1, 8):
                prefix = f"{kind.replace(' ', '-')}-{clients}"
                latencies_ms, rate = create_pods(plane, prefix, "8Gi", clients)
                p50 = latencies_ms[len(latencies_ms) // 2]
                p99 = latencies_ms[int(len(latencies_ms) * 0.99)]
                print(f"  {kind:<12}{clients:>8}{p50:9.2f}{p99:9.2f}{rate:9.0f}")


def bench_reviews():
    with tempfile.TemporaryDirectory(prefix="vramwarden-bench-") as name:
        folder = Path(name)
        bench_decide()
        bench_http(folder)
        bench_api_server(folder)
