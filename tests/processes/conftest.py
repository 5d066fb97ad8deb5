"""Ends what a test started, whether it passed or not."""

import pytest


@pytest.fixture(autouse=True)
def _nothing_stays():
    import process_tools  # noqa: PLC0415  # it skips each file that imports it where there is no proc

    yield
    while process_tools.STARTED:
        process_tools.end(process_tools.STARTED.pop())
