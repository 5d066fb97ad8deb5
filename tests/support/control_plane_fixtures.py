"""Fixtures for a control plane; one skip message per folder if it cannot start."""

from __future__ import annotations

import pytest

from tests.support.control_planes import MISSING, ControlPlane, available
from tests.support.paths import TESTS

SHARED = {"agent", "chart"}
"""Folders whose tests leave the cluster unchanged and share one. Others start their own."""

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
        if "control_plane" in item.fixturenames:
            folder = item.path.relative_to(TESTS).parts[0]
            item.add_marker("cluster")
            # One worker runs all tests of a group, so only one control plane starts.
            item.add_marker(pytest.mark.xdist_group("shared" if folder in SHARED else folder))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        report.longrepr = (
            str(item.path.parent),
            None,
            reason,
        )  # one location, so that -rs prints one line
    return report


@pytest.fixture(scope="session")
def can_start_control_planes():
    if not available():
        pytest.skip(MISSING)


@pytest.fixture(scope="session")
def control_plane(can_start_control_planes, tmp_path_factory):
    """Return an API server that connects to pods behind a Service and records deletions."""
    folder = tmp_path_factory.mktemp("audit")
    (folder / "policy.yaml").write_text(AUDIT_POLICY)
    arguments = (
        "--enable-aggregator-routing=true",
        f"--audit-policy-file={folder / 'policy.yaml'}",
        f"--audit-log-path={folder / 'audit.log'}",
    )
    with ControlPlane(apiserver_args=arguments) as started:
        started.audit_log = folder / "audit.log"
        yield started
