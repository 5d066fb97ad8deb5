"""The life of a server: certificates replaced, policies edited, connections held, the end."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from http.client import HTTPException

import pytest

from certs import ensure
from tests.support import servers
from tests.support.pods import a_pod, a_review
from tests.support.servers import POLICY, free_port, running


def served_serial(server):
    """Return the serial number of the certificate that a new connection is shown."""
    with server.raw() as connection:
        return connection.getpeercert()["serialNumber"]


def test_a_replaced_certificate_is_served_on_the_next_handshake(tmp_path):
    with running(tmp_path) as server:
        old = server.client()
        old.request("POST", "/mutate", json.dumps(a_review(a_pod())), JSON)
        assert old.getresponse().read()
        before = served_serial(server)

        ensure(server.certificates, ["localhost", "127.0.0.1", "other"], datetime.now(UTC))
        assert served_serial(server) != before

        old.request("POST", "/mutate", json.dumps(a_review(a_pod())), JSON)
        assert old.getresponse().status == 200
        old.close()
        process = server.process.pid
        assert server.process.poll() is None
        assert process == server.process.pid


def test_a_broken_certificate_is_not_served_and_said(tmp_path):
    with running(tmp_path) as server:
        before = served_serial(server)
        certificate = server.certificates / "tls.crt"
        certificate.resolve().write_text("not a certificate")
        assert served_serial(server) == before
        assert any("certificate rejected" in line["msg"] for line in server.log())
        assert 'loads_total{result="refused"} 1.0' in server.get("/metrics")[1]


JSON = {"Content-Type": "application/json"}


def test_idle_fresh_connections_do_not_starve_the_server(tmp_path):
    with running(tmp_path) as server:
        silent = [server.raw() for _ in range(100)]
        plain = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
        half = [server.raw() for _ in range(50)]
        for connection in half:
            connection.sendall(b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Le")
        for _ in range(5):
            assert server.review(a_review(a_pod("8Gi")))["allowed"] is True
        for connection in (*silent, *plain, *half):
            connection.close()


def test_a_slow_body_is_given_up(tmp_path):
    with running(tmp_path) as server, server.raw(timeout=60) as connection:
        connection.sendall(
            b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1000\r\n\r\n{"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 408 ")


def first_answer(connections):
    """Return what comes first on any of the connections."""
    while True:
        readable, _, _ = select.select(connections, [], [], 30)
        assert readable, "no answer"
        for connection in readable:
            connection.settimeout(0.1)
            with contextlib.suppress(TimeoutError):  # what came was of TLS alone
                return connection.recv(500)


def test_bodies_beyond_the_buffer_are_asked_to_come_back(tmp_path):
    with running(tmp_path) as server:
        head = (
            b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 8388608\r\n\r\n"
        )
        connections = [server.raw() for _ in range(10)]
        for connection in connections:
            connection.sendall(head + b" " * (8 * 2**20 - 1))
        answer = first_answer(connections)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in answer.lower()
        assert server.review(a_review(a_pod()))["allowed"] is True
        for connection in connections:
            connection.close()


def test_a_connection_is_kept_alive(tmp_path):
    with running(tmp_path) as server:
        client = server.client()
        for _ in range(3):
            client.request("POST", "/mutate", json.dumps(a_review(a_pod())), JSON)
            answer = client.getresponse()
            assert answer.read()
            assert answer.getheader("Connection", "keep-alive").lower() == "keep-alive"
        client.close()


def test_sigterm_answers_every_review_that_was_sent(tmp_path):
    """Four clients post without pause; from SIGTERM on no answer is missing or broken."""
    with running(tmp_path) as server:
        lost, answered = [], []
        started = threading.Barrier(5)

        def post_until_told_to_close():
            client = server.client()
            client.connect()
            started.wait()
            while True:
                client.request("POST", "/mutate", json.dumps(a_review(a_pod("8Gi"))), JSON)
                try:
                    answer = client.getresponse()
                    answer.read()
                except (OSError, HTTPException) as error:
                    lost.append(repr(error))
                    return
                answered.append(answer.status)
                if answer.getheader("Connection", "").lower() == "close":
                    client.close()
                    return

        threads = [threading.Thread(target=post_until_told_to_close) for _ in range(4)]
        for thread in threads:
            thread.start()
        started.wait()
        assert server.stop() == 0
        for thread in threads:
            thread.join(timeout=60)
        assert lost == []
        assert set(answered) == {200}


def test_readiness_ends_when_draining_begins(tmp_path):
    with running(tmp_path) as server:
        held = server.client()
        held.request("POST", "/mutate", json.dumps(a_review(a_pod())), JSON)
        held.getresponse().read()
        server.process.terminate()
        server.wait_for("draining", lambda: server.get("/readyz") == (503, "draining\n"))
        assert server.get("/livez")[0] == 200
        held.close()
        assert server.process.wait(timeout=60) == 0


def test_an_edited_policy_is_in_force_without_a_restart_and_a_bad_one_is_not(tmp_path):
    with running(tmp_path) as server:
        pod = a_review(a_pod("20Gi"))
        assert server.review(pod)["allowed"] is True

        file = server.policy / "policy.yaml"
        file.write_text(POLICY.replace("max: 40Gi", "max: 10Gi"))
        server.wait_for("the reload", lambda: not server.review(pod)["allowed"])

        file.write_text(POLICY.replace("max: 40Gi", "max: forty"))
        server.wait_for("the rejection", lambda: "policy_stale 1.0" in server.get("/metrics")[1])
        assert server.review(pod)["status"]["message"].startswith("TooLarge")
        (line,) = [line for line in server.log() if line["msg"].startswith("policy rejected")]
        assert "spec.rules[1].memory.max" in line["problems"][0]
        assert server.get("/readyz")[0] == 200

        file.write_text(POLICY)
        server.wait_for("the recovery", lambda: server.review(pod)["allowed"])
        server.wait_for("the all-clear", lambda: "policy_stale 0.0" in server.get("/metrics")[1])


def test_an_empty_policy_folder_leaves_every_pod_alone(tmp_path):
    with running(tmp_path, policy=None) as server:
        answer = server.review(a_review(a_pod("nonsense", hostPID=True)))
        assert answer["allowed"] is True
        assert "patch" not in answer


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("policy", "{folder}/bad.yaml:3: x: unknown field"),
        ("port", "cannot be listened on"),
        ("certificates", "tls.crt"),
        ("key", "{folder}/key: a key has 32 bytes or more; make it by `openssl rand -hex 32`"),
    ],
)
def test_what_keeps_it_from_starting_is_said_in_a_sentence(tmp_path, option, says):
    (tmp_path / "bad.yaml").write_text(
        "apiVersion: vramwarden.io/v1alpha1\nkind: VRAMPolicy\nx: 1\n"
    )
    certificates = tmp_path / "certs"
    command = [sys.executable, "-m", "webhook.cli", "serve", f"--cert-dir={certificates}"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        if option == "policy":
            command += [f"--policy={tmp_path}/bad.yaml"]
        elif option == "certificates":
            certificates.mkdir()
            (certificates / "tls.crt").write_text("x")
        elif option == "key":
            (tmp_path / "key").write_text("")
            command += [f"--key-file={tmp_path}/key"]
        port = taken.getsockname()[1] if option == "port" else free_port()
        command += [f"--operations-port={port}", f"--port={free_port()}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert says.format(folder=tmp_path) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def failed_start(tmp_path):
    """Start a server that cannot listen; return what it says. No certificate is issued for it."""

    def run(*arguments, code=1):
        folder = tmp_path / "certs"
        command = [sys.executable, "-m", "webhook.cli", "serve", f"--cert-dir={folder}"]
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout) == (code, "")
        assert not folder.exists()
        return done.stderr

    return run


@pytest.mark.parametrize("option", ["port", "operations-port"])
def test_a_port_that_is_taken_is_one_sentence(failed_start, option):
    other = {"port": "operations-port", "operations-port": "port"}[option]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = failed_start(f"--{option}={port}", f"--{other}=0")
    why = "cannot be listened on (Address already in use)"
    assert said == f"Error: 127.0.0.1:{port} {why}; choose --{option}\n"


@pytest.mark.parametrize("option", ["host", "operations-host"])
@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "nowhere.invalid", "a..b"])
def test_an_address_of_another_machine_is_one_sentence(failed_start, option, host):
    said = failed_start(f"--{option}={host}", "--port=0")
    assert said.startswith(f"Error: {host} cannot be listened on (")
    assert said.endswith(f"); choose --{option}\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize("option", ["port", "operations-port"])
@pytest.mark.parametrize("port", ["99999", "65536", "-1"])
def test_a_port_that_cannot_be_is_wrong_usage(failed_start, option, port):
    said = failed_start(f"--{option}={port}", code=2)
    assert f"'--{option}': {port} is not in the range 0<=x<=65535" in said


@pytest.mark.parametrize("network", ["10.0.0.0/33", "everybody", "", "10.0.0.0/8,10.1.0.0/16"])
def test_addresses_of_api_servers_that_cannot_be_are_wrong_usage(failed_start, network):
    said = failed_start(f"--api-server={network}", code=2)
    why = "does not appear to be an IPv4 or IPv6 network; write it as 192.0.2.0/24 or 2001:db8::/32"
    assert said.endswith(f"'--api-server': {network!r} {why}\n")


def test_a_restart_need_not_wait_for_connections_of_the_server_before(tmp_path, monkeypatch):
    with running(tmp_path) as server:
        ports = iter([server.port, free_port()])
        held = server.raw()
        server.quit()  # it closes first, so its end of the connection lingers
    monkeypatch.setattr(servers, "free_port", lambda: next(ports))
    with running(tmp_path) as server:
        assert server.review(a_review(a_pod("8Gi")))["allowed"] is True
    held.close()


def test_a_second_server_without_a_plain_port_of_its_own_takes_another(tmp_path):
    certificates = tmp_path / "certs"
    command = [sys.executable, "-m", "webhook.cli", "serve", f"--cert-dir={certificates}"]
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # somebody else has it: just as well
            taken.bind(("127.0.0.1", 8080))
            taken.listen()
        command += [f"--port={free_port()}"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            for line in process.stderr:
                if line.startswith("operations:"):
                    break
            process.terminate()
            process.communicate()
    assert not line.endswith(":8080/readyz\n")
