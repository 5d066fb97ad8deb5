"""What probes learn: whether the main thread looks, and whether that is worth something."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

LATE_S: Final = 60.0
"""A look may come so much later than it is due: a driver may take its time, and a new start costs
all that is remembered of who holds what. Then the kernel ends us, and the kubelet starts us again:
a probe on our port could be kept from its answer by whoever floods that."""


class Health:
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
        self.obstacle = "no look yet"
        """Why nobody can be held to a cap now; empty where they can."""

    def expect(self, pause_s: float) -> None:
        """Expect the next look after a pause."""
        self._due_s = self._clock() + pause_s
        self._alarm(math.ceil(pause_s + LATE_S))

    def dead(self) -> str:
        """Return why a restart might help, or nothing."""
        late_s = self._clock() - self._due_s
        return f"a look has been due for {late_s:.0f} s" if late_s > LATE_S else ""

    def unready(self) -> str:
        """Return why we cannot do our work, or nothing."""
        return self.dead() or self.obstacle
