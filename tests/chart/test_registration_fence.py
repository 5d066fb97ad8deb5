"""The webhook's account changes of our webhook configurations only what it has to write there."""

from __future__ import annotations

import base64
import json

import pytest

from certs import Configuration
from tests.chart.admission_policies import BINDING, GROUP, POLICY, apply, is_denied_by
from tests.chart.fenced import STRATEGIC
from tests.chart.recorded_reviews import denial
from tests.support.charts import NAMESPACE, one
from tests.support.control_planes import wait_until
from webhook.adapters.kube.certificates import KINDS, CertificatesApi
from webhook.adapters.kube.client import connect
from webhook.adapters.kube.registration import BIND_WEBHOOK, RegistrationApi

FENCE = "vramwarden-accounts"
WEBHOOK = "vramwarden-webhook"
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
MUTATING, VALIDATING = (f"{GROUP}/{kind.lower()}s/vramwarden" for kind in KINDS)
PATHS = {MUTATING: "mutate.vramwarden.io", VALIDATING: "validate.vramwarden.io"}
CA = base64.b64encode(b"a CA").decode()


class Cluster:
    """Our webhook configurations, and the webhook's account, which may change them."""

    def __init__(self, control_plane):
        self.api = control_plane.api
        groups = ("system:serviceaccounts", "system:authenticated")
        account = f"system:serviceaccount:{NAMESPACE}:{WEBHOOK}"
        self.us = self.api.acting_as(account, *groups)

    def tries(self, change, path=MUTATING, api=None):
        """Try to change a configuration; return why it is denied, or nothing."""
        found = api or self.us
        write = ("PATCH", path, change)
        return denial(lambda: found.request(*write, content_type=STRATEGIC, dryRun="All"))

    def target(self, change, path=MUTATING, name=None):
        """Try to change where one webhook is called."""
        entry = {"name": name or PATHS[path], "clientConfig": change}
        return self.tries({"webhooks": [entry]}, path)


@pytest.fixture(scope="module")
def cluster(control_plane, helm):
    api, objects = control_plane.api, helm.render()
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    made = [one(objects, kind, WEBHOOK) for kind in RIGHTS]
    made += [one(objects, kind) for kind in KINDS]
    for thing in made[-2:]:  # which deny nobody anything here
        for webhook in thing["webhooks"]:
            webhook["failurePolicy"] = "Ignore"
            webhook["rules"] = [{**webhook["rules"][0], "apiGroups": ["tests"]}]
    plain = made[-1]["webhooks"][1]  # as somebody may have it
    plain["clientConfig"] = {"url": "https://example.com/validate"}
    del plain["matchConditions"]
    for thing in made:
        api.apply(thing)
    for kind in (POLICY, BINDING):
        apply(api, one(objects, kind, FENCE))
    found = Cluster(control_plane)

    def in_force():
        return is_denied_by(found.tries({"metadata": {"labels": {"a": "b"}}}), FENCE)

    wait_until("it is in force", in_force)
    yield found
    for thing in (one(objects, BINDING, FENCE), one(objects, POLICY, FENCE), *made):
        api.delete(thing)


