"""The port for probes and metrics, which every pod of a cluster may reach."""

from __future__ import annotations

import contextlib
import socket
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CONTENT_TYPE_LATEST

if TYPE_CHECKING:
    from webhook.sentry.health import Health
    from webhook.sentry.metrics import SentryMetrics

MOST_CONNECTIONS: Final = 32
"""The oldest is closed for one more: a probe sends its request at once, so it is never the oldest
for long, whatever others keep open."""

SILENT_S: Final = 5.0

_TEXT: Final = "text/plain; charset=utf-8"


class _Server(ThreadingMixIn, TCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, address: tuple[str, int], health: Health, metrics: SentryMetrics) -> None:
        self.health = health
        self.metrics = metrics
        self._open: dict[Any, None] = {}
        self._opening = Lock()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._opening:
            self._open[request] = None
            if len(self._open) > MOST_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread finds the end, and closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._opening:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: whoever went away, or was closed, knows."""


class _ServerOverIPv6(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    timeout = SILENT_S
    server: _Server

    def do_GET(self) -> None:
        """Answer one of three paths."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(200, CONTENT_TYPE_LATEST, self.server.metrics.exposition())
        elif path == "/livez":
            self._verdict(self.server.health.dead())
        elif path == "/readyz":
            self._verdict(self.server.health.unready())
        else:
            self._answer(404, _TEXT, b"this port has /livez, /readyz and /metrics\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
        """Log nothing: probes come every few seconds."""

    def _verdict(self, why_not: str) -> None:
        self._answer(503 if why_not else 200, _TEXT, f"{why_not or 'ok'}\n".encode())

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve(host: str, port: int, health: Health, metrics: SentryMetrics) -> int:
    """Serve on a daemon thread, and return the port; raises OSError where it is taken."""
    made = _ServerOverIPv6 if ":" in host else _Server
    server = made((host, port), health, metrics)
    Thread(target=server.serve_forever, name="server", daemon=True).start()
    return int(server.server_address[1])
