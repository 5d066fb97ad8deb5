"""Comparison of outputs with recorded files."""

from __future__ import annotations

import os
from pathlib import Path

UPDATE = "UPDATE_GOLDEN"


def how() -> str:
    """Return how to record the output of the running test again."""
    test = os.environ["PYTEST_CURRENT_TEST"].partition("::")[0]
    return (
        f"`{UPDATE}=1 .venv/bin/pytest {test}` writes what comes out now; read the difference "
        "before committing it"
    )


def recorded(path: Path, text: str) -> str:
    """Return the recorded text; record the given one first if UPDATE_GOLDEN is set."""
    if os.environ.get(UPDATE):
        path.write_text(text, encoding="utf-8")
    assert path.exists(), how()
    return path.read_text(encoding="utf-8")


def assert_recorded(path: Path, text: str) -> None:
    """Compare a text with its recording."""
    assert text == recorded(path, text), how()
