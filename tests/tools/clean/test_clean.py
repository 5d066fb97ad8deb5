"""`clean` without a real API server: refusals, tolerated failures and exit codes."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from tests.support.api_server import ApiServer
from tests.support.run_command import runner
from webhook.adapters.kube import connection
from webhook.cli.main import main

SYSTEM = "vramwarden-system"
LABELS = {"app.kubernetes.io/name": "vramwarden"}
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
NODES = ("n1", "n2", "n3")
SHARED = "the label vramwarden.io/share of 3 nodes"


@pytest.fixture
def api():
    """Return a cluster from which a release was uninstalled."""
    found = ApiServer()
    for name in NODES:
        labels = {"vramwarden.io/gpu": "true", "vramwarden.io/share": "true", "a": "b"}
        found.put(f"/api/v1/nodes/{name}", {"metadata": {"name": name, "labels": labels}})
    return found


def clean(api, *options):
    with patch.object(connection, "connect", lambda *_, **__: api.kube()):
        done = runner().invoke(main, ["clean", *options], prog_name="vramwarden")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def labels(api, name):
    return api.objects[f"/api/v1/nodes/{name}"]["metadata"]["labels"]


def put(api, path, **more):
    name = path.rpartition("/")[2]
    namespace = {"namespace": path.split("/")[-3]} if "/namespaces/" in path else {}
    api.put(path, {"metadata": {"name": name, "labels": LABELS, **namespace}, **more})


@pytest.mark.parametrize("options", [(), ("--all",), ("--dry-run",)], ids=str)
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("apis/apps/v1/namespaces/{0}/daemonsets/vramwarden-agent", "helm uninstall vramwarden "),
        ("apis/apps/v1/namespaces/{0}/deployments/vramwarden-webhook", f"--namespace {SYSTEM}`"),
        ("api/v1/namespaces/{0}/pods/vramwarden-agent-x", "wait until they are gone"),
    ],
)
def test_it_refuses_while_an_agent_could_write_it_all_again(api, path, said, options):
    put(api, f"/{path.format(SYSTEM)}", status={"phase": "Running"})
    done = clean(api, *options)
    assert done.exit_code == 1
    assert said in done.stderr
    assert path.rpartition("/")[2] in done.stderr
    assert api.sent("PATCH", "DELETE") == []


def test_pods_that_have_ended_hold_nothing_up(api):
    put(api, f"/api/v1/namespaces/{SYSTEM}/pods/helm-test", status={"phase": "Succeeded"})
    assert clean(api).exit_code == 0


def test_a_label_that_an_admin_set_goes_only_when_asked_for(api):
    done = clean(api)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        *(f"node {name}: removed 1 label" for name in NODES),
        f"kept for another installation: {SHARED}; --all removes this, too",
    ]
    assert labels(api, "n1") == {"vramwarden.io/share": "true", "a": "b"}
    assert clean(api, "--all").exit_code == 0
    assert labels(api, "n1") == {"a": "b"}
    assert clean(api, "--all").stdout == "nothing of vramwarden is left\n"


def test_a_dry_run_names_the_same_and_changes_nothing(api):
    put(api, f"{MUTATING}/zz-vramwarden")
    would = clean(api, "--all", "--dry-run").stdout
    assert api.sent("PATCH", "DELETE") == []
    assert clean(api, "--all").stdout == would.replace("would remove", "removed")
    assert "mutatingwebhookconfigurations: removed zz-vramwarden" in would.replace(
        "would remove", "removed"
    )


@pytest.mark.parametrize(
    ("code", "ends_with"), [(403, 3), (422, 3), (404, 0)], ids=["forbidden", "denied", "gone"]
)
def test_it_goes_on_with_the_next_node(api, code, ends_with):
    api.fails("PATCH .*/nodes/n2", code, forever=True)
    done = clean(api)
    assert done.exit_code == ends_with
    assert [name for name in NODES if "vramwarden.io/gpu" in labels(api, name)] == ["n2"]
    assert ("node n2: not removed: " in done.stderr) == bool(ends_with)


@pytest.mark.parametrize("kind", ["nodes", "mutatingwebhookconfigurations"])
def test_a_kind_that_may_not_be_listed_is_named_and_the_rest_cleaned(api, kind):
    put(api, f"{MUTATING}/zz-vramwarden")
    api.denied.add(("list", kind))
    done = clean(api)
    assert (done.exit_code, done.stderr) == (3, f"{kind}: needs the right to list {kind}\n")
    assert "removed" in done.stdout


def test_where_nothing_is_known_of_agents_nothing_is_removed(api):
    api.denied.add(("list", "daemonsets"))
    done = clean(api)
    assert (done.exit_code, done.stderr) == (3, "Error: needs the right to list daemonsets\n")
    assert api.sent("PATCH", "DELETE") == []
