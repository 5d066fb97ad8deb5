"""Runs `vramwarden simulate` within a test, in a folder of its own."""

from __future__ import annotations

import pytest

from tests.support.commands import runner
from webhook.tools.simulate.command import simulate_command


@pytest.fixture
def simulate(tmp_path, monkeypatch):
    """Run the command in a folder with these files."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, stdin="", **files):
        for name, text in files.items():
            data = text if isinstance(text, bytes) else text.encode()
            (tmp_path / name).write_bytes(data)
        return runner().invoke(simulate_command, arguments, input=stdin, catch_exceptions=False)

    return run
