"""The thread that hears of broken GPUs from the driver, and when it holds the driver open for that.

A library that is held open keeps the driver from being replaced and a GPU from being reset, and it
shows the GPUs of when it was opened to the whole process, also to the scans of another thread.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from webhook.adapters.nvml import NvmlError
from webhook.core.nvidia.drivers import BROKEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from webhook.adapters.nvml import Nvml

SLICE_S: Final = 2.0
"""The driver is let go within this time."""
PATIENCE_S: Final = 10.0
"""How long a scan waits for that; longer where the driver hangs, which must hold up nobody else."""
PAUSE_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class XidSeen:
    """A GPU reported an Xid of `BROKEN`."""

    uuid: str
    xid: int


@dataclass(frozen=True, slots=True)
class XidsWatched:
    """From now on Xids are reported, or they are not."""

    unwatched: str = ""
    """Why not."""


class DriverLease:
    """Who has the driver: the watch, while the node lets it and no scan wants it fresh."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._allowed = self._wanted = self._held = False

    def allow(self, allowed: bool) -> None:
        """Let the watch hold the driver, or not."""
        with self._changed:
            self._allowed = allowed
            self._changed.notify_all()

    @property
    def lasts(self) -> bool:
        """Whether the watch may hold the driver for another slice."""
        return self._allowed and not self._wanted

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Wait until the watch may hold the driver, and hold it."""
        with self._changed:
            self._changed.wait_for(lambda: self.lasts)
            self._held = True
        try:
            yield
        finally:
            with self._changed:
                self._held = False
                self._changed.notify_all()

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Take the driver from the watch: who opens the library meanwhile opens it anew."""
        with self._changed:
            self._wanted = True
            self._changed.wait_for(lambda: not self._held, PATIENCE_S)
        try:
            yield
        finally:
            with self._changed:
                self._wanted = False
                self._changed.notify_all()


def watch_xids(
    nvml: Nvml, lease: DriverLease, send: Callable[[XidSeen | XidsWatched], object]
) -> None:
    """Report each Xid that means a broken GPU, forever, while the driver may be held.

    A driver that hangs blocks only this thread. What happens while it is let go is missed; the
    state that scans ask for covers what lasts.
    """
    while True:
        with lease.watching():
            try:
                _watch(nvml, lease, send)
                continue
            except NvmlError as error:
                send(XidsWatched(str(error)))
        time.sleep(PAUSE_S)


def _watch(nvml: Nvml, lease: DriverLease, send: Callable[[XidSeen | XidsWatched], object]) -> None:
    with nvml:
        nvml.devices()
        nvml.register_xids()
        send(XidsWatched())
        while lease.lasts:
            seen = nvml.next_xid(SLICE_S)
            if seen and seen[1] in BROKEN:
                send(XidSeen(*seen))
