"""Runs `vramwarden simulate` within a test, in a folder of its own."""

from __future__ import annotations

import io
import json
import sys
from typing import NamedTuple

import pytest

from webhook.tools.simulate.command import simulate_command


class Done(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def value(self):
        """What a program would read."""
        return json.loads(self.out)


@pytest.fixture
def simulate(tmp_path, monkeypatch, capsys):
    """Run the command in a folder with these files."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, stdin="", **files):
        for name, text in files.items():
            data = text if isinstance(text, bytes) else text.encode()
            (tmp_path / name).write_bytes(data)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            simulate_command.main(list(arguments))
        return Done(ended.value.code, *capsys.readouterr())

    return run
