"""A pod for incidents, or one line that says why there can be none."""

from pathlib import Path

import pytest

from tests.sidecar import incidents


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    if report.skipped and (why := incidents.missing()) and why in str(report.longrepr):
        # The same place for all: one line with -rs.
        report.longrepr = (str(Path(__file__).parent), None, why)
    return report


@pytest.fixture(scope="session")
def incident_library(tmp_path_factory):
    if why := incidents.missing():
        pytest.skip(why)
    return incidents.library(tmp_path_factory.mktemp("incidents"))


@pytest.fixture
def pod(tmp_path, incident_library):
    return incidents.Pod(tmp_path, incident_library)
