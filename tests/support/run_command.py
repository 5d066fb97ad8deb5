"""Runs commands of click's within a test, or as processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from inspect import signature

from click.testing import CliRunner

from tests.support.api_server import ApiServer
from webhook.options import ReachedCluster


def runner() -> CliRunner:
    """Return a runner that keeps standard error apart; before click 8.2 one asks for that."""
    asked = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
    return CliRunner(**asked)


def reached(api: ApiServer, namespace: str = "team-a") -> Callable[..., ReachedCluster]:
    """Return what stands for a command's `reach`: it finds this API server, without a socket."""
    return lambda _file, _context, given: ReachedCluster(api.kube(), given or namespace)


def vramwarden(*arguments, **env):
    return subprocess.run(
        [sys.executable, "-m", "webhook.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=env or None,
    )
