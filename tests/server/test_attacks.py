"""Other clients still get responses during attacks. tests/bench measures their delay."""

from __future__ import annotations

import contextlib
import socket
from collections import Counter

import pytest

from tests.support.hostile_requests import BODIES, JSON, Damage, peak_bytes, posting, slow, watched
from tests.support.pods import a_pod, a_review
from tests.support.server_process import running
from webhook.server.bounds import MAX_CONNECTIONS

pytestmark = pytest.mark.process

CLIENTS = 4
ROUNDS = 20
LIMIT_BYTES = 256 * 2**20
"""Memory limit of the webhook in the chart."""


@pytest.mark.parametrize("name", BODIES)
def test_clients_are_answered_while_another_posts_expensive_bodies(tmp_path, name):
    body = BODIES[name]()
    with running(tmp_path) as server:
        damage = Damage()

        def is_over():
            return damage.rounds() >= ROUNDS and damage.told.total() > 2 * CLIENTS

        with posting(server, body, CLIENTS, damage.told):
            watched(server, damage, is_over)
        assert set(damage.told) <= {200, 503}
        assert peak_bytes(server) < LIMIT_BYTES
        lengths = [len(line) for line in server.log_file.read_bytes().splitlines()]
        assert max(lengths) <= 16 * 2**10


def test_clients_are_answered_while_a_decision_takes_seconds(tmp_path):
    """Some attackers are answered, too. After 4 s without a turn they are asked to retry."""
    body = slow(3, note="x" * 100_000)
    with running(tmp_path, program="tests.server.slow_judge") as server:
        damage = Damage()
        with posting(server, body, CLIENTS, damage.told):
            watched(server, damage, lambda: {200, 503} <= set(damage.told))
        assert set(damage.told) == {200, 503}
        assert damage.rounds() > damage.told.total()  # attackers do not wait for one another


@pytest.mark.parametrize("note", ["", "x" * 100_000], ids=["small", "large"])
def test_an_api_server_is_answered_while_untrusted_clients_post_expensive_reviews(tmp_path, note):
    """The API server gives up after 5 s. A round of the other reviews takes 6 s."""
    strangers, told = ("127.0.0.2", "127.0.0.3"), Counter()
    options = "--api-server=127.0.0.1/32"
    program = "tests.server.slow_judge"
    with (
        running(tmp_path, options, program=program) as server,
        posting(server, slow(0.1, note=note), 60, told, strangers),
    ):
        server.wait_for("the bound", lambda: told.total() > 60)
        for body in [slow(0), slow(0, note="x" * 100_000)] * 5:
            with contextlib.closing(server.client(timeout=5)) as client:
                client.request("POST", "/mutate", body, JSON)
                assert client.getresponse().status == 200
    assert told[200] > 0
    assert told[503] > told[200]


def test_clients_are_answered_while_another_has_a_thousand_connections(tmp_path):
    with running(tmp_path) as server, contextlib.ExitStack() as stack:
        damage = Damage()
        for _ in range(1100):
            held = socket.create_connection(
                ("127.0.0.1", server.port), source_address=("127.0.0.2", 0)
            )
            stack.enter_context(held)
        watched(server, damage, lambda: damage.rounds() >= ROUNDS)
        assert peak_bytes(server) < LIMIT_BYTES


def test_connections_that_all_sent_much_fit_into_memory(tmp_path):
    """The kernel's socket buffers also count towards the limit."""
    size = 260 * 2**10
    head = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"
    request = head + b"Content-Length: %d\r\n\r\n" % size + b" " * size
    with running(tmp_path) as server, contextlib.ExitStack() as stack:
        held = [
            stack.enter_context(server.raw(source=f"127.0.1.{1 + number % 100}"))
            for number in range(MAX_CONNECTIONS)
        ]
        for connection in held:
            with contextlib.suppress(OSError):
                connection.sendall(request)
        for connection in held:
            with contextlib.suppress(OSError):
                connection.recv(100)
        assert peak_bytes(server) < LIMIT_BYTES * 3 // 4
        assert server.review(a_review(a_pod("8Gi")))["allowed"] is True
