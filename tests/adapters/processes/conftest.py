"""Ends what a test started, whether it passed or not."""

import pytest


@pytest.fixture(autouse=True)
def _nothing_stays():
    # It skips each file that imports it where there is no /proc.
    from tests.support import workload_processes  # noqa: PLC0415

    yield
    while workload_processes.STARTED:
        workload_processes.end(workload_processes.STARTED.pop())
