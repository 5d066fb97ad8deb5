"""Restarts of the webhook's replicas do not affect users who create pods meanwhile."""

from __future__ import annotations

import base64
import itertools
import threading
import time

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from urllib3.exceptions import HTTPError

from tests.e2e.cluster import SYSTEM
from tests.e2e.pods import is_ready, pod, statuses
from tests.support.control_planes import ApiError
from webhook.names import WEBHOOK_CONFIGURATION

CLIENTS = 8
WEBHOOK = {"labelSelector": "app.kubernetes.io/component=webhook"}
SECRET = f"/api/v1/namespaces/{SYSTEM}/secrets/vramwarden-certificate"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
CONFIGURATION = f"{HOOKS}/{WEBHOOK_CONFIGURATION}"


class Clients:
    """Clients that create and delete pods continuously."""

    def __init__(self, team):
        self._team = team
        self._ending = threading.Event()
        self._numbers = itertools.count(1)
        self.made = 0
        self.wrong = []

    def create(self):
        while not self._ending.is_set():
            name = f"load-{next(self._numbers)}"
            try:
                # The pods are not scheduled, so that only creation is measured.
                made = self._team.create(pod(name, "1Gi", ["true"], schedulerName="nobody"))
            except (ApiError, HTTPError) as error:
                self.wrong.append(f"{name}: {error}")
                continue
            containers = made["spec"].get("initContainers", [])
            if [container["name"] for container in containers] != ["vram-enforcer"]:
                self.wrong.append(f"{name}: not translated")
            self._team.delete_pod(name)
            self.made += 1

    def forget(self):
        """Return and clear the failures, if they are expected."""
        found, self.wrong = self.wrong, []
        return found

    def stop(self):
        self._ending.set()


@pytest.fixture
def clients(cluster, system, make_team):
    """Run clients during a change. None of their requests may fail."""
    settle(system)
    at_work = Clients(make_team())
    threads = [threading.Thread(target=at_work.create) for _ in range(CLIENTS)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    try:
        wait_for_more(system, at_work)
        yield at_work
        wait_for_more(system, at_work)
    finally:
        at_work.stop()
        for thread in threads:
            thread.join()
    took = time.monotonic() - began
    print(f"{at_work.made} pods in {took:.0f} s, {at_work.made / took:.0f} pods/s")
    assert at_work.wrong == []


def wait_for_more(system, at_work, pods=200):
    enough = at_work.made + pods
    system.wait("more pods", lambda: at_work.made >= enough or at_work.wrong)


def settle(system):
    """Wait until both replicas are ready and no third one is terminating."""

    def settled():
        found = system.pods(**WEBHOOK)
        stays = ("deletionTimestamp" not in item["metadata"] for item in found)
        return len(found) == 2 and all(map(is_ready, found)) and all(stays)

    system.wait("both replicas ready", settled)


def test_while_a_replica_is_deleted(system, clients):
    """Delete the replica with its grace period, as a drain does. A forced deletion loses calls."""
    victim, _ = system.pods(**WEBHOOK)
    system.delete_pod(victim["metadata"]["name"], victim["spec"]["terminationGracePeriodSeconds"])
    settle(system)


def test_a_crash_costs_the_calls_under_way_and_no_more(node, system, clients):
    """A crash drains nothing, and an API server does not repeat a call. The client must do so."""
    for victim in system.pods(**WEBHOOK):
        crash(node, system, victim["metadata"]["name"])
    lost = clients.forget()
    print(f"two crashes: {len(lost)} pods were denied", *lost[:1], sep="\n")
    assert all('failed calling webhook "' in item for item in lost)


def crash(node, system, name):
    """Kill a replica's container from outside; wait until the kubelet has started another."""

    def webhook():
        return statuses(system.pod(name))["webhook"]

    before = webhook()
    node.kill_container(before["containerID"])
    system.wait("the crash reported", lambda: webhook()["restartCount"] > before["restartCount"])
    settle(system)


def test_while_a_new_revision_is_rolled_out(system, release, values, clients):
    before = {found_pod["metadata"]["uid"] for found_pod in system.pods(**WEBHOOK)}
    release.install(values | {"webhook": {"podAnnotations": {"e2e": "second"}}})
    settle(system)
    assert before.isdisjoint(found_pod["metadata"]["uid"] for found_pod in system.pods(**WEBHOOK))


@pytest.fixture
def hurried(cluster, system):
    """Make a new CA sign soon after its announcement instead of after a day."""
    set_variable(cluster, system, "VRAMWARDEN_CA_OVERLAP=10s")
    yield
    set_variable(cluster, system, "VRAMWARDEN_CA_OVERLAP-")


def set_variable(cluster, system, setting):
    """Set the webhook's environment variable, or remove it for `NAME-`; wait for the rollout."""
    where = (f"--namespace={SYSTEM}", "deployment/vramwarden-webhook")
    for command in (("set", "env", setting), ("rollout", "status", "--timeout=5m")):
        done = cluster.kubectl(*command[:2], *where, *command[2:])
        assert done.returncode == 0, done.stderr
    settle(system)


def served(system):
    ask = "import ssl; print(ssl.get_server_certificate(('127.0.0.1', 8443)).strip())"
    names = [found_pod["metadata"]["name"] for found_pod in system.pods(**WEBHOOK)]
    return {system.run(name, "python3", "-c", ask, container="webhook").strip() for name in names}


def stored(system):
    """Return CA and certificate in the replicas' Secret."""
    data = system.api.request("GET", SECRET)["data"]
    return tuple(base64.b64decode(data[key]).decode().strip() for key in ("ca.crt", "tls.crt"))


def issued(text, authority):
    """Return True if a CA signed a certificate, both as PEM text."""
    certificate, ca = (x509.load_pem_x509_certificate(pem.encode()) for pem in (text, authority))
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, InvalidSignature):
        return False
    return True


def test_while_the_ca_is_rotated(system, hurried, clients):
    old_ca, old_certificate = stored(system)
    assert served(system) == {old_certificate}
    name = system.pods(**WEBHOOK)[0]["metadata"]["name"]
    secret = f"--secret={SYSTEM}/vramwarden-certificate"
    system.run(name, "vramwarden", "certs", "rotate", secret, container="webhook")
    new_ca = stored(system)[0].removesuffix(old_ca).strip()
    assert new_ca != old_ca

    def switched():
        certificate = stored(system)[1]
        return issued(certificate, new_ca) and served(system) == {certificate}

    began = time.monotonic()
    system.wait("both serve a certificate of the new CA", switched, timeout=600)
    print(f"both replicas serve a certificate of the new CA: {time.monotonic() - began:.0f} s")
    for webhook in system.api.request("GET", CONFIGURATION)["webhooks"]:
        assert new_ca in base64.b64decode(webhook["clientConfig"]["caBundle"]).decode()
