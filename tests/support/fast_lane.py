"""The fast lane of `make test-fast`: whole folders in which no test waits or starts a process.

Those that must are marked `process`, and stay out of it, as do those that compute for seconds. Any
other there that starts or waits fails, in every run.
"""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from tests.support.paths import TESTS

FOLDERS = ("core", "tools", "adapters/policy", "cli", "server/placement")
LONGEST_PAUSE_S = 0.05

_sleep = time.sleep


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    with pytest.MonkeyPatch.context() as patch:
        if _is_fast(item):
            patch.setattr(time, "sleep", _short_sleep)
            patch.setattr(os, "fork", lambda: _fail("forks"))
            patch.setattr(subprocess.Popen, "__init__", lambda *_, **__: _fail("starts a process"))
            patch.setattr(subprocess.Popen, "__del__", lambda _: None)  # there is nothing to reap
        return (yield)


def _is_fast(item):
    if item.get_closest_marker("process") or item.get_closest_marker("cluster"):
        return False
    return any(item.path.is_relative_to(TESTS / folder) for folder in FOLDERS)


def _short_sleep(pause_s):
    if pause_s > LONGEST_PAUSE_S:
        _fail(f"sleeps for {pause_s} s")
    _sleep(pause_s)


def _fail(what):
    pytest.fail(f"a test of the fast lane {what}; mark it `process`")


if __name__ == "__main__":
    print(*(TESTS / folder for folder in FOLDERS))
