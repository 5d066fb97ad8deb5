"""Structured logging: one JSON line per event. A lasting condition is logged once.

The standard library's `logging` would cost the enforcer megabytes. Callers never log request
bodies, patches or values of environment variables, since these may contain secrets.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Journal:
    """Writer of log events; never raises, since a full disk must not stop an enforcer or an agent.

    Each event is one call of `write`, so several threads can share a journal.

    | call | last event with the same `about` | writes |
    | --- | --- | --- |
    | `once` | the same message and `why` | nothing |
    | `once` | another event, or none | the event |
    | `over` | any event | the message |
    | `over` | none | nothing |
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._last_written: dict[str, tuple[str, Any]] = {}
        self._timestamp = 0, ""

    def event(self, level: str, message: str, /, **values: Any) -> None:
        """Write a constant message with JSON values by key."""
        self.line(level, message, values)

    def line(self, level: str, message: str, values: Mapping[str, Any]) -> None:
        """Write an event whose values are a mapping."""
        line = self._line({"ts": self._stamp(), "level": level, "msg": message, **values})
        with contextlib.suppress(OSError, ValueError):  # ValueError: a closed stream
            self._write(line)

    def once(self, about: str, level: str, message: str, why: Any, /, **values: Any) -> None:
        """Write an event, unless the last event with the same `about` was equal."""
        if self._last_written.get(about) != (message, why):
            self._last_written[about] = message, why
            self.event(level, message, why=why, **values)

    def over(self, about: str, message: str, /, **values: Any) -> None:
        """Write that a condition has ended, if the start of the condition was logged."""
        if self._last_written.pop(about, None) is not None:
            self.event("info", message, **values)

    def forget(self, about: str) -> None:
        """Forget the last event with this `about`, so that the next one is always written."""
        self._last_written.pop(about, None)

    def _stamp(self) -> str:
        """Return the current time; formatted at most once per second."""
        second = int(time.time())
        if self._timestamp[0] != second:
            self._timestamp = second, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second))
        return self._timestamp[1]

    def _line(self, values: dict[str, Any]) -> bytes:
        return f"{json.dumps(values)}\n".encode()
