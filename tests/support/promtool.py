"""Fixture for promtool, to test metrics, rules and expressions."""

from __future__ import annotations

import shutil
import subprocess

import pytest


@pytest.fixture(scope="session")
def promtool(tmp_path_factory):
    """Return a function that runs promtool on files with these contents."""
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("tests of PromQL need promtool, e.g. of Debian's package prometheus")

    def run(*arguments, files=None, given=None):
        folder = tmp_path_factory.mktemp("promtool")
        for name, text in (files or {}).items():
            (folder / name).write_text(text)
        done = subprocess.run(
            [path, *arguments], cwd=folder, input=given, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    return run
