"""One JSON line per event on standard error: a constant message, then keys and values.

Bodies, environment values and patches are never logged: they may hold secrets. The kubelet keeps
50 MiB of a pod's log, so a line has a bound: what a caller may write into it cannot turn over the
trail of what they did.
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import IO, Any

import orjson
from gunicorn.glogging import Logger as GunicornLogger

from webhook.adapters.journal import Journal
from webhook.core.formatting import shorten
from webhook.names import LONGEST_NAME
from webhook.server.bounds import MAX_ITEMS, MAX_LINE_BYTES, MAX_TRACE


def short(value: object) -> str | None:
    """Return a text of a request as it is logged: cut, and without what is no text."""
    if value is None:
        return None
    if type(value) is not str:
        return f"({type(value).__name__})"
    return shorten(value, LONGEST_NAME)


class JsonLog(Journal):
    """The server's journal: written by orjson, since every review may be a line of it."""

    def __init__(self, stream: IO[bytes] | None = None) -> None:
        # Unbuffered: each line is one call of the system, and what it does not take is lost.
        if stream is None:
            stream = getattr(sys.stderr.buffer, "raw", sys.stderr.buffer)
        self._stream: IO[bytes] = stream
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
        while line and (written := self._stream.write(line)):
            line = line[written:]

    def _line(self, values: dict[str, Any]) -> bytes:
        """Write a line as JSON; one that is too long is cut in its texts, or loses its values."""
        line = orjson.dumps(values, default=str, option=_LINE)
        if len(line) > MAX_LINE_BYTES:
            line = orjson.dumps(_cut(values), default=str, option=_LINE)
        if len(line) > MAX_LINE_BYTES:
            kept = {name: values[name] for name in ("ts", "level")}
            kept |= {"msg": short(values["msg"]), "cut": True}
            line = orjson.dumps(kept, option=_LINE)
        return line


def _cut(values: dict[str, Any]) -> dict[str, Any]:
    """Cut each text of a line, and each list; of a trace the end says what happened."""
    found: dict[str, Any] = {"cut": True}
    for name, value in values.items():
        if isinstance(value, str):
            found[name] = value[-MAX_TRACE:] if name == "trace" else short(value)
        elif isinstance(value, list | tuple):
            found[name] = [short(str(item)) for item in value[:MAX_ITEMS]]
        else:
            found[name] = value
    return found


_LINE = orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z | orjson.OPT_OMIT_MICROSECONDS


class _LogHandler(logging.Handler):
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
        """Send messages of gunicorn and the event loop through our log, which has each request."""
        super().setup(cfg)
        handlers: list[logging.Handler] = [_LogHandler(JsonLog())]
        self.error_log.handlers = logging.getLogger("asyncio").handlers = handlers
