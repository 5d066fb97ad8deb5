"""The port for probes and metrics, which every pod of a cluster may reach: WSGI on few threads."""

from __future__ import annotations

import contextlib
import io
import socket
import time
from collections import Counter
from socketserver import TCPServer, ThreadingMixIn
from threading import Condition, Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import WSGIApplication

from webhook.adapters.bounds import MAX_PROBE_BYTES, MOST_CONNECTIONS

REQUEST_S: Final = 10.0
"""From the connection to the end of its answer, however it comes: Prometheus waits no longer."""


class PlainHttpServer(ThreadingMixIn, WSGIServer):
    """Answers one request on each connection; the standard library's server knows no bound."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int) -> None:
        """Take the port, so that a start fails early; raises OSError where it is taken."""
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._open: dict[Any, tuple[str, float]] = {}
        """From which address each is, and when it ends; in the order in which they came."""
        self._changed = Condition()
        super().__init__((host, port), _BoundedHandler)

    def start(self, app: WSGIApplication) -> int:
        """Serve the application on a daemon thread, and return the port."""
        self.set_app(app)
        Thread(target=self.serve_forever, name="server", daemon=True).start()
        return self.server_port

    def server_bind(self) -> None:
        """Take the port without asking a name server what we are called, as the parent does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread, once there is one: whoever has to go for it leaves theirs."""
        with self._changed:
            self._open[request] = client_address[0], time.monotonic() + REQUEST_S
            if len(self._open) > MOST_CONNECTIONS:
                counted = Counter(source for source, _ in self._open.values())
                _end(min(self._open, key=lambda one: -counted[self._open[one][0]]))
                self._changed.wait_for(lambda: len(self._open) <= MOST_CONNECTIONS, REQUEST_S)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, as its thread ends."""
        with self._changed:
            self._open.pop(request, None)
            self._changed.notify()
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End what is overdue; it is called after each request, and twice a second."""
        now_s = time.monotonic()
        with self._changed:
            for request, (_, due_s) in self._open.items():
                if due_s > now_s:
                    return
                _end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: whoever went away, or was closed, knows."""


def _end(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)  # its thread finds the end, and closes it


class _Head(io.BufferedReader):
    """What a caller sends, up to a bound; the parent of the handler takes 6 MB of headers."""

    _left = MAX_PROBE_BYTES

    def readline(self, size: int | None = -1, /) -> bytes:
        """Read a line, or what the bound leaves of it."""
        line = super().readline(self._left if size is None or size < 0 else min(size, self._left))
        self._left -= len(line)
        return line


class _BoundedHandler(WSGIRequestHandler):
    def setup(self) -> None:
        """Bound what is read."""
        super().setup()
        self.rfile = _Head(self.rfile.detach())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
        """Log nothing: probes come every few seconds."""