@pytest.fixture
def kube(cluster, control_plane, tmp_path):
    """Speak to the API server with the webhook's token."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{WEBHOOK}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    config = json.loads(control_plane.kubeconfig.read_text())
    token = cluster.api.request("POST", path, request)["status"]["token"]
    config["users"][0]["user"] = {"token": token}
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    return connect(tmp_path / "kubeconfig", tries=1)


def test_a_replica_writes_the_ca_the_path_of_bind_and_the_owner(cluster, kube):
    """By the code that does."""
    registration = RegistrationApi(kube, "vramwarden")
    for path in ("/bind/first", "/bind/second"):
        registration.write_path(registration.read()[0], path)
        assert registration.read()[0].bind == path
    for found in registration.read():
        registration.write_owner(found)
    assert all(found.owned for found in registration.read())
    certificates = CertificatesApi(kube, NAMESPACE, "vramwarden-certificate", ["vramwarden"])
    for pem in (b"old", b"new"):
        for found in certificates.configurations():
            assert isinstance(found, Configuration)
            certificates.publish(found, [(name, pem) for name, _ in found.bundles])
    bundles = [pem for found in certificates.configurations() for _, pem in found.bundles]
    assert bundles == [b"new"] * 6


ELSEWHERE = {
    "another Service": {"service": {"name": "other"}},
    "another namespace": {"service": {"namespace": "other"}},
    "another port": {"service": {"port": 8443}},
    "another path": {"service": {"path": "/other"}},
    "no path": {"service": {"path": None}},
    "a server of one's own": {"url": "https://example.com/mutate", "service": None},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("target", ELSEWHERE.values(), ids=ELSEWHERE)
def test_it_has_reviews_sent_nowhere_else(cluster, path, target):
    why = cluster.target({"caBundle": CA, **target}, path)
    assert is_denied_by(why, FENCE)
    assert "only the CA and the path of bind" in why
    assert cluster.target({"caBundle": CA}, path) == ""


@pytest.mark.parametrize("target", ["another Service", "a server of one's own"])
def test_it_has_bindings_sent_to_our_service_alone(cluster, target):
    assert is_denied_by(cluster.target(ELSEWHERE[target], name=BIND_WEBHOOK), FENCE)


@pytest.mark.parametrize(
    "change",
    [
        {"clientConfig": {"url": "https://example.com/other"}},
        {"matchConditions": [{"name": "none", "expression": "false"}]},
    ],
    ids=["a URL", "a first condition"],
)
def test_it_changes_no_entry_that_somebody_else_made_so(cluster, change):
    name = "advise.vramwarden.io"
    why = cluster.tries({"webhooks": [{"name": name, **change}]}, VALIDATING)
    assert "only the CA and the path of bind" in why
    assert cluster.target({"caBundle": CA}, VALIDATING, name) == ""


def entry(**fields):
    return {"webhooks": [{"name": "mutate.vramwarden.io", **fields}]}


SECRETS = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "resources": ["secrets"],
    "operations": ["CREATE"],
}
WIDER = {
    "rules": entry(rules=[SECRETS]),
    "conditions": entry(matchConditions=[{"name": "all", "expression": "true"}]),
    "no conditions": entry(matchConditions=None),
    "namespaces": entry(namespaceSelector={"matchExpressions": None}),
    "objects": entry(objectSelector={"matchLabels": {"a": "b"}}),
    "a policy": entry(failurePolicy="Fail"),
    "a time": entry(timeoutSeconds=30),
    "a reinvocation": entry(reinvocationPolicy="Never"),
    "one more": {
        "webhooks": [
            {
                "name": "more.vramwarden.io",
                "clientConfig": {"url": "https://example.com/all"},
                "rules": [SECRETS],
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        ]
    },
    "one less": {"webhooks": [{"name": "mutate.vramwarden.io", "$patch": "delete"}]},
    "none": {"webhooks": None},
}


@pytest.mark.parametrize("change", WIDER.values(), ids=WIDER)
def test_it_changes_not_what_is_sent(cluster, change):
    why = cluster.tries(change)
    assert is_denied_by(why, FENCE)
    assert "only the CA and the path of bind" in why


def owned_by(kind, name):
    owner = {"apiVersion": "v1", "kind": kind, "name": name, "uid": "1"}
    return {"metadata": {"ownerReferences": [owner]}}


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"annotations": {"cert-manager.io/inject-ca-from": "other/other"}}},
        {"metadata": {"finalizers": ["example.com/x"]}},
        owned_by("Namespace", "default"),
        owned_by("Node", NAMESPACE),
    ],
    ids=["a label", "an injector of CAs", "a finalizer", "another namespace", "a node"],
)
def test_it_changes_nothing_of_its_metadata_but_the_owner(cluster, change):
    why = cluster.tries(change)
    assert is_denied_by(why, FENCE)
    assert "no owner but its namespace" in why
    assert cluster.tries(owned_by("Namespace", NAMESPACE)) == ""


def test_others_change_it_as_before(cluster):
    for change in (WIDER["rules"], owned_by("Namespace", "default")):
        assert cluster.tries(change, api=cluster.api) == ""
