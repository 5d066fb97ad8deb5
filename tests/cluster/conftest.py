"""Fixtures for tests against a real API server; one worker runs them all, so one is started."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from controlplane import MISSING, ControlPlane, available

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.xdist_group("cluster"))


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
def api(control_plane):
    return control_plane.api


@pytest.fixture
def make_namespace(control_plane):
    """Return a function that creates a namespace with a `default` service account."""
    made = []

    def make(labels=None, prefix="test"):
        metadata = {"name": f"{prefix}-{uuid.uuid4().hex[:8]}", "labels": labels or {}}
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        control_plane.api.create(manifest)
        made.append(manifest)
        control_plane.ensure_service_account(metadata["name"])
        return metadata["name"]

    yield make
    for manifest in made:  # without controllers it stays Terminating, which disturbs nobody
        control_plane.api.delete(manifest)


@pytest.fixture
def namespace(make_namespace, request):
    """Name a fresh namespace; its labels may come by an indirect parameter."""
    return make_namespace(getattr(request, "param", None))
