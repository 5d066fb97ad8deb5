"""After creation: updates, debugging containers, resizes, and whom we leave alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.our_server import Team, container, denied, refused
from tests.support.pods import a_container, a_pod
from webhook.core.pod.findings import Reason


@pytest.fixture
def trainer(team):
    """Create a pod with a demand."""
    app = a_container(resources={"requests": {"cpu": "1"}, "limits": {"cpu": "1"}})
    return team.accepts(a_pod("8Gi", containers=[app]))


def debug(team, pod, **fields: Any):
    """Add a debugging container, as `kubectl debug` does."""
    debugger = a_container("debugger", stdin=True, tty=True, **fields)
    return team.patch(pod, {"spec": {"ephemeralContainers": [debugger]}}, "/ephemeralcontainers")


def resize(team, pod, field: str, name: str, cpu: str):
    """Change a container's CPU in place, as `kubectl patch --subresource resize` does."""
    amounts = {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}
    change = {"spec": {field: [{"name": name, "resources": amounts}]}}
    return team.patch(pod, change, "/resize")


def test_a_label_may_change(team, trainer):
    changed = team.patch(trainer, {"metadata": {"labels": {"stage": "two"}}})
    assert changed["metadata"]["labels"] == {"stage": "two", "vramwarden.io/managed": "true"}


def test_other_annotations_may_change(team, trainer):
    changed = team.patch(trainer, {"metadata": {"annotations": {"note": "x"}}})
    assert changed["metadata"]["annotations"]["note"] == "x"


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("gpu-memory", "16Gi", 'change from "8Gi" to "16Gi"'),
        ("gpu-memory", None, 'be removed (it was "8Gi")'),
        ("gpu-count", "2", 'be added ("2")'),
        ("gpu-class", "a100", 'be added ("a100")'),
        ("gpu", "GPU-1", 'be added ("GPU-1")'),
        ("admitted", "v1 x y", "change from "),
        ("admitted", None, "be removed (it was "),
    ],
)
def test_our_annotations_may_not_change(team, trainer, key, value, what):
    change = {"metadata": {"annotations": {f"vramwarden.io/{key}": value}}}
    says = denied(refused(lambda: team.patch(trainer, change)), Reason.IMMUTABLE, phase="validate")
    assert says.startswith(f"metadata.annotations[vramwarden.io/{key}]: cannot {what}")


def test_our_label_may_not_be_removed(team, trainer):
    change = {"metadata": {"labels": {"vramwarden.io/managed": None}}}
    says = denied(refused(lambda: team.patch(trainer, change)), Reason.IMMUTABLE, phase="validate")
    assert says.startswith(
        'metadata.labels[vramwarden.io/managed]: cannot be removed (it was "true")'
    )


def test_a_demand_cannot_be_added_to_a_pod_that_runs(team):
    pod = team.accepts(a_pod())
    change = {"metadata": {"annotations": {"vramwarden.io/gpu-memory": "8Gi"}}}
    denied(refused(lambda: team.patch(pod, change)), Reason.IMMUTABLE, phase="validate")


def test_the_image_of_the_app_may_change_and_the_sidecars_not(team, trainer):
    team.patch(trainer, {"spec": {"containers": [{"name": "main", "image": "example:2"}]}})
    change = {"spec": {"initContainers": [{"name": "vram-enforcer", "image": "example:2"}]}}
    says = denied(refused(lambda: team.patch(trainer, change)), Reason.IMMUTABLE, phase="validate")
    assert says.startswith("spec.initContainers[0].image: ")


def test_a_debugging_container_is_let_in(team, trainer):
    changed = debug(team, trainer, targetContainerName="main")
    assert [c["name"] for c in changed["spec"]["ephemeralContainers"]] == ["debugger"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}, "env[0]"),
        ({"env": [{"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/x"}]}, "env[0]"),
        ({"securityContext": {"privileged": True}}, "securityContext.privileged"),
        (
            {"securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}},
            "securityContext.capabilities.add[0]",
        ),
        ({"targetContainerName": "vram-enforcer"}, "targetContainerName"),
    ],
    ids=["devices", "mps", "privileged", "ptrace", "our-sidecar"],
)
def test_a_debugging_container_that_defeats_the_cap_is_refused(team, trainer, fields, path):
    error = refused(lambda: debug(team, trainer, **fields))
    says = denied(error, Reason.EPHEMERAL_CONTAINER, phase="mutate")
    assert says.startswith(f"spec.ephemeralContainers[0].{path}: ")


