"""A pod for incidents, or one line that says why there can be none."""

import pytest

from tests.sidecar import incidents


@pytest.fixture(scope="session")
def incident_library(tmp_path_factory):
    if why := incidents.missing():
        pytest.skip(why)
    return incidents.library(tmp_path_factory.mktemp("incidents"))


@pytest.fixture
def pod(tmp_path, incident_library):
    return incidents.Pod(tmp_path, incident_library)
