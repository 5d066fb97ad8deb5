"""Fixtures for scenarios with an NVML stub, which is compiled once per session.

pynvml loads its library only once, so each scenario runs in a separate process. A scenario is a
function in a test. Its source is sent to the process, and its first argument is a `scenario.Scene`.
"""

import inspect
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from textwrap import dedent

import pynvml
import pytest

from tests.support.nvml_stub import build, compiler
from tests.support.paths import ROOT

HERE = Path(__file__).parent
MISSING = "the stub of NVML needs a C compiler, and there is none here"
RUN = """
import json, sys
folders, source, name, arguments = json.loads(sys.argv[1])
sys.path[:0] = folders
from scenario import report
report(source, name, arguments)
"""


class Stub:
    """The stub's folder, and a method for running scenarios."""

    def __init__(self, folder, packages, built):
        self.folder = folder
        self.folders = [str(packages), str(ROOT), str(HERE)]  # the package `tests` would load more
        self.built = built

    def run(self, scenario, *arguments, without=(), library=None):
        """Return the result of a scenario with the stub, or with another folder's library."""
        source = dedent(inspect.getsource(scenario))
        sent = json.dumps([self.folders, source, scenario.__name__, arguments])
        ended = subprocess.run(
            [sys.executable, "-I", "-S", "-c", RUN, sent],
            capture_output=True, text=True, timeout=60, check=False,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(library or self.built(tuple(without))),
                "NVML_STUB_FILE": str(self.folder / "stub.txt"),
                "NVML_STUB_LOG": str(self.folder / "calls.txt"),
            },
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)


@pytest.fixture(scope="session")
def _built(tmp_path_factory):
    if compiler() is None:
        pytest.skip(MISSING)
    folder = tmp_path_factory.mktemp("nvml")
    return cache(lambda without: build(folder / "-".join(["with-all-but", *without]), *without))


@pytest.fixture(scope="session")
def _packages(tmp_path_factory):
    """Return a folder that contains only pynvml from site-packages."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "pynvml.py").symlink_to(pynvml.__file__)
    return folder


@pytest.fixture(scope="session")
def make_stub(_built, _packages):
    return lambda folder: Stub(folder, _packages, _built)


@pytest.fixture
def stub(make_stub, tmp_path):
    return make_stub(tmp_path)
