"""One real server for the tests that leave it as it was."""

from __future__ import annotations

import pytest

from tests.support.server_process import running


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(tmp_path_factory.mktemp("server")) as server:
        yield server
