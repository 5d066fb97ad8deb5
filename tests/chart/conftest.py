"""Fixtures for the chart: Helm, and an API server of our own where the chart is installed."""

from __future__ import annotations

from pathlib import Path

import charting
import controlplane
import pytest

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
    for missing in (charting.MISSING, controlplane.MISSING):
        if report.skipped and missing in str(report.longrepr):
            report.longrepr = (str(HERE), None, missing)  # one place for all: one line with -rs
    return report


@pytest.fixture(scope="session")
def helm(tmp_path_factory):
    """Run Helm without a cluster."""
    if not charting.available():
        pytest.skip(charting.MISSING)
    return charting.Helm(tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory):
    """Run an API server that dials a Service's pods itself, and records who deletes what."""
    if not charting.available():
        pytest.skip(charting.MISSING)
    if not controlplane.available():
        pytest.skip(controlplane.MISSING)
    folder = tmp_path_factory.mktemp("audit")
    (folder / "policy.yaml").write_text(AUDIT_POLICY)
    arguments = (
        "--enable-aggregator-routing=true",
        f"--audit-policy-file={folder / 'policy.yaml'}",
        f"--audit-log-path={folder / 'audit.log'}",
    )
    with controlplane.ControlPlane(apiserver_args=arguments) as started:
        started.audit_log = folder / "audit.log"
        yield started


@pytest.fixture
def api(control_plane):
    return control_plane.api


@pytest.fixture(scope="session")
def live_helm(control_plane, tmp_path_factory):
    """Run Helm as administrator of the cluster."""
    return charting.Helm(tmp_path_factory.mktemp("live-helm"), control_plane.kubeconfig)
