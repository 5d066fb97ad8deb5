"""Rules that need facts of the cluster: a RuntimeClass, and nodes whose driver enforces limits."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from tests.support.control_planes import wait_until
from tests.support.pods import a_container, a_pod
from tests.support.schedulers import GIB, add_node
from tests.support.webhook_on_cluster import container, knowing

OVERHEAD = {"cpu": "100m", "memory": "120Mi"}
OURS = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def ours(control_plane, tmp_path_factory):
    """Run a server with access to the cluster, so that it places pods."""
    with knowing(control_plane, tmp_path_factory.mktemp("knowing")) as found:
        yield found


@contextmanager
def runtime_class(team, name="nvidia", **fields):
    """Create a RuntimeClass, known to API server and webhook, until the block ends."""
    kind = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "nvidia"}
    manifest = {**kind, "metadata": {"name": name}, **fields}
    before = heard(team)
    team.api.create(manifest)
    try:
        if name == "nvidia":
            wait_until("it is known", lambda: heard(team) == [*before, True])
        else:
            wait_until("the plugin knows it", lambda: named(team, name))
        yield
    finally:
        team.api.delete(manifest)
        if name == "nvidia":
            wait_until("it is forgotten", lambda: heard(team) == [*before, True, False])


def heard(team):
    """Return the server's log events about the class, in order."""
    return [line["exists"] for line in team.ours.server.log() if line["msg"] == "RuntimeClass"]


def named(team, name):
    return team.accepts(a_pod(runtimeClassName=name), dry_run=True)


def class_of(pod):
    return pod["spec"].get("runtimeClassName")


def test_a_pod_gets_the_class_for_as_long_as_the_cluster_has_one(team):
    assert class_of(team.accepts(a_pod("8Gi"))) is None
    with runtime_class(team):
        pod = team.accepts(a_pod("8Gi"))
        assert class_of(pod) == "nvidia"
        assert "overhead" not in pod["spec"]
        assert class_of(team.accepts(a_pod())) is None
    assert class_of(team.accepts(a_pod("8Gi"))) is None


def test_a_class_of_the_users_own_stays(team):
    with runtime_class(team), runtime_class(team, "kata"):
        assert class_of(team.accepts(a_pod("8Gi", runtimeClassName="kata"))) == "kata"


def test_overhead_of_the_class_is_added_by_the_api_server(team):
    """The API server's plugin runs before the webhook, and again after its change."""
    with runtime_class(team, overhead={"podFixed": OVERHEAD}):
        for pod in (a_pod("8Gi"), a_pod("8Gi", runtimeClassName="nvidia")):
            stored = team.accepts(pod)
            assert (class_of(stored), stored["spec"]["overhead"]) == ("nvidia", OVERHEAD)
        copied = {"annotations": stored["metadata"]["annotations"]}
        again = team.accepts({**stored, "metadata": copied})
        assert again["spec"] == stored["spec"]


def test_scheduling_of_the_class_is_added_by_the_api_server(team):
    everything = {"operator": "Exists"}  # the toleration added for its plugin is then redundant
    for toleration in (everything, {"key": "pool", "operator": "Exists"}, OURS):
        scheduling = {"nodeSelector": {"pool": "gpu"}, "tolerations": [toleration]}
        with runtime_class(team, scheduling=scheduling):
            spec = team.accepts(a_pod("8Gi"))["spec"]
            assert spec["nodeSelector"] == {"pool": "gpu", "vramwarden.io/gpu": "true"}
            assert toleration in spec["tolerations"]
            assert spec["tolerations"].count(OURS) == 1


def test_a_guaranteed_pod_stays_so_with_the_class(team):
    amounts = {"cpu": "1", "memory": "1Gi"}
    resources = {"requests": amounts, "limits": amounts}
    with runtime_class(team, overhead={"podFixed": OVERHEAD}):
        pod = team.accepts(a_pod("8Gi", containers=[a_container(resources=resources)]))
    assert pod["status"]["qosClass"] == "Guaranteed"
    assert container(pod, "vram-enforcer")["resources"]["limits"]["cpu"] == "200m"


def test_who_requires_the_drivers_limit_is_warned_while_no_node_has_it(make_team):
    team, label = make_team("required"), {"vramwarden.io/driver-limit": "true"}

    def hints():
        team.accepts(a_pod("8Gi"), dry_run=True)
        mutated, _ = team.ours.reviews(team.namespace)[-2:]
        return mutated.get("notes", [])

    (said,) = hints()
    assert "no node has that label now: the pod waits until one has" in said
    add_node(team.api, "limited", [8 * GIB], **label)
    try:
        wait_until("it is known", lambda: not hints())
    finally:
        team.api.request("DELETE", "/api/v1/nodes/limited")


def test_kubectl_warns_of_nvidias_class_on_a_pod_without_a_gpu(team, kubectl):
    with runtime_class(team):
        warned = kubectl("create", team.pod(a_pod(runtimeClassName="nvidia")))
        silent = kubectl("create", team.pod(a_pod("8Gi", runtimeClassName="nvidia")))
    assert (warned.returncode, silent.returncode, silent.stderr) == (0, 0, "")
    assert warned.stderr.startswith('Warning: spec.runtimeClassName: remove it; with "nvidia" an')
