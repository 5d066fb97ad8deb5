"""Beside the API server's own plugins: limit ranges, quotas, pod-level resources."""

from __future__ import annotations

import pytest
from builders import a_container, a_pod
from controlplane import find_binary, wait_until
from our_server import container

VRAM = "vramwarden.io/vram"


def limit_range(team, **item):
    """Create a LimitRange for containers."""
    spec = {"limits": [{"type": "Container", **item}]}
    metadata = {"name": "limits", "namespace": team.namespace}
    return team.api.create(
        {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": spec}
    )


def quota(control_plane, team, **hard):
    """Create a ResourceQuota; return when it counts."""
    if not find_binary("kube-controller-manager"):
        pytest.skip("needs kube-controller-manager")
    control_plane.start_controllers()
    metadata = {"name": "quota", "namespace": team.namespace}
    manifest = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": metadata,
        "spec": {"hard": hard},
    }
    team.api.create(manifest)
    wait_until("the quota counts", lambda: team.api.get(manifest)["status"].get("used"))
    return manifest


def used(team, manifest):
    return team.api.get(manifest)["status"]["used"]


def test_a_limit_ranges_defaults_go_to_the_users_container_only(team):
    amounts = {"cpu": "500m", "memory": "512Mi"}
    limit_range(team, default=amounts, defaultRequest=amounts)
    pod = team.accepts(a_pod("8Gi"))
    assert container(pod, "main")["resources"]["limits"] == {**amounts, VRAM: "8Gi"}
    ours = {"cpu": "10m", "memory": "64Mi"}
    assert container(pod, "vram-enforcer")["resources"] == {"requests": ours, "limits": ours}
    assert team.calls()[-1] == ("validate", "allowed", 0)


def test_a_limit_ranges_maximum_leaves_room_for_the_sidecar(team):
    limit_range(team, max={"cpu": "2", "memory": "4Gi"})
    team.accepts(a_pod("8Gi"))


def test_a_limit_range_can_bound_vram_itself(team):
    limit_range(team, max={VRAM: "16Gi"}, default={VRAM: "0"})
    error = team.refuses(a_pod("17Gi"))
    print(error.message)


def test_a_limit_range_may_say_how_much_disk_a_container_gets(team):
    limit_range(team, default={"ephemeral-storage": "1Gi"}, max={"ephemeral-storage": "2Gi"})
    pod = team.accepts(a_pod("8Gi"))
    print(container(pod, "vram-enforcer")["resources"], team.calls())


def test_a_limit_range_default_disk_a_container_gets(team):
    limit_range(team, default={"ephemeral-storage": "1Gi"})
    pod = team.accepts(a_pod("8Gi"))
    print(container(pod, "vram-enforcer")["resources"], team.calls())
    assert 0


def test_a_limit_range_min(team):
    limit_range(team, min={"cpu": "100m"})
    error = team.refuses(a_pod("8Gi"))
    print(error.message)
    assert 0


def test_a_quota_counts_vram_and_refuses_in_its_own_words(control_plane, team):
    manifest = quota(control_plane, team, **{f"requests.{VRAM}": "16Gi"})
    team.accepts(a_pod("8Gi"))
    team.accepts(a_pod("4Gi", annotations={"vramwarden.io/gpu-count": "2"}))
    assert used(team, manifest) == {f"requests.{VRAM}": "16Gi"}
    error = team.refuses(a_pod("1Gi"))
    assert error.code == 403
    assert error.message == (
        'pods "train-3" is forbidden: exceeded quota: quota, requested: '
        f"requests.{VRAM}=1Gi, used: requests.{VRAM}=16Gi, limited: requests.{VRAM}=16Gi"
    )


def test_a_quota_on_pods_counts_each_once(control_plane, team):
    manifest = quota(control_plane, team, pods="1")
    team.accepts(a_pod("8Gi"))
    assert used(team, manifest) == {"pods": "1"}
    assert "exceeded quota" in team.refuses(a_pod("8Gi")).message


def test_a_quota_on_cpu_and_memory_counts_the_sidecar_too(control_plane, team):
    hard = {
        "requests.cpu": "1",
        "limits.cpu": "1",
        "requests.memory": "1Gi",
        "limits.memory": "1Gi",
    }
    manifest = quota(control_plane, team, **hard)
    amounts = {"cpu": "500m", "memory": "512Mi"}
    resources = {"requests": amounts, "limits": amounts}
    team.accepts(a_pod("8Gi", containers=[a_container(resources=resources)]))
    assert used(team, manifest) == {
        "requests.cpu": "510m",
        "limits.cpu": "510m",
        "requests.memory": "576Mi",
        "limits.memory": "576Mi",
    }


def test_a_quota_disk(control_plane, team):
    manifest = quota(control_plane, team, **{"requests.ephemeral-storage": "10Gi"})
    limit_range(team, default={"ephemeral-storage": "1Gi"})
    team.accepts(a_pod("8Gi"))


def test_pod_level(team):
    amounts = {"cpu": "100m", "memory": "128Mi"}
    resources = {"requests": amounts, "limits": amounts}
    for res in (resources, {"requests": amounts}, {"limits": amounts}):
        for cont in (a_container(), a_container(resources=resources)):
            try:
                pod = team.accepts(a_pod("8Gi", resources=res, containers=[cont]))
                print("OK", pod["spec"]["resources"], pod["status"]["qosClass"])
            except Exception as e:
                print("NO", e)
    assert 0
