"""Fixtures for the stock scheduler. It binds every pod, so each module has its own cluster."""

from __future__ import annotations

import uuid

import pytest

from tests.scheduling.replicas import Cluster, placing
from tests.support import schedulers
from tests.support.control_planes import ControlPlane


@pytest.fixture(scope="module")
def control_plane(can_start_control_planes):
    if not schedulers.available():
        pytest.skip(schedulers.MISSING)
    with ControlPlane() as started:
        yield started


@pytest.fixture
def make_namespace(control_plane):
    """Return a function that creates a namespace under the default rule of the shipped policy."""

    def make(prefix="team"):
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        metadata = {"name": name}
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        control_plane.api.create(manifest)
        control_plane.ensure_service_account(name)
        return name

    return make


@pytest.fixture(scope="module")
def replicas(control_plane, tmp_path_factory):
    """Run two replicas that the API server calls through a balancer, and the scheduler."""
    with placing(control_plane, tmp_path_factory.mktemp("placement")) as servers:
        yield servers


@pytest.fixture
def cluster(control_plane, replicas, make_namespace):
    """Yield a cluster with a new namespace. The test's nodes and pods are removed at the end."""
    with Cluster(control_plane.api, make_namespace()) as made:
        yield made
