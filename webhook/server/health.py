"""Whether the server is alive, and whether it should get traffic."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

STALL_S: Final = 10.0
"""An event loop that has not turned for this long answers no reviews either."""


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
