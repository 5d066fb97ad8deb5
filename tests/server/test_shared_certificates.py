"""Certificates in a Secret: what a server does while the API server is away, or says no."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import ssl
import subprocess
import sys
import time

import pytest

from tests.server.placement.fake_cluster import MUTATING, SECRETS, VALIDATING, FakeCluster
from tests.support.pods import a_pod, a_review
from tests.support.servers import Server, free_port

SECRET = f"{SECRETS}/certificate"


@pytest.fixture
def cluster():
    """Return a cluster that answers once a test lets it."""
    return FakeCluster(free_port())


@pytest.fixture
def start(cluster, tmp_path):
    """Return a function that starts a server; it may be ready later, or never."""
    with contextlib.ExitStack() as stack:

        def start_one(*options):
            port, operations_port = free_port(), free_port()
            command = serve(
                "--cert-secret=gpu/certificate",
                "--webhook-configuration=ours",
                "--cert-name=localhost",
                f"--port={port}",
                f"--operations-port={operations_port}",
                *options,
            )
            env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig(tmp_path))}
            log_file = tmp_path / "log"
            log = stack.enter_context(log_file.open("wb"))
            process = subprocess.Popen(command, stderr=log, stdout=log, env=env)
            server = Server(process, port, operations_port, tmp_path, tmp_path, log_file)
            stack.callback(server.quit)
            server.wait_for("life", lambda: alive(server))
            return server

        yield start_one


def serve(*options):
    return [sys.executable, "-m", "webhook.cli", "serve", *options]


def alive(server):
    assert server.process.poll() is None, server.log_file.read_text()
    with contextlib.suppress(OSError):
        return server.get("/livez")[0] == 200
    return False


def trust(cluster, folder):
    """Let clients of the test trust what the Secret says."""
    ca = base64.b64decode(cluster.objects[SECRET]["data"]["ca.crt"])
    (folder / "ca.crt").write_bytes(ca)
    return ca


def bundles(cluster):
    return [
        base64.b64decode(cluster.objects[f"{path}/ours"]["webhooks"][0]["clientConfig"]["caBundle"])
        for path in (MUTATING, VALIDATING)
    ]


def messages(server):
    return [line["msg"] for line in server.log()]


def sample(server, name):
    (line,) = [s for s in server.get("/metrics")[1].splitlines() if s.startswith(f"{name} ")]
    return float(line.split()[1])


def test_a_server_is_ready_when_every_cabundle_holds_its_ca(cluster, start, tmp_path):
    cluster.put_configurations()
    cluster.denied.add(("PATCH", VALIDATING))
    with cluster.answering():
        server = start()
        server.wait_for("word", lambda: "lacks the CA" in server.get("/readyz")[1])
        status, text = server.get("/readyz")
        assert status == 503
        assert f"PATCH {VALIDATING} is forbidden" in text
        assert sample(server, "vramwarden_ca_bundle_published") == 0

        cluster.denied.clear()
        server.wait_for("readiness", server.ready)
        assert bundles(cluster) == [trust(cluster, tmp_path)] * 2
        assert server.review(a_review(a_pod("8Gi")))["allowed"] is True
        assert sample(server, "vramwarden_ca_bundle_published") == 1
        assert 364 < sample(server, 'vramwarden_certificate_days_left{role="serving"}') <= 365
        assert "certificates: Secret gpu/certificate\n" in server.get("/readyz?verbose")[1]


def test_without_the_api_server_it_lives_and_waits_and_later_serves_on(cluster, start, tmp_path):
    cluster.put_configurations()
    server = start("--ca-overlap=2s")  # with it, syncs are frequent
    server.wait_for("word", lambda: "no certificate yet: Secret gpu" in server.get("/readyz")[1])
    with pytest.raises(ssl.SSLError):
        shake_hands(server)
    assert alive(server)

    with cluster.answering():
        server.wait_for("readiness", server.ready)
        trust(cluster, tmp_path)
        assert server.review(a_review(a_pod("8Gi")))["allowed"] is True
        served = shake_hands(server)
    failed = 'vramwarden_certificate_syncs_total{result="failed"}'
    before = sample(server, failed)
    server.wait_for("a sync", lambda: sample(server, failed) > before)
    assert shake_hands(server) == served
    assert server.review(a_review(a_pod("8Gi")))["allowed"] is True
    assert server.get("/readyz") == (200, "ok\n")

    with cluster.answering():
        again = "certificates are reconciled again"
        server.wait_for("the end", lambda: messages(server).count(again) == 2)
    # However often it tried, it is logged when trouble begins and when it ends.
    trouble = [line["msg"] for line in server.log() if line["level"] != "info"]
    assert trouble.count("certificates cannot be reconciled") in {2, 3}
    others = {one for one in trouble if one != "certificates cannot be reconciled"}
    assert others <= {"webhook configurations cannot be read"}  # by who registers bind's path
    assert len(trouble) <= 2 * 3
    announced, *lines = server.log_file.read_text().splitlines()[2:]
    assert announced.startswith("operations: ")
    assert all(line.startswith("{") for line in lines)


def shake_hands(server):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as plain,
        context.wrap_socket(plain) as connection,
    ):
        return connection.getpeercert(binary_form=True)


def test_a_damaged_cabundle_is_reconciled_and_no_replica_becomes_unready(cluster, start):
    cluster.put_configurations()
    with cluster.answering():
        server = start()
        server.wait_for("readiness", server.ready)
        good = bundles(cluster)
        cluster.denied |= {("PATCH", MUTATING), ("PATCH", VALIDATING)}
        cluster.put_configurations("Z2FyYmFnZQ==")
        server.wait_for("a sync", lambda: sample(server, "vramwarden_ca_bundle_published") == 0)
        assert server.get("/readyz")[0] == 200
        cluster.denied.clear()
        server.wait_for("repair", lambda: bundles(cluster) == good)


def test_a_broken_secret_changes_nothing_that_is_served(cluster, start):
    cluster.put_configurations()
    with cluster.answering():
        server = start()
        server.wait_for("readiness", server.ready)
        served = shake_hands(server)
        broken = cluster.objects[SECRET] | {
            "data": cluster.objects[SECRET]["data"] | {"tls.key": "anVuaw=="}
        }
        cluster.put(SECRET, broken)
        server.wait_for("word", lambda: "certificates cannot be reconciled" in messages(server))
        assert shake_hands(server) == served
        assert server.get("/readyz")[0] == 200
        (line,) = [line for line in server.log() if line["level"] == "error"]
        (why,) = line["why"]
        assert why.startswith("Secret gpu/certificate, tls.key: holds no PEM private key; ")
        assert cluster.objects[SECRET]["data"]["tls.key"] == "anVuaw=="


def test_it_writes_each_thing_once(cluster, start):
    cluster.put_configurations()
    with cluster.answering():
        server = start()
        server.wait_for("readiness", server.ready)
    writes = [asked for asked in cluster.asked if asked[0] != "GET"]
    assert sorted(writes) == [("PATCH", MUTATING), ("PATCH", VALIDATING), ("POST", SECRETS)]


def test_it_drains_and_stops_while_the_api_server_is_away(start):
    assert start().stop() == 0


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--cert-secret=certificate",), 2, "write NAMESPACE/NAME"),
        (("--cert-secret=a/b/c",), 2, "write NAMESPACE/NAME"),
        (("--cert-secret=a/b", "--cert-dir=/tmp"), 2, "drop one of the two"),
        (("--cert-secret=a/b", "--ca-overlap=soon"), 2, "'soon' is not a duration"),
        (("--cert-secret=a/b",), 1, "no API server is known from a kubeconfig (~/.kube/config): "),
    ],
)
def test_what_keeps_it_from_starting_is_reported_in_a_sentence(tmp_path, options, code, says):
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    command = serve(*options, f"--port={free_port()}", f"--operations-port={free_port()}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_certificates_are_installed_and_checked_by_hand(cluster, tmp_path):
    def certs(command, *options):
        return subprocess.run(
            [
                *(sys.executable, "-m", "webhook.cli", "certs", command),
                *("--secret=gpu/certificate", "--webhook-configuration=ours"),
                *(f"--kubeconfig={cluster.kubeconfig(tmp_path)}", *options),
            ],
            capture_output=True,
            text=True,
            check=False,
        )

    cluster.put_configurations()
    with cluster.answering():
        before = certs("status")
        assert before.returncode == 1
        assert "problem: the Secret gpu/" in before.stderr
        assert "does not exist; run: vramwarden certs install --secret gpu/" in before.stderr
        installed = certs("install", "--service=gpu-webhook")
        assert installed.returncode == 0, installed.stderr
        assert installed.stdout.splitlines()[1:] == [
            "MutatingWebhookConfiguration ours: caBundle written (mutate.vramwarden.io)",
            "ValidatingWebhookConfiguration ours: caBundle written (validate.vramwarden.io)",
        ]
        after = certs("status")
        assert after.returncode == 0, after.stderr
        assert "for gpu-webhook.gpu.svc, gpu-webhook.gpu, gpu-webhook, " in after.stdout
        cluster.denied.add(("PATCH", MUTATING))
        time.sleep(1.0)  # of two CAs the newer is the one that starts in a later second
        assert "rotated (another CA was asked for)" in (rotated := certs("rotate")).stdout
        assert rotated.returncode == 1
        assert f"PATCH {MUTATING} is forbidden" in rotated.stderr
        assert "kept (another CA is announced already)" in certs("rotate").stdout
    away = certs("install")
    assert away.returncode == 1
    assert "check that the API server can be reached from here" in away.stderr
    assert certs("status", "--cert-dir=/tmp").returncode == 2
