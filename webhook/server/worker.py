"""Gunicorn's asgi worker, with bounds on connections and a drain that breaks no promise.

The worker of gunicorn 27 closes a connection after the answer during which SIGTERM came, although
that answer said keep-alive; a caller's next POST then meets an EOF, which the API server does not
retry. Here SIGTERM first makes every answer say `Connection: close`, and the worker ends when no
connection is left, or after `DRAIN_S`.

Nor has it a bound on connections (`worker_connections` is for other workers), or on the time to a
first request; `connections` has.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import uvloop
from gunicorn.workers.gasgi import ASGIWorker

from webhook.server.connections import Connection, Connections

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

DRAIN_S: Final = 10.0
"""How long connections that are kept alive may still bring a last review each."""

QUIET_S: Final = 1.0
"""A connection in its handshake is not counted yet; after this long without any, none is."""

_POLL_S: Final = 0.1


class _Loop(uvloop.Loop):
    """The event loop; it makes the one server that gunicorn asks it for, where ours has a place."""

    def __init__(self, worker: DrainingWorker) -> None:
        super().__init__()
        self._worker = worker

    async def create_server(  # type: ignore[override]  # of all its uses, gunicorn's
        self, _factory: object, *, sock: socket.socket, ssl: ssl.SSLContext, **_: object
    ) -> Connections:
        """Accept connections at a socket that listens."""
        worker = self._worker
        made = Connections(
            self,
            sock,
            ssl,
            lambda held, forget: Connection(worker, held, forget),
            worker.count_closed,
        )
        made.start()
        return made


class DrainingWorker(ASGIWorker):  # type: ignore[misc]  # gunicorn is not typed
    """The worker that serves reviews."""

    draining = False
    count_closed: Callable[[str], None] = staticmethod(lambda _why: None)
    """Counts a connection that was closed, by why; set before the worker serves."""

    def _setup_event_loop(self) -> None:
        """Create the event loop, of which gunicorn would take uvloop's own."""
        self.loop: Any = _Loop(self)
        asyncio.set_event_loop(self.loop)

    def handle_exit_signal(self) -> None:
        """Begin to drain on SIGTERM."""
        if not self.draining:
            self.draining = True
            self._draining = self.loop.create_task(self._drain())

    async def _drain(self) -> None:
        now_s = last_seen_s = self.loop.time()
        deadline_s = now_s + DRAIN_S
        while now_s < min(deadline_s, last_seen_s + QUIET_S):
            await asyncio.sleep(_POLL_S)
            now_s = self.loop.time()
            if self.nr_conns:
                last_seen_s = now_s
        # What is open now has been idle; SIGQUIT's handler ends the worker without waiting for it.
        self.handle_quit_signal()
