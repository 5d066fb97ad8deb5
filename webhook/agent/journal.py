"""What the agent says: one JSON line per event, and what stays as it is only once."""

from __future__ import annotations

import contextlib
import json
import time
from typing import IO, Any


class Journal:
    """Writes events; never raises, since a full log must not cost a node its capacity."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._said: dict[str, str] = {}

    def event(self, level: str, message: str, **values: Any) -> None:
        """Write one line: a constant message, then keys and values."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = json.dumps({"ts": stamp, "level": level, "msg": message, **values})
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(f"{line}\n")
            self._stream.flush()

    def once(self, about: str, level: str, message: str, why: str, **values: Any) -> None:
        """Write an event, unless it is what was said last of the same thing."""
        if self._said.get(about) != f"{message}: {why}":
            self._said[about] = f"{message}: {why}"
            self.event(level, message, why=why, **values)

    def forget(self, about: str) -> None:
        """Let the next event of the same thing be written, whatever was said last."""
        self._said.pop(about, None)

    def over(self, about: str, message: str, **values: Any) -> None:
        """Write that it is over, where anything was said."""
        if self._said.pop(about, None) is not None:
            self.event("info", message, **values)
