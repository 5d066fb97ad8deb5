"""In-memory log of the server."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from webhook.server.log import JsonLog


class RecordedLog(JsonLog):
    """Log that records level, message and values of each event; bugs have the level `exception`."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def line(self, level: str, message: str, values: Mapping[str, Any]) -> None:
        self.lines.append((level, message, dict(values)))

    def exception(self, message: str, **values: Any) -> None:
        self.event("exception", message, **values)

    @property
    def said(self) -> list[tuple[str, str]]:
        """Level and message of each event."""
        return [(level, message) for level, message, _ in self.lines]

    @property
    def messages(self) -> list[str]:
        return [message for _, message, _ in self.lines]
