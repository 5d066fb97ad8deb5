"""Fixtures for the chart: Helm, and an API server of our own where the chart is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import charts, control_planes

HERE = Path(__file__).parent

AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [delete]
- level: None
"""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE) and "control_plane" in item.fixturenames:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.xdist_group("chart"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    for missing in (charts.MISSING, control_planes.MISSING):
        if report.skipped and missing in str(report.longrepr):
            report.longrepr = (str(HERE), None, missing)  # one place for all: one line with -rs
    return report


@pytest.fixture(scope="session")
def helm(tmp_path_factory):
    """Run Helm without a cluster."""
    if not charts.available():
        pytest.skip(charts.MISSING)
    return charts.Helm(tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory):
    """Run an API server that dials a Service's pods itself, and records who deletes what."""
    if not charts.available():
        pytest.skip(charts.MISSING)
    if not control_planes.available():
        pytest.skip(control_planes.MISSING)
    folder = tmp_path_factory.mktemp("audit")
    (folder / "policy.yaml").write_text(AUDIT_POLICY)
    arguments = (
        "--enable-aggregator-routing=true",
        f"--audit-policy-file={folder / 'policy.yaml'}",
        f"--audit-log-path={folder / 'audit.log'}",
    )
    with control_planes.ControlPlane(apiserver_args=arguments) as started:
        started.audit_log = folder / "audit.log"
        yield started


@pytest.fixture
def api(control_plane):
    return control_plane.api


@pytest.fixture(scope="session")
def live_helm(control_plane, tmp_path_factory):
    """Run Helm as administrator of the cluster."""
    return charts.Helm(tmp_path_factory.mktemp("live-helm"), control_plane.kubeconfig)
