"""Fixtures for tests on a real API server. One worker runs all tests, so only one server starts."""

from __future__ import annotations

import json
import uuid

import pytest

from tests.support.control_planes import ControlPlane, find_binary
from tests.support.gpu_nodes import READABLE_BY_ALL, may_view
from tests.support.webhook_configurations import installed
from tests.support.webhook_on_cluster import OurServer, Team, serving


@pytest.fixture(scope="package")
def control_plane(can_start_control_planes):
    """Return this folder's control plane. Once started, its controllers keep running."""
    with ControlPlane() as started:
        yield started


@pytest.fixture
def api(control_plane):
    return control_plane.api


@pytest.fixture
def kubectl(control_plane):
    """Return a function that runs kubectl as administrator with an object on standard input."""
    if not find_binary("kubectl"):
        pytest.skip("needs kubectl")
    return lambda verb, manifest: control_plane.kubectl(verb, "-f", "-", stdin=json.dumps(manifest))


@pytest.fixture
def make_namespace(control_plane):
    """Return a function that creates a namespace with a `default` service account."""
    made = []

    def make(labels=None, prefix="team"):
        metadata = {"name": f"{prefix}-{uuid.uuid4().hex[:8]}", "labels": labels or {}}
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        control_plane.api.create(manifest)
        made.append(manifest)
        control_plane.ensure_service_account(metadata["name"])
        return metadata["name"]

    yield make
    for manifest in made:  # without controllers it stays Terminating, which affects no other test
        control_plane.api.delete(manifest)


@pytest.fixture
def namespace(make_namespace, request):
    """Return a new namespace, whose labels an indirect parameter can set."""
    return make_namespace(getattr(request, "param", None))


@pytest.fixture
def viewer(control_plane, namespace, tmp_path):
    """Return the kubeconfig of a user who only has the role `view` in a namespace."""
    control_plane.api.apply(may_view("ann", namespace))
    return control_plane.kubeconfig_of(tmp_path, "ann", "people", namespace=namespace)


@pytest.fixture
def readable(control_plane):
    """Allow all users to read node figures."""
    for item in READABLE_BY_ALL:
        control_plane.api.apply(item)
    yield
    control_plane.api.delete(READABLE_BY_ALL[1])


@pytest.fixture(scope="package")
def server(control_plane, tmp_path_factory):
    """Run `vramwarden serve` with the shipped policy, and rules for namespaces with certain names.

    The API server binds no pods here, so its address is configured. A busy server may reject
    untrusted addresses.
    """
    folder = tmp_path_factory.mktemp("our-server")
    with serving(folder, "--api-server=127.0.0.1/32") as running_server:
        yield running_server


@pytest.fixture(scope="module")
def ours(control_plane, server):
    """Install vramwarden's webhooks for a module, as in deploy/local.yaml."""
    our_server = OurServer(server)
    with installed(control_plane.api, *our_server.configurations):
        yield our_server


@pytest.fixture
def team(control_plane, ours, make_namespace):
    """Return a team whose namespace uses the default rule of the shipped policy."""
    return Team(control_plane.api, ours, make_namespace())


@pytest.fixture
def make_team(control_plane, ours, make_namespace):
    """Return a function that creates a team in a namespace with a given name or labels."""

    def make(prefix="team", labels=None):
        return Team(control_plane.api, ours, make_namespace(labels, prefix))

    return make
