"""Fixtures for Helm, without a cluster and as administrator of the shared cluster."""

from __future__ import annotations

import pytest

from tests.chart.admission_policies import keep_parameters_followed
from tests.chart.fences import TAINT, fences_in_force
from tests.support import charts


@pytest.fixture(scope="session")
def helm(tmp_path_factory):
    """Return Helm without a cluster."""
    if not charts.available():
        pytest.skip(charts.MISSING)
    return charts.Helm(tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def control_plane(helm, control_plane):  # in this order, so that a skip names Helm first
    keep_parameters_followed(control_plane.api)
    return control_plane


@pytest.fixture
def api(control_plane):
    return control_plane.api


@pytest.fixture(scope="session")
def live_helm(control_plane, tmp_path_factory):
    """Return Helm as administrator of the cluster, rendering for the cluster's version."""
    folder, api = tmp_path_factory.mktemp("live-helm"), control_plane.api
    return charts.Helm(folder, control_plane.kubeconfig, api.version)


@pytest.fixture(scope="module")
def fences(control_plane, helm):
    """Return a cluster with the parts of the fence that need no rules."""
    with fences_in_force(control_plane, helm) as found:
        yield found


@pytest.fixture(scope="module")
def tainted(fences, helm):
    """Install the fence with a startup taint."""
    fences.use(helm.render({"agent": {"startupTaint": TAINT}}), "may take the taint")
    yield fences
    fences.use(fences.objects, "may not change a node's spec")
