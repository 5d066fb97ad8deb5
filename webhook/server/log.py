"""One JSON line per event on standard error: a constant message, then keys and values.

Bodies, environment values and patches are never logged: they may hold secrets.
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import IO, Any

import orjson
from gunicorn.glogging import Logger as GunicornLogger

from webhook.adapters.journal import Journal


class JsonLog(Journal):
    """The server's journal: written by orjson, since every review may be a line of it."""

    def __init__(self, stream: IO[bytes] | None = None) -> None:
        self._stream = stream or sys.stderr.buffer
        super().__init__(self._put)

    def info(self, message: str, **values: Any) -> None:
        """Write what is worth knowing."""
        self.event("info", message, **values)

    def warning(self, message: str, **values: Any) -> None:
        """Write what somebody should check."""
        self.event("warning", message, **values)

    def error(self, message: str, **values: Any) -> None:
        """Write what is wrong and not a bug of ours."""
        self.event("error", message, **values)

    def exception(self, message: str, **values: Any) -> None:
        """Write a bug of ours, with the trace of the exception being handled."""
        self.event("error", message, trace=traceback.format_exc(), **values)

    def _put(self, line: bytes) -> None:
        self._stream.write(line)
        self._stream.flush()

    def _line(self, values: dict[str, Any]) -> bytes:
        return orjson.dumps(values, default=str, option=_LINE)


_LINE = orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z | orjson.OPT_OMIT_MICROSECONDS


class _Handler(logging.Handler):
    """Turns the standard library's log records into our lines."""

    def __init__(self, log: JsonLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        values = {"logger": record.name}
        if record.exc_info:
            values["trace"] = self.format(record)
        self._log.event(record.levelname.lower(), record.getMessage(), **values)


class ServerLogger(GunicornLogger):  # type: ignore[misc]  # gunicorn is not typed
    """Gunicorn's logger, its lines as JSON."""

    def setup(self, cfg: Any) -> None:
        """Send gunicorn's own messages through our log; the per-request log is ours already."""
        super().setup(cfg)
        self.error_log.handlers = [_Handler(JsonLog())]
