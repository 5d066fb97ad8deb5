"""`vramwarden check` before an installation, and for a working and a broken installation.

Findings of failed checks are tested in tests/tools/check and tests/tools/situations.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.chart.served import behind_the_service, own_address, served, show_ready
from tests.support.charts import CHART, NAMESPACE, Release, one
from tests.support.control_planes import free_port, wait_until
from tests.support.pods import a_container
from tests.support.run_command import runner
from webhook.cli.main import main
from webhook.tools.problems.admission import FENCE_PARTS
from webhook.tools.problems.registration import EXPECTED
from webhook.tools.snapshot.node import AGENT_KEYS, AGENT_LABELS

MERGE = "application/merge-patch+json"


def test_webhooks_are_expected_as_the_chart_registers_them(helm):
    found = {
        (thing["kind"], hook["name"]): hook["failurePolicy"]
        for thing in helm.render()
        for hook in thing.get("webhooks", ())
    }
    assert {key: found.pop(key) for key in EXPECTED} == EXPECTED
    assert set(found.values()) <= {"Ignore"}


@pytest.mark.parametrize("value", FENCE_PARTS)
def test_each_part_of_the_fence_is_what_its_value_installs(helm, value):
    def policies(values=None):
        kind = "ValidatingAdmissionPolicy"
        return {thing["metadata"]["name"] for thing in helm.render(values) if thing["kind"] == kind}

    missing = policies() - policies({"fence": {value.removeprefix("fence."): False}})
    assert set(FENCE_PARTS[value]) <= missing


def test_the_labels_that_bring_the_agent_are_the_charts(helm):
    spec = one(helm.render(), "DaemonSet", "vramwarden-agent")["spec"]["template"]["spec"]
    wanted = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = spec["affinity"]["nodeAffinity"][wanted]["nodeSelectorTerms"]
    keys = {expression["key"] for term in terms for expression in term["matchExpressions"]}
    assert keys == {*AGENT_LABELS, *AGENT_KEYS, "vramwarden.io/gpu"}


STRONG = {"networkPolicy": {"apiServerCIDRs": ["192.0.2.0/24"]}}
OPEN = {
    "networkPolicy.enabled": {"networkPolicy": {"enabled": False}},
    "networkPolicy.apiServerCIDRs": {"networkPolicy": {}},
    "agent.gpuAccess": {"agent": {"gpuAccess": "Privileged"}},
}


@pytest.mark.parametrize(
    ("named", "values"),
    [
        *OPEN.items(),
        *((part, {"fence": {part.removeprefix("fence."): False}}) for part in FENCE_PARTS),
        ("webhook.failurePolicy", {"webhook": {"failurePolicy": "Ignore"}}),
    ],
)
def test_the_notes_name_each_value_that_weakens_it(api, live_helm, named, values):
    def said(values):
        command = ("install", "notes", str(CHART), "--namespace", NAMESPACE, "--dry-run=client")
        # A release with another name may have used its namespace.
        values = {**values, "sentry": {"createNamespace": False}, "crds": {"install": False}}
        notes = live_helm.run(*command, *live_helm.values(values)).partition("NOTES:")[2]
        return re.findall(r"^- (\S+) is ", notes, re.MULTILINE)

    assert (said(STRONG), said({**STRONG, **values})) == ([], [named])


def test_the_notes_name_the_namespace_in_which_nvidias_operator_validates(api, live_helm):
    def notes():
        command = ("install", "notes", str(CHART), "--namespace", NAMESPACE, "--dry-run=server")
        values = {"sentry": {"createNamespace": False}, "crds": {"install": False}}
        return live_helm.run(*command, *live_helm.values(values)).partition("NOTES:")[2]

    pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [a_container()]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": pod}
    kind = {"apiVersion": "apps/v1", "kind": "DaemonSet", "spec": spec}
    made = []
    for namespace in ("gpu-operator", "gpu-drivers"):
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        name = {"name": "nvidia-operator-validator", "namespace": namespace}
        made.append(kind | {"metadata": name})
        api.apply(made[-1])
    found = notes()
    for thing in made:
        api.delete(thing)
    assert "NVIDIA's operator validates nodes in gpu-drivers by pods" in found
    assert "NVIDIA's operator" not in notes()


class Checked:
    def __init__(self, kubeconfig, *options):
        arguments = ["check", "--kubeconfig", str(kubeconfig), "-o", "json", *options]
        done = runner().invoke(main, arguments)
        self.code = done.exit_code
        assert done.stdout, done.output
        self.report = json.loads(done.stdout)
        self.checks = {entry["id"]: entry for entry in self.report["checks"]}

    def __getitem__(self, name):
        return self.checks[name]["result"]

    def fix(self, name):
        return self.checks[name]["problems"][0]["fix"]

    def named(self, *results):
        """Return the names of the checks with these results."""
        return {name for name, entry in self.checks.items() if entry["result"] in results}


@pytest.fixture(scope="module")
def check(control_plane):
    control_plane.ensure_service_account("default")
    return lambda *options: Checked(control_plane.kubeconfig, *options)


def test_an_empty_cluster_can_take_it_and_lacks_nodes_alone(check):
    found = check("--pre")
    assert found.code == 0
    assert found.report["kind"] == "CheckReport"
    assert found.report["mode"] == "pre"
    assert found.named("warning", "failed", "notLookedAt") == {"gpu-nodes"}


def test_what_is_not_there_is_one_failure_with_the_command_that_installs_it(check):
    found = check()
    assert found.code == 1
    assert found.named("failed") == {"release"}
    assert "helm install vramwarden" in found.fix("release")


def test_a_user_without_rights_learns_which_and_what_is_left_is_looked_at(
    check, control_plane, tmp_path
):
    account = {"apiVersion": "v1", "kind": "ServiceAccount",
               "metadata": {"name": "nobody", "namespace": "default"}}  # fmt: skip
    control_plane.api.apply(account)
    path = "/api/v1/namespaces/default/serviceaccounts/nobody/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = control_plane.api.request("POST", path, request)["status"]["token"]
    content = json.loads(control_plane.kubeconfig.read_text())
    content["users"][0]["user"] = {"token": token}
    (tmp_path / "kubeconfig").write_text(json.dumps(content))
    found = Checked(tmp_path / "kubeconfig", "--pre")
    assert (found.code, found.report["verdict"]) == (3, "unknown")
    assert found.named("failed", "ok") == {"kubernetes-version"}
    assert found.checks["gpu-nodes"]["detail"] == "needs the right to list nodes"
    installed = Checked(tmp_path / "kubeconfig")
    assert (installed.code, installed.report["verdict"]) == (3, "unknown")
    assert installed.named("failed") == set()
    assert installed.checks["release"]["detail"] == "needs the right to get deployments"
    assert installed.checks["pod-good"]["detail"] == "needs the right to create pods in default"
    control_plane.api.delete(account)


@pytest.fixture(scope="module")
def server(check, control_plane, live_helm, tmp_path_factory):
    """Install the chart and run its server."""
    if not own_address():
        pytest.skip("needs an address that is not loopback")
    ports = {"webhook": {"port": free_port(), "operationsPort": free_port()}}
    values = {**STRONG, **ports, "rollout": "Enforce"}
    release = Release(live_helm)
    release.install(values)
    folder = tmp_path_factory.mktemp("checked")
    with (
        served(control_plane, live_helm.render(values), folder) as server,
        behind_the_service(control_plane, server),
    ):
        server.wait_for("readiness", server.ready)
        show_ready(control_plane, 2)
        wait_until("it works", lambda: works(check()))
        yield server
    release.uninstall()


NOT_HERE = {"gpu-nodes", "daemon-sets"}
"""Checks that need nodes, which do not exist here."""


def works(found):
    return found.code == 0 and found.named("warning") <= NOT_HERE


def test_what_works_passes(check, server):
    found = check()
    assert found.code == 0
    assert found.named("notLookedAt") == {"sidecar-image"}  # no kubelet runs here
    assert {
        *("release", "replicas", "registration", "bind-path", "ca-bundle", "certificate"),
        *("pod-good", "pod-wrong", "pod-plain", "policy", "fence", "sentry-namespace"),
    } <= found.named("ok")
    assert 'by rule "default", with a sidecar' in found.checks["pod-good"]["detail"]
    assert "is denied: InvalidQuantity: " in found.checks["pod-wrong"]["detail"]
    assert check("-n", NAMESPACE).checks.keys() == found.checks.keys()


def test_nothing_is_left_of_the_pods_that_it_tries(check, server, control_plane):
    check()
    check("--pre")
    assert control_plane.api.list("/api/v1/namespaces/default/pods") == []


def test_an_exempt_namespace_is_named(check, server, control_plane):
    def becomes(result, label):
        change = {"metadata": {"labels": {"vramwarden.io/webhook": label}}}
        path = "/api/v1/namespaces/default"
        control_plane.api.request("PATCH", path, change, content_type=MERGE)
        # The API server learns of changes with a short delay.
        wait_until(f"pod-good: {result}", lambda: check()["pod-good"] == result)
        return check()

    found = becomes("failed", "disabled")
    assert found.named("failed") == {"pod-good", "pod-wrong"}
    assert "--test-namespace names another" in found.fix("pod-good")
    becomes("ok", None)


def test_a_webhook_that_does_not_answer_is_seen_by_the_dry_runs(check, server, control_plane):
    server.quit()
    show_ready(control_plane, 0)
    found = check()
    assert found.code == 1
    assert found.named("failed") == {"replicas", "pod-good", "pod-wrong"}
    assert "failed calling webhook" in found.checks["pod-good"]["problems"][0]["message"]
    assert found["pod-plain"] == "ok"
