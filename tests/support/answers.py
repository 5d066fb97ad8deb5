"""Keeps what a run measured, for a table at its end: `GPU_TABLE` names a file for it, too."""

from __future__ import annotations

import os
from pathlib import Path

ANSWERS: list[tuple[str, str]] = []


def answer(question, found):
    """Keep an answer for the table; the file has it at once, should the run be cut off."""
    ANSWERS.append((question, str(found)))
    if name := os.environ.get("GPU_TABLE"):
        Path(name).write_text(table() + "\n", encoding="utf-8")


def table():
    """Return all answers as a table in Markdown."""
    rows = [f"| {question} | {found} |" for question, found in ANSWERS]
    return "\n".join(["| question | answer |", "| --- | --- |", *rows])


def pytest_terminal_summary(terminalreporter):
    if ANSWERS:
        terminalreporter.write_line(table())
