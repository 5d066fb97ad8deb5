"""Many pods at once while the server restarts and certificates change."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from certs import Bundle, advance
from tests.certs.handshakes import mount, renewed
from tests.cluster.secret_servers import creating
from tests.support.control_planes import wait_until
from tests.support.pods import a_pod
from tests.support.webhook_configurations import apply, installed
from tests.support.webhook_on_cluster import OurServer, Team, container, serving, variables

PODS = 200
CLIENTS = 8


def test_of_many_pods_created_at_once_none_is_lost_and_none_untranslated(team):
    with ThreadPoolExecutor(CLIENTS) as pool:
        created = list(pool.map(lambda _: team.accepts(a_pod("8Gi")), range(PODS)))
    stored = team.pods()
    assert {pod["metadata"]["uid"] for pod in stored} == {pod["metadata"]["uid"] for pod in created}
    assert len(stored) == PODS
    for pod in stored:
        cap = variables(pod["spec"]["initContainers"][0])["VRAM_CAP_BYTES"]
        assert cap == str(8 * 2**30)
        assert container(pod, "main")["resources"]["limits"] == {"vramwarden.io/vram": "8Gi"}
    decisions = [call[:2] for call in team.calls()]
    assert decisions.count(("mutate", "mutated")) == PODS
    assert decisions.count(("validate", "allowed")) == PODS


def test_the_server_refused_no_request_and_failed_on_none(ours):
    """This checks all requests of the tests that ran before."""
    assert [line for line in ours.server.log() if line["level"] != "info"] == []
    assert "vramwarden_http_rejected_total{" not in ours.server.get("/metrics")[1]


@pytest.fixture
def brought(tmp_path):
    """Mount certificates for a server, as cert-manager would."""
    names = ["localhost", "127.0.0.1", "::1"]
    found = advance(Bundle(), names, datetime.now(UTC)).bundle
    mount(tmp_path / "certs", found, "0")
    return found


@pytest.fixture
def own_server(tmp_path, brought):
    """Run a server that a test may stop."""
    with serving(tmp_path) as server:
        yield server


@pytest.fixture
def own_team(control_plane, own_server, make_namespace):
    """Return a team whose webhook server may be stopped."""
    our_server = OurServer(own_server)
    with installed(control_plane.api, *our_server.configurations):
        yield Team(control_plane.api, our_server, make_namespace())


def served_serial(server):
    """Return the serial number of the certificate in a new connection."""
    with server.raw() as connection:
        return connection.getpeercert()["serialNumber"]


def test_a_renewed_certificate_loses_no_creation(own_team, brought):
    server, (mutating, _) = own_team.ours.server, own_team.ours.configurations
    with creating(own_team.api, own_team.namespace, 4) as load:
        for number in range(1, 4):
            wait_until("pods", lambda n=number: len(own_team.pods()) > 20 * n)
            before = served_serial(server)
            again = renewed(brought, ["localhost", "127.0.0.1", "::1"])
            mount(server.certificates, again, str(number))
            assert served_serial(server) != before
            # A new caBundle makes the API server open a connection with the new certificate.
            bundle = brought.ca_pem * (number + 1)
            encoded = base64.b64encode(bundle).decode()
            mutating["webhooks"][0]["clientConfig"]["caBundle"] = encoded
            apply(own_team.api, mutating)
            stored = len(own_team.pods())
            wait_until("more pods", lambda n=stored: len(own_team.pods()) > n + 20)
    assert load.lost == []
    assert all(pod["spec"]["initContainers"] for pod in own_team.pods())


def test_a_server_that_is_told_to_stop_answers_first_and_is_missed_by_name(own_team, tmp_path):
    server = own_team.ours.server
    own_team.accepts(a_pod("8Gi"))
    server.process.terminate()
    own_team.accepts(a_pod("8Gi"))
    assert server.process.wait(timeout=60) == 0

    error = own_team.refuses(a_pod("8Gi"))
    assert error.code == 500
    assert error.message == (
        'Internal error occurred: failed calling webhook "mutate.vramwarden.io": failed to call '
        f'webhook: Post "https://127.0.0.1:{server.port}/mutate?timeout=5s": '
        f"dial tcp 127.0.0.1:{server.port}: connect: connection refused"
    )
    with serving(tmp_path, port=server.port):
        assert container(own_team.accepts(a_pod("8Gi")), "vram-enforcer")


def test_while_we_are_away_only_creations_fail_and_not_those_of_who_opted_out(
    control_plane, own_team, make_namespace
):
    gone, ended, bound = (own_team.accepts(a_pod("8Gi")) for _ in range(3))
    own_team.ours.server.quit()  # without draining
    assert 'failed calling webhook "mutate.vramwarden.io"' in own_team.refuses(a_pod()).message
    opted_out = make_namespace({"vramwarden.io/webhook": "disabled"})
    Team(control_plane.api, own_team.ours, opted_out).accepts(a_pod())

    own_team.api.delete(gone, gracePeriodSeconds="0")
    assert len(own_team.pods()) == 2
    changed = own_team.patch(ended, {"status": {"phase": "Succeeded"}}, "/status")
    assert changed["status"]["phase"] == "Succeeded"
    name = bound["metadata"]["name"]
    target = {"apiVersion": "v1", "kind": "Node", "name": "gpu-1"}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    path = f"/api/v1/namespaces/{own_team.namespace}/pods/{name}/binding"
    own_team.api.request("POST", path, body)
    assert own_team.api.get(bound)["spec"]["nodeName"] == "gpu-1"
