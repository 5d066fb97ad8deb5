"""The largest pods that an API server stores: replicas stay within their memory limit."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from tests.server.placement.binding_reviews import review
from tests.support.control_planes import ControlPlane
from tests.support.memory_cgroup import memory_limit
from tests.support.schedulers import GIB, add_node
from tests.support.server_process import running

LIMIT_BYTES = 256 * 2**20  # webhook.resources in the chart's values
GIANTS = int(os.environ.get("VRAMWARDEN_GIANTS", "24"))
"""Number of pods with the label, and of pods without; 300 of each take minutes to store."""

STORED_BYTES = 1_400_000
SYSTEM = "vramwarden-system"
CLIENTS = 32
AGAIN = "placement watches again"


@pytest.fixture(scope="module")
def control_plane(can_start_control_planes):
    """Return a separate control plane, so that other tests need not read its pods."""
    with ControlPlane() as started:
        yield started


class Wire:
    """Forwards connections to the API server; `cut` closes them and thereby ends all watches."""

    def __init__(self, control_plane, folder):
        self._far = urlsplit(control_plane.url)
        self._ends = []
        config = json.loads(control_plane.kubeconfig.read_text())
        self._listener = socket.create_server(("127.0.0.1", 0))
        address = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        config["clusters"][0]["cluster"]["server"] = address
        self.kubeconfig = folder / "through-the-wire"
        self.kubeconfig.write_text(json.dumps(config))

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()

    def cut(self):
        while self._ends:
            with contextlib.suppress(OSError):
                self._ends.pop().shutdown(socket.SHUT_RDWR)

    def _accept(self):
        with self._listener, contextlib.suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                far = socket.create_connection((self._far.hostname, self._far.port))
                self._ends += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source, sink):
        with source, contextlib.suppress(OSError):
            while data := source.recv(2**16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)


def letters():
    return {"args": ["x" * 100_000] * (STORED_BYTES // 100_000)}


def escaped():
    """Return arguments whose characters take six bytes each in the API server's JSON."""
    return {"args": ["<" * 100_000] * (STORED_BYTES // 100_000)}


def variables():
    """Return many variables, which are slow for the API server and dicts in Python."""
    return {"env": [{"name": "a"}] * 200_000}


def giant(number):
    return variables() if number % 12 == 0 else (letters, escaped)[number % 2]()


def store(api, number, labels):
    metadata = {"name": f"giant-{number:03}-{len(labels)}", "namespace": "default"}
    container = {"name": "main", "image": "example", **giant(number)}
    api.request(
        "POST",
        "/api/v1/namespaces/default/pods",
        {"metadata": metadata | {"labels": labels}, "spec": {"containers": [container]}},
    )


@pytest.fixture(scope="module")
def giants(control_plane):
    """Store the pods as if before the registration of the webhooks."""
    api = control_plane.api
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    add_node(api, "gpu-1", [80 * GIB])
    labels = {"vramwarden.io/managed": "true"}
    with ThreadPoolExecutor(4) as pool:
        wanted = [(number, some) for number in range(GIANTS) for some in (labels, {})]
        list(pool.map(lambda item: store(api, *item), wanted))


class Peak:
    """Peak memory of a cgroup's processes, sampled twenty times per second."""

    def __init__(self, limit):
        self.resident_bytes = 0
        self._limit, self._over = limit, threading.Event()

    def __enter__(self):
        threading.Thread(target=self._look, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._over.set()

    def _look(self):
        while not self._over.wait(0.05):
            self.resident_bytes = max(self.resident_bytes, self._limit.resident_bytes())


@contextlib.contextmanager
def limited_replica(kubeconfig, folder):
    env = {
        "KUBECONFIG": str(kubeconfig),
        "VRAMWARDEN_PLACEMENT_NAMESPACE": SYSTEM,
    }
    with (
        memory_limit(LIMIT_BYTES) as limit,
        Peak(limit) as peak,
        running(folder, ready=False, **env) as server,
    ):
        limit.add(server.process.pid)
        yield server, limit, peak


def bind_at_once(server):
    """Make the scheduler bind pods whose demand is unknown, so that each is read."""
    node = {"kind": "Node", "name": "gpu-1"}

    def bind(number):
        name = f"giant-{number:03}-0"
        metadata = {"name": name, "namespace": "default", "uid": f"uid-{number}"}
        binding = {"kind": "Binding", "apiVersion": "v1", "metadata": metadata, "target": node}
        return server.review(
            review(name=name, namespace="default", object=binding), server.bind_path
        )

    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(bind, range(min(GIANTS, 4 * CLIENTS))))


@pytest.mark.usefixtures("giants")
def test_a_replica_starts_binds_and_lists_again_within_its_memory(control_plane, tmp_path):
    with (
        Wire(control_plane, tmp_path) as wire,
        limited_replica(wire.kubeconfig, tmp_path) as (server, limit, peak),
    ):
        started_s, seen = time.monotonic(), []

        def saw(what):
            took_s = time.monotonic() - started_s
            seen.append(f"{what} after {took_s:.0f} s: {peak.resident_bytes // 2**20} MiB")

        def alive():
            assert limit.kills() == 0, f"killed for memory; at most resident: {seen}"
            return True

        def lists_again():
            again = [line["what"] for line in server.log() if line["msg"] == AGAIN]
            return alive() and {"pods", "nodes"} <= set(again)

        server.wait_for("readiness", lambda: alive() and server.ready(), timeout_s=300)
        saw("ready")
        answers = bind_at_once(server)
        assert alive()
        assert {answer["uid"] for answer in answers} == {review()["request"]["uid"]}
        saw("bindings answered")
        wire.cut()
        server.wait_for("a new list", lists_again, timeout_s=300)
        saw("listed again")
        assert server.ready()
        print(f"{GIANTS} pods with the label and as many without; at most resident, {seen}")
