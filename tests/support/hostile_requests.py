"""Requests that try to slow down the server, and their effect on other clients."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

from tests.server.placement.binding_reviews import review as binding_review
from tests.support.pods import a_container, a_pod, a_review, as_the_api_server_writes_it
from tests.support.random_reviews import NAMES_OF_OTHERS, UNEQUAL_AMOUNTS
from tests.support.random_reviews import review as drawn_review
from tests.support.server_process import Server

JSON = {"Content-Type": "application/json"}


def many_pairs() -> bytes:
    """Return a pod with 15,000 containers and 60,000 entries in its annotation."""
    pod = a_pod("x=," * 60_000, containers=[a_container(f"c{i}") for i in range(15_000)])
    return as_the_api_server_writes_it(a_review(pod))


def many_containers() -> bytes:
    """Return as many minimal containers as fit into 8 MiB."""
    containers = [{"name": "c"}] * 600_000
    return as_the_api_server_writes_it(a_review(a_pod("8Gi", containers=containers)))


def many_values() -> bytes:
    """Return the maximum number of decoded values, of the most expensive kind."""
    pod = a_pod("8Gi", affinity=[{"a": {}}] * 85_000)
    return as_the_api_server_writes_it(a_review(pod))


def too_large() -> bytes:
    """Return a body that exceeds the limit by one byte."""
    pod = a_pod("8Gi", annotations={"note": "x" * 8 * 2**20})
    return as_the_api_server_writes_it(a_review(pod))


def long_names() -> bytes:
    """Return a pod with a name and an owner of 2 MB each."""
    pod = a_pod("8Gi")
    owner = {"kind": "k" * 1_000_000, "name": "n" * 1_000_000}
    pod["metadata"] |= {"name": "x" * 2_000_000, "ownerReferences": [owner]}
    return as_the_api_server_writes_it(a_review(pod, name=""))


BODIES: dict[str, Callable[[], bytes]] = {
    "many pairs": many_pairs,
    "many containers": many_containers,
    "many values": many_values,
    "too large": too_large,
    "long names": long_names,
    "unequal amounts": lambda: drawn_review("update", UNEQUAL_AMOUNTS),
    "names of others": lambda: drawn_review("create", NAMES_OF_OTHERS),
}


def slow(seconds: float, **annotations: str) -> bytes:
    """Return a review that takes this long, with `tests.server.slow_judge`."""
    pod = a_pod("8Gi", annotations={"seconds": str(seconds), **annotations})
    return as_the_api_server_writes_it(a_review(pod))


@dataclass
class Damage:
    """Waiting times of another client, keyed by request, and responses to the attacker."""

    waits_s: dict[str, list[float]] = field(default_factory=dict)
    told: Counter[int] = field(default_factory=Counter)

    def rounds(self) -> int:
        """Number of times that all requests of the other client were answered."""
        return min(map(len, self.waits_s.values()), default=0)


@contextlib.contextmanager
def posting(
    server: Server,
    body: bytes,
    clients: int,
    told: Counter[int],
    sources: Sequence[str] = ("127.0.0.1",),
) -> Iterator[None]:
    """Post a body continuously from the addresses `sources` until the block ends."""
    stop = threading.Event()

    def post(source: str) -> None:
        client = server.client(timeout=60, source=source)
        while not stop.is_set():
            try:
                client.request("POST", "/mutate", body, JSON)
                answer = client.getresponse()
                answer.read()
                told[answer.status] += 1
            except (OSError, HTTPException):
                told[0] += 1
            client.close()
        client.close()

    addresses = itertools.islice(itertools.cycle(sources), clients)
    threads = [threading.Thread(target=post, args=(address,), daemon=True) for address in addresses]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


@contextlib.contextmanager
def crowding(server: Server, addresses: int) -> Iterator[None]:
    """Hold 512 used connections and open 1,000 a second until the block ends."""
    stop, ours = threading.Event(), [f"127.0.1.{1 + number}" for number in range(addresses)]

    def crowd() -> None:
        began_s, held = time.monotonic(), deque[socket.socket](maxlen=1000)
        for number, address in enumerate(itertools.cycle(ours)):
            with contextlib.suppress(OSError):
                held.append(socket.create_connection(("127.0.0.1", server.port), 1, (address, 0)))
            if stop.wait(max(0.0, began_s + number / 1000 - time.monotonic())):
                return

    with contextlib.ExitStack() as stack:
        for address, _ in zip(itertools.cycle(ours), range(512), strict=False):
            idle = stack.enter_context(server.raw(source=address))
            idle.sendall(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert idle.recv(9)
        thread = threading.Thread(target=crowd, daemon=True)
        thread.start()
        stack.callback(thread.join, 60)
        stack.callback(stop.set)
        yield


def watched(
    server: Server,
    damage: Damage,
    is_over: Callable[[], bool],
    *,
    on_new_connections: bool = False,
) -> Damage:
    """Send reviews, bindings and probes at a normal rate until `over`, and time them."""
    pod = json.dumps(a_review(a_pod("8Gi"))).encode()
    binding = json.dumps(binding_review()).encode()
    with contextlib.closing(server.client(timeout=60)) as client:
        client.connect()

        def post(body: bytes, path: str) -> None:
            client.request("POST", path, body, JSON)
            answer = client.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
            if on_new_connections:
                client.close()

        def probe() -> None:
            assert server.get("/livez") == (200, "ok\n")

        asked: dict[str, Callable[[], None]] = {
            "review": lambda: post(pod, "/mutate"),
            "binding": lambda: post(binding, server.bind_path),
            "/livez": probe,
        }
        while not is_over():
            for name, ask in asked.items():
                began_s = time.monotonic()
                ask()
                damage.waits_s.setdefault(name, []).append(time.monotonic() - began_s)
    return damage


def after(seconds: float) -> Callable[[], bool]:
    """Return a function that returns True after this time."""
    end_s = time.monotonic() + seconds
    return lambda: time.monotonic() >= end_s


def worker_of(server: Server) -> int:
    parent = server.process.pid
    (worker,) = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return int(worker)


def peak_bytes(server: Server) -> int:
    """Return the peak memory of the worker process so far."""
    (line,) = [
        line
        for line in Path(f"/proc/{worker_of(server)}/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    ]
    return int(line.split()[1]) * 2**10
