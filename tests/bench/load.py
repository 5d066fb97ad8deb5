"""A cheap client that keeps a server busy: raw bytes over keep-alive TLS connections."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPSConnection
from pathlib import Path

import uvloop

from tests.bench.figures import percentile

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
NUMBER = b"{number}"
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: chunked", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Target:
    """A request, and the server that receives it repeatedly."""

    port: int
    ca: Path
    path: str
    body: bytes
    client_certificate: tuple[Path, Path] | None = None
    headers: str = "User-Agent: kube-apiserver-admission\r\nAccept-Encoding: gzip\r\n"
    numbers: Iterator[int] | None = None
    """Numbers that replace NUMBER in successive requests; None to leave requests unchanged."""
    method: str = "POST"
    content_type: str = "application/json"

    def context(self) -> ssl.SSLContext:
        """TLS context that verifies the server and has the client's certificate, if any."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if self.client_certificate:
            context.load_cert_chain(*self.client_certificate)
        return context

    def numbered(self, data: bytes) -> bytes:
        """Return the next request or body; all have the same length."""
        if self.numbers is None:
            return data
        return data.replace(NUMBER, b"%0*d" % (len(NUMBER), next(self.numbers)))

    def head(self) -> bytes:
        return (
            f"{self.method} {self.path} HTTP/1.1\r\nHost: localhost:{self.port}\r\n{self.headers}"
            f"Content-Type: {self.content_type}\r\nContent-Length: {len(self.body)}\r\n\r\n"
        ).encode()


@dataclass(frozen=True, slots=True)
class Figures:
    """Latencies and duration of a run, and the number of all responses, including the warm-up."""

    latencies_s: list[float]
    duration_s: float
    answers: int

    @property
    def rate(self) -> float:
        """Requests per second."""
        return len(self.latencies_s) / self.duration_s

    def percentile_us(self, share: float) -> float:
        """Return a percentile of the latencies, in µs."""
        return percentile(self.latencies_s, share) * 1e6


def ask(target: Target) -> tuple[int, bytes]:
    """Post once on a new connection; return status and body."""
    connection = HTTPSConnection("localhost", target.port, timeout=20, context=target.context())
    try:
        connection.request(
            "POST", target.path, target.numbered(target.body), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


class _Caller(asyncio.Protocol):
    """Repeats a request after each response while `answered` returns True."""

    def __init__(
        self,
        request: Callable[[], bytes],
        answered: Callable[[float], bool],
        failed: Callable[[str], None],
    ) -> None:
        self._request = request
        self._answered = answered
        self._failed = failed
        self._received = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # uvloop's class

    def send(self) -> None:
        request = self._request()
        self._sent = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head = self._received.find(b"\r\n\r\n")
        if head < 0 or not self._is_whole(head):
            return
        latency_s = time.perf_counter() - self._sent
        if not self._received.startswith(b"HTTP/1.1 20"):
            self._failed(repr(self._received[:500]))
            return
        self._received = b""
        if self._answered(latency_s):
            self.send()

    def _is_whole(self, head: int) -> bool:
        length = _LENGTH.search(self._received, 0, head)
        if length:
            return len(self._received) >= head + 4 + int(length[1])
        assert _CHUNKED.search(self._received, 0, head), self._received[:head]
        return self._received.endswith(b"\r\n0\r\n\r\n")  # JSON contains no such bytes

    def connection_lost(self, error: Exception | None) -> None:
        self._failed(f"the connection was lost: {error}")


def load(
    target: Target, connections: int, *, duration_s: float = 0.0, requests: int = 0
) -> Figures:
    """Send requests continuously over some connections, for a time or a number of requests.

    A tenth of either is a warm-up, with at least 0.2 s or one request per connection.
    """
    return uvloop.run(_load(target, connections, duration_s, requests))


async def _load(target: Target, connections: int, duration_s: float, requests: int) -> Figures:
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    warm_up = max(connections, requests // 10) if requests else 0
    latencies_s: list[float] = []
    answers = sent = 0
    started = time.perf_counter()

    def may_send() -> bool:
        nonlocal sent
        sent += 1
        return not requests or sent <= warm_up + requests

    def answered(latency_s: float) -> bool:
        nonlocal answers, started
        answers += 1
        if answers == warm_up:
            started = time.perf_counter()
        elif answers > warm_up:
            latencies_s.append(latency_s)
        if answers == warm_up + requests and requests and not over.done():
            over.set_result(None)
        return not over.done() and may_send()

    def failed(reason: str) -> None:
        if not over.done():
            over.set_exception(RuntimeError(f"port {target.port}: {reason}"))

    context, request = target.context(), target.head() + target.body
    callers = []
    for _ in range(connections):
        _, caller = await loop.create_connection(
            lambda: _Caller(lambda: target.numbered(request), answered, failed),
            "localhost",
            target.port,
            ssl=context,
        )
        callers.append(caller)
    started = time.perf_counter()
    for caller in callers:
        if may_send():
            caller.send()
    if not requests:
        await asyncio.sleep(max(0.2, duration_s / 10))
        latencies_s.clear()
        started = time.perf_counter()
        loop.call_later(duration_s, lambda: over.done() or over.set_result(None))
    await over
    figures = Figures(list(latencies_s), time.perf_counter() - started, answers)
    for caller in callers:
        caller.transport.abort()
    await asyncio.sleep(0.02)
    return figures
