"""What the enforcer says: one JSON line per event, and its last verdict for `kubectl describe`."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import IO, Any, Final

_LONGEST_MESSAGE: Final = 4096  # the kubelet's bound, in bytes


class Journal:
    """Writes events; never raises, since a full log must not end a guard."""

    def __init__(self, stream: IO[str], termination_log: str) -> None:
        self._stream = stream
        self._termination_log = termination_log

    def event(self, level: str, message: str, **values: Any) -> None:
        """Write one line: a constant message, then keys and values."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = json.dumps({"ts": stamp, "level": level, "msg": message, **values})
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(f"{line}\n")
            self._stream.flush()

    def verdict(self, level: str, message: str, why: str, **values: Any) -> None:
        """Write an event whose sentence is to be the container's termination message, too.

        The kubelet made that file; where there is none, nobody would read it.
        """
        self.event(level, message, why=why, **values)
        text = f"{message}: {why}\n".encode()[:_LONGEST_MESSAGE]
        with contextlib.suppress(OSError):
            file = os.open(self._termination_log, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
            try:
                os.write(file, text)
            finally:
                os.close(file)
