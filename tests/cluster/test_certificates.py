"""Certificates that replicas share through a Secret, with a real API server as client."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from certs import Bundle, Pair, RotationPeriods, issue_ca, issue_serving, service_names
from tests.cluster.secret_servers import (
    CONFIGURATION,
    NAMESPACE,
    SECRET,
    configuration,
    creating,
    documented_rights,
    point_at,
    release,
    replica,
    shown,
)
from tests.support.control_planes import wait_until

CLIENTS = 6
NAMES = (*service_names("vramwarden-webhook", NAMESPACE), "127.0.0.1")
OVERLAP_S = 3.0
DAY = timedelta(days=1)


@pytest.fixture
def ours(control_plane, tmp_path):
    """Return an empty Secret for replicas, and permissions for it."""
    with release(control_plane, tmp_path) as made:
        yield made


@pytest.fixture
def start(ours, tmp_path):
    """Return a function that starts a replica, which may not become ready."""
    with contextlib.ExitStack() as stack:
        started = []

        def start_one(*options):
            started.append(f"replica-{len(started)}")
            return stack.enter_context(replica(ours, tmp_path / started[-1], *options))

        yield start_one


@pytest.fixture
def pair(ours, start):
    """Start two replicas, which the API server calls for one kind of webhook each."""
    both = start(f"--ca-overlap={OVERLAP_S}s"), start(f"--ca-overlap={OVERLAP_S}s")
    point_at(ours.api, *both)
    for server in both:
        server.wait_for("readiness", server.ready)
    return both


def cas(pem):
    return x509.load_pem_x509_certificates(pem) if pem else []


def leaf(bundle):
    return x509.load_pem_x509_certificate(bundle.certificate_pem)


def serial(bundle):
    return f"{leaf(bundle).serial_number:X}".rjust(40, "0")


def served(server, bundle):
    return shown(server, bundle).rjust(40, "0")


def answers(server, path):
    try:
        return server.get(path)[0] == 200
    except OSError:
        return False


@pytest.fixture
def namespace(make_namespace):
    """Return a namespace that uses the default rule of the shipped policy."""
    return make_namespace()


@pytest.fixture
def load(ours, pair, namespace):
    """Create annotated pods during a test. Each must be created and mutated."""
    with creating(ours.api, namespace, CLIENTS) as running:
        yield running
        more(running)
    assert running.lost == []
    stored = ours.api.list(f"/api/v1/namespaces/{namespace}/pods")
    assert {pod["metadata"]["name"] for pod in stored} == running.created
    assert {pod["spec"]["initContainers"][0]["name"] for pod in stored} == {"vram-enforcer"}
    print(f"{len(stored)} pods by {CLIENTS} clients")


def more(load):
    """Wait until many more pods have been created."""
    before = len(load.created)
    wait_until("more pods", lambda: load.lost or len(load.created) > before + 5 * CLIENTS)


def vramwarden(ours, *arguments):
    command = [sys.executable, "-m", "webhook.cli", "certs", *arguments]
    secret = f"--secret={NAMESPACE}/{SECRET}"
    kubeconfig = f"--kubeconfig={ours.admin}"
    given = [] if any(argument.startswith("--secret") for argument in arguments) else [secret]
    return subprocess.run(
        [*command, *given, kubeconfig], capture_output=True, text=True, check=False
    )


def test_replicas_that_start_together_share_one_certificate_and_fill_the_cabundles(
    ours, start, namespace
):
    both = start(), start()
    for server in both:
        server.wait_for("life", lambda server=server: answers(server, "/livez"))
        assert server.get("/readyz")[0] == 503
    point_at(ours.api, *both)
    for server in both:
        server.wait_for("readiness", server.ready)
    bundle = ours.secret()
    assert ours.bundles() == [bundle.ca_pem] * 3
    assert {served(server, bundle.ca_pem) for server in both} == {serial(bundle)}
    extension = leaf(bundle).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert set(extension.value.get_values_for_type(x509.DNSName)) == set(NAMES) - {"127.0.0.1"}
    with creating(ours.api, namespace, 1) as load:
        more(load)
    assert load.lost == []
    for server in both:
        assert [line for line in server.log() if line["level"] != "info"] == []
        assert 'days_left{role="serving"} 36' in server.get("/metrics")[1]


def test_a_secret_that_nobody_made_is_of_the_type_for_tls(ours):
    ours.api.delete(ours.secret_object())
    done = vramwarden(ours, "install", "--name=127.0.0.1")
    assert done.returncode == 0, done.stderr
    assert f"Secret {NAMESPACE}/{SECRET}: issued (there was no CA; " in done.stdout
    assert done.stderr.startswith("warning: there is no webhook configuration of that name")
    assert ours.api.get(ours.secret_object())["type"] == "kubernetes.io/tls"
    assert set(ours.secret().files()) == {"tls.crt", "tls.key", "ca.crt", "ca.key"}


def test_what_an_installation_by_hand_cannot_do_is_said(ours):
    done = vramwarden(ours, "install", "--secret=nowhere/certificate")
    assert done.returncode == 1
    assert "Secret nowhere/certificate: has no namespace; create the namespace nowhere" in (
        done.stderr
    )
    done = vramwarden(ours, "install", "--context=other")
    assert done.returncode == 2
    assert f"no API server is known from the kubeconfig {ours.admin}: " in done.stderr
    ours.api.delete(ours.secret_object())
    done = vramwarden(ours, "rotate")
    assert done.returncode == 1
    assert f"Secret {NAMESPACE}/{SECRET}: does not exist; have a set issued there first" in (
        done.stderr
    )


def test_a_renewal_of_the_serving_certificate_loses_no_creation(ours, pair, load):
    more(load)
    before = ours.secret()
    old = datetime.now(UTC) - timedelta(days=300)
    aged = issue_serving(Pair(before.ca_pem, before.ca_key_pem), NAMES, old)
    ours.put_secret(Bundle(aged.certificate_pem, aged.key_pem, before.ca_pem, before.ca_key_pem))
    wait_until("the renewal", lambda: leaf(ours.secret()).not_valid_before_utc > old + DAY)
    after = ours.secret()
    assert (after.ca_pem, after.ca_key_pem) == (before.ca_pem, before.ca_key_pem)
    for server in pair:
        wait_until("new", lambda server=server: served(server, after.ca_pem) == serial(after))
    connect_anew(ours, after.ca_pem)
    more(load)


def connect_anew(ours, pem):
    """Make the API server open a new connection: it keeps one for each caBundle text."""
    for kind in ("Mutating", "Validating"):
        ours.put_bundle(kind, pem + b"\n")


def test_a_rotation_of_the_ca_loses_no_creation_although_a_replica_is_killed_in_its_middle(
    ours, pair, start, load
):
    third = start(f"--ca-overlap={OVERLAP_S}s")
    third.wait_for("readiness", third.ready)
    more(load)
    before = ours.secret()

    done = vramwarden(ours, "rotate")
    assert done.returncode == 0, done.stderr
    wait_until("both CAs", lambda: {len(cas(pem)) for pem in ours.bundles()} == {2})
    third.process.kill()
    for server in pair:
        assert served(server, before.ca_pem)
    assert leaf(ours.secret()).issuer == leaf(before).issuer
    more(load)

    wait_until("the switch", lambda: leaf(ours.secret()).issuer != leaf(before).issuer)
    after = ours.secret()
    for server in pair:
        wait_until("new", lambda server=server: served(server, after.ca_pem) == serial(after))
    connect_anew(ours, after.ca_pem)
    more(load)
    assert {len(cas(pem)) for pem in ours.bundles()} == {2}

    fourth = start(f"--ca-overlap={OVERLAP_S}s")
    fourth.wait_for("readiness", fourth.ready)
    assert served(fourth, after.ca_pem) == serial(after)


def aged_set(now, forget_in_s):
    """Return a certificate set whose older CA is about to be removed."""
    replaced = now - timedelta(seconds=OVERLAP_S + RotationPeriods().serving_life_s - forget_in_s)
    older, newer = issue_ca(replaced - timedelta(days=2000)), issue_ca(replaced)
    serving = issue_serving(newer, NAMES, now - DAY)
    both = newer.certificate_pem + older.certificate_pem
    return Bundle(serving.certificate_pem, serving.key_pem, both, newer.key_pem)


def test_the_old_ca_is_forgotten_in_the_end_and_no_creation_is_lost(ours, pair, load):
    more(load)
    aged = aged_set(datetime.now(UTC), 3 * OVERLAP_S)
    before = ours.secret()
    ours.put_secret(aged)
    # As after a restore of the Secret: clients must still trust the certificate in use.
    anyone = ours.secret().ca_pem + before.ca_pem
    for server in pair:
        wait_until("new", lambda server=server: served(server, anyone) == serial(aged))
    wait_until("the end", lambda: len(cas(ours.secret().ca_pem)) == 1)
    after = ours.secret()
    assert cas(after.ca_pem) == cas(aged.ca_pem)[:1]
    wait_until("too", lambda: {len(cas(pem)) for pem in ours.bundles()} == {2})
    assert all(set(cas(pem)) == {*cas(after.ca_pem), *cas(before.ca_pem)} for pem in ours.bundles())
    more(load)


def test_a_cabundle_that_somebody_else_changed_is_put_right_at_once(ours, pair):
    good = ours.bundles()
    for kind, edit in itertools.product(("Mutating", "Validating"), (b"", b"garbage")):
        ours.put_bundle(kind, edit)
        # Without a watch, replicas would notice this only at the next read, after up to 30 s.
        wait_until("repair", lambda: ours.bundles() == good, timeout=15)
    for server in pair:
        assert server.get("/readyz")[0] == 200


def test_a_configuration_that_was_deleted_and_comes_back_gets_its_cabundle(ours, pair):
    manifests = [ours.api.get(configuration(kind)) for kind in ("Mutating", "Validating")]
    good = ours.bundles()
    for manifest in manifests:
        ours.api.delete(manifest)
    point_at(ours.api, *pair)
    wait_until("the caBundles", lambda: ours.bundles() == good)
    assert all(server.get("/readyz")[0] == 200 for server in pair)


def test_status_tells_days_left_and_what_each_cabundle_lacks(ours, pair):
    done = vramwarden(ours, "status")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"secret    {NAMESPACE}/{SECRET}\n" in done.stdout
    assert "serving   365.0 days left" in done.stdout
    assert (
        f"caBundle  ValidatingWebhookConfiguration {CONFIGURATION}, "
        "validate.vramwarden.io: holds the CA"
    ) in done.stdout

    for server in pair:
        server.quit()
    ours.put_bundle("Mutating", b"")
    done = vramwarden(ours, "status", "-o", "json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert [bundle["holdsCA"] for bundle in found["caBundles"]] == [False, True, True]
    (problem,) = found["problems"]
    assert problem.startswith(
        f"MutatingWebhookConfiguration {CONFIGURATION}, mutate.vramwarden.io: "
        "the caBundle lacks the CA; "
    )

    done = vramwarden(ours, "install", "--name=127.0.0.1")
    assert f"MutatingWebhookConfiguration {CONFIGURATION}: caBundle written (mutate" in done.stdout
    assert vramwarden(ours, "status").returncode == 0
    assert f"Secret {NAMESPACE}/{SECRET}: kept" in vramwarden(ours, "install").stdout


def test_certificates_of_somebody_else_are_served_and_never_written(ours, start):
    ca = issue_ca(datetime.now(UTC))
    pair = issue_serving(ca, NAMES, datetime.now(UTC))
    brought = Bundle(pair.certificate_pem, pair.key_pem, ca.certificate_pem)
    ours.put_secret(brought)
    both = start(), start()
    point_at(ours.api, *both)
    for server in both:
        server.wait_for("readiness", server.ready)
        assert served(server, brought.ca_pem) == serial(brought)
    assert ours.bundles() == [brought.ca_pem] * 3
    assert ours.secret() == brought
    done = vramwarden(ours, "rotate")
    assert done.returncode == 1
    assert "rotate where the certificates are issued" in done.stderr


def test_a_right_that_is_missing_is_said_with_the_api_servers_words(ours, start):
    ours.api.delete(documented_rights()[-1])
    server = start("--documentation-url=https://docs.example/{page}.html")
    wait_until("its word", lambda: answers(server, "/livez") and "forbidden" in reason(server))
    assert reason(server).startswith("the webhook configurations could not be read yet; ")
    (line,) = [line for line in server.log() if line["level"] == "error"]
    assert line["msg"] == "certificates cannot be reconciled"
    page = "https://docs.example/certs/README.html#without-the-chart"
    assert f"grant it as in {page}" in line["why"][0]


def reason(server):
    return server.get("/readyz")[1]
