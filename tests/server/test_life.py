"""The lifecycle of a server: startup failures, reloads, and draining."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import threading
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path

import pytest

from certs import read_folder
from tests.certs.handshakes import put, renewed
from tests.support import router_client, server_process
from tests.support.api_server import ApiServer
from tests.support.pods import a_container, a_pod, a_review
from tests.support.recorded_log import RecordedLog
from tests.support.run_command import runner
from tests.support.server_process import JSON, POLICY, free_port, running
from webhook.adapters.kube.namespaces import PATH
from webhook.cli.main import main
from webhook.core.policy.fence import RULES_KEY
from webhook.server import service as module
from webhook.server.operations import OPERATIONS_PORT

FENCE = "/api/v1/namespaces/gpu/configmaps/vramwarden-fence"


def served_serial(server):
    """Return the serial number of the certificate that a new connection gets."""
    with server.raw() as connection:
        return connection.getpeercert()["serialNumber"]


def test_a_replaced_certificate_is_served_from_the_next_handshake_on(server):
    with contextlib.closing(server.client()) as old:
        old.request("POST", "/mutate", json.dumps(a_review(a_pod())), JSON)
        assert old.getresponse().read()
        before = served_serial(server)
        put(server.certificates, renewed(read_folder(server.certificates), ["localhost"]))
        assert served_serial(server) != before
        old.request("POST", "/mutate", json.dumps(a_review(a_pod())), JSON)
        assert old.getresponse().status == 200


def test_sigterm_answers_every_review_that_was_sent(tmp_path):
    """Four clients post without pause. After SIGTERM every response arrives completely."""
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


def test_an_edited_policy_is_in_force_without_a_restart(tmp_path):
    with running(tmp_path) as server:
        pod = a_review(a_pod("20Gi"))
        assert server.review(pod)["allowed"] is True
        (server.policy / "policy.yaml").write_text(POLICY.replace("max: 40Gi", "max: 10Gi"))
        server.wait_for("the reload", lambda: not server.review(pod)["allowed"])


OF_LABELS = """\
  - name: interns
    match: {namespaceLabels: {tier: intern}}
    memory: {max: 10Gi}
"""


def test_a_reload_reaches_the_fence_and_labels_and_another_writer_is_reverted(tmp_path):
    """Without a notification, the fence's keeper reads every 30 s, and the cache never does."""
    with ApiServer(tmp_path) as api:
        api.put("/api/v1/namespaces/team", {"metadata": {"labels": {"tier": "intern"}}, "spec": {}})
        options = ("--placement-namespace=gpu",)
        with running(tmp_path, *options, KUBECONFIG=str(api.kubeconfig)) as server:
            pod = a_review(a_pod("8Gi"), namespace="team")

            def rule():
                status, body = server.post(pod)  # 503 until the labels are known
                return status == 200 and json.loads(body)["response"]["auditAnnotations"]["rule"]

            def lines():
                return api.objects.get(FENCE, {"data": {}})["data"].get(RULES_KEY, "")

            server.wait_for("the first rules", lambda: lines().count("\n") == 2)
            assert rule() == "default"
            assert not any(request.path == PATH for request in api.asked)
            edited = POLICY.replace("  - name: default", f"{OF_LABELS}  - name: default")
            (server.policy / "policy.yaml").write_text(edited)
            server.wait_for("the labels", lambda: rule() == "interns", timeout_s=15)
            server.wait_for("the fence", lambda: " tier=intern " in lines(), timeout_s=5)
            api.put(FENCE, {"data": {RULES_KEY: "^(.*)$ - ^$ -\n"}})
            server.wait_for("its repair", lambda: " tier=intern " in lines(), timeout_s=5)
        assert server.messages().count("policy loaded") == 1


def test_a_restart_need_not_wait_for_connections_of_the_previous_server(tmp_path, monkeypatch):
    with running(tmp_path) as server:
        ports = iter([server.port, free_port()])
        held = server.raw()
        server.quit()  # the server closes first, so its end stays in TIME_WAIT
    monkeypatch.setattr(server_process, "free_port", lambda: next(ports))
    with running(tmp_path) as server:
        assert server.review(a_review(a_pod("8Gi")))["allowed"] is True
    held.close()


def test_without_a_folder_certificates_exist_as_long_as_the_server(tmp_path):
    with running(tmp_path, cert_dir=False, TMPDIR=str(tmp_path)) as server:
        (server.certificates,) = tmp_path.glob("vramwarden-*")
        modes = {path.stat().st_mode & 0o777 for path in server.certificates.iterdir()}
        assert (server.certificates.stat().st_mode & 0o777, modes) == (0o700, {0o600})
        (worker,) = child_pids(server.process.pid)
        os.kill(worker, signal.SIGTERM)
        server.wait_for(
            "another worker", lambda: child_pids(server.process.pid) not in ([], [worker])
        )
        server.wait_for("readiness", server.ready)
        assert server.review(a_review(a_pod("8Gi")))["allowed"] is True
        assert server.stop() == 0
        assert not server.certificates.exists()


def child_pids(process):
    return [*map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]


