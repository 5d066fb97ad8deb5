"""Writes of a replica to vramwarden's webhook configurations: the path of `bind` and the owner."""

from __future__ import annotations

import contextlib
import re
import shutil
from datetime import UTC, datetime

import pytest

from certs import issue_into_folder
from tests.cluster.secret_servers import NAMESPACE, configuration, release, replica
from tests.support.control_planes import ApiError, wait_until
from tests.support.server_process import running
from webhook.names import WEBHOOK_CONFIGURATION

SHAPE = re.compile("/[0-9a-f]{32}/bind")
NAMES = ["localhost", "127.0.0.1", "::1"]


@pytest.fixture
def ours(control_plane, tmp_path):
    with release(control_plane, tmp_path) as made:
        yield made


def register(api, namespace=NAMESPACE):
    """Create both configurations like the chart: with a Service, and `bind` without a path."""

    def webhook(name, **path):
        return {
            "name": f"{name}.vramwarden.io",
            "clientConfig": {"service": {"name": "hook", "namespace": namespace, **path}},
            "rules": [],
            "sideEffects": "None",
            "failurePolicy": "Ignore",
            "admissionReviewVersions": ["v1"],
        }

    mutating = [webhook("mutate", path="/mutate"), webhook("bind")]
    api.create(configuration("Mutating") | {"webhooks": mutating})
    api.create(configuration("Validating") | {"webhooks": [webhook("validate", path="/validate")]})


def clients(api):
    found = api.get(configuration("Mutating"))["webhooks"]
    return {item["name"].partition(".")[0]: item["clientConfig"] for item in found}


def path(api):
    return clients(api)["bind"]["service"].get("path", "")


def owners(api):
    return [
        [
            (reference["kind"], reference["name"], reference["uid"])
            for reference in api.get(configuration(kind))["metadata"].get("ownerReferences", ())
        ]
        for kind in ("Mutating", "Validating")
    ]


def namespace_uid(api, name=NAMESPACE):
    found = api.get({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return found["metadata"]["uid"]


@contextlib.contextmanager
def mounted(ours, folder, *names):
    """Run replicas with mounted certificates: each has a folder with the same set."""
    issue_into_folder(folder / "brought", NAMES, datetime.now(UTC))
    with contextlib.ExitStack() as stack:
        servers = []
        for name in names:
            shutil.copytree(folder / "brought", folder / name / "certs")
            env = {
                "KUBECONFIG": str(ours.kubeconfig),
                "VRAMWARDEN_WEBHOOK_CONFIGURATION": WEBHOOK_CONFIGURATION,
            }
            servers.append(stack.enter_context(running(folder / name, **env)))
        yield servers


def test_with_a_certificate_that_is_brought_the_path_alone_is_written(ours, tmp_path):
    api = ours.api
    register(api)
    with mounted(ours, tmp_path, "a", "b") as servers:
        expected = servers[0].bind_path
        assert [path(api), servers[1].bind_path] == [expected] * 2
        assert SHAPE.fullmatch(expected)
        found = clients(api)
        assert found["bind"]["service"].items() >= {"name": "hook", "namespace": NAMESPACE}.items()
        assert found["mutate"]["service"]["path"] == "/mutate"
        assert not any("caBundle" in item for item in found.values())
        owner = [("Namespace", NAMESPACE, namespace_uid(api))]
        wait_until("owners", lambda: owners(api) == [owner, owner])
        for server in servers:
            assert [line for line in server.log() if line["level"] != "info"] == []
            assert expected.split("/")[1] not in server.log_file.read_text()

        remove = [{"op": "remove", "path": "/webhooks/1/clientConfig/service/path"}]
        where = f"{api_path('Mutating')}/{WEBHOOK_CONFIGURATION}"
        api.request("PATCH", where, remove, content_type="application/json-patch+json")
        wait_until("the path", lambda: path(api) == expected)


def api_path(kind):
    return f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}webhookconfigurations"


def test_with_a_secret_the_path_is_written_beside_the_cabundle(ours, tmp_path):
    register(ours.api)
    local = "--cert-name=localhost"
    with replica(ours, tmp_path / "a", local) as one, replica(ours, tmp_path / "b", local) as other:
        for server in (one, other):
            server.wait_for("readiness", server.ready)
        assert SHAPE.fullmatch(path(ours.api))
        assert all(client["caBundle"] for client in clients(ours.api).values())
        owner = [("Namespace", NAMESPACE, namespace_uid(ours.api))]
        wait_until("owners", lambda: owners(ours.api) == [owner, owner])
        (tmp_path / "ca.crt").write_bytes(ours.secret().ca_pem)
        for server in (one, other):
            server.certificates = tmp_path
            assert server.post(b"{}", path(ours.api))[0] == 400
            assert server.post(b"{}", "/bind")[0] == 404


def test_the_configurations_go_with_the_namespace_that_somebody_deletes(control_plane, tmp_path):
    api, name = control_plane.api, "doomed"
    control_plane.start_controllers()
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    api.create(namespace)
    register(api, name)
    try:
        env = {
            "KUBECONFIG": str(control_plane.kubeconfig),
            "VRAMWARDEN_WEBHOOK_CONFIGURATION": WEBHOOK_CONFIGURATION,
        }
        with running(tmp_path, **env):
            owner = [("Namespace", name, namespace_uid(api, name))]
            wait_until("owners", lambda: owners(api) == [owner, owner])
        api.delete(namespace)
        wait_until("their end", lambda: gone(api, "Mutating") and gone(api, "Validating"))
    finally:
        for kind in ("Mutating", "Validating"):
            api.delete(configuration(kind))


def gone(api, kind):
    try:
        api.get(configuration(kind))
    except ApiError as error:
        return error.code == 404
    return False
