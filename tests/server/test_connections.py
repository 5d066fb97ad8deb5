"""How many connections there may be and how long they may take; who has to go for whom."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time
from http.client import HTTPSConnection

import pytest

from tests.support.attacks import peak_bytes
from tests.support.pods import a_pod, a_review
from tests.support.programs import wait_until
from tests.support.servers import running
from webhook.server.connections import MAX_CONNECTIONS, REQUEST_S, Held, State, to_give_up

NEW, IDLE, RECEIVING, ANSWERING = State


@pytest.mark.parametrize(
    ("held", "given_up"),
    [
        ((), None),
        (("a", ANSWERING), None),
        (("a", IDLE), 0),
        (("a", IDLE, "b", NEW), 1),
        (("a", NEW, "a", NEW), 0),
        (("a", NEW, "b", NEW, "b", NEW), 1),
        (("a", IDLE, "a", IDLE, "b", IDLE), 0),
        (("b", IDLE, "a", RECEIVING, "a", RECEIVING), 1),
        (("a", RECEIVING, "a", IDLE, "b", IDLE), 1),
        (("b", IDLE, "a", ANSWERING, "a", ANSWERING), 0),
    ],
)
def test_who_has_to_go_for_a_new_connection(held, given_up):
    pairs = zip(held[::2], held[1::2], strict=True)
    all_held = [Held(source, lambda: None, 0.0, state) for source, state in pairs]
    found = to_give_up(all_held)
    assert found is (None if given_up is None else all_held[given_up])


@pytest.fixture
def server(tmp_path):
    with running(tmp_path) as started:
        yield started


JSON = {"Content-Type": "application/json"}


def connected(server, source="127.0.0.1"):
    """Return a connection that keeps alive, from one of the many addresses of this machine."""
    address = (source, 0)
    made = HTTPSConnection(
        "127.0.0.1", server.port, timeout=10, context=server.context(), source_address=address
    )
    made.connect()
    return made


def ask(connection):
    connection.request("POST", "/mutate", json.dumps(a_review(a_pod("8Gi"))), JSON)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())["response"]["allowed"]


def closed(server, reason):
    name = f'vramwarden_http_connections_closed_total{{reason="{reason}"}} '
    (line,) = [line for line in server.get("/metrics")[1].splitlines() if line.startswith(name)]
    return int(float(line.removeprefix(name)))


def is_open(connection):
    """Return whether the other side still holds a connection; reads what it sent."""
    connection.settimeout(0.05)
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return True
    except OSError:
        pass
    return False


def open_of(connections):
    """Return the names of those that the other side still holds."""
    return {name for name, one in connections.items() if is_open(one)}


@pytest.mark.parametrize("asks", [False, True], ids=["silent", "each with a request"])
def test_one_address_with_all_connections_keeps_nobody_else_out(server, asks):
    with contextlib.ExitStack() as stack:
        bystander = stack.enter_context(contextlib.closing(connected(server)))
        assert ask(bystander) == (200, True)
        for _ in range(MAX_CONNECTIONS + 40):
            if asks:
                held = stack.enter_context(contextlib.closing(connected(server, "127.0.0.2")))
                assert ask(held) == (200, True)
            else:
                held = socket.create_connection(
                    ("127.0.0.1", server.port), source_address=("127.0.0.2", 0)
                )
                stack.enter_context(held)
        assert ask(bystander) == (200, True)
        server.wait_for("the bound", lambda: closed(server, "full") == 41)
        for _ in range(5):
            other = stack.enter_context(contextlib.closing(connected(server)))
            assert ask(other) == (200, True)
        assert closed(server, "full") == 46
        assert ask(bystander) == (200, True)


def test_what_does_not_get_on_with_its_request_is_closed_and_what_is_idle_is_not(server):
    request = json.dumps(a_review(a_pod())).encode()
    head = (
        b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(request)
    )
    began = time.monotonic()
    plain = socket.create_connection(("127.0.0.1", server.port))
    slow = {"silent": server.raw(), "half": server.raw(), "body": server.raw()}
    slow["half"].sendall(head[:40])
    slow["body"].sendall(head)
    used = {"idle": server.raw(), "half again": server.raw()}
    for connection in used.values():
        connection.sendall(head + request)
        assert b" 200 " in connection.recv(20)
    used["half again"].sendall(head[:40])
    with contextlib.ExitStack() as stack:
        for connection in (plain, *slow.values(), *used.values()):
            stack.enter_context(connection)
        everything = {"plain": plain, **slow, **used}
        assert open_of(everything) == set(everything)
        time.sleep(max(0.0, began + REQUEST_S + 2.5 - time.monotonic()))
        wait_until("all but one are closed", lambda: open_of(everything) == {"idle"})
        assert closed(server, "slow") == 5
        used["idle"].settimeout(10)
        used["idle"].sendall(head + request)
        assert b" 200 " in used["idle"].recv(20)


def test_who_goes_on_sending_after_an_early_answer_is_cut_off(server):
    with server.raw() as connection:
        connection.sendall(
            b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 99999999999\r\n\r\n" + b" " * 2000
        )
        began = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() < began + REQUEST_S:
                connection.sendall(b" " * 65_536)
        assert time.monotonic() - began < REQUEST_S / 2
    assert closed(server, "slow") == 1


HEAD = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def received(connection):
    """Return all that the other side sends until it closes."""
    connection.settimeout(REQUEST_S / 2)
    found = b""
    with contextlib.suppress(ConnectionResetError, ssl.SSLEOFError):
        while data := connection.recv(4096):
            found += data
    return found


def test_who_sends_the_next_request_before_an_answer_is_cut_off(server):
    request = json.dumps(a_review(a_pod())).encode()
    whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(request) + request
    with server.raw() as connection:
        connection.sendall(whole * 5)
        assert received(connection).count(b"HTTP/1.1 200") == 0
    assert closed(server, "unfair") == 1


def test_headers_without_an_end_are_cut_off(server):
    with server.raw() as connection:
        connection.sendall(HEAD + b"".join(b"a%d: %s\r\n" % (i, b"x" * 8000) for i in range(5)))
        assert received(connection) == b""
    assert closed(server, "unfair") == 1


def test_a_body_in_very_many_chunks_is_rejected(server):
    with server.raw() as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 5000)
        answer = received(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b"the body comes in more than 4096 chunks")


WASTE = {
    "requests": b"POST /x HTTP/1.1\r\nHost: x\r\n\r\n" * 20_000,
    "headers": HEAD + b"a: %s\r\n" % (b"x" * 8000) * 90,
    "chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 100_000,
}


@pytest.mark.parametrize("waste", WASTE.values(), ids=WASTE)
def test_connections_that_come_and_go_leave_no_memory_behind(server, waste):
    for _ in range(300):
        with contextlib.suppress(OSError), server.raw() as connection:
            connection.sendall(waste)
    assert peak_bytes(server) < 150 * 2**20
    with contextlib.closing(connected(server)) as other:
        assert ask(other) == (200, True)
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
    with contextlib.closing(connected(server)) as other:
        assert ask(other) == (200, True)
    assert [line for line in server.log() if line["level"] != "info"] == []
    assert server.stop() == 0
    assert "Traceback" not in server.log_file.read_text()
