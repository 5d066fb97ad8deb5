"""Runs commands of click's within a test."""

from __future__ import annotations

from inspect import signature

from click.testing import CliRunner


def runner() -> CliRunner:
    """Return a runner that keeps standard error apart; before click 8.2 one asks for that."""
    asked = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
    return CliRunner(**asked)
