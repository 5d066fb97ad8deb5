"""Many pods at once, a server that goes away, and certificates that change meanwhile."""

from __future__ import annotations

import base64
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from certs import SetAction, ensure
from tests.support.control_planes import ApiError, wait_until
from tests.support.our_server import OurServer, Team, container, serving, variables
from tests.support.pods import a_pod
from tests.support.webhook_configurations import apply, installed

PODS = 500
CLIENTS = 8


@contextlib.contextmanager
def creating(team, clients=4):
    """Let clients create pods without pause until the block ends; yields what went wrong."""
    stop, lost = threading.Event(), []

    def create():
        while not stop.is_set():
            try:
                team.accepts(a_pod("8Gi"))
            except ApiError as error:
                lost.append(error.message)

    with ThreadPoolExecutor(clients) as pool:
        futures = [pool.submit(create) for _ in range(clients)]
        try:
            yield lost
        finally:
            stop.set()
    for future in futures:
        future.result()


def test_of_many_pods_created_at_once_none_is_lost_and_none_untranslated(team):
    started = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as pool:
        created = list(pool.map(lambda _: team.accepts(a_pod("8Gi")), range(PODS)))
    took_s = time.monotonic() - started
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
    print(f"{PODS / took_s:.0f} pods/s")


def test_the_server_refused_no_request_and_failed_on_none(ours):
    """All that was asked of it so far, by whatever tests ran before."""
    assert [line for line in ours.server.log() if line["level"] != "info"] == []
    assert "vramwarden_http_refused_total{" not in ours.server.get("/metrics")[1]


@pytest.fixture
def own_server(tmp_path):
    """Run a server that a test may stop."""
    with serving(tmp_path) as server:
        yield server


@pytest.fixture
def own_team(control_plane, own_server, make_namespace):
    """Be a team under the server that may be stopped."""
    our_server = OurServer(own_server)
    with installed(control_plane.api, *our_server.configurations):
        yield Team(control_plane.api, our_server, make_namespace())


def served_serial(server):
    """Return the serial number of the certificate that a new connection is shown."""
    with server.raw() as connection:
        return connection.getpeercert()["serialNumber"]


def test_a_renewed_certificate_loses_no_creation(own_team):
    server, (mutating, _) = own_team.ours.server, own_team.ours.configurations
    with creating(own_team) as lost:
        for number in range(3):
            wait_until("pods", lambda n=number: len(own_team.pods()) > 20 * (n + 1))
            before = served_serial(server)
            names = ["localhost", "127.0.0.1", "::1", f"name-{number}"]
            outcome = ensure(server.certificates, names, datetime.now(UTC))
            assert outcome.action is not SetAction.KEPT
            assert served_serial(server) != before
            # Another bundle makes the API server connect anew, and meet the new certificate.
            bundle = (server.certificates / "ca.crt").read_bytes() * (number + 2)
            encoded = base64.b64encode(bundle).decode()
            mutating["webhooks"][0]["clientConfig"]["caBundle"] = encoded
            apply(own_team.api, mutating)
            stored = len(own_team.pods())
            wait_until("more pods", lambda n=stored: len(own_team.pods()) > n + 20)
    assert lost == []
    assert all(pod["spec"]["initContainers"] for pod in own_team.pods())


def test_a_server_that_is_told_to_stop_answers_first_and_is_missed_by_name(own_team, tmp_path):
    server = own_team.ours.server
    own_team.accepts(a_pod("8Gi"))
    server.process.terminate()
    own_team.accepts(a_pod("8Gi"))
    assert server.process.wait(timeout=30) == 0

    error = own_team.refuses(a_pod("8Gi"))
    assert error.code == 500
    assert error.message == (
        'Internal error occurred: failed calling webhook "mutate.vramwarden.io": failed to call '
        f'webhook: Post "https://127.0.0.1:{server.port}/mutate?timeout=5s": '
        f"dial tcp 127.0.0.1:{server.port}: connect: connection refused"
    )
    with serving(tmp_path, port=server.port):
        assert container(own_team.accepts(a_pod("8Gi")), "vram-enforcer")


@pytest.fixture
def away(own_team):
    """Return a function that makes the server go away without a drain."""
    return own_team.ours.server.quit


def test_while_we_are_away_only_namespaces_that_opted_out_get_pods(
    control_plane, own_team, make_namespace, away
):
    away()
    assert 'failed calling webhook "mutate.vramwarden.io"' in own_team.refuses(a_pod()).message
    opted_out = make_namespace({"vramwarden.io/webhook": "disabled"})
    Team(control_plane.api, own_team.ours, opted_out).accepts(a_pod())


def test_while_we_are_away_a_pod_can_be_deleted(own_team, away):
    pod = own_team.accepts(a_pod("8Gi"))
    away()
    own_team.api.delete(pod, gracePeriodSeconds="0")
    assert own_team.pods() == []


def test_while_we_are_away_a_kubelet_can_report_what_became_of_a_pod(own_team, away):
    pod = own_team.accepts(a_pod("8Gi"))
    away()
    changed = own_team.patch(pod, {"status": {"phase": "Succeeded"}}, "/status")
    assert changed["status"]["phase"] == "Succeeded"


def test_while_we_are_away_the_scheduler_can_bind_a_pod(own_team, away):
    pod = own_team.accepts(a_pod("8Gi"))
    away()
    target = {"apiVersion": "v1", "kind": "Node", "name": "gpu-1"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": pod["metadata"]}
    path = f"/api/v1/namespaces/{own_team.namespace}/pods/{pod['metadata']['name']}/binding"
    metadata = {"name": pod["metadata"]["name"]}
    own_team.api.request("POST", path, {**binding, "metadata": metadata, "target": target})
    assert own_team.api.get(pod)["spec"]["nodeName"] == "gpu-1"
