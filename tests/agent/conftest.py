"""Fixtures for the agent: its node, an agent without threads, and a missing driver."""

import pytest

from tests.agent.nodes import account, make_agent, node
from tests.agent.stepped import Bench
from tests.support.scripted_nvml import stub_library

__all__ = ["account", "make_agent", "node"]  # fixtures from `tests.agent.nodes`


@pytest.fixture
def library(tmp_path_factory):
    return stub_library(tmp_path_factory)


@pytest.fixture
def bench(monkeypatch):
    return Bench(monkeypatch)
