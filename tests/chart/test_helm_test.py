"""The chart's objects with the real server behind its Service, and `helm test` against both."""

from __future__ import annotations

import importlib.util
import ssl
from datetime import UTC, datetime

import pytest

from certs import issue_into_folder, service_names
from tests.chart.served import NAME, behind_the_service, own_address, served, show_ready
from tests.support.api_client import token_of
from tests.support.charts import CHART, NAMESPACE, Release, hooks
from tests.support.control_planes import free_port, wait_until


def values_of(mode, folder):
    """Return values for free ports and for a source of certificates."""
    webhook = {"port": free_port(), "operationsPort": free_port()}
    if mode == "self":
        return {"webhook": webhook}
    (folder / "certificate").mkdir()
    made = issue_into_folder(
        folder / "certificate", service_names(NAME, NAMESPACE), datetime.now(UTC)
    )
    existing = {"name": "mine", "caBundle": made.ca_pem.decode()}
    certificates = {"mode": "existingSecret", "existingSecret": existing}
    return {"webhook": webhook, "certificates": certificates}


@pytest.fixture(scope="module", params=["self", "existingSecret"])
def server(request, control_plane, live_helm, tmp_path_factory):
    """Install the chart and run its server."""
    if not own_address():
        pytest.skip("needs an address that is not loopback")
    folder = tmp_path_factory.mktemp("served")
    values = values_of(request.param, folder)
    release = Release(live_helm)
    release.install(values)
    with (
        served(control_plane, live_helm.render(values), folder) as server,
        behind_the_service(control_plane, server),
    ):
        server.wait_for("readiness", server.ready)
        show_ready(control_plane, 2)
        yield server
    release.uninstall()


@pytest.fixture(scope="module")
def program():
    """Load the program that `helm test` runs."""
    spec = importlib.util.spec_from_file_location("helm_test", CHART / "files" / "helm_test.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def api(control_plane, server, helm, program):
    """Return a client for the test pod's account with exactly its permissions."""
    helpers = [thing for thing in helm.render() if hooks(thing) and thing["kind"] != "Pod"]
    for thing in helpers:
        control_plane.api.apply(thing)
    context = ssl.create_default_context(cafile=str(control_plane.state / "ca.crt"))
    token = token_of(control_plane.api, NAMESPACE, "vramwarden-test")
    host, port = control_plane.url.removeprefix("https://").split(":")
    found = program.Api(host, int(port), context, {"Authorization": f"Bearer {token}"})
    yield found
    found._connection.close()
    for thing in helpers:
        control_plane.api.delete(thing)


def test_all_is_well_where_all_is_well(server, program, api, capsys):
    wait_until(
        "it passes", lambda: not any(why for _, why in program.check(api, NAMESPACE, "default"))
    )
    assert program.main(api, NAMESPACE, "default") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("ok      ") for line in lines)


def failures(program, api, namespace):
    return {what: why for what, why in program.check(api, NAMESPACE, namespace) if why}


def test_a_namespace_that_no_rule_governs_is_named(server, program, api, control_plane):
    label = {"metadata": {"labels": {"vramwarden.io/webhook": "disabled"}}}
    path, kind = "/api/v1/namespaces/default", "application/merge-patch+json"
    control_plane.api.request("PATCH", path, label, content_type=kind)
    found = failures(program, api, "default")
    label["metadata"]["labels"]["vramwarden.io/webhook"] = None
    control_plane.api.request("PATCH", path, label, content_type=kind)
    assert len(found) == 2
    assert all("set test.namespace" in why for why in found.values())


def test_a_webhook_that_does_not_answer_fails_in_the_api_servers_words(
    server, program, api, control_plane
):
    server.quit()
    show_ready(control_plane, 0)
    found = failures(program, api, "default")
    assert len(found) == 3
    assert "none of 2 is" in found["a replica of the webhook is ready"]
    assert "failed calling webhook" in found["a pod that asks for 1Gi is translated"]
    assert "a pod that asks for nothing is left alone" not in found
