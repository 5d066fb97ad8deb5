"""A client light enough to keep a server busy: raw bytes over kept-alive TLS connections."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import uvloop

if TYPE_CHECKING:
    from pathlib import Path

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Figures:
    """Latencies of one run, and how many requests were answered per second."""

    latencies_s: list[float]
    duration_s: float

    @property
    def rate(self) -> float:
        """Return requests per second."""
        return len(self.latencies_s) / self.duration_s

    def percentile_us(self, share: float) -> float:
        """Return a percentile of the latencies in microseconds."""
        ordered = sorted(self.latencies_s)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1e6


class _Caller(asyncio.Protocol):
    """Sends the same request again as soon as the last one is answered."""

    def __init__(
        self, request: bytes, latencies_s: list[float], done: asyncio.Future[None]
    ) -> None:
        self._request = request
        self._latencies_s = latencies_s
        self._done = done
        self._received = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's own class
        self._send()

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head = self._received.find(b"\r\n\r\n")
        if head < 0:
            return
        length = _LENGTH.search(self._received, 0, head)
        assert length, self._received[:head]
        if len(self._received) < head + 4 + int(length[1]):
            return
        assert self._received.startswith(b"HTTP/1.1 200"), self._received[:200]
        self._latencies_s.append(time.perf_counter() - self._sent)
        self._received = b""
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done() and error is not None:
            self._done.set_exception(error)


def load(port: int, ca_file: Path, body: bytes, connections: int, duration_s: float) -> Figures:
    """Post a body without pause over some connections, after a short warm-up."""
    return uvloop.run(_load(port, ca_file, body, connections, duration_s))


async def _load(
    port: int, ca_file: Path, body: bytes, connections: int, duration_s: float
) -> Figures:
    context = ssl.create_default_context(cafile=str(ca_file))
    head = (
        f"POST /mutate?timeout=10s HTTP/1.1\r\nHost: localhost:{port}\r\n"
        "User-Agent: kube-apiserver-admission\r\nAccept-Encoding: gzip\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    latencies_s: list[float] = []
    done: asyncio.Future[None] = loop.create_future()
    callers = []
    for _ in range(connections):
        _, caller = await loop.create_connection(
            lambda: _Caller(head.encode() + body, latencies_s, done),
            "localhost",
            port,
            ssl=context,
        )
        callers.append(caller)
    await asyncio.sleep(0.5)
    latencies_s.clear()
    started = time.perf_counter()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(done), duration_s)
    figures = Figures(list(latencies_s), time.perf_counter() - started)
    for caller in callers:
        caller.transport.abort()
    await asyncio.sleep(0.05)
    return figures
