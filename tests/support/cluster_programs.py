"""Programs of a cluster, started so that they end with the tests."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DEFAULT_ASSETS = "/usr/local/kubebuilder/bin"  # the default folder of envtest
# Ask the kernel to kill this process when its parent ends, then become the program. A `preexec_fn`
# would run between fork and exec while other threads exist, for which Python 3.12 and later warn.
DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def find_binary(name: str) -> str | None:
    """Find a program in envtest's folder, then on PATH; return None if it is missing."""
    assets = os.environ.get("KUBEBUILDER_ASSETS") or DEFAULT_ASSETS
    return shutil.which(name, path=assets) or shutil.which(name)


def wait_until(what: str, check: Callable[[], Any], *, timeout: float = 60) -> Any:
    """Poll until the check returns a true value, and return it. `what` is named in a failure."""
    deadline = time.monotonic() + timeout
    while not (result := check()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout} s")
        time.sleep(0.05)
    return result


def start(
    log: Path, name: str, *arguments: str, through: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start a program that ends with this process; `through` is a command that runs it."""
    program = find_binary(name)
    first = find_binary(through[0]) if through else program
    if program is None or first is None:
        raise FileNotFoundError(name)
    launcher = [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid())]
    inner = [first, *through[1:], program] if through else [program]
    with log.open("ab") as output:
        return subprocess.Popen(
            [*launcher, *inner, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def free_port() -> int:
    """Return a free port outside the range for outgoing connections."""
    for port in secrets.SystemRandom().sample(range(20000, 32000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("no free port on loopback")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and its group with SIGTERM, then with SIGKILL."""
    for number, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)  # the process leads a session
            process.wait(patience)
            return
