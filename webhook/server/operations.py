"""The plain port: a Flask application on threads of its own, and what its probes say.

Apart from the TLS port, so that neither a flood of reviews delays a probe nor a probe a review.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Thread
from typing import Final, Protocol

from flask import Flask, Response, request
from prometheus_client import CONTENT_TYPE_LATEST
from werkzeug.exceptions import HTTPException

from webhook.adapters.plain_http import PlainHttpServer
from webhook.server.log import JsonLog
from webhook.server.metrics import Metrics

OPERATIONS_PORT: Final = 8080
"""Where probes and metrics are served by default."""

STALL_S: Final = 10.0
"""An event loop that has not turned for this long answers no reviews either."""


class ServerPart(Protocol):
    """What runs beside the reviews."""

    def start(self) -> None:
        """Begin on daemon threads; called once, after the fork."""

    def obstacle(self) -> str:
        """Return why no traffic should come yet; empty for no reason."""
        return ""


def repeat(
    work: Callable[[], object], pause_s: float, log: JsonLog, name: str, failed: str
) -> None:
    """Work again and again, with a pause, on a daemon thread of this name; returns at once."""

    def run() -> None:
        while True:
            try:
                work()
            except Exception:
                log.exception(failed)
            time.sleep(pause_s)

    Thread(target=run, name=name, daemon=True).start()


class Health:
    """The state behind /livez and /readyz.

    Liveness depends on the event loop alone: a restart helps against neither an invalid policy nor
    an unreachable API server. Readiness ends when draining begins, so that traffic goes elsewhere
    while connections that are kept alive are still answered.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_turn: float | None = None
        self._serving: Callable[[], bool] = lambda: False
        self._obstacles: list[Callable[[], str]] = []

    def serve_while(self, serving: Callable[[], bool]) -> None:
        """Be ready from now on, as long as `serving` holds."""
        self._serving = serving

    def wait_for(self, obstacle: Callable[[], str]) -> None:
        """Stay unready while `obstacle` returns a reason."""
        self._obstacles.append(obstacle)

    def beat(self) -> None:
        """Record that the event loop turned."""
        self._last_turn = self._clock()

    def dead(self) -> str:
        """Return why the process should be restarted; empty while it is alive."""
        if self._last_turn is None:
            return ""
        stalled_s = self._clock() - self._last_turn
        return f"the event loop has stood still for {stalled_s:.0f} s" * (stalled_s > STALL_S)

    def unready(self) -> str:
        """Return why no traffic should come; empty while it may."""
        if self._last_turn is None:
            return "starting"
        obstacles = "; ".join(filter(None, (obstacle() for obstacle in self._obstacles)))
        return self.dead() or ("" if self._serving() else "draining") or obstacles


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


def bind_port(host: str, port: int | None) -> PlainHttpServer:
    """Take the port; raises OSError where it is taken.

    Without a port, take the usual one or, where that is taken, any: a second server on a laptop
    should start.
    """
    try:
        return PlainHttpServer(host, OPERATIONS_PORT if port is None else port)
    except OSError:
        if port is not None:
            raise
        return PlainHttpServer(host, 0)
