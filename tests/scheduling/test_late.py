"""Pods that the API server bound while no replica responded get their GPUs late."""

from __future__ import annotations

import contextlib

import pytest

from tests.scheduling.replicas import BINDING, SYSTEM, Cluster, replica
from tests.support.control_planes import wait_until
from tests.support.schedulers import bound, patch, remove_pod
from tests.support.webhook_configurations import LOCAL, installed, webhook_configurations
from webhook.names import NODE_SENTRY_LABEL


@pytest.fixture
def cluster(request, control_plane, make_namespace):
    """Yield a cluster with a namespace whose name selects the enforcer of its pods."""
    system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
    control_plane.api.apply(system)
    with Cluster(control_plane.api, make_namespace(getattr(request, "param", "team"))) as made:
        yield made


@pytest.fixture
def nobody_answers(control_plane, cluster, tmp_path):
    """Register the webhooks of a replica that mutated pods and has stopped since."""
    with contextlib.ExitStack() as stack:
        with replica(control_plane, tmp_path / "before") as server:
            trusted = (server.certificates / "ca.crt").read_bytes()
            url = f"https://127.0.0.1:{server.port}"
            for path in (LOCAL, BINDING):
                manifests = webhook_configurations(
                    url, trusted, path=path, bind_path=server.bind_path
                )
                stack.enter_context(installed(cluster.api, *manifests))
            for name in ("first", "second"):
                cluster.create(name, "5Gi", schedulerName="nobody")
        yield


def bind(cluster, name):
    (pod,) = [pod for pod in cluster.pods() if pod["metadata"]["name"] == name]
    cluster.bind(pod, "n1")


def annotations(cluster):
    """Return the annotations that bindings set on each pod, keyed by name."""
    ours = ("gpu", "visible-devices", "gpu-memory-fraction", "gpu-waits")
    found = {}
    for pod in cluster.pods():
        written = pod["metadata"]["annotations"]
        has = {name: written.get(f"vramwarden.io/{name}") for name in ours}
        found[pod["metadata"]["name"]] = {key: value for key, value in has.items() if value}
    return found


ASSIGNED = {
    "gpu": "GPU-n1-0",
    "visible-devices": "GPU-n1-0",
    "gpu-memory-fraction": "0.5151",  # (5Gi - 900Mi) / 8Gi
}
NAMES = "vramwarden.io/device-names"


@pytest.mark.usefixtures("nobody_answers")
@pytest.mark.parametrize("cluster", ["team", "sentry", "none"], indirect=True)
def test_pods_that_were_bound_without_us_are_assigned_late(cluster, control_plane, tmp_path):
    cluster.node("n1", 8, **{NODE_SENTRY_LABEL: "true"})
    for name in ("first", "second"):
        bind(cluster, name)
    assert bound(cluster.api, cluster.namespace) == {"first": ("n1", ""), "second": ("n1", "")}

    with replica(control_plane, tmp_path / "after") as server:
        found = wait_until(
            "both were looked at",
            lambda: all((found := annotations(cluster)).values()) and found,
        )
        assigned, waits = sorted(found, key=lambda name: "gpu-waits" in found[name])
        assert found[assigned] == ASSIGNED
        said = (
            "no GPU of node n1 has 5Gi free, which this pod needs; the largest free amount is 3Gi, "
            "on GPU 0 (GPU-n1-0); it was bound while vramwarden was away, and is tried again "
            "whenever a pod ends there or the node changes"
        )
        assert found[waits] == {"gpu-waits": said}
        assert "vramwarden_placement_waiting 1.0" in server.get("/metrics")[1]

        pods = {pod["metadata"]["name"]: pod for pod in cluster.pods()}
        remove_pod(cluster.api, pods[assigned])
        wait_until("the other is assigned", lambda: annotations(cluster) == {waits: ASSIGNED})
        assert list(cluster.lists()) == [waits]
        metrics = server.get("/metrics")[1]
        assert 'vramwarden_placement_late_assignments_total{outcome="assigned"} 2.0' in metrics


@pytest.mark.usefixtures("nobody_answers")
def test_where_no_name_works_a_pod_waits_for_its_node(cluster, control_plane, tmp_path):
    cluster.node("n1", 8, **{NAMES: "none"})
    bind(cluster, "first")
    with replica(control_plane, tmp_path / "after"):
        waits = wait_until("it was looked at", lambda: annotations(cluster)["first"])
        assert list(waits) == ["gpu-waits"]
        assert f"(label {NAMES} is none)" in waits["gpu-waits"]
        label = {"metadata": {"labels": {NAMES: "runtime.nvidia.com"}}}
        patch(cluster.api, "/api/v1/nodes/n1", label)
        named = ASSIGNED | {"visible-devices": "runtime.nvidia.com/gpu=GPU-n1-0"}
        wait_until("it is assigned", lambda: annotations(cluster)["first"] == named)
