"""MIG slices and time-slicing replicas, on nodes with the labels of GPU feature discovery."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.control_planes import wait_until
from tests.support.pods import a_container, a_pod
from tests.support.schedulers import add_node, messages, patch, remove_pod, scheduler, wait_bound
from tests.support.webhook_on_cluster import Team, container, knowing, refused, variables
from webhook.core.pod.findings import Reason

SHARING = "nvidia.com/gpu.sharing-strategy"
RULES = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: plugins}
spec:
  rules:
  - {name: sliced, match: {namespaces: ["sliced-*"]}, accounting: MIG}
  - {name: slotted, match: {namespaces: ["slotted-*"]}, accounting: CapOnly}
"""


def sliced(**profiles):
    """Return the labels of a node with slices: MiB by profile, with _ instead of the dot."""
    found = {"nvidia.com/mig.strategy": "mixed", SHARING: "none"}
    for name, mib in profiles.items():
        found[f"nvidia.com/mig-{name[1:].replace('_', '.')}.memory"] = str(mib)
    return found


# Labels, and resources that the device plugin offers. A 1g.10gb slice has more memory on an A100
# with 40 GB than on one with 80 GB.
NODES = {
    "a100-40": (
        sliced(_1g_5gb=4864, _1g_10gb=9856),
        {"nvidia.com/mig-1g.5gb": "7", "nvidia.com/mig-1g.10gb": "1"},
    ),
    "a100-80": (
        sliced(_1g_10gb=9728, _2g_20gb=19968),
        {"nvidia.com/mig-1g.10gb": "7", "nvidia.com/mig-2g.20gb": "3"},
    ),
    "l40s": ({SHARING: "time-slicing", "nvidia.com/gpu.memory": "46068"}, {"nvidia.com/gpu": "4"}),
    "t4": ({SHARING: "time-slicing", "nvidia.com/gpu.memory": "15360"}, {"nvidia.com/gpu": "4"}),
    "whole": ({SHARING: "none", "nvidia.com/gpu.memory": "81920"}, {"nvidia.com/gpu": "8"}),
}


@pytest.fixture(scope="module")
def ours(control_plane, tmp_path_factory):
    """Run a server that watches the cluster, and the stock scheduler."""
    folder = tmp_path_factory.mktemp("plugins")
    for name, (labels, offers) in NODES.items():
        add_node(control_plane.api, name, [], offers, **labels)
    with knowing(control_plane, folder, RULES) as found, scheduler(control_plane, folder):
        wait_until("slices are known", lambda: known(found))
        yield found


def known(our_server):
    """Return the slices in the server's log, in order."""
    return [line for line in our_server.server.log() if line["msg"] == "slices of GPUs"]


@pytest.fixture
def make_team(control_plane, ours, make_namespace):
    made = []

    def make(prefix):
        made.append(Team(control_plane.api, ours, make_namespace(prefix)))
        return made[-1]

    yield make
    for team in made:
        for pod in team.pods():
            remove_pod(team.api, pod)


def limits(pod):
    return container(pod, "main")["resources"]["limits"]


def nodes_of(team, count=1):
    found = wait_bound(team.api, team.namespace, count)
    return sorted(node for node, _ in found.values())


def test_8gi_get_the_small_slice_and_10gi_do_not(make_team):
    team = make_team("sliced")
    small = team.accepts(a_pod("8Gi"))
    assert limits(small) == {"nvidia.com/mig-1g.10gb": "1"}
    assert "initContainers" not in small["spec"]
    large = team.accepts(a_pod("10Gi"))
    assert limits(large) == {"nvidia.com/mig-2g.20gb": "1"}
    wait_bound(team.api, team.namespace, 2)
    nodes = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in team.pods()}
    assert nodes[large["metadata"]["name"]] == "a100-80"


def test_the_same_name_is_taken_only_where_it_has_enough(make_team):
    """9800Mi fit into a 1g.10gb slice of one node, but not of the other."""
    team = make_team("sliced")
    first = team.accepts(a_pod("9800Mi"))
    assert limits(first) == {"nvidia.com/mig-1g.10gb": "1"}
    assert nodes_of(team) == ["a100-40"]
    second = team.accepts(a_pod("9800Mi"))  # this node has only one slice, others have seven
    name = second["metadata"]["name"]
    wait_until("it is said", lambda: messages(team.api, team.namespace, name))
    (said, *_) = messages(team.api, team.namespace, name)
    assert "1 Insufficient nvidia.com/mig-1g.10gb" in said
    assert nodes_of(team) == ["a100-40"]


def test_a_label_that_changes_is_known_at_once(make_team, ours, control_plane):
    """A GPU is partitioned again. Cached decisions are no longer used."""
    team = make_team("sliced")
    for _ in range(3):
        assert limits(team.accepts(a_pod("4Gi"))) == {"nvidia.com/mig-1g.5gb": "1"}
    path, label = "/api/v1/nodes/a100-40", "nvidia.com/mig-1g.5gb.memory"
    for mib, profile in (("4000", "1g.10gb"), ("4864", "1g.5gb")):
        lines = len(known(ours))
        change = {"metadata": {"labels": {label: mib}}}
        patch(control_plane.api, path, change)
        wait_until("it is known", lambda before=lines: len(known(ours)) > before)
        assert limits(team.accepts(a_pod("4Gi"))) == {f"nvidia.com/mig-{profile}": "1"}


def test_what_no_slice_holds_is_denied_with_the_largest_that_is_known(make_team):
    said = make_team("sliced").denies(a_pod("20Gi"), Reason.TOO_LARGE)
    assert "2g.20gb, which allows at most 19968Mi" in said
    selector = {"kubernetes.io/hostname": "a100-40"}
    said = make_team("sliced").denies(a_pod("10Gi", nodeSelector=selector), Reason.TOO_LARGE)
    assert "1g.10gb, which allows at most 9856Mi" in said
    selector = {"kubernetes.io/hostname": "t4"}
    pod = a_pod("10Gi", nodeSelector=selector)
    make_team("sliced").denies(pod, Reason.ENFORCEMENT_IMPOSSIBLE)


def test_a_slot_is_one_of_time_slicing_alone_on_a_gpu_that_is_large_enough(make_team):
    team = make_team("slotted")
    pod = team.accepts(a_pod("20Gi", containers=[a_container(), a_container("side")]))
    assert limits(pod) == {"nvidia.com/gpu": "1"}
    assert [found_container["name"] for found_container in pod["spec"]["initContainers"]] == [
        "vram-enforcer"
    ]
    assert "NVIDIA_VISIBLE_DEVICES" not in variables(container(pod, "main"))
    assert nodes_of(team) == ["l40s"]
    for _ in range(7):
        team.accepts(a_pod("8Gi"))
    assert nodes_of(team, 8) == ["l40s"] * 4 + ["t4"] * 4  # never on a node with whole GPUs


def test_neither_is_changed_by_a_resize_or_an_update(make_team):
    for prefix in ("sliced", "slotted"):
        team = make_team(prefix)
        cpu = {"requests": {"cpu": "5m"}}
        pod = team.accepts(a_pod("8Gi", containers=[a_container(resources=cpu)]))
        team.patch(pod, {"metadata": {"labels": {"a": "b"}}})
        cpu = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "10m"}}}]}
        team.patch(pod, {"spec": cpu}, "/resize")
        change = {"metadata": {"annotations": {"vramwarden.io/gpu-memory": "9Gi"}}}
        assert "Immutable" in str(refused(partial(team.patch, pod, change)))
