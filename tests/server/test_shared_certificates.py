"""Certificates in a Secret, while the API server is unreachable or denies requests."""

from __future__ import annotations

import base64
import re
import ssl
from datetime import UTC, datetime, timedelta

import pytest

from certs import Bundle, RotationPeriods, advance
from tests.certs.handshakes import handshake
from tests.support.api_server import ApiServer, write_kubeconfig
from tests.support.cluster_programs import free_port
from tests.support.pods import a_pod, a_review
from tests.support.recorded_log import RecordedLog
from tests.support.run_command import runner
from tests.support.server_process import running
from webhook.adapters.kube.certificates import KINDS, CertificatesApi
from webhook.cli.main import main
from webhook.server.certificates import SecretKeeper
from webhook.server.metrics import Metrics

SECRETS = "/api/v1/namespaces/gpu/secrets"
SECRET = f"{SECRETS}/certificate"
MUTATING, VALIDATING = (f"{path}/ours" for path in KINDS.values())
TO_MUTATING, TO_VALIDATING = (("patch", path.split("/")[-1]) for path in KINDS.values())
GARBAGE = base64.b64encode(b"garbage").decode()


def put_configurations(api, ca_bundle=""):
    """Store both webhook configurations, with one webhook each."""
    for path, webhook in ((MUTATING, "mutate"), (VALIDATING, "validate")):
        entry = {"name": f"{webhook}.vramwarden.io", "clientConfig": {"caBundle": ca_bundle}}
        api.put(path, {"webhooks": [entry]})


def authority(api):
    """Return the CA in the Secret."""
    return base64.b64decode(api.objects[SECRET]["data"]["ca.crt"])


def bundles(api):
    called = (api.objects[path]["webhooks"][0]["clientConfig"] for path in (MUTATING, VALIDATING))
    return [base64.b64decode(item["caBundle"]) for item in called]


class ManualKeeper:
    """A keeper with its log and metrics, without a thread."""

    def __init__(self, api):
        self.log, self.metrics = RecordedLog(), Metrics()
        shared = CertificatesApi(api.kube(), "gpu", "certificate", ["ours"])
        told = (RotationPeriods(), self.metrics, self.log)
        self.keeper = SecretKeeper(shared, ("localhost",), *told)
        self.sync, self.obstacle = self.keeper.sync, self.keeper.obstacle

    def sample(self, name, **labels):
        return self.metrics.registry.get_sample_value(f"vramwarden_{name}", labels)

    def served_certificate(self, ca_pem):
        return handshake(self.keeper.listening_context(), ca_pem, "localhost")


@pytest.fixture
def api():
    found = ApiServer()
    put_configurations(found)
    return found


@pytest.fixture
def manual(api):
    return ManualKeeper(api)


def test_a_server_is_ready_when_every_cabundle_holds_its_ca(api, manual):
    api.denied.add(TO_VALIDATING)
    assert manual.sync() is False
    assert manual.obstacle().startswith("a caBundle lacks the CA of the certificate; ")
    assert "validatingwebhookconfigurations is forbidden" in manual.obstacle()
    assert manual.sample("ca_bundle_published") == 0

    api.denied.clear()
    assert (manual.sync(), manual.obstacle()) == (True, "")
    assert bundles(api) == [authority(api)] * 2
    assert manual.served_certificate(authority(api))["subjectAltName"][-1] == ("DNS", "localhost")
    assert manual.sample("ca_bundle_published") == 1
    assert 364 < manual.sample("certificate_days_left", role="serving") <= 365
    assert str(manual.keeper) == "Secret gpu/certificate"


def test_it_writes_each_thing_once(api, manual):
    assert (manual.sync(), manual.sync()) == (True, True)
    written = [(method, path) for method, path, _ in api.sent()]
    assert written == [("POST", SECRETS), ("PATCH", MUTATING), ("PATCH", VALIDATING)]


def test_it_waits_without_the_api_server_and_later_serves_its_certificate(api, manual):
    """Only the beginning and the end of a failure are logged, regardless of the number of tries."""
    trouble, end = "certificates cannot be reconciled", "certificates are reconciled again"
    api.fails(".", 0, forever=True)
    assert [manual.sync() for _ in range(3)] == [False] * 3
    assert manual.obstacle().startswith("no certificate yet: Secret gpu/certificate (get): failed")
    with pytest.raises(ssl.SSLError):
        manual.served_certificate(b"")
    assert manual.log.messages == [trouble]

    api.recovers()
    assert manual.sync() is True
    served = manual.served_certificate(authority(api))
    api.fails(".", 0, forever=True)
    assert [manual.sync() for _ in range(3)] == [False] * 3
    assert (manual.served_certificate(authority(api)), manual.obstacle()) == (served, "")
    assert manual.sample("certificate_syncs_total", result="failed") == 6

    api.recovers()
    assert manual.sync() is True
    written = ["certificates written", *["caBundle written"] * 2, "certificate loaded"]
    assert manual.log.messages == [trouble, *written, end, trouble, end]


def test_a_damaged_cabundle_is_reconciled_and_no_replica_becomes_unready(api, manual):
    manual.sync()
    good = bundles(api)
    api.denied |= {TO_MUTATING, TO_VALIDATING}
    put_configurations(api, GARBAGE)
    assert manual.sync() is False
    assert (manual.sample("ca_bundle_published"), manual.obstacle()) == (0, "")
    api.denied.clear()
    assert (manual.sync(), bundles(api)) == (True, good)


