"""A program's log: one JSON line per event, and a lasting condition only once.

The standard library's `logging` would cost the enforcer megabytes; this is all that any program of
ours needs of it. Bodies, environment values and patches are never written: they may hold
secrets.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Journal:
    """Writes events; never raises, since a full disk must not stop an enforcer or an agent.

    Each line is one call of `write`, so that several threads may share a journal.

    | call | last written about `about` | writes |
    | --- | --- | --- |
    | `once` | the same message and why | nothing |
    | `once` | something else, or nothing | the event |
    | `over` | anything | the message |
    | `over` | nothing | nothing |
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._said: dict[str, tuple[str, Any]] = {}
        self._stamped = 0, ""

    def event(self, level: str, message: str, /, **values: Any) -> None:
        """Write one line: a constant message, then keys and JSON values."""
        self.line(level, message, values)

    def line(self, level: str, message: str, values: Mapping[str, Any]) -> None:
        """Write one line, as `event`, of values that are a mapping already."""
        line = self._line({"ts": self._stamp(), "level": level, "msg": message, **values})
        with contextlib.suppress(OSError, ValueError):  # the latter: a closed stream
            self._write(line)

    def once(self, about: str, level: str, message: str, why: Any, /, **values: Any) -> None:
        """Write an event, unless it was the last one written about the same thing."""
        if self._said.get(about) != (message, why):
            self._said[about] = message, why
            self.event(level, message, why=why, **values)

    def over(self, about: str, message: str, /, **values: Any) -> None:
        """Write that a condition is over, where it was written that it began."""
        if self._said.pop(about, None) is not None:
            self.event("info", message, **values)

    def forget(self, about: str) -> None:
        """Let the next event about the same thing be written, whatever the last one was."""
        self._said.pop(about, None)

    def _stamp(self) -> str:
        """Return the time of now, which is formatted once a second."""
        second = int(time.time())
        if self._stamped[0] != second:
            self._stamped = second, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second))
        return self._stamped[1]

    def _line(self, values: dict[str, Any]) -> bytes:
        return f"{json.dumps(values)}\n".encode()
