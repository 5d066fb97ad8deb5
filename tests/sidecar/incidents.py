"""Runs a scenario in a pod: a PID namespace with the whole program and real processes.

A scenario is a function inside a test. Its source is sent to a process, its first argument is a
`Pod` of `incident_scene`, and its result is returned.
"""

from functools import cache

import pytest

from tests.sidecar.incident_scene import NO_CGROUP
from tests.support import isolated_interpreter
from tests.support.nvml_stub import compiler
from webhook.adapters import host_environment

MIB = 2**20


class Pod:
    """A folder, and scenarios that run in it."""

    def __init__(self, folder, library):
        self.where = {"folder": str(folder), "library": str(library)}

    def run(self, scenario, *arguments):
        """Return the scenario's result."""
        scene = "tests.sidecar.incident_scene"
        found = isolated_interpreter.play(scene, scenario, *arguments, **self.where)
        if found == NO_CGROUP:
            pytest.skip(found)
        return found


@cache
def missing():
    """Return the reason why no scenario can run here; empty if one can."""
    if compiler() is None:
        return "the stub of NVML needs a C compiler, and there is none here"
    if why := isolated_interpreter.missing():
        return why
    kernel = host_environment.check_kernel()
    return kernel.reason if kernel.holds is False else ""
