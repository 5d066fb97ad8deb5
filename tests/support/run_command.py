"""Run click commands in a test or as processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from inspect import signature

from click.testing import CliRunner

from tests.support.api_server import ApiServer
from webhook.options import ClusterConnection


def runner() -> CliRunner:
    """Return a runner that separates standard error, which click before 8.2 does only by option."""
    asked = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
    return CliRunner(**asked)


def reached(api: ApiServer, namespace: str = "team-a") -> Callable[..., ClusterConnection]:
    """Return a replacement for a command's `reach` that uses this API server without a socket."""
    return lambda _file, _context, given: ClusterConnection(api.kube(), given or namespace)


def vramwarden(*arguments, **env):
    return subprocess.run(
        [sys.executable, "-m", "webhook.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=env or None,
    )