# Servers that the command creates in this process.


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Return a function that runs the command and returns its server, not serving yet."""
    made, listen, bind_port = [], module._listen, module.bind_port

    def listen_for_now(*where):
        found = listen(*where)
        stack.callback(os.close, found[0])
        return found

    def bind_for_now(*where):
        found = bind_port(*where)
        stack.callback(found.server_close)
        return found

    def begin(service):
        made.append(service)

    def run(*arguments, code=0, ports=("--port=0", "--operations-port=0")):
        command = ["serve", f"--cert-dir={tmp_path / 'certs'}", *ports, *arguments]
        done = runner().invoke(main, command)
        assert (done.exit_code, done.stdout, len(made)) == (code, "", code == 0), done.stderr
        if code == 0:
            return made[0]
        assert isinstance(done.exception, SystemExit)
        return done.stderr

    monkeypatch.setattr(module, "_listen", listen_for_now)
    monkeypatch.setattr(module, "bind_port", bind_for_now)
    monkeypatch.setattr(module.Service, "run", begin)
    with contextlib.ExitStack() as stack:
        yield run


def test_a_second_server_binds_another_plain_port(serve):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # taken by another process, which is equivalent
            taken.bind(("127.0.0.1", OPERATIONS_PORT))
            taken.listen()
        assert serve(ports=["--port=0"]).operations_port != OPERATIONS_PORT


def review(service, pod):
    """Return the response to the review of a new pod."""
    body = json.dumps(a_review(pod)).encode()
    status, _, answer, _ = asyncio.run(router_client.post(service.router(), "/mutate", body))
    assert status == 200
    return json.loads(answer)["response"]


SEEING = a_pod(containers=[a_container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])])


@pytest.mark.parametrize(
    ("options", "allowed"), [((), False), (("--rollout=Observe",), True)], ids=str
)
def test_a_server_enforces_unless_the_rollout_is_observe(serve, options, allowed):
    service = serve(*options)
    answer = review(service, SEEING)
    assert answer["allowed"] is allowed
    assert answer["auditAnnotations"]["reasons"] == "VisibleDevicesOverride"
    assert len(answer.get("warnings", [])) == allowed
    assert review(service, a_pod("8GB"))["allowed"] is False


def test_an_empty_policy_folder_leaves_every_pod_unchanged(serve, tmp_path):
    (tmp_path / "policies").mkdir()
    answer = review(serve(f"--policy={tmp_path}/policies"), a_pod("nonsense", hostPID=True))
    assert answer["allowed"] is True
    assert "patch" not in answer


def test_an_invalid_policy_is_logged_and_the_previous_one_stays_in_force(serve, tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY.replace("max: 40Gi", "max: 10Gi"))
    service = serve(f"--policy={file}")
    log = RecordedLog()
    reload = replace(service._policy_reload, log=log)
    file.write_text(POLICY.replace("max: 40Gi", "max: forty"))
    reload.refresh()
    assert review(service, a_pod("20Gi"))["status"]["message"].startswith("TooLarge")
    ((level, message, values),) = log.lines
    assert (level, message) == ("error", "policy rejected, the last good one stays in force")
    assert "spec.rules[1].memory.max" in values["problems"][0]
    assert b"policy_stale 1.0" in service._metrics.exposition()
    file.write_text(POLICY)
    reload.refresh()
    assert review(service, a_pod("20Gi"))["allowed"] is True
    assert b"policy_stale 0.0" in service._metrics.exposition()


def test_a_server_does_not_start_with_an_invalid_policy(serve, tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("apiVersion: vramwarden.io/v1alpha1\nkind: VRAMPolicy\nx: 1\n")
    assert f"{bad}:3: x: unknown field" in serve(f"--policy={bad}", code=1)


def test_a_server_does_not_start_with_an_unreadable_certificate(serve, tmp_path):
    (tmp_path / "certs").mkdir()
    (tmp_path / "certs" / "tls.crt").write_text("x")
    assert "tls.crt" in serve(code=1)


def test_a_key_that_is_too_short_is_reported_in_one_sentence(serve, tmp_path):
    (tmp_path / "key").write_text("")
    why = "a key has 32 bytes or more; make it by `openssl rand -hex 32`"
    assert serve(f"--key-file={tmp_path}/key", code=1) == f"Error: {tmp_path}/key: {why}\n"


@pytest.mark.parametrize("option", ["port", "operations-port"])
def test_a_port_that_is_taken_is_reported_and_no_certificate_is_issued(serve, tmp_path, option):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = serve(f"--{option}={port}", code=1)
    why = "cannot be listened on (Address already in use)"
    assert said == f"Error: 127.0.0.1:{port} {why}; choose --{option}\n"
    assert not (tmp_path / "certs").exists()


@pytest.mark.parametrize("option", ["host", "operations-host"])
@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "nowhere.invalid", "a..b"])
def test_an_address_of_another_machine_is_reported_in_one_sentence(serve, option, host):
    said = serve(f"--{option}={host}", code=1)
    assert said.startswith(f"Error: {host} cannot be listened on (")
    assert said.endswith(f"); choose --{option}\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize("option", ["port", "operations-port"])
@pytest.mark.parametrize("port", ["99999", "65536", "-1"])
def test_an_impossible_port_is_wrong_usage(serve, option, port):
    said = serve(f"--{option}={port}", code=2)
    assert f"'--{option}': {port} is not in the range 0<=x<=65535" in said


@pytest.mark.parametrize("network", ["10.0.0.0/33", "everybody", "", "10.0.0.0/8,10.1.0.0/16"])
def test_impossible_addresses_of_api_servers_are_wrong_usage(serve, network):
    said = serve(f"--api-server={network}", code=2)
    why = "does not appear to be an IPv4 or IPv6 network; write it as 192.0.2.0/24 or 2001:db8::/32"
    assert said.endswith(f"'--api-server': {network!r} {why}\n")
