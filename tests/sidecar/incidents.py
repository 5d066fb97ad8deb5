"""Runs a scenario in a pod: a PID namespace with the whole program and real processes in it.

A scenario is a function inside a test: its text is sent over, its first argument is a `Pod` of
`incident_scene`, and what it returns comes back.
"""

import inspect
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from textwrap import dedent

from tests.support.nvml_stub import build, compiler
from webhook.adapters import surroundings

SCENE = Path(__file__).resolve().with_name("incident_scene.py")
NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
MIB = 2**20


class Pod:
    """A folder, and scenarios that run on it."""

    def __init__(self, folder, library):
        self.folder = folder
        self.library = library

    def run(self, scenario, *arguments):
        """Return what the scenario returns."""
        sent = {
            "folder": str(self.folder),
            "library": str(self.library),
            "source": dedent(inspect.getsource(scenario)),
            "name": scenario.__name__,
            "arguments": arguments,
        }
        command = [sys.executable, "-I", "-S", str(SCENE), json.dumps(sent)]
        ended = subprocess.run(
            [*NAMESPACE, *command],
            capture_output=True, text=True, timeout=120, check=False, env={},
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)


@cache
def missing():
    """Say why no scenario can run here; empty where it can."""
    if compiler() is None:
        return "the stub of NVML needs a C compiler, and there is none here"
    try:
        command = [*NAMESPACE, "true"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no new PID namespace can be made here: {error}"
    if ended.stderr.strip():
        return f"no new PID namespace can be made here: {ended.stderr.strip()}"
    kernel = surroundings.trustworthy_kernel()
    return kernel.reason if kernel.holds is False else ""


def library(folder):
    """Return the folder of the stub, compiled into this one."""
    return build(folder)
