"""Without replicas, only new demands are denied. Pods bound meanwhile start afterwards.

The webhooks stay registered.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.asking import diagnose
from tests.e2e.cluster import SYSTEM
from tests.e2e.nvidia_runtime import UUIDS
from tests.e2e.pods import holding, is_ready, job, pod, statuses
from tests.e2e.team import Team
from tests.e2e.test_09_placement import entered, free_gib

SCALE = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/vramwarden-webhook/scale"
WEBHOOK = {"labelSelector": "app.kubernetes.io/component=webhook"}
MERGE = "application/merge-patch+json"
SHOWS = holding("echo NVIDIA_VISIBLE_DEVICES=$NVIDIA_VISIBLE_DEVICES; forever")
GATE = [{"name": "example.com/queue"}]
FINALIZER = "example.com/keep"
STRANGERS = ("nvidia.com/gpu", "devices.kubevirt.io/kvm")
SIDECAR = "vram-enforcer"
NOT_CREATED = (
    "CreateContainerConfigError",
    "missing value for VRAMWARDEN_GPU_ASSIGNMENT",
)
LATE = ("late-1", "late-2", "late-3")


def scale(system: Team, replicas: int) -> None:
    change = {"spec": {"replicas": replicas}}
    system.api.request("PATCH", SCALE, change, content_type=MERGE)

    def done() -> bool:
        found = system.pods(**WEBHOOK)
        return len(found) == replicas and all(map(is_ready, found))

    system.wait(f"{replicas} replicas", done)


def change(team: Team, name: str, **metadata: Any) -> dict[str, Any]:
    """Change a pod's metadata, as any controller may."""
    path = f"/api/v1/namespaces/{team.namespace}/pods/{name}"
    answer: dict[str, Any] = team.api.request(
        "PATCH", path, {"metadata": metadata}, content_type=MERGE
    )
    return answer


def remove_gate(team: Team, name: str) -> None:
    path = f"/api/v1/namespaces/{team.namespace}/pods/{name}"
    team.api.request("PATCH", path, {"spec": {"schedulingGates": None}}, content_type=MERGE)


def at_gate(team: Team, name: str, container: str = "main") -> bool:
    """Return True if a container is not created because its pod has no GPU yet."""
    state = statuses(team.pod(name)).get(container, {}).get("state", {})
    waiting = state.get("waiting", {})
    return (waiting.get("reason"), waiting.get("message")) == NOT_CREATED


def gpu_of(team: Team, name: str) -> str:
    annotations = team.pod(name)["metadata"].get("annotations", {})
    return str(annotations.get("vramwarden.io/gpu", ""))


def with_resource(name: str, resource: str) -> dict[str, Any]:
    made = pod(name, None, ["true"], schedulerName="nobody")
    made["spec"]["containers"][0]["resources"] = {"limits": {resource: "1"}}
    return made


@pytest.fixture(scope="module")
def share_gib(gpu_node: Any, team: Team, quiet: str) -> int:
    """Return a size of which three fit on the node in total, but no two on one GPU."""
    team.wait_ready(quiet)
    free = free_gib(gpu_node)
    size = math.floor(sum(free.values()) / len(LATE)) - 1
    assert 2 * size > max(free.values()), free
    assert size <= min(free.values()), free
    return size


@pytest.fixture(scope="module")
def outage(gpu_node: Any, system: Team, make_team: Any, share_gib: int) -> Iterator[Team]:
    """Scale to zero replicas, and back at the end."""
    team = make_team()
    for name in LATE:
        team.create(pod(name, f"{share_gib}Gi", SHOWS, schedulingGates=GATE))
    team.create(pod("held", "1Gi", ["true"], schedulerName="nobody"))
    change(team, "held", finalizers=[FINALIZER])
    for resource in STRANGERS:
        team.create(with_resource(resource.rpartition("/")[2], resource))
    scale(system, 0)
    yield team
    scale(system, 2)


