"""Runs commands of click's within a test, or as processes of their own."""

from __future__ import annotations

import subprocess
import sys
from inspect import signature

from click.testing import CliRunner


def runner() -> CliRunner:
    """Return a runner that keeps standard error apart; before click 8.2 one asks for that."""
    asked = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
    return CliRunner(**asked)


def vramwarden(*arguments, **env):
    return subprocess.run(
        [sys.executable, "-m", "webhook.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=env or None,
    )
