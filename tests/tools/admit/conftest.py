"""Fixture that runs `vramwarden admit` in a temporary folder."""

from __future__ import annotations

import io
import sys
from typing import NamedTuple

import pytest

from tests.tools.admit.runs import ADMIT_POLICY
from webhook.tools.admit.command import admit_command


class Admitted(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture
def invoke(tmp_path, monkeypatch, capsys):
    """Run `admit` in a folder with a policy. `stdin` is a string or a stream."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.yaml").write_text(ADMIT_POLICY)

    def run(*arguments, stdin=""):
        piped = isinstance(stdin, str)
        stream = io.TextIOWrapper(io.BytesIO(stdin.encode())) if piped else stdin
        monkeypatch.setattr(sys, "stdin", stream)
        with pytest.raises(SystemExit) as ended:
            admit_command.main(list(arguments))
        return Admitted(ended.value.code, *capsys.readouterr())

    return run
