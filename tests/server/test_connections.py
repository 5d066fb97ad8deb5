"""Limits of connections: their number, their time, and which connection is closed for another."""

from __future__ import annotations

import contextlib
import itertools
import json
import select
import socket
import ssl
import time
from http.client import HTTPSConnection
from ipaddress import IPv4Address, ip_network

import pytest

from tests.server.placement.binding_reviews import review as binding_review
from tests.support import router_client
from tests.support.hostile_requests import peak_bytes
from tests.support.pods import a_pod, a_review
from tests.support.server_process import JSON, running
from webhook.server.bounds import (
    MAX_BURST_OF_UNTRUSTED_S,
    MAX_BURST_PER_ADDRESS_S,
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_ADDRESS,
    MAX_TIME_OF_UNTRUSTED,
    MAX_TIME_PER_ADDRESS,
    MAX_TRUSTED_ADDRESSES,
)
from webhook.server.connections import TRUST_S, Connections, Peer, Slot, Stage, choose_slot_to_close
from webhook.server.handler import Answer, Endpoint, build_rejection

NEW, IDLE, RECEIVING, ANSWERING = Stage


@pytest.mark.parametrize(
    ("held", "newcomer", "given_up"),
    [
        ((), "b", None),
        (("a", ANSWERING), "b", None),
        (("a", IDLE), "b", 0),
        (("a", IDLE, "b", NEW), "c", 1),
        (("a", NEW, "a", NEW), "b", 0),
        (("a", NEW, "b", NEW, "b", NEW), "c", 1),
        (("a", IDLE, "a", IDLE, "b", NEW), "c", 0),
        (("a", IDLE, "a", NEW, "b", NEW), "c", 1),
        (("b", IDLE, "a", RECEIVING, "a", RECEIVING), "c", 1),
        (("a", RECEIVING, "a", IDLE, "b", IDLE), "c", 1),
        (("b", IDLE, "a", ANSWERING, "a", ANSWERING), "c", 0),
        (("API", NEW, "API", NEW, "a", RECEIVING), "b", 2),
        (("API", NEW, "API", NEW, "a", RECEIVING), "API", 2),
        (("API", NEW, "a", ANSWERING), "b", None),
        (("API", IDLE, "API", NEW, "OTHER", NEW, "a", ANSWERING), "OTHER", 1),
    ],
)
def test_the_connection_that_a_new_one_replaces(held, newcomer, given_up):
    peers = {name: Peer(address=name, is_trusted=name.isupper()) for name in (*held[::2], newcomer)}
    slots = []
    for name, stage in zip(held[::2], held[1::2], strict=True):
        slots.append(Slot(peers[name], lambda: None, 0.0, stage))
        peers[name].slots[slots[-1]] = None
    found = choose_slot_to_close(slots, peers[newcomer])
    assert found is (None if given_up is None else slots[given_up])


API_SERVER = "192.0.2.1"


class TimedHandler:
    """A handler whose responses advance the test's clock."""

    def __init__(self, cost_s):
        self.clock, self.cost_s = router_client.Clock(), cost_s
        self.connections = router_client.no_connections(self.clock, clock=self.clock.time)

    def route(self, _method, path, _content_type):
        secret = path == b"/secret"
        return Endpoint(max_bytes=9, answer=self.answer, too_large=bytes, is_secret=secret)

    def answer(self, _body, _peer):
        self.clock.now_s += self.cost_s
        return Answer(200, b"")

    def overloaded(self):
        return build_rejection(503, "later")

    def request(self, address, path=b"/"):
        """Return the response's head for a request on a new connection, 0.1 ms later."""
        self.clock.now_s += 0.0001
        connection, line, slot = router_client.connected(self, self.connections, address)
        connection.data_received(router_client.HEAD % (path, b"Content-Length: 0\r\n"))
        self.connections.release(slot)
        return line.written


@pytest.mark.parametrize("cost_s", [0.0003, 0.025, 0.1])
@pytest.mark.parametrize(
    ("addresses", "share"),
    [(1, MAX_TIME_PER_ADDRESS), (2, MAX_TIME_OF_UNTRUSTED), (10, MAX_TIME_OF_UNTRUSTED)],
)
def test_reviews_of_untrusted_addresses_get_a_share_of_the_time(cost_s, addresses, share):
    """The share does not depend on the number of connections. API servers have no limit."""
    handler, answered = TimedHandler(cost_s), 0
    strangers = [str(IPv4Address("10.0.0.0") + item) for item in range(addresses)]
    for _ in range(4):
        handler.connections._sweep()
        end_s = handler.clock.now_s + 1
        while handler.clock.now_s < end_s:
            answered += sum(b" 200 OK" in handler.request(stranger) for stranger in strangers)
    burst_s = MAX_BURST_OF_UNTRUSTED_S if addresses > 1 else MAX_BURST_PER_ADDRESS_S
    most_s = burst_s + share * handler.clock.now_s + cost_s
    assert most_s * 0.9 < answered * cost_s <= most_s
    assert any(b"retry-after: 1\r\n" in handler.request(strangers[0]) for _ in range(9))
    handler.cost_s = 5.0
    for path in (b"/secret", b"/", b"/"):
        assert b" 200 OK" in handler.request(API_SERVER, path)
    handler.connections._sweep()
    assert [*handler.connections.peers] == [API_SERVER]


