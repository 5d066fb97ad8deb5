"""What probes and Prometheus are answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CONTENT_TYPE_LATEST

from webhook.adapters.plain_port import PlainPort

if TYPE_CHECKING:
    from wsgiref.types import StartResponse

    from webhook.sentry.health import Health
    from webhook.sentry.metrics import SentryMetrics

_TEXT: Final = "text/plain; charset=utf-8"


def serve(host: str, port: int, health: Health, metrics: SentryMetrics) -> int:
    """Serve on a daemon thread, and return the port; raises OSError where it is taken."""

    def answer(environ: dict[str, Any], start: StartResponse) -> list[bytes]:
        status, kind, body = _answer(environ["PATH_INFO"], health, metrics)
        start(status, [("Content-Type", kind)])
        return [body]

    return PlainPort(host, port).start(answer)


def _answer(path: str, health: Health, metrics: SentryMetrics) -> tuple[str, str, bytes]:
    if path == "/metrics":
        return "200 OK", CONTENT_TYPE_LATEST, metrics.exposition()
    if path not in {"/livez", "/readyz"}:
        return "404 Not Found", _TEXT, b"this port has /livez, /readyz and /metrics\n"
    why_not = health.dead() if path == "/livez" else health.unready()
    status = "503 Service Unavailable" if why_not else "200 OK"
    return status, _TEXT, f"{why_not or 'ok'}\n".encode()
