"""Fast lane of `make test-fast`: folders in which no test waits or starts a process.

Tests that wait, start a process or compute for seconds are marked `process` and are excluded. An
unmarked test in these folders that waits or starts a process fails in every run.

Each core runs its own pytest on a share of the files, since workers would add half of the tests'
time.
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
            patch.setattr(subprocess.Popen, "__del__", lambda _: None)  # no process to reap
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
    """Divide the files into a number of shares of similar total size."""
    files = (path for folder in FOLDERS for path in (TESTS / folder).rglob("test_*.py"))
    dealt = sorted(files, key=lambda path: (path.stat().st_size, path), reverse=True)
    both = 2 * count
    return [dealt[n::both] + dealt[both - 1 - n :: both] for n in range(count)]


def main():
    """Run all shares at once, the first with live output. Return 0 if all pass."""
    # No process writes output that must be captured by file descriptor. `sys` saves six system
    # calls per test.
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
