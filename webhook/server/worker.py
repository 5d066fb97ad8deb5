"""Gunicorn's worker: one event loop that serves, and a drain that breaks no promise.

SIGTERM first makes every answer say `Connection: close`, and the worker ends when no connection is
left, or after `DRAIN_S`: to end a connection whose last answer said keep-alive would meet the
caller's next POST with an EOF, which the API server does not retry.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Final

import uvloop
from gunicorn.workers.base import Worker

from webhook.server.connections import Connections

DRAIN_S: Final = 10.0
"""How long connections that are kept alive may still bring a last review each."""

QUIET_S: Final = 1.0
"""Who was sent here last is about to connect; after this long without any connection, none is."""

_BEAT_S: Final = 1.0
_POLL_S: Final = 0.1


class DrainingWorker(Worker):  # type: ignore[misc]  # gunicorn is not typed
    """The worker process: serves what the application makes of a loop and a listening socket."""

    draining = False

    def init_process(self) -> None:
        """Make the event loop, to which the signals are bound."""
        self.loop = uvloop.new_event_loop()
        asyncio.set_event_loop(self.loop)
        super().init_process()

    def init_signals(self) -> None:
        """Handle signals in the loop, between two reviews."""
        for number in self.SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        self.loop.add_signal_handler(signal.SIGTERM, self._begin_to_drain)
        for number in (signal.SIGQUIT, signal.SIGINT):
            self.loop.add_signal_handler(number, self.loop.stop)
        self.loop.add_signal_handler(signal.SIGUSR1, self.log.reopen_files)
        self.loop.add_signal_handler(signal.SIGWINCH, lambda: None)
        # Gunicorn's for a worker that shows no sign of life.
        self.loop.add_signal_handler(signal.SIGABRT, sys.exit, 1)

    def run(self) -> None:
        """Serve until the end."""
        listener = self.sockets[0].sock
        self._connections: Connections = self.wsgi(self.loop, listener)
        self._connections.start()
        self._beat()
        self.loop.run_forever()
        self._connections.close()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()

    def _beat(self) -> None:
        """Show the master a sign of life, each second; end where it is gone."""
        self.notify()
        if self.ppid == os.getppid():
            self.loop.call_later(_BEAT_S, self._beat)
        else:
            self.loop.stop()

    def _begin_to_drain(self) -> None:
        if not self.draining:
            self.draining = self._connections.is_draining = True
            self._draining = self.loop.create_task(self._drain())

    async def _drain(self) -> None:
        now_s = last_seen_s = self.loop.time()
        deadline_s = now_s + DRAIN_S
        while now_s < min(deadline_s, last_seen_s + QUIET_S):
            await asyncio.sleep(_POLL_S)
            now_s = self.loop.time()
            if self._connections.slots:
                last_seen_s = now_s
        # What is open now has been idle.
        self.loop.stop()
