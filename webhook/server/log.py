"""The log: one JSON line per event on standard error, with a constant message, keys and values.

Bodies, environment values and patches are never logged, because they may contain secrets. The
kubelet keeps 50 MiB of a pod's log. The length of a line is limited, so that a caller cannot push
the traces of earlier requests out of the log.
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
from webhook.names import MAX_NAME_LENGTH
from webhook.server.bounds import MAX_ITEMS, MAX_LINE_BYTES, MAX_TRACE


def text_for_log(value: object) -> str | None:
    """Return a request's string shortened for the log, or the type if the value is not a string."""
    if value is None:
        return None
    if type(value) is not str:
        return f"({type(value).__name__})"
    return shorten(value, MAX_NAME_LENGTH)


class JsonLog(Journal):
    """The server's journal. It uses orjson because every review may write a line."""

    def __init__(self, stream: IO[bytes] | None = None) -> None:
        # Unbuffered: each line is one system call. Bytes that the stream does not accept are lost.
        if stream is None:
            stream = getattr(sys.stderr.buffer, "raw", sys.stderr.buffer)
        self._stream: IO[bytes] = stream
        super().__init__(self._put)

    def info(self, message: str, **values: Any) -> None:
        """Log an event for information."""
        self.event("info", message, **values)

    def warning(self, message: str, **values: Any) -> None:
        """Log an event that should be checked."""
        self.event("warning", message, **values)

    def error(self, message: str, **values: Any) -> None:
        """Log a failure that is not a bug in vramwarden."""
        self.event("error", message, **values)

    def exception(self, message: str, **values: Any) -> None:
        """Log a bug in vramwarden, with the traceback of the exception being handled."""
        self.event("error", message, trace=traceback.format_exc(), **values)

    def _put(self, line: bytes) -> None:
        while line and (written := self._stream.write(line)):
            line = line[written:]

    def _line(self, values: dict[str, Any]) -> bytes:
        """Return a line as JSON; in a long line strings are shortened, or values dropped."""
        line = orjson.dumps(values, default=str, option=_LINE)
        if len(line) > MAX_LINE_BYTES:
            line = orjson.dumps(_shorten_values(values), default=str, option=_LINE)
        if len(line) > MAX_LINE_BYTES:
            shorter = {name: values[name] for name in ("ts", "level")}
            shorter |= {"msg": text_for_log(values["msg"]), "cut": True}
            line = orjson.dumps(shorter, option=_LINE)
        return line


def _shorten_values(values: dict[str, Any]) -> dict[str, Any]:
    """Return values with shorter strings and lists. The end of a traceback is kept."""
    result: dict[str, Any] = {"cut": True}
    for name, value in values.items():
        if isinstance(value, str):
            result[name] = value[-MAX_TRACE:] if name == "trace" else text_for_log(value)
        elif isinstance(value, list | tuple):
            result[name] = [text_for_log(str(item)) for item in value[:MAX_ITEMS]]
        else:
            result[name] = value
    return result


_LINE = orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z | orjson.OPT_OMIT_MICROSECONDS


class _LogHandler(logging.Handler):
    """Writes log records of the standard library as JSON lines."""

    def __init__(self, log: JsonLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        values = {"logger": record.name}
        if record.exc_info:
            values["trace"] = self.format(record)
        self._log.event(record.levelname.lower(), record.getMessage(), **values)


class ServerLogger(GunicornLogger):  # type: ignore[misc]  # gunicorn is not typed
    """Gunicorn's logger, which writes JSON lines."""

    def setup(self, cfg: Any) -> None:
        """Send the messages of gunicorn and asyncio to `JsonLog`, which has each request."""
        super().setup(cfg)
        handlers: list[logging.Handler] = [_LogHandler(JsonLog())]
        self.error_log.handlers = logging.getLogger("asyncio").handlers = handlers
