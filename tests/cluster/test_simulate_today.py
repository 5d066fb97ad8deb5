"""`vramwarden simulate` on a real API server without vramwarden."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.control_planes import ControlPlane
from tests.support.foreign_clusters import a_pod, mixed_cluster

MORE_THAN_A_PAGE = 60


@pytest.fixture(scope="module")
def foreign(can_start_control_planes):
    """Start a separate control plane with the scene, since all pods of a cluster count."""
    with ControlPlane() as started:
        api = started.api
        for namespace in ("team", "kai-resource-reservation"):
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
            started.ensure_service_account(namespace)
        for item in mixed_cluster():
            created = api.create(item)
            if item["kind"] == "Node":
                path = f"/api/v1/nodes/{item['metadata']['name']}/status"
                api.request("PUT", path, {**created, "status": item["status"]})
        for number in range(MORE_THAN_A_PAGE):
            api.create(a_pod(f"web-{number}"))
        yield started


def simulate(kubeconfig, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "webhook.cli", "simulate", *arguments],
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_cluster_without_vramwarden_is_compared(foreign):
    """Computed by hand, as in tests/tools/simulate/test_command.py; see `mixed_cluster`."""
    done = simulate(foreign.kubeconfig, "--size", "8Gi")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("whole GPUs today 17, as shares 6\n")
    found = json.loads(simulate(foreign.kubeconfig, "--size", "8Gi", "-o", "json").stdout)
    assert (found["gpusHeldNow"], found["gpusAskedForByWaitingPods"]) == (16, 1)
    assert (found["pods"], found["gpus"], found["gpusOfPodsThatStayWhole"]) == (23, 26, 2)


def test_pods_that_finished_are_not_asked_for(foreign):
    api, path = foreign.api, "/api/v1/namespaces/team/pods"
    done = api.create(a_pod("done", "big-1", **{"nvidia.com/gpu": 4}))
    running = json.loads(simulate(foreign.kubeconfig, "-o", "json").stdout)
    assert running["wholeGPUsToday"] == 21
    api.request("PUT", f"{path}/done/status", {**done, "status": {"phase": "Succeeded"}})
    ended = json.loads(simulate(foreign.kubeconfig, "-o", "json").stdout)
    assert ended["wholeGPUsToday"] == 17


def test_who_may_list_nodes_and_pods_needs_no_more(foreign, tmp_path):
    api, group = foreign.api, "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": "ann"}}
    role["rules"] = [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list"]}]
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "ann"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "ann"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "ann"}],
    }
    api.apply(role)
    api.apply(binding)
    try:
        done = simulate(foreign.kubeconfig_of(tmp_path, "ann", "people"), "--size", "8Gi")
    finally:
        api.delete(binding)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("whole GPUs today 17, as shares 6\n")
