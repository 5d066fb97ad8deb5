"""Where manifests come from: files, or standard input by the name `-`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from webhook.tools.manifests.reading import ManifestError

STANDARD_INPUT: Final = "-"


def name_of_input(name: str) -> str:
    """Return the name for messages."""
    return "standard input" if name == STANDARD_INPUT else name


def read_text(name: str) -> str:
    """Read all of it; raises click.UsageError, with the line where it is not UTF-8."""
    try:
        return try_text(name)
    except ManifestError as error:
        place = f"{name_of_input(name)}:{error.line}" if error.line else name_of_input(name)
        raise click.UsageError(f"{place}: {error}") from None


def try_text(name: str) -> str:
    """Read all of it; raises ManifestError, with the line where it is not UTF-8."""
    try:
        data = sys.stdin.buffer.read() if name == STANDARD_INPUT else Path(name).read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ManifestError(f"cannot be read ({why}); check the name and the permissions") from None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        detail = f"byte 0x{data[error.start]:02x} is not UTF-8; save it as UTF-8"
        raise ManifestError(detail, line) from None