@pytest.fixture
def make_connections():
    """Return a function that creates connections with the given networks of API servers."""

    def make(*networks):
        api_servers = [ip_network(network) for network in networks]
        return Connections(router_client.Clock(), None, None, None, lambda _: None, api_servers)

    return make


@pytest.mark.parametrize("attackers", [1, 2, 100, 600])
@pytest.mark.parametrize("known", ["by its address", "by a binding", "over IPv6", "not at all"])
def test_many_addresses_keep_no_api_server_out(make_connections, attackers, known):
    """There are 512 answered connections, and many new ones per connection of the API server."""
    api_server = "::ffff:" * (known == "over IPv6") + API_SERVER
    connections = make_connections(*(["192.0.2.0/31"] * (known in {"by its address", "over IPv6"})))
    if known == "by a binding":
        connections.trust(connections.allocate(api_server))
    crowd = itertools.cycle([str(IPv4Address("10.0.0.0") + item) for item in range(attackers)])
    for _ in range(MAX_CONNECTIONS):
        connections.allocate(next(crowd)).stage = IDLE
    answered = 0
    for _ in range(10):
        mine = connections.allocate(api_server)
        for _ in range(200):
            connections.allocate(next(crowd))
        answered += mine in connections.slots
        mine.stage = IDLE
        for _ in range(10):
            connections.allocate(next(crowd)).stage = IDLE
    # An unknown address gets as many connections as each attacker.
    assert answered == (min(10, MAX_CONNECTIONS // attackers) if known == "not at all" else 10)
    assert len(connections.slots) <= MAX_CONNECTIONS


def test_an_untrusted_address_has_its_own_limit(make_connections):
    connections = make_connections("192.0.2.1/32", "0.0.0.0/0", "::/0")
    for peer in ("192.0.2.1", "192.0.2.2"):
        for _ in range(MAX_CONNECTIONS_PER_ADDRESS + 2):
            last = connections.allocate(peer)
    assert last in connections.slots
    assert {name: len(peer.slots) for name, peer in connections.peers.items()} == {
        "192.0.2.1": MAX_CONNECTIONS_PER_ADDRESS + 2,
        "192.0.2.2": MAX_CONNECTIONS_PER_ADDRESS,
    }
    for slot in connections.peers["192.0.2.2"].slots:
        slot.stage = ANSWERING
    assert connections.allocate("192.0.2.2") is None


def test_addresses_are_forgotten(make_connections):
    connections = make_connections()
    for number in range(MAX_TRUSTED_ADDRESSES + 2):
        connections.loop.now_s = float(number)
        slot = connections.allocate(str(IPv4Address(API_SERVER) + number))
        connections.trust(slot)
        if number:  # the first address used the path before the others
            connections.release(slot)
    assert [peer.is_trusted for peer in connections.peers.values()] == [
        False,
        *[True] * MAX_TRUSTED_ADDRESSES,
    ]
    last = connections.allocate(slot.peer.address)
    connections.loop.now_s += TRUST_S - 1
    connections.trust(last)
    connections._sweep()
    assert [*connections.peers] == [last.peer.address]
    connections.release(last)
    connections.loop.now_s += TRUST_S
    connections._sweep()
    assert connections.peers == {}


@pytest.fixture
def server(tmp_path):
    with running(tmp_path) as started:
        yield started


def connect(server, source="127.0.0.1"):
    """Return a keep-alive connection from a loopback address of this machine."""
    address = (source, 0)
    made = HTTPSConnection(
        "127.0.0.1", server.port, timeout=60, context=server.context(), source_address=address
    )
    made.connect()
    return made


def connect_plain(server, peer):
    """Return a TCP connection without TLS."""
    return socket.create_connection(("127.0.0.1", server.port), 60, (peer, 0))


def post_review(connection):
    connection.request("POST", "/mutate", json.dumps(a_review(a_pod("8Gi"))), JSON)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())["response"]["allowed"]


def closed_total(server, reason):
    name = f'vramwarden_http_connections_closed_total{{reason="{reason}"}} '
    (line,) = [line for line in server.get("/metrics")[1].splitlines() if line.startswith(name)]
    return int(float(line.removeprefix(name)))


def count_closed(connections):
    """Return the number of TCP connections that the server has closed."""
    poll = select.poll()
    for connection in connections:
        poll.register(connection, select.POLLIN)
    return len(poll.poll(0))


@pytest.mark.parametrize("asks", [False, True], ids=["silent", "each with a request"])
def test_one_address_with_all_connections_keeps_no_client_out(server, asks):
    with contextlib.ExitStack() as stack:
        bystander = stack.enter_context(contextlib.closing(connect(server)))
        assert post_review(bystander) == (200, True)
        silent, surplus = [], MAX_CONNECTIONS + 40 - MAX_CONNECTIONS_PER_ADDRESS
        for _ in range(MAX_CONNECTIONS + 40):
            if asks:
                held = stack.enter_context(contextlib.closing(connect(server, "127.0.0.2")))
                assert post_review(held) == (200, True)
            else:
                silent.append(stack.enter_context(connect_plain(server, "127.0.0.2")))
        assert post_review(bystander) == (200, True)
        server.wait_for("the bound", lambda: closed_total(server, "too_many") == surplus)
        server.wait_for("their ends", lambda: asks or count_closed(silent) == surplus)
        for _ in range(5):
            other = stack.enter_context(contextlib.closing(connect(server)))
            assert post_review(other) == (200, True)
        assert closed_total(server, "too_many") == surplus
        assert post_review(bystander) == (200, True)


@pytest.mark.parametrize("known", ["by its address", "by a binding"])
def test_a_hundred_addresses_keep_no_api_server_out(tmp_path, known):
    options = ["--api-server=127.0.0.1/32"] * (known == "by its address")
    with running(tmp_path, *options) as server, contextlib.ExitStack() as stack:
        if known == "by a binding":
            assert server.post(binding_review(), server.bind_path)[0] == 200
        crowd = itertools.cycle(f"127.0.1.{number}" for number in range(1, 101))
        for _ in range(MAX_CONNECTIONS):
            held = stack.enter_context(contextlib.closing(connect(server, next(crowd))))
            assert post_review(held) == (200, True)
        body = json.dumps(a_review(a_pod("8Gi"))).encode()
        for number in range(1, 11):
            mine = stack.enter_context(connect_plain(server, "127.0.0.1"))
            for _ in range(20):
                stack.enter_context(connect_plain(server, next(crowd)))
            surplus = 21 * number
            server.wait_for(
                "them", lambda surplus=surplus: closed_total(server, "too_many") == surplus
            )
            mine = server.context().wrap_socket(mine, server_hostname="localhost")
            stack.enter_context(mine)
            mine.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert mine.recv(12) == b"HTTP/1.1 200"


def test_a_client_that_sends_after_an_early_answer_is_cut_off(server):
    """Data that arrives before the end is dropped, so that the client can read the response."""
    gives_up_s = time.monotonic() + 60
    with server.raw() as connection, contextlib.suppress(OSError):
        connection.sendall(HEAD + b"Content-Length: 99999999999\r\n\r\n" + b" " * 2000)
        while time.monotonic() < gives_up_s:
            connection.sendall(b" " * 65_536)
    server.wait_for("the end", lambda: closed_total(server, "timeout") == 1)


HEAD = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
WASTE = [
    b"POST /x HTTP/1.1\r\nHost: x\r\n\r\n" * 20_000,
    HEAD + b"a: %s\r\n" % (b"x" * 8000) * 90,
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 100_000,
]


def test_closed_connections_leave_no_memory_behind(server):
    for waste in WASTE * 300:
        with contextlib.suppress(OSError), server.raw() as connection:
            connection.sendall(waste)
    assert peak_bytes(server) < 150 * 2**20
    with contextlib.closing(connect(server)) as other:
        assert post_review(other) == (200, True)
    assert "Traceback" not in server.log_file.read_text()


def test_a_handshake_that_fails_leaves_nothing_behind(server):
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", server.port)) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                plain.recv(100)
    untrusting = ssl.create_default_context()
    with (
        socket.create_connection(("127.0.0.1", server.port)) as plain,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        untrusting.wrap_socket(plain, server_hostname="localhost")
    with contextlib.closing(connect(server)) as other:
        assert post_review(other) == (200, True)
    assert [line for line in server.log() if line["level"] != "info"] == []
    assert server.stop() == 0
    assert "Traceback" not in server.log_file.read_text()
