"""The API server's admission plugins: limit ranges, quotas, pod-level resources."""

from __future__ import annotations

import uuid

import pytest

from tests.support.control_planes import (
    ControlPlane,
    find_binary,
    needs_pod_level_resources,
    wait_until,
)
from tests.support.pods import a_container, a_pod
from tests.support.recipes import recipe
from tests.support.webhook_configurations import installed
from tests.support.webhook_on_cluster import OurServer, Team, container

VRAM = "vramwarden.io/vram"


def both(cpu, memory):
    amounts = {"cpu": cpu, "memory": memory}
    return {"requests": dict(amounts), "limits": dict(amounts)}


AMOUNTS = {"cpu": "100m", "memory": "128Mi"}
GUARANTEED = {"requests": AMOUNTS, "limits": AMOUNTS}


def limit_range(team, **item):
    spec = {"limits": [{"type": "Container", **item}]}
    metadata = {"name": "limits", "namespace": team.namespace}
    return team.api.create(
        {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": spec}
    )


def quota(control_plane, team, **hard):
    """Create a ResourceQuota; return when it takes effect."""
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
    assert pod["status"]["qosClass"] == "Guaranteed"
    assert container(pod, "vram-enforcer")["resources"] == both("200m", "64Mi")
    assert team.calls()[-1] == ("validate", "allowed", 0)


def test_a_limit_ranges_maximum_leaves_room_for_the_sidecar(team):
    limit_range(team, max={"cpu": "2", "memory": "4Gi"})
    team.accepts(a_pod("8Gi"))


def test_a_limit_ranges_other_defaults_go_to_the_sidecar_too_and_are_let_be(team):
    disk = {"ephemeral-storage": "1Gi"}
    limit_range(team, default=disk, max={"ephemeral-storage": "2Gi"})
    pod = team.accepts(a_pod("8Gi"))
    limits = container(pod, "vram-enforcer")["resources"]["limits"]
    assert limits == {"cpu": "1", "memory": "64Mi", **disk}
    assert team.calls()[1:] == [("mutate", "allowed", 0), ("validate", "allowed", 0)]


@pytest.mark.parametrize(
    "item",
    [
        {"max": {"nvidia.com/gpu": "1"}, "default": {"nvidia.com/gpu": "0"}},
        {"max": {"rdma/ib": "1"}},
        {"min": {"rdma/ib": "0"}, "default": {"rdma/ib": "0"}},
    ],
    ids=["no GPU by default", "maximum of a device", "minimum of a device"],
)
def test_a_limit_range_of_an_extended_resource_gives_the_sidecar_none_of_it(team, item):
    limit_range(team, **item)
    resources = container(team.accepts(a_pod("8Gi")), "vram-enforcer")["resources"]
    (name,) = {**item.get("max", {}), **item.get("min", {})}
    assert [resources[kind][name] for kind in ("limits", "requests")] == ["0", "0"]


def test_a_limit_ranges_minimum_above_the_sidecar_refuses_in_its_own_words(team):
    """This is a known limit: the sidecar's amounts are fixed, so its pods cannot run there."""
    limit_range(team, min={"cpu": "100m"})
    assert team.refuses(a_pod("8Gi")).message == (
        'pods "train-1" is forbidden: minimum cpu usage per Container is 100m, but request is 10m'
    )


@pytest.mark.parametrize(
    ("item", "why"),
    [
        ({"max": {"cpu": "500m"}}, "maximum cpu usage per Container is 500m, but limit is 1"),
        (
            {"maxLimitRequestRatio": {"cpu": "10"}},
            "cpu max limit to request ratio per Container is 10, but provided ratio is 100.000000",
        ),
    ],
    ids=["maximum", "ratio"],
)
def test_a_limit_range_below_the_sidecar_does_so_too_except_for_a_guaranteed_pod(team, item, why):
    limit_range(team, **item)
    small = [a_container(resources={"requests": {"cpu": "50m"}, "limits": AMOUNTS})]
    error = team.refuses(a_pod("8Gi", containers=small))
    assert error.message == f'pods "train-1" is forbidden: {why}'
    team.accepts(a_pod("8Gi", containers=[a_container(resources=GUARANTEED)]))


def test_a_quota_counts_vram_and_refuses_in_its_own_words(control_plane, team):
    (made,) = recipe("quota")
    assert made["spec"]["hard"] == {f"requests.{VRAM}": "64Gi"}
    manifest = quota(control_plane, team, **made["spec"]["hard"])
    team.accepts(a_pod("40Gi"))
    team.accepts(a_pod("12Gi", annotations={"vramwarden.io/gpu-count": "2"}))
    assert used(team, manifest) == {f"requests.{VRAM}": "64Gi"}
    error = team.refuses(a_pod("1Gi"))
    assert error.code == 403
    assert error.message == (
        'pods "train-3" is forbidden: exceeded quota: quota, requested: '
        f"requests.{VRAM}=1Gi, used: requests.{VRAM}=64Gi, limited: requests.{VRAM}=64Gi"
    )


def test_a_quota_of_whole_gpus_counts_no_share_in_place_of_one(control_plane, make_team):
    team = make_team("shared")
    hard = {"requests.nvidia.com/gpu": "0", f"requests.{VRAM}": "24Gi"}
    manifest = quota(control_plane, team, **hard)
    whole = a_pod(containers=[a_container(resources={"limits": {"nvidia.com/gpu": 1}})])
    team.accepts(whole)
    assert used(team, manifest) == {"requests.nvidia.com/gpu": "0", f"requests.{VRAM}": "16Gi"}
    assert "exceeded quota" in team.refuses(whole).message


def test_a_quota_on_pods_counts_each_once(control_plane, team):
    manifest = quota(control_plane, team, pods="1")
    team.accepts(a_pod("8Gi"))
    assert used(team, manifest) == {"pods": "1"}
    assert "exceeded quota" in team.refuses(a_pod("8Gi")).message


def test_a_quota_on_cpu_and_memory_counts_the_sidecar_too(control_plane, team):
    hard = {
        "requests.cpu": "1",
        "limits.cpu": "2",
        "requests.memory": "2Gi",
        "limits.memory": "2Gi",
    }
    manifest = quota(control_plane, team, **hard)
    resources = both("100m", "512Mi")
    team.accepts(a_pod("8Gi", containers=[a_container(resources=resources)]))
    assert used(team, manifest) == {
        "requests.cpu": "300m",
        "limits.cpu": "300m",
        "requests.memory": "576Mi",
        "limits.memory": "576Mi",
    }
    resources["requests"]["cpu"] = "50m"
    team.accepts(a_pod("8Gi", containers=[a_container(resources=resources)]))
    assert used(team, manifest) == {
        "requests.cpu": "360m",
        "limits.cpu": "1400m",
        "requests.memory": "1152Mi",
        "limits.memory": "1152Mi",
    }


def test_a_quota_on_disk_counts_what_a_limit_range_gives_the_sidecar(control_plane, team):
    manifest = quota(control_plane, team, **{"requests.ephemeral-storage": "10Gi"})
    limit_range(team, default={"ephemeral-storage": "1Gi"})
    team.accepts(a_pod("8Gi"))
    assert used(team, manifest) == {"requests.ephemeral-storage": "2Gi"}


@pytest.mark.parametrize(
    "of_pod", [GUARANTEED, {"requests": AMOUNTS}, {"limits": AMOUNTS}], ids=",".join
)
def test_pod_level_resources_cover_the_sidecar_where_containers_name_none(team, of_pod):
    needs_pod_level_resources(team.api)
    pod = team.accepts(a_pod("8Gi", resources=of_pod))
    assert pod["spec"]["resources"]["requests"] == AMOUNTS
    plain = team.accepts(a_pod(resources=of_pod))
    assert pod["status"]["qosClass"] == plain["status"]["qosClass"]


def test_pod_level_resources_without_room_for_the_sidecar_are_refused_in_our_words(team):
    """The API server's message would be: must be greater than or equal to aggregate requests."""
    needs_pod_level_resources(team.api)
    filled = [a_container(resources=GUARANTEED)]
    team.accepts(a_pod(resources=GUARANTEED, containers=filled))
    error = team.refuses(a_pod("8Gi", resources=GUARANTEED, containers=filled))
    assert error.code == 403
    assert "EnforcementImpossible: spec.resources.requests[cpu]: write at least " in error.message
    assert "; 100m leaves no room" in error.message


def test_pod_level_resources_with_just_enough_room_are_accepted(team):
    roomy = {"requests": {"cpu": "110m", "memory": "192Mi"}}
    team.accepts(a_pod("8Gi", resources=roomy, containers=[a_container(resources=GUARANTEED)]))


PLUGINS = "AlwaysPullImages,ExtendedResourceToleration,PodNodeSelector,PodTolerationRestriction"


@pytest.fixture(scope="module")
def strict_control_plane(control_plane):  # skips if there is none
    """Start an API server with plugins that are off by default."""
    with ControlPlane(apiserver_args=[f"--enable-admission-plugins={PLUGINS}"]) as started:
        yield started


@pytest.fixture
def strict_team(strict_control_plane, server):
    """Return a team on that API server, in a namespace with a node selector."""
    name = f"team-{uuid.uuid4().hex[:8]}"
    selector = {"scheduler.alpha.kubernetes.io/node-selector": "zone=a"}
    metadata = {"name": name, "annotations": selector}
    api, our_server = strict_control_plane.api, OurServer(server)
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    strict_control_plane.ensure_service_account(name)
    with installed(api, *our_server.configurations):
        yield Team(api, our_server, name)


def test_plugins_that_are_off_by_default_change_the_pod_and_we_accept_it(strict_team):
    pod = strict_team.accepts(a_pod("8Gi"))
    assert container(pod, "vram-enforcer")["imagePullPolicy"] == "Always"
    assert pod["spec"]["nodeSelector"] == {"vramwarden.io/gpu": "true", "zone": "a"}
    tolerated = {"key": VRAM, "operator": "Exists", "effect": "NoSchedule"}
    assert tolerated in pod["spec"]["tolerations"]
    assert strict_team.calls()[1:] == [("mutate", "allowed", 0), ("validate", "allowed", 0)]
