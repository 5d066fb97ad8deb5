"""Ends what a test started, whether it passed or not."""

import pytest


@pytest.fixture(autouse=True)
def _nothing_stays():
    # It skips each file that imports it where there is no /proc.
    from tests.support import process_tools  # noqa: PLC0415

    yield
    while process_tools.STARTED:
        process_tools.end(process_tools.STARTED.pop())
