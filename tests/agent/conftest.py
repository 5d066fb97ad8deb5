"""Fixtures for the agent: an API server that answers from a script, and no driver."""

import pytest

from tests.agent.nodes import account, make_agent, node
from tests.agent.stepped import Bench
from tests.support.agents import ApiServer, stub_library

__all__ = ["account", "make_agent", "node"]  # fixtures from beside


@pytest.fixture
def library(tmp_path_factory):
    return stub_library(tmp_path_factory)


@pytest.fixture
def api_server(tmp_path):
    with ApiServer(tmp_path) as running:
        yield running


@pytest.fixture
def bench(monkeypatch):
    return Bench(monkeypatch)
