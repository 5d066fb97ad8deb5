"""The plain HTTP port: a Flask application with probes and metrics, on separate threads.

This port is separate from the TLS port, so that neither probes nor reviews delay each other.
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
"""Default port for probes and metrics."""

STALL_S: Final = 10.0
"""Time without an event-loop turn after which the process counts as dead, in seconds."""


class ServerPart(Protocol):
    """A part of the server that runs in the background."""

    def start(self) -> None:
        """Start the daemon threads; called once, after the fork."""

    def obstacle(self) -> str:
        """Return why the replica is not ready yet; empty if this part is ready."""
        return ""


def run_periodically(
    work: Callable[[], object], pause_s: float, log: JsonLog, name: str, failure_message: str
) -> None:
    """Call `work` repeatedly on a daemon thread, with a pause after each call; returns at once."""

    def run() -> None:
        while True:
            try:
                work()
            except Exception:
                log.exception(failure_message)
            time.sleep(pause_s)

    Thread(target=run, name=name, daemon=True).start()


class Health:
    """The state that /livez and /readyz report.

    Liveness depends only on the event loop: a restart repairs neither an invalid policy nor an
    unreachable API server. Readiness ends when draining begins. New traffic then goes to other
    replicas, and requests on open connections are still answered.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_turn_s: float | None = None
        self._is_serving: Callable[[], bool] = lambda: False
        self._obstacles: list[Callable[[], str]] = []

    def serve_while(self, is_serving: Callable[[], bool]) -> None:
        """Become ready, and stay ready while `is_serving` returns True."""
        self._is_serving = is_serving

    def add_obstacle(self, obstacle: Callable[[], str]) -> None:
        """Stay unready while `obstacle` returns a reason."""
        self._obstacles.append(obstacle)

    def beat(self) -> None:
        """Record a turn of the event loop."""
        self._last_turn_s = self._clock()

    def dead(self) -> str:
        """Return why the process should be restarted; empty while it is alive."""
        if self._last_turn_s is None:
            return ""
        stalled_s = self._clock() - self._last_turn_s
        return f"the event loop has stood still for {stalled_s:.0f} s" * (stalled_s > STALL_S)

    def unready(self) -> str:
        """Return why the replica is not ready; empty while it is ready."""
        if self._last_turn_s is None:
            return "starting"
        obstacles = "; ".join(filter(None, (obstacle() for obstacle in self._obstacles)))
        return self.dead() or ("" if self._is_serving() else "draining") or obstacles


def create_app(health: Health, metrics: Metrics, details: Callable[[], dict[str, str]]) -> Flask:
    """Return the Flask application; `details` returns additional lines for `/readyz?verbose`."""
    app = Flask("vramwarden")

    @app.get("/livez")
    def livez() -> Response:
        return _probe_response(health.dead())

    @app.get("/readyz")
    def readyz() -> Response:
        unready = health.unready()
        if "verbose" not in request.args:
            return _probe_response(unready)
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


def _probe_response(failure: str) -> Response:
    return Response(f"{failure or 'ok'}\n", 503 if failure else 200, mimetype="text/plain")


def bind_port(host: str, port: int | None) -> PlainHttpServer:
    """Bind the port. Raises OSError if the port is taken.

    If `port` is None, bind the default port, or any free port if that is taken. A second server can
    then start on the same laptop.
    """
    try:
        return PlainHttpServer(host, OPERATIONS_PORT if port is None else port)
    except OSError:
        if port is not None:
            raise
        return PlainHttpServer(host, 0)