def test_a_debugging_container_gets_no_view_of_gpus_whatever_its_image_says(team, trainer):
    stored = debug(team, trainer, envFrom=[{"configMapRef": {"name": "somewhere"}}])
    (debugger,) = stored["spec"]["ephemeralContainers"]
    assert debugger["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]


def test_a_pod_without_a_demand_may_be_debugged_in_any_way(team):
    debug(team, team.accepts(a_pod()), securityContext={"privileged": True})


def test_the_app_may_be_resized_and_the_sidecar_not(team, trainer):
    changed = resize(team, trainer, "containers", "main", "2")
    assert container(changed, "main")["resources"]["limits"]["cpu"] == "2"
    error = refused(lambda: resize(team, trainer, "initContainers", "vram-enforcer", "1m"))
    says = denied(error, Reason.IMMUTABLE, phase="validate")
    assert says.startswith("spec.initContainers[0].resources: ")


def test_a_deletion_is_never_refused(team, trainer):
    team.api.delete(trainer, gracePeriodSeconds="0")
    assert team.pods() == []
    assert [line["operation"] for line in team.ours.reviews(team.namespace)] == ["CREATE"] * 2


def test_a_pod_may_lose_its_finalizer_and_go(team):
    manifest = a_pod("8Gi")
    manifest["metadata"]["finalizers"] = ["example.com/wait"]
    pod = team.accepts(manifest)
    team.api.delete(pod, gracePeriodSeconds="0")
    team.patch(pod, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/wait"]}})
    assert team.pods() == []


def test_a_namespace_that_opted_out_is_left_alone(make_team):
    team = make_team(labels={"vramwarden.io/webhook": "disabled"})
    pod = team.accepts(a_pod("8GB"))
    assert "initContainers" not in pod["spec"]
    assert team.calls() == []


@pytest.mark.parametrize("namespace", ["kube-system", "kube-public", "kube-node-lease"])
def test_the_systems_namespaces_are_left_alone(control_plane, ours, namespace):
    control_plane.ensure_service_account(namespace)
    team = Team(control_plane.api, ours, namespace)
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    pod = team.accepts(a_pod(containers=[a_container(env=env)]), dry_run=True)
    assert container(pod, "main")["env"] == env
    assert team.calls() == []


def test_a_drivers_namespace_is_seen_and_left_alone(make_team):
    team = make_team("nvidia")
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    context = {"privileged": True}
    team.accepts(a_pod(containers=[a_container(env=env, securityContext=context)], hostPID=True))
    assert [call[1] for call in team.calls()] == ["skipped", "skipped"]


def a_mirror_pod():
    """Return what a kubelet makes of a manifest on its disk: bound, privileged, sees all GPUs."""
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    annotations = {"kubernetes.io/config.mirror": "abc", "kubernetes.io/config.source": "file"}
    containers = [a_container(env=env)]
    return a_pod("8GB", containers=containers, annotations=annotations, nodeName="gpu-1")


def test_a_mirror_pod_from_a_kubelet_is_not_denied(team):
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}}
    owner = {"apiVersion": "v1", "kind": "Node", "name": "gpu-1", "controller": True}
    owner["uid"] = team.api.apply(node)["metadata"]["uid"]
    manifest = team.pod(a_mirror_pod())
    manifest["metadata"]["ownerReferences"] = [owner]
    kubelet = team.api.acting_as("system:node:gpu-1", "system:nodes", "system:authenticated")
    try:
        pod = kubelet.create(manifest)
    finally:
        team.api.delete(node)
    assert "initContainers" not in pod["spec"]
    assert [line["reasons"] for line in team.ours.reviews(team.namespace)] == [["MirrorPod"]] * 2


def test_a_mirror_pod_from_anybody_else_is_denied(team):
    team.denies(a_mirror_pod(), Reason.INVALID_QUANTITY)


def test_a_watched_team_gets_warnings_and_its_pod_unmutated(make_team):
    team = make_team("watched")
    pod = team.accepts(a_pod("8GB", hostPID=True))
    assert "initContainers" not in pod["spec"]
    assert "labels" not in pod["metadata"]
    quantity, host_pid = team.api.warnings
    assert quantity == (
        "InvalidQuantity: metadata.annotations[vramwarden.io/gpu-memory]: "
        "8GB is not a Kubernetes quantity; use 8G or 8Gi"
    )
    assert host_pid.startswith("HostPID: spec.hostPID: the sidecar ")
    assert {call[1] for call in team.calls()} == {"warned"}


def test_a_watched_team_without_mistakes_is_translated_without_warnings(make_team):
    team = make_team("watched")
    assert container(team.accepts(a_pod("8Gi")), "vram-enforcer")
    assert team.api.warnings == []


def test_kubectl_shows_the_warnings_of_a_watched_team(kubectl, make_team):
    team = make_team("watched")
    result = kubectl("create", team.pod(a_pod("8GB")))
    assert result.returncode == 0
    assert result.stderr == (
        "Warning: InvalidQuantity: metadata.annotations[vramwarden.io/gpu-memory]: "
        "8GB is not a Kubernetes quantity; use 8G or 8Gi\n"
    )


def test_an_audited_team_gets_no_warnings(make_team):
    team = make_team("audited")
    pod = team.accepts(a_pod("8GB", hostPID=True))
    assert "initContainers" not in pod["spec"]
    assert team.api.warnings == []
    reasons = [line["reasons"] for line in team.ours.reviews(team.namespace)]
    assert reasons == [["InvalidQuantity", "HostPID"]] * 2
