"""What the sentry answers probes and Prometheus."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Final
from wsgiref.types import StartResponse

from prometheus_client import CONTENT_TYPE_LATEST

from webhook.adapters.plain_http import PlainHttpServer
from webhook.sentry.metrics import SentryMetrics

LATE_S: Final = 60.0
"""A scan may come so much later than it is due: a driver may take its time, and a new start costs
all that is remembered of who holds what. Then the kernel ends us, and the kubelet starts us again:
a probe on our port could be kept from its answer by whoever floods that."""

_TEXT: Final = "text/plain; charset=utf-8"


class Liveness:
    """The state behind /livez and /readyz; written by the main thread, read by the server's."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        alarm: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Have `alarm` end us in so many seconds, each time anew: alarm(2)."""
        self._clock = clock
        self._alarm = alarm
        self.expect(0.0)
        self.obstacle = "no scan yet"
        """Why nobody can be held to a cap now; empty where they can."""

    def expect(self, pause_s: float) -> None:
        """Expect the next scan after a pause."""
        self._due_s = self._clock() + pause_s
        self._alarm(math.ceil(pause_s + LATE_S))

    def dead(self) -> str:
        """Return why a restart might help, or nothing."""
        late_s = self._clock() - self._due_s
        return f"a scan has been due for {late_s:.0f} s" if late_s > LATE_S else ""

    def unready(self) -> str:
        """Return why we cannot do our work, or nothing."""
        return self.dead() or self.obstacle


def serve(host: str, port: int, liveness: Liveness, metrics: SentryMetrics) -> int:
    """Serve on a daemon thread, and return the port; raises OSError where it is taken."""

    def answer(environ: dict[str, Any], start: StartResponse) -> list[bytes]:
        status, kind, body = _answer(environ["PATH_INFO"], liveness, metrics)
        start(status, [("Content-Type", kind)])
        return [body]

    return PlainHttpServer(host, port).start(answer)


def _answer(path: str, liveness: Liveness, metrics: SentryMetrics) -> tuple[str, str, bytes]:
    if path == "/metrics":
        return "200 OK", CONTENT_TYPE_LATEST, metrics.exposition()
    if path not in {"/livez", "/readyz"}:
        return "404 Not Found", _TEXT, b"this port has /livez, /readyz and /metrics\n"
    why_not = liveness.dead() if path == "/livez" else liveness.unready()
    status = "503 Service Unavailable" if why_not else "200 OK"
    return status, _TEXT, f"{why_not or 'ok'}\n".encode()
