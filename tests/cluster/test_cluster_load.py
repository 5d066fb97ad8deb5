"""Many pods at once, a server that goes away, and certificates that change meanwhile."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from builders import a_pod
from controlplane import ApiError, wait_until
from our_server import OurServer, Team, container, serving, variables
from webhooks import installed

from certs import ensure

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


def test_the_server_had_no_trouble(ours):
    """After all that the other tests of this module asked of it."""
    assert [line for line in ours.server.log() if line["level"] != "info"] == []
    refused = [
        line
        for line in ours.server.get("/metrics")[1].splitlines()
        if line.startswith("vramwarden_") and "refused_total{" in line
    ]
    assert refused == []


@pytest.fixture
def own_server(tmp_path):
    """Run a server that a test may stop."""
    with serving(tmp_path) as server:
        yield server
        server.process.kill()


@pytest.fixture
def own_team(control_plane, own_server, make_namespace):
    """Be a team under the server that may be stopped."""
    our_server = OurServer(own_server)
    with installed(control_plane.api, *our_server.configurations):
        yield Team(control_plane.api, our_server, make_namespace())


def test_a_renewed_certificate_loses_no_creation(own_team):
    server = own_team.ours.server
    names = ["localhost", "127.0.0.1", "::1"]
    with creating(own_team) as lost:
        for number in range(3):
            wait_until("pods", lambda n=number: len(own_team.pods()) > 20 * (n + 1))
            outcome = ensure(server.certificates, [*names, f"n{number}"], datetime.now(UTC))
            assert outcome.action != "kept"
            before = len(own_team.pods())
            wait_until("more pods", lambda n=before: len(own_team.pods()) > n + 20)
    assert lost == []
    assert all(pod["spec"]["initContainers"] for pod in own_team.pods())


def test_a_server_that_is_told_to_stop_loses_no_creation_until_it_is_gone(own_team, tmp_path):
    """With failurePolicy Fail the API server then refuses, by the name of our webhook."""
    server = own_team.ours.server
    own_team.accepts(a_pod("8Gi"))
    server.process.terminate()
    error = wait_until("a refusal", lambda: _refusal(own_team), timeout=20)
    assert server.process.wait(timeout=20) == 0
    assert error.code == 500
    assert error.message.startswith(
        'Internal error occurred: failed calling webhook "mutate.vramwarden.io": '
        f'failed to call webhook: Post "https://127.0.0.1:{server.port}/mutate?timeout=5s": '
    )
    assert "connection refused" in error.message

    with serving(tmp_path, port=server.port) as restarted:
        assert container(own_team.accepts(a_pod("8Gi")), "vram-enforcer")
        restarted.process.kill()


def _refusal(team):
    try:
        team.accepts(a_pod("8Gi"))
    except ApiError as error:
        return error
    return None


def test_pods_of_namespaces_that_opted_out_are_created_while_we_are_away(
    control_plane, own_team, make_namespace
):
    own_team.ours.server.process.kill()
    own_team.ours.server.process.wait()
    opted_out = make_namespace({"vramwarden.io/webhook": "disabled"})
    Team(control_plane.api, own_team.ours, opted_out).accepts(a_pod())
    assert _refusal(own_team)


def test_a_pod_can_be_deleted_while_we_are_away(own_team):
    pod = own_team.accepts(a_pod("8Gi"))
    own_team.ours.server.process.kill()
    own_team.ours.server.process.wait()
    own_team.api.delete(pod, gracePeriodSeconds="0")
    assert own_team.pods() == []
