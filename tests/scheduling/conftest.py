"""Fixtures for the stock scheduler: it binds every pod there is, so each module has a cluster."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.support import schedulers
from tests.support.control_planes import MISSING, ControlPlane, available

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.xdist_group("placement"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    for missing in (MISSING, schedulers.MISSING):
        if report.skipped and missing in str(report.longrepr):
            report.longrepr = (str(HERE), None, missing)  # one place for all: one line with -rs
    return report


@pytest.fixture(scope="module")
def control_plane():
    if not available():
        pytest.skip(MISSING)
    if not schedulers.available():
        pytest.skip(schedulers.MISSING)
    with ControlPlane() as started:
        yield started


@pytest.fixture
def make_namespace(control_plane):
    """Return a function that makes a namespace in which the shipped default rule governs."""

    def make():
        name = f"team-{uuid.uuid4().hex[:8]}"
        metadata = {"name": name}
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        control_plane.api.create(manifest)
        control_plane.ensure_service_account(name)
        return name

    return make
