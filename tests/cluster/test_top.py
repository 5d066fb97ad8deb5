"""`vramwarden top` on a real API server, by a user with the role `view` in one namespace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.clusters import a_cluster, a_gpu, a_node, a_pod, held, many_nodes, team_nodes
from tests.support.control_planes import find_binary
from tests.support.gpu_nodes import GPU_NODES_PATH, define, store

SCRIPTS = str(Path(sys.executable).parent)
LARGE = 1000


@pytest.fixture(scope="module")
def defined(control_plane):
    define(control_plane.api)
    return control_plane.api


@pytest.fixture
def figures(defined):
    """Store node figures for one test."""
    stored = []

    def put(nodes, uids=None):
        some = [renamed(figure, uids or {}) for figure in a_cluster(nodes).figures]
        store(defined, some)
        stored.extend(node.name for node in some)

    yield put
    for name in stored:
        defined.request("DELETE", f"{GPU_NODES_PATH}/{name}")


def ran(kubeconfig, *command):
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    environment["PATH"] = os.pathsep.join([SCRIPTS, environment["PATH"]])
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def top(kubeconfig, *arguments):
    return ran(kubeconfig, sys.executable, "-m", "webhook.cli", "top", *arguments)


def renamed(node, uids):
    """Return a node's figures with the UIDs of real pods."""

    def of(gpu):
        pods = tuple(replace(pod, uid=uids.get(pod.uid, pod.uid)) for pod in gpu.pods)
        unmanaged = {uids.get(uid, uid): held for uid, held in gpu.unmanaged.items()}
        return replace(gpu, pods=pods, unmanaged=unmanaged)

    return replace(node, gpus=tuple(map(of, node.gpus)))


def uid(created):
    return created["metadata"]["uid"]


def test_who_may_view_one_namespace_sees_all_gpus_and_the_own_pods_by_name(
    control_plane, figures, readable, viewer, namespace, make_namespace
):
    api, theirs = control_plane.api, make_namespace()
    on_n1 = {"node": "n1", "gpus": "GPU-n1-0"}
    mine = api.create(a_pod("llama", "16Gi", namespace=namespace, **on_n1))
    other = api.create(a_pod("secret-of-others", "40Gi", namespace=theirs, **on_n1))
    api.create(a_pod("eval", "80Gi", namespace=namespace))
    rogue = api.create(a_pod("shell", namespace=namespace, node="n2"))
    finished = api.create(a_pod("done", "16Gi", namespace=namespace, node="n1"))
    finished["status"] = {"phase": "Succeeded"}
    api.request("PUT", f"/api/v1/namespaces/{namespace}/pods/done/status", finished)
    figures(team_nodes(), {"llama": uid(mine), "train-0": uid(other), "rogue": uid(rogue)})

    done = top(viewer)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("3 nodes, 6 GPUs, 360Gi usable: 283Gi promised (78%)")
    assert f"POD ({namespace})" in done.stdout
    assert "no GPU has 80Gi: the largest has 79Gi" in done.stdout
    assert f"! n2 GPU 1: 3.1Gi are held by pod {namespace}/shell, which has no cap" in done.stdout
    assert "secret" not in done.stdout
    assert theirs not in done.stdout

    report = json.loads(top(viewer, "-o", "json").stdout)
    assert report["missing"] == []
    assert {pod["name"]: pod.get("usedBytes") for pod in report["pods"]} == {
        "llama": 6 * 2**30,
        "eval": None,
    }
    held = report["nodes"][0]["gpus"][0]["pods"]
    assert [(pod.get("name"), pod["uid"]) for pod in held] == [
        ("llama", uid(mine)),
        (None, uid(other)),
    ]


def test_pods_come_as_rows_of_a_table_with_labels_selected(
    control_plane, figures, readable, viewer, namespace
):
    figures(team_nodes())
    for number in range(60):  # more than one page
        half = {"labels": {"half": str(number % 2)}}
        pod = a_pod(f"p{number}", "16Gi", namespace=namespace, node="n1", metadata=half)
        control_plane.api.create(pod)
    report = json.loads(top(viewer, "pods", "-l", "half=1", "-o", "json").stdout)
    assert [pod["name"] for pod in report["pods"]] == [f"p{number}" for number in range(1, 60, 2)]
    assert {pod["node"] for pod in report["pods"]} == {"n1"}
    assert {pod["status"] for pod in report["pods"]} == {"Pending"}


def test_a_thousand_nodes_are_drawn(control_plane, figures, readable, viewer):
    figures(many_nodes(LARGE))
    done = top(viewer, "nodes")
    assert done.returncode == 0
    assert done.stdout.startswith("1,000 nodes, 8,000 GPUs, 617Ti usable:")
    assert done.stdout.count("gpu-node-") == LARGE


def test_kubectl_runs_the_plugin_and_completes_its_words(figures, readable, viewer):
    kubectl = find_binary("kubectl")
    if not kubectl:
        pytest.skip("needs kubectl")
    figures(team_nodes())
    shown = ran(viewer, kubectl, "vramwarden", "top", "nodes")
    assert (shown.returncode, shown.stdout[:16]) == (0, "3 nodes, 6 GPUs,")
    usage = ran(viewer, kubectl, "vramwarden", "top", "gpus")
    assert usage.returncode == 2
    assert usage.stderr.startswith("Usage: kubectl vramwarden top [OPTIONS]")
    assert "Try 'kubectl vramwarden top --help' for help." in usage.stderr
    words = ran(viewer, kubectl, "__complete", "vramwarden", "top", "--sort", "")
    assert words.stdout.splitlines() == ["used", "cap", "peak", "free", "idle", ":4"]
    words = ran(viewer, kubectl, "__complete", "vramwarden", "to").stdout.splitlines()
    assert [word.partition("\t")[0] for word in words] == ["top", ":4"]


def test_report_needs_no_more_than_to_view_the_namespace(
    defined, figures, readable, viewer, namespace, tmp_path
):
    policy = tmp_path / "week.yaml"
    policy.write_text(
        "apiVersion: vramwarden.io/v1alpha1\nkind: VRAMPolicy\nmetadata: {name: week}\n"
        "spec: {rules: [{name: week, action: Audit}]}\n"
    )
    defined.create(a_pod("wrong", "8GB", namespace=namespace, rule=None))
    over = uid(defined.create(a_pod("over", "8Gi", namespace=namespace)))
    since = {"would_stop_since_s": time.time() - 3600}
    would_stop = held(over, 8, 0, 12, would_stop=3, **since)
    figures([a_node("week", a_gpu(24, would_stop), age_s=0)])
    asked = ("report", "-n", namespace, "--policy", str(policy))
    done = ran(viewer, sys.executable, "-m", "webhook.cli", *asked)
    assert done.returncode == 1, done.stderr
    assert "1 pod would be denied." in done.stdout
    assert "8GB is not a Kubernetes quantity; use 8G or 8Gi" in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if " week " in line and "12Gi" in line]
    assert {*row.split()} >= {"over", "week", "0", "8Gi", "12Gi", "3"}
