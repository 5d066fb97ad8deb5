"""`vramwarden explain` by a user who only has the role `view` in one namespace."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial

import pytest

from tests.cluster.test_workloads import a_workload, wait_for_failure
from tests.support.clusters import GIB, a_gpu, a_node, held
from tests.support.control_planes import find_binary
from tests.support.gpu_nodes import CRD, define, may_view
from tests.support.pods import a_pod
from tests.support.run_command import runner
from webhook.cli.main import main
from webhook.core.kinds.nodes import write_gpu_node

TRIED = "a pod like it, tried as you and not stored, stays"
RECORDED = (
    f"! {TRIED} as it is: the policy only records here (action Audit), or leaves this namespace "
    "alone\n    → ask your platform team which of the two\n"
)
WARNED = f"the policy only warns here (action Warn): {TRIED} without GPU memory"
WRONG = (
    "! metadata.annotations[vramwarden.io/gpu-memory]: 8GB is not a Kubernetes quantity; use 8G or "
    "8Gi\n"
)


def figures(*pods):
    """Return recent figures of a node whose GPUs have 23Gi and 19Gi free."""
    gpus = (a_gpu(79, *pods, free_bytes=23 * GIB), a_gpu(79, free_bytes=19 * GIB))
    return replace(a_node("n1", *gpus).figures, observed_s=time.time() - 10)


@pytest.fixture
def gpu_node(control_plane, readable):
    """Return a function that stores figures of a node, which all users may read."""
    define(control_plane.api)
    yield lambda node: control_plane.api.apply(write_gpu_node(node))
    control_plane.api.delete(CRD)


def run(team, kubeconfig, *arguments):
    options = ["-n", team.namespace, "--kubeconfig", str(kubeconfig)]
    return runner().invoke(main, ["explain", *arguments, *options])


@pytest.fixture
def as_viewer(control_plane, team, tmp_path):
    """Return a function that runs `explain` with only the role `view` in the team's namespace."""
    team.api.apply(may_view("ann", team.namespace))
    return partial(run, team, control_plane.kubeconfig_of(tmp_path, "ann", "people"))


def waiting(team, memory="30Gi"):
    """Create a pod and mark it pending, as the scheduler does."""
    pod = team.accepts(a_pod(memory))
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 Insufficient vramwarden.io/vram.",
    }
    name = pod["metadata"]["name"]
    path = f"/api/v1/namespaces/{team.namespace}/pods/{name}/status"
    patch = {"status": {"conditions": [condition]}}
    kind = "application/strategic-merge-patch+json"
    team.api.request("PATCH", path, patch, content_type=kind)
    return name


def test_a_viewer_learns_why_a_pod_waits_and_what_would_start_now(team, as_viewer, gpu_node):
    other = team.accepts(a_pod("40Gi"))["metadata"]
    gpu_node(figures(held(other["uid"], 40), held("u-foreign", 16)))
    name = waiting(team)
    done = as_viewer(name)
    assert done.exit_code == 1, done.output
    lines = done.output.splitlines()
    assert lines[0].startswith(f"Pod {team.namespace}/{name} has waited ")
    assert lines[1:4] == [
        "✗ no GPU has 30Gi free now; 42Gi are free in pieces",
        "    → ask for 23Gi or less, or wait until a pod ends",
        "    n1  GPU 0: 23Gi free    GPU 1: 19Gi free",
    ]
    assert f"would start when:  {other['name']} ends (40Gi on GPU 0 of n1)" in lines[5]
    assert lines[-1].endswith(": needs the right to list nodes")


def test_a_viewer_without_figures_learns_what_the_scheduler_says(team, as_viewer):
    done = as_viewer(waiting(team), "-o", "json")
    assert done.exit_code == 1, done.output
    value = json.loads(done.output)
    assert [problem["code"] for problem in value["problems"]] == ["Unschedulable"]
    assert value["leftOut"][0].startswith("figures of GPUs: ")


def test_of_a_pod_that_is_bound_the_log_that_nobody_has_is_said(team, as_viewer, gpu_node):
    name = waiting(team, "8Gi")
    gpu_node(figures())
    path = f"/api/v1/namespaces/{team.namespace}/pods/{name}"
    binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "n1"}}
    body = {"apiVersion": "v1", "kind": "Binding", **binding}
    team.api.request("POST", f"{path}/binding", body)
    running = {"name": "vram-enforcer", "image": "i", "imageID": "i", "ready": True}
    running |= {"restartCount": 0, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    status = {"status": {"phase": "Running", "initContainerStatuses": [running]}}
    kind = "application/merge-patch+json"
    team.api.request("PATCH", f"{path}/status", status, content_type=kind)
    done = as_viewer(name)
    assert f"Pod {team.namespace}/{name} " in done.output
    assert "\n  the log of container vram-enforcer: " in done.output


def test_a_viewer_learns_why_the_pods_of_a_deployment_are_denied(team, as_viewer, control_plane):
    if not find_binary("kube-controller-manager"):
        pytest.skip("needs kube-controller-manager")
    control_plane.start_controllers()
    manifest = a_workload("Deployment", team.namespace, a_pod("8GB"), replicas=2)
    team.api.create(manifest)
    wait_for_failure(team.api, manifest)
    done = as_viewer("deployment/train")
    head = f"Deployment {team.namespace}/train has 0 of 2 pods: pods of it are denied.\n"
    assert (done.exit_code, done.output) == (1, head + WRONG.replace("!", "✗"))
    assert as_viewer("deployment/trian").exit_code == 1


def test_where_nobody_tells_why_a_job_has_no_pods_one_is_tried(team, as_viewer, control_plane):
    # Another controller manages the Job, so no controller here creates pods or Events for it.
    manifest = a_workload("Job", team.namespace, a_pod("8GB"), managedBy="tests.invalid/nobody")
    if "managedBy" not in team.api.create(manifest)["spec"]:
        pytest.skip("needs a Job that another controller may manage: Kubernetes 1.32")
    done = run(team, control_plane.kubeconfig, "job/train")
    assert (done.exit_code, team.pods()) == (1, [])
    assert "a pod of it, tried as you and not stored, is denied.\n" in done.output
    assert WRONG.replace("!", "✗") in done.output
    done = as_viewer("job/train")
    assert done.exit_code == 1
    assert "✗ neither it nor an Event states why it has no pods" in done.output
    assert f"needs the right to create pods in {team.namespace}" in done.output


@pytest.mark.parametrize(
    ("rule", "memory", "said"),
    [
        ("audited", "8Gi", RECORDED),
        ("audited", "8GB", RECORDED + WRONG),
        ("watched", "8GB", f"- {WARNED}\n{WRONG}"),
    ],
)
def test_while_a_policy_only_looks_nobody_is_told_to_create_a_pod_again(
    make_team, control_plane, rule, memory, said
):
    """The user may create pods but not read the policy. This cluster has no policy."""
    team = make_team(rule)
    name = team.accepts(a_pod(memory))["metadata"]["name"]
    done = run(team, control_plane.kubeconfig, name)
    assert (done.exit_code, done.output) == (
        1,
        f"Pod {team.namespace}/{name} asks for VRAM, and has none.\n{said}",
    )
    assert [pod["metadata"]["name"] for pod in team.pods()] == [name]