def test_a_new_demand_is_denied_in_our_name(outage: Team) -> None:
    message = outage.denial(pod("asks", "1Gi", ["true"]))
    print(message)
    assert 'failed calling webhook "mutate.vramwarden.io"' in message
    outage.create(job("denied", "1Gi", ["true"]))
    said = diagnose(outage.cluster.kubeconfig, "job/denied", outage.namespace)
    assert "nothing is wrong with the pod: ask your platform team" in said
    outage.api.request("DELETE", f"/apis/batch/v1/namespaces/{outage.namespace}/jobs/denied")


def test_a_pod_without_a_demand_starts(outage: Team) -> None:
    began = time.monotonic()
    outage.create(pod("plain", None, holding("forever")))
    outage.wait_ready("plain")
    print(f"a plain pod is ready: {time.monotonic() - began:.1f} s")
    outage.delete_pod("plain")


@pytest.mark.parametrize("resource", STRANGERS)
def test_so_does_one_with_other_resources_and_it_can_be_changed(
    outage: Team, resource: str
) -> None:
    name = resource.rpartition("/")[2]
    assert outage.create(with_resource(f"new-{name}", resource))["metadata"]["uid"]
    for item in (name, f"new-{name}"):
        assert change(outage, item, labels={"a": "b"})["metadata"]["labels"]["a"] == "b"
        outage.delete_pod(item)


def test_a_pod_with_a_demand_is_changed_and_loses_its_finalizer(outage: Team) -> None:
    assert change(outage, "held", labels={"a": "b"})["metadata"]["labels"]["a"] == "b"
    outage.delete_pod("held")
    change(outage, "held", finalizers=None)
    names = [found_pod["metadata"]["name"] for found_pod in outage.pods()]
    assert "held" not in names


def test_pods_with_a_demand_are_bound_start_nothing_and_say_why(outage: Team) -> None:
    for name in LATE:
        remove_gate(outage, name)
    for name in LATE:
        outage.wait(f"{name} bound", lambda n=name: outage.pod(n)["spec"].get("nodeName"))

    for name in LATE:
        outage.wait(f"{name} waits at the gate", lambda n=name: at_gate(outage, n, SIDECAR))
        assert statuses(outage.pod(name))["main"]["state"]["waiting"]
        assert gpu_of(outage, name) == ""
    said = diagnose(outage.cluster.kubeconfig, LATE[0], outage.namespace)
    assert "gets a GPU when vramwarden is back" in said


def test_they_run_on_their_gpu_once_a_replica_is_back(outage: Team, system: Team) -> None:
    scale(system, 2)
    began = time.monotonic()

    def running() -> list[str]:
        return [name for name in LATE if is_ready(outage.pod(name))]

    first, second = outage.wait("two of them ready", lambda: len(running()) > 1 and running())
    print(f"ready after the replicas: {time.monotonic() - began:.1f} s")
    assert {gpu_of(outage, first), gpu_of(outage, second)} == set(UUIDS)
    for name in (first, second):
        gpu = gpu_of(outage, name)
        assert outage.log(name).splitlines() == [f"NVIDIA_VISIBLE_DEVICES={gpu}"]
        assert statuses(outage.pod(name))["main"]["restartCount"] == 0


def test_the_one_without_room_says_so_and_gets_the_next_gpu(outage: Team, share_gib: int) -> None:
    (last,) = (name for name in LATE if not gpu_of(outage, name))
    annotations = outage.pod(last)["metadata"]["annotations"]
    print(annotations["vramwarden.io/gpu-waits"])
    assert f"{share_gib}Gi" in annotations["vramwarden.io/gpu-waits"]
    leaves = next(name for name in LATE if name != last)
    freed = gpu_of(outage, leaves)
    outage.delete_pod(leaves)
    outage.wait_ready(last)
    assert gpu_of(outage, last) == freed
    assert "vramwarden.io/gpu-waits" not in outage.pod(last)["metadata"]["annotations"]
    for name in set(LATE) - {leaves}:
        outage.delete_pod(name)
    outage.wait("their GPUs free", lambda: not entered(outage))


def test_afterwards_demands_are_translated_again(team: Team, outage: Team) -> None:
    made = team.create(pod("asks-again", "1Gi", ["true"], schedulerName="nobody"))
    assert made["spec"]["initContainers"][0]["name"] == SIDECAR
    team.delete_pod("asks-again")
