"""WSGI server for probes and metrics, which every pod can reach, with few threads."""

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
"""Maximum duration of a connection, in seconds; equal to Prometheus' default scrape timeout."""


class PlainHttpServer(ThreadingMixIn, WSGIServer):
    """WSGI server with one request per connection, and a maximum number of connections."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int) -> None:
        """Bind the port, so that startup fails if it is in use; raises OSError."""
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._open: dict[Any, tuple[str, float]] = {}
        """Client address and deadline of each connection, oldest first."""
        self._changed = Condition()
        super().__init__((host, port), _BoundedHandler)

    def start(self, app: WSGIApplication) -> int:
        """Serve the application on a daemon thread, and return the port."""
        self.set_app(app)
        Thread(target=self.serve_forever, name="server", daemon=True).start()
        return self.server_port

    def server_bind(self) -> None:
        """Bind the port without looking up the host name, as the parent class would."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a request on a thread; at the maximum, close a connection first and wait."""
        with self._changed:
            self._open[request] = client_address[0], time.monotonic() + REQUEST_S
            if len(self._open) > MOST_CONNECTIONS:
                counted = Counter(source for source, _ in self._open.values())
                _close(min(self._open, key=lambda found: -counted[self._open[found][0]]))
                self._changed.wait_for(lambda: len(self._open) <= MOST_CONNECTIONS, REQUEST_S)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection whose thread has finished."""
        with self._changed:
            self._open.pop(request, None)
            self._changed.notify()
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close overdue connections; called after each request, and twice a second."""
        now_s = time.monotonic()
        with self._changed:
            for request, (_, due_s) in self._open.items():
                if due_s > now_s:
                    return
                _close(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: either the client or this server closed the connection."""


def _close(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)  # its thread then reads the end and closes it


class _BoundedReader(io.BufferedReader):
    """Reader that limits a request's size; the parent handler would read up to 6 MB of headers."""

    _left = MAX_PROBE_BYTES

    def readline(self, size: int | None = -1, /) -> bytes:
        """Read a line, truncated at the limit."""
        line = super().readline(self._left if size is None or size < 0 else min(size, self._left))
        self._left -= len(line)
        return line


class _BoundedHandler(WSGIRequestHandler):
    def setup(self) -> None:
        """Replace the reader by a bounded one."""
        super().setup()
        self.rfile = _BoundedReader(self.rfile.detach())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
        """Log nothing: probes are sent every few seconds."""
