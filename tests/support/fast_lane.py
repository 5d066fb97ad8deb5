"""The fast lane of `make test-fast`: whole folders in which no test waits or starts a process.

Those that must are marked `process`, and stay out of it, as do those that compute for seconds. Any
other there that starts or waits fails, in every run.

Each core runs a pytest of its own, on a share of the files: to send ten thousand short tests to
workers, and their reports back, would cost half as much as the tests themselves.
"""

from __future__ import annotations

import os
import subprocess
import sys
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


def shares(count):
    """Deal the files to so many, the large ones first, and to and fro, so that shares are equal."""
    files = (path for folder in FOLDERS for path in (TESTS / folder).rglob("test_*.py"))
    dealt = sorted(files, key=lambda path: (path.stat().st_size, path), reverse=True)
    both = 2 * count
    return [dealt[n::both] + dealt[both - 1 - n :: both] for n in range(count)]


def main():
    """Run all shares at once, the first one in sight; return 0 where all of them pass."""
    # No process is there whose output would have to be caught: `sys` spares six calls a test.
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not process", "--capture=sys"]
    runs = [
        subprocess.Popen([*command, *share], stdout=subprocess.PIPE if number else None)
        for number, share in enumerate(shares(os.cpu_count()))
    ]
    for run in runs:
        sys.stdout.buffer.write(run.communicate()[0] or b"")
    return int(any(run.returncode for run in runs))


if __name__ == "__main__":
    sys.exit(main())
