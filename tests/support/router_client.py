"""Requests to a router over an in-memory connection."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.pods import a_policy
from webhook.server.connections import Connections, Slot
from webhook.server.handler import Handler
from webhook.server.http import Connection
from webhook.server.log import JsonLog
from webhook.server.metrics import Metrics
from webhook.server.placement.reviews import BindingReviews
from webhook.server.reviews import PodReviews
from webhook.server.router import Router

HEAD = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%b\r\n"


def a_router(log: JsonLog, metrics: Metrics, **more: Any) -> Router:
    """Return a router that answers reviews of pods, and bindings at `/secret/bind`."""
    pods = PodReviews(a_policy, metrics, log)
    bindings = BindingReviews(None, metrics, log)
    return Router(pods, bindings, metrics, log, is_bind_path="/secret/bind".__eq__, **more)


class Line:
    """Transport that records what is written to it."""

    def __init__(self):
        self.written = b""
        self.is_closed = False
        self.is_paused = False
        self.has_written = asyncio.Event()

    def set_write_buffer_limits(self, high):
        self.limit = high

    def write(self, data):
        self.written += data
        self.has_written.set()

    def close(self):
        self.is_closed = True

    abort = close

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False


class Clock:
    """Event loop with a clock that the test sets; it never runs delayed calls."""

    now_s = 0.0

    def time(self):
        return self.now_s

    def call_later(self, *_):
        pass


def no_connections(loop: object = None, **more: Any) -> Connections:
    """Return connection limits without sockets; `closed` has the reason for each close."""
    closed = []
    connections = Connections(loop, None, None, None, closed.append, **more)
    connections.closed = closed
    return connections


def connected(
    router: Handler, connections: Connections | None = None, address: str = "192.0.2.1"
) -> tuple[Connection, Line, Slot]:
    """Return a new connection, its transport and its slot."""
    line = Line()
    line.connections = connections or no_connections()
    line.connections.loop = line.connections.loop or asyncio.get_running_loop()
    line.counted = line.connections.closed
    slot = line.connections.allocate(address)
    connection = Connection(router, line.connections, slot)
    connection.connection_made(line)
    return connection, line, slot


async def turns(count: int = 10) -> None:
    """Run the event loop until all ready callbacks have run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def post(
    router: Router,
    path: str,
    *parts: bytes,
    announced: int | None = None,
    connections: Connections | None = None,
    address: str = "192.0.2.1",
) -> tuple[int, dict[bytes, bytes], bytes, list[bytes]]:
    """Post a body in separately arriving parts until there is a response.

    `announced` is the Content-Length; 0 means a chunked body. Return status, headers, body and the
    unread parts.
    """
    connection, line, _ = connected(router, connections, address)
    length = sum(map(len, parts)) if announced is None else announced
    left = list(parts)
    if parts and not length:
        connection.data_received(HEAD % (path.encode(), b"Transfer-Encoding: chunked\r\n"))
        left = [b"%x\r\n%b\r\n" % (len(part), part) for part in parts]
        left[-1] += b"0\r\n\r\n"
    else:
        connection.data_received(HEAD % (path.encode(), b"Content-Length: %d\r\n" % length))
    while left and not line.written:
        connection.data_received(left.pop(0))
        await asyncio.sleep(0)
    await line.has_written.wait()
    head, _, body = line.written.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    headers = dict(line.split(b": ", 1) for line in lines)
    return int(status.split()[1]), headers, body, left
