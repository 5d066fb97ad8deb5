"""Fixtures: a pod for incidents, skipped with a reason if impossible, and shells for probes."""

import pytest

from tests.sidecar import incidents
from tests.sidecar.probes import SHELLS
from tests.support.nvml_stub import build


@pytest.fixture(scope="session")
def incident_library(tmp_path_factory):
    if why := incidents.missing():
        pytest.skip(why)
    return build(tmp_path_factory.mktemp("incidents"))


@pytest.fixture
def pod(tmp_path, incident_library):
    return incidents.Pod(tmp_path, incident_library)


@pytest.fixture(params=SHELLS.values(), ids=" ".join)
def shell(request):
    return request.param
