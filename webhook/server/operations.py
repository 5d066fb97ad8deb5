"""The plain port: a Flask application with probes and metrics, on threads of its own.

Apart from the TLS port, so that neither a flood of reviews delays a probe nor a probe a review.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flask import Flask, Response, request
from prometheus_client import CONTENT_TYPE_LATEST
from werkzeug.exceptions import HTTPException

from webhook.adapters.plain_port import PlainPort

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


def take_port(host: str, port: int | None) -> PlainPort:
    """Take the port; raises OSError where it is taken.

    Without a port, take the usual one or, where that is taken, any: a second server on a laptop
    should start.
    """
    try:
        return PlainPort(host, OPERATIONS_PORT if port is None else port)
    except OSError:
        if port is not None:
            raise
        return PlainPort(host, 0)
