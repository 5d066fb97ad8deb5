"""Ends the processes of each test."""

import pytest


@pytest.fixture(autouse=True)
def _nothing_stays():
    # Importing this module skips the file if there is no /proc.
    from tests.support import workload_processes  # noqa: PLC0415

    yield
    while workload_processes.STARTED:
        workload_processes.end(workload_processes.STARTED.pop())