def test_a_broken_secret_does_not_change_the_served_certificate(api, manual):
    manual.sync()
    ca_pem = authority(api)
    served = manual.served_certificate(ca_pem)
    secret = api.objects[SECRET]
    api.put(SECRET, {**secret, "data": {**secret["data"], "tls.key": GARBAGE}})
    assert manual.sync() is False
    assert (manual.served_certificate(ca_pem), manual.obstacle()) == (served, "")
    level, message, values = manual.log.lines[-1]
    assert (level, message) == ("error", "certificates cannot be reconciled")
    (why,) = values["why"]
    assert why.startswith("Secret gpu/certificate, tls.key: holds no PEM private key; ")
    assert api.objects[SECRET]["data"]["tls.key"] == GARBAGE


@pytest.mark.process
def test_a_server_runs_without_the_api_server(tmp_path):
    """The server starts, serves and drains alone, and gets changes while the API is reachable."""
    port = free_port()
    api = ApiServer(port=port)
    put_configurations(api)
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", f"http://127.0.0.1:{port}")
    options = ("--cert-secret=gpu/certificate", "--webhook-configuration=ours")
    often = "--ca-overlap=2s"  # makes syncs frequent
    environment = {"KUBECONFIG": str(kubeconfig), "ready": False}
    with running(tmp_path, *options, often, "--cert-name=localhost", **environment) as server:
        server.wait_for("life", lambda: server.ready("/livez"))
        waits = "no certificate yet: Secret gpu"
        server.wait_for("word", lambda: waits in server.get("/readyz")[1])
        with api:
            server.wait_for("readiness", server.ready)
            server.trust(authority(api))
            assert "certificates: Secret gpu/certificate\n" in server.get("/readyz?verbose")[1]
            assert server.review(a_review(a_pod("8Gi")))["allowed"] is True
            good = bundles(api)
        trouble = "certificates cannot be reconciled"
        server.wait_for("a sync", lambda: server.messages().count(trouble) > 1)
        assert server.review(a_review(a_pod("8Gi")))["allowed"] is True
        assert server.get("/readyz") == (200, "ok\n")
        with api:
            end = "certificates are reconciled again"
            server.wait_for("the end", lambda: server.messages().count(end) > 1)
            put_configurations(api, GARBAGE)
            server.wait_for("repair", lambda: bundles(api) == good)
        assert server.stop() == 0
        announced, *lines = server.log_file.read_text().splitlines()[2:]
        assert announced.startswith("operations: ")
        assert all(line.startswith("{") for line in lines)


UNKNOWN = "no API server is known from a kubeconfig (~/.kube/config): "


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--cert-secret=certificate",), 2, "write NAMESPACE/NAME"),
        (("--cert-secret=a/b/c",), 2, "write NAMESPACE/NAME"),
        (("--cert-secret=a/b", "--cert-dir=/tmp"), 2, "drop one of the two"),
        (("--cert-secret=a/b", "--ca-overlap=soon"), 2, "'soon' is not a duration"),
        (("--cert-secret=a/b",), 1, UNKNOWN),
        (("--webhook-configuration=ours",), 1, UNKNOWN),
    ],
)
def test_a_server_that_cannot_start_reports_one_sentence(tmp_path, options, code, says):
    done = runner().invoke(main, ["serve", *options, "--port=0"], env={"HOME": str(tmp_path)})
    assert (done.exit_code, done.stdout) == (code, "")
    assert says in done.stderr
    assert isinstance(done.exception, SystemExit)


def test_certificates_are_installed_and_checked_by_hand(tmp_path):
    def certs(command, *options):
        of = ["--secret=gpu/certificate", "--webhook-configuration=ours"]
        at = f"--kubeconfig={api.kubeconfig}"
        done = runner().invoke(main, ["certs", command, *of, at, *options])
        return done.exit_code, done.stdout, done.stderr

    def cas(out):
        """Return the use of each CA in the output."""
        return re.findall(r"^ca .+ days left \(until \S+\), (.+)$", out, re.MULTILINE)

    with ApiServer(tmp_path) as api:
        put_configurations(api)
        code, _, said = certs("status")
        assert code == 1
        assert "problem: the Secret gpu/" in said
        assert "does not exist; run: vramwarden certs install --secret gpu/" in said
        code, out, said = certs("install", "--service=gpu-webhook")
        assert (code, said) == (0, "")
        assert out.splitlines()[1:] == [
            "MutatingWebhookConfiguration ours: caBundle written (mutate.vramwarden.io)",
            "ValidatingWebhookConfiguration ours: caBundle written (validate.vramwarden.io)",
        ]
        code, out, said = certs("status")
        assert (code, said) == (0, "")
        assert "for gpu-webhook.gpu.svc, gpu-webhook.gpu, gpu-webhook, " in out
        assert cas(out) == ["signs"]
        # The newer of two CAs starts in a later second.
        older = advance(Bundle(), ("localhost",), datetime.now(UTC) - timedelta(hours=1)).bundle
        data = {name: base64.b64encode(text).decode() for name, text in older.files().items()}
        api.put(SECRET, {"data": data})
        api.denied.add(TO_MUTATING)
        code, out, said = certs("rotate")
        assert code == 3
        assert "mutatingwebhookconfigurations is forbidden" in said
        (asked,) = re.findall(r"^Secret gpu/certificate: another CA is (.+)", out)
        told = asked.replace("UTC", "+0000")
        when = datetime.strptime(told, "announced: signs from %Y-%m-%d %H:%M %z on")
        assert round((when - datetime.now(UTC)) / timedelta(days=1)) == 1
        assert asked in certs("rotate")[1].splitlines()[0]
        assert cas(certs("status")[1]) == [asked, "signs"]
    code, _, said = certs("install")
    assert (code, "check that the API server can be reached from here" in said) == (3, True)
    assert certs("status", "--cert-dir=/tmp")[0] == 2
