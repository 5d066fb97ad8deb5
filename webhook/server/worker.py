"""Gunicorn's asgi worker, with a drain that never breaks a promised keep-alive.

The worker of gunicorn 27 closes a connection after the answer during which SIGTERM came, although
that answer said keep-alive; a caller's next POST then meets an EOF, which the API server does not
retry. Here SIGTERM first makes every answer say `Connection: close`, and the worker ends when no
connection is left, or after `DRAIN_S`.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gunicorn.workers.gasgi import ASGIWorker

DRAIN_S: Final = 10.0
"""How long connections that are kept alive may still bring a last review each."""

QUIET_S: Final = 1.0
"""A connection in its handshake is not counted yet; after this long without any, none is."""

_POLL_S: Final = 0.1


class DrainingWorker(ASGIWorker):  # type: ignore[misc]  # gunicorn is not typed
    """The worker that serves reviews."""

    draining = False

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
