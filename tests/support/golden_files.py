"""Comparison of outputs with recorded files."""

from __future__ import annotations

import os
from pathlib import Path

UPDATE = "UPDATE_GOLDEN"


def how() -> str:
    """Describe how to record the output of the running test again."""
    test = os.environ["PYTEST_CURRENT_TEST"].partition("::")[0]
    return (
        f"`{UPDATE}=1 .venv/bin/pytest {test}` writes what comes out now; read the difference "
        "before committing it"
    )


def recorded(path: Path, text: str) -> str:
    """Return the recorded text. If UPDATE_GOLDEN is set, record the given text first."""
    if os.environ.get(UPDATE):
        path.write_text(text, encoding="utf-8")
    assert path.exists(), how()
    return path.read_text(encoding="utf-8")


def assert_recorded(path: Path, text: str) -> None:
    assert text == recorded(path, text), how()
