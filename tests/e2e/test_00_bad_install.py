"""Other users' plain pods start, however an installation fails."""

from __future__ import annotations

import subprocess

import pytest

from tests.e2e.cluster import SYSTEM, Release
from tests.e2e.conftest import namespace
from tests.e2e.pods import pod
from tests.e2e.sentry import NAMESPACE as SENTRY
from tests.e2e.team import Team
from tests.support import charts
from tests.support.control_planes import ApiError, find_binary

NOWHERE = {"repository": "localhost:1/not-there"}
INVALID = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: typo}
spec:
  rules: [{name: all, acton: Enforce}]
"""
NOT_FOUND = 404
LEFT = "mutatingwebhookconfigurations,validatingwebhookconfigurations,deployments,daemonsets"


@pytest.fixture(scope="module")
def stranger(cluster):
    """Return a user who does not use vramwarden."""
    name = "team-stranger"
    cluster.api.create(namespace(name))
    team = Team(cluster, name)
    accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
    team.wait("its service account", lambda: cluster.api.list(accounts))
    yield team
    cluster.api.delete(namespace(name))


@pytest.fixture
def helm(cluster, tmp_path):
    return charts.Helm(tmp_path, cluster.kubeconfig, cluster.api.version)


@pytest.fixture
def unready(cluster):
    """Create the release's namespace; nothing in it becomes ready. It is deleted by hand."""
    team = Team(cluster, SYSTEM)
    cluster.api.create(namespace(SYSTEM, {"pod-security.kubernetes.io/enforce": "restricted"}))
    yield team
    for name in (SYSTEM, SENTRY):
        delete_namespace(team, name)
    elsewhere = "clusterroles,clusterrolebindings,roles,rolebindings,validatingadmissionpolicies"
    elsewhere += ",customresourcedefinitions"  # Helm adopts no definitions created by kubectl
    label = "app.kubernetes.io/name=vramwarden"
    kinds = f"{LEFT},{elsewhere},validatingadmissionpolicybindings"
    cluster.kubectl("delete", kinds, "--all-namespaces", "-l", label)


def delete_namespace(team, name=SYSTEM):
    team.api.delete(namespace(name))

    def gone():
        try:
            team.api.get(namespace(name))
        except ApiError as error:
            return error.code == NOT_FOUND
        return False

    team.wait(f"{name} gone", gone)


def starts(stranger, name):
    stranger.create(pod(name, None, ["true"], restartPolicy="Never"))
    ended = stranger.wait_ended(name)
    stranger.delete_pod(name)
    return ended["exitCode"] == 0


def installed(cluster):
    done = cluster.kubectl(
        "get", LEFT, "-A", "-l", "app.kubernetes.io/name=vramwarden", "-o", "name"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("what", ["an image that is not there", "a policy that is not valid"])
def test_what_helm_finds_in_time_installs_nothing(cluster, helm, unready, stranger, values, what):
    policies = {"policies": {"files": {"10-typo.yaml": INVALID}}}
    wrong = {"image": NOWHERE} if "image" in what else policies
    command = Release(helm).installing({**values, **wrong})
    with pytest.raises(charts.HelmError, match="failed pre-install") as error:
        helm.run(*command, "--timeout", "15s" if "image" in what else "2m")
    print(what, error.value, sep=": ")
    assert installed(cluster) == ""
    assert starts(stranger, "plain")
    if "policy" in what:
        logs = cluster.kubectl("-n", SYSTEM, "logs", "job/vramwarden-policy-check").stdout
        print(logs)
        assert "10-typo.yaml:5: spec.rules[0]" in logs
        assert "acton" in logs


def test_where_nothing_becomes_ready_strangers_start_also_after_the_namespace_is_gone(
    cluster, helm, unready, stranger
):
    """This is like applying the rendered chart."""
    rendered = helm.text({"image": NOWHERE, "enforcer": NOWHERE}, "--no-hooks")
    command = [find_binary("kubectl"), f"--kubeconfig={cluster.kubeconfig}", "apply", "-f", "-"]
    subprocess.run(command, input=rendered, check=True, capture_output=True, text=True)
    asks = pod("asks", "1Gi", ["true"])
    stranger.wait("our webhook called", lambda: refused(stranger, asks))
    assert "mutatingwebhookconfiguration" in installed(cluster)
    assert starts(stranger, "plain")
    delete_namespace(unready)
    assert starts(stranger, "later")


def refused(team, manifest):
    try:
        team.create(manifest)
    except ApiError as error:
        return 'failed calling webhook "mutate.vramwarden.io"' in error.message
    team.delete_pod(manifest["metadata"]["name"])
    return False


def test_a_working_install_goes_with_its_namespace(cluster, helm, unready, stranger, values):
    Release(helm).install(values)
    delete_namespace(unready)
    assert starts(stranger, "at-once")
    stranger.wait("the webhook configurations gone", lambda: "webhook" not in installed(cluster))
    # No vramwarden component is left to mutate or deny the pod.
    made = stranger.create(pod("asks", "1Gi", ["true"], schedulerName="nobody"))
    assert "initContainers" not in made["spec"]
    stranger.delete_pod("asks")
