"""Structured logging: one JSON line per event, and one event per lasting condition.

The standard library's `logging` would cost the enforcer megabytes. Callers never log bodies, values
of environment variables or patches, since these may contain secrets.
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

    Each line is one call of `write`, so that several threads can share a journal.

    | call | last written about `about` | writes |
    | --- | --- | --- |
    | `once` | the same message and why | nothing |
    | `once` | something else, or nothing | the event |
    | `over` | anything | the message |
    | `over` | nothing | nothing |
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
        """Write an event, unless it was the last one written about the same subject."""
        if self._last_written.get(about) != (message, why):
            self._last_written[about] = message, why
            self.event(level, message, why=why, **values)

    def over(self, about: str, message: str, /, **values: Any) -> None:
        """Write that a condition has ended, if its beginning was written."""
        if self._last_written.pop(about, None) is not None:
            self.event("info", message, **values)

    def forget(self, about: str) -> None:
        """Forget the last event about a subject, so that the next one is written in any case."""
        self._last_written.pop(about, None)

    def _stamp(self) -> str:
        """Return the current time; it is formatted once a second."""
        second = int(time.time())
        if self._timestamp[0] != second:
            self._timestamp = second, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second))
        return self._timestamp[1]

    def _line(self, values: dict[str, Any]) -> bytes:
        return f"{json.dumps(values)}\n".encode()
