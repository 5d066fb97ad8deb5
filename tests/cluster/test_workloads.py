"""Workloads: pods that controllers create, and how a refusal reaches whoever waits for them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.control_planes import find_binary, wait_until
from tests.support.our_server import container
from tests.support.pods import a_container, a_pod


@pytest.fixture(autouse=True)
def _controllers(control_plane):
    if not find_binary("kube-controller-manager"):
        pytest.skip("needs kube-controller-manager")
    control_plane.start_controllers()


def a_workload(team, kind: str, memory: str, **spec: Any) -> dict[str, Any]:
    """Return a workload whose pods ask for VRAM."""
    pod = a_pod(memory)
    labels = {"app": "train"}
    template = {
        "metadata": {"annotations": pod["metadata"]["annotations"], "labels": labels},
        "spec": {**pod["spec"], **({"restartPolicy": "Never"} if kind == "Job" else {})},
    }
    selector = {} if kind == "Job" else {"selector": {"matchLabels": labels}}
    return {
        "apiVersion": "batch/v1" if kind == "Job" else "apps/v1",
        "kind": kind,
        "metadata": {"name": "train", "namespace": team.namespace},
        "spec": {"template": template, **selector, **spec},
    }


def events(team, kind: str) -> list[str]:
    path = f"/api/v1/namespaces/{team.namespace}/events"
    found = team.api.list(path, fieldSelector="reason=FailedCreate")
    return [event["message"] for event in found if event["involvedObject"]["kind"] == kind]


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Deployment", {"replicas": 3}),
        ("StatefulSet", {"replicas": 3, "serviceName": "train", "podManagementPolicy": "Parallel"}),
        ("Job", {"completions": 3, "parallelism": 3}),
    ],
)
def test_the_pods_of_a_workload_are_translated(team, kind, spec):
    team.api.create(a_workload(team, kind, "8Gi", **spec))
    wait_until(f"pods of the {kind}", lambda: len(team.pods()) == 3)
    for pod in team.pods():
        assert pod["spec"]["initContainers"][0]["name"] == "vram-enforcer"
        limits = container(pod, "main")["resources"]["limits"]
        assert limits == {"vramwarden.io/vram": "8Gi"}
        assert pod["metadata"]["labels"]["vramwarden.io/managed"] == "true"


def test_the_log_says_which_workload_a_pod_belongs_to(team):
    team.api.create(a_workload(team, "Job", "8Gi"))
    wait_until("the Job's pod", team.pods)
    assert team.ours.reviews(team.namespace)[0]["owner"] == "Job/train"


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "Job"])
def test_a_refusal_reaches_the_events_of_a_workload_reason_and_cure_first(team, kind):
    team.api.create(a_workload(team, kind, "8GB"))
    owner = {"Deployment": "ReplicaSet"}.get(kind, kind)
    wait_until(f"an event of the {owner}", lambda: events(team, owner))
    message = events(team, owner)[0]
    said = message.partition('"mutate.vramwarden.io" denied the request: ')[2]
    assert said.startswith("InvalidQuantity: metadata.annotations[vramwarden.io/gpu-memory]: ")
    assert "use 8G or 8Gi" in said[:200]
    assert team.pods() == []


def test_a_refusal_reaches_the_status_of_a_deployment(team):
    manifest = a_workload(team, "Deployment", "8GB")
    team.api.create(manifest)

    def failure():
        conditions = team.api.get(manifest).get("status", {}).get("conditions", [])
        return [c for c in conditions if c["type"] == "ReplicaFailure"]

    (condition,) = wait_until("the condition ReplicaFailure", failure)
    assert condition["reason"] == "FailedCreate"
    assert "InvalidQuantity: " in condition["message"]


def test_a_deployment_recovers_when_its_template_is_corrected(team):
    manifest = a_workload(team, "Deployment", "8GB")
    team.api.create(manifest)
    wait_until("a refusal", lambda: events(team, "ReplicaSet"))
    team.api.apply(a_workload(team, "Deployment", "8Gi"))
    (pod,) = wait_until("the pod", team.pods)
    assert container(pod, "vram-enforcer")


def test_the_cron_job_itself_is_none_of_our_business(team):
    job = a_workload(team, "Job", "8GB")
    metadata = {"name": "nightly", "namespace": team.namespace}
    spec = {"schedule": "0 0 * * *", "jobTemplate": {"spec": job["spec"]}}
    kind = {"apiVersion": "batch/v1", "kind": "CronJob"}
    team.api.create({**kind, "metadata": metadata, "spec": spec})
    assert team.calls() == []


def test_a_template_with_several_containers_is_translated_by_name(team):
    manifest = a_workload(team, "Job", "b=8Gi")
    manifest["spec"]["template"]["spec"]["containers"] = [a_container("a"), a_container("b")]
    team.api.create(manifest)
    (pod,) = wait_until("the Job's pod", team.pods)
    assert container(pod, "a")["resources"] == {}
    assert container(pod, "b")["resources"]["limits"] == {"vramwarden.io/vram": "8Gi"}
