"""The plain port: a Flask application with probes and metrics, on a thread of its own.

Apart from the TLS port, so that neither a flood of reviews delays a probe nor a probe a review.
"""

from __future__ import annotations

import socket
from socketserver import ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from flask import Flask, Response, request
from prometheus_client import CONTENT_TYPE_LATEST
from werkzeug.exceptions import HTTPException

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.server.health import Health
    from webhook.server.metrics import Metrics


OPERATIONS_PORT: Final = 8080
"""Where probes and metrics are served by default."""


def create_app(health: Health, metrics: Metrics, details: Callable[[], dict[str, str]]) -> Flask:
    """Return the application; `details` is what `/readyz?verbose` shows."""
    app = Flask("vramwarden")

    @app.get("/livez")
    def livez() -> Response:
        return _verdict(health.dead())

    @app.get("/readyz")
    def readyz() -> Response:
        unready = health.unready()
        if "verbose" not in request.args:
            return _verdict(unready)
        lines = {"status": unready or "ok", **details()}
        text = "".join(f"{name}: {value}\n" for name, value in lines.items())
        return Response(text, 503 if unready else 200, mimetype="text/plain")

    @app.get("/metrics")
    def exposition() -> Response:
        return Response(metrics.exposition(), content_type=CONTENT_TYPE_LATEST)

    @app.errorhandler(HTTPException)
    def sentence(error: HTTPException) -> Response:
        text = f"{error.name}: this port has /livez, /readyz and /metrics\n"
        return Response(text, error.code or 500, mimetype="text/plain")

    return app


def _verdict(why_not: str) -> Response:
    return Response(f"{why_not or 'ok'}\n", 503 if why_not else 200, mimetype="text/plain")


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _ServerOverIPv6(_Server):
    address_family = socket.AF_INET6


class _SilentHandler(WSGIRequestHandler):
    timeout = 5.0  # frees the thread of a connection that sends nothing

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
        """Log nothing: probes come every few seconds."""


class OperationsServer:
    """The standard library's server: enough for probes, and what prometheus-client serves with."""

    def __init__(self, host: str, port: int | None) -> None:
        """Take the port, so that a start fails early; raises OSError where it is taken.

        Without a port, take the usual one or, where that is taken, any: a second server on a
        laptop should start.
        """
        serve = _server_class(host)
        try:
            self._server = serve((host, OPERATIONS_PORT if port is None else port), _SilentHandler)
        except OSError:
            if port is not None:
                raise
            self._server = serve((host, 0), _SilentHandler)
        self.port: int = self._server.server_address[1]

    def start(self, app: Flask) -> None:
        """Serve the application on a daemon thread."""
        self._server.set_app(app)
        Thread(target=self._server.serve_forever, name="operations", daemon=True).start()


def _server_class(host: str) -> type[_Server]:
    return _ServerOverIPv6 if ":" in host else _Server
