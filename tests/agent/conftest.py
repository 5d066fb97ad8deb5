"""Fixtures: a control plane for the tests against a real API server, one for all of them."""

from functools import partial
from pathlib import Path

import pytest

from tests.agent.nodes import account, make_agent, node
from tests.agent.stepped import Bench
from tests.support.agents import MISSING, ApiServer, ControlPlane, available, stub_library
from webhook.agent import watcher

__all__ = ["account", "make_agent", "node"]  # fixtures from beside

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE) and "control_plane" in item.fixturenames:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.xdist_group("agent-cluster"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    if report.skipped and MISSING in str(report.longrepr):
        report.longrepr = (str(HERE), None, MISSING)  # the same place for all: one line with -rs
    return report


@pytest.fixture(scope="session")
def control_plane():
    if not available():
        pytest.skip(MISSING)
    with ControlPlane() as started:
        yield started


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


@pytest.fixture
def pauses(monkeypatch):
    """Let the watching threads pause no time, and keep how long they would have."""
    slept = []
    monkeypatch.setattr(watcher.time, "sleep", slept.append)
    unhurried = partial(watcher.follow, sleep=slept.append, spread=lambda _, most: most)
    monkeypatch.setattr(watcher, "follow", unhurried)
    return slept
