"""Ends the processes of each test."""

import pytest


@pytest.fixture(autouse=True)
def _end_processes():
    from tests.support import workload_processes  # noqa: PLC0415 - it skips without /proc

    yield
    while workload_processes.STARTED:
        workload_processes.end(workload_processes.STARTED.pop())
