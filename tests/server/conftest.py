"""A server process shared by tests that do not change it."""

from __future__ import annotations

import pytest

from tests.support.server_process import running


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(tmp_path_factory.mktemp("server")) as server:
        yield server
